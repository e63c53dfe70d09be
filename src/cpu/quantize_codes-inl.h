// Codes of groups whose multipliers are known (docs/format.md section 2, steps 5 to 7). Pairs of
// neighbours are multiplied and rounded to e2m1, the first ones in one vector and the second ones
// in another; sums and signs are narrowed to bytes of four vectors at once, so that nibbles and
// signs are put together for a row of 128 at a time.
//
// Bound: on AVX-512, 69 vector instructions for 128 elements of bf16; beside them, for scales
// (quantize_scales-inl.h), some 30.
#include "cpu/kernels.h"

#if defined(KVSCOUT_QUANTIZE_CODES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_QUANTIZE_CODES_INL
#undef KVSCOUT_QUANTIZE_CODES_INL
#else
#define KVSCOUT_QUANTIZE_CODES_INL
#endif

#include <hwy/highway.h>

#include <array>

#include "cpu/common-inl.h"
#include "cpu/quantize_scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

// Pairs of neighbours, kLanes of them: magnitudes of the first and of the second ones, integers of
// the signs of both, and what the magnitudes are multiplied with.
struct Pairs {
  VF even, odd;
  VI even_signs, odd_signs;
  VF factor;
};
template <Element kType>
HWY_INLINE Pairs load_pairs(const std::uint8_t* x, VF factor) {
  const DF df;
  const DI di;
  const DU32 du;
  if constexpr (kType == Element::f32) {
    const auto* from = reinterpret_cast<const float*>(x);
    const VF a = hn::LoadU(df, from), b = hn::LoadU(df, from + kLanes);
    const VF even = hn::ConcatEven(df, b, a), odd = hn::ConcatOdd(df, b, a);
    return {hn::Abs(even), hn::Abs(odd), hn::BitCast(di, even), hn::BitCast(di, odd), factor};
  } else {
    const VU32 w = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(x));
    const VI first = hn::BitCast(di, hn::ShiftLeft<16>(w)), second = hn::BitCast(di, w);
    if constexpr (kType == Element::bf16) {
      const VU32 magnitude = hn::Set(du, 0x7FFF0000u);
      return {hn::Abs(hn::BitCast(df, first)), hn::BitCast(df, hn::And(w, magnitude)), first,
              second, factor};
    } else {
      return {floats_of_f16_magnitudes(hn::And(w, hn::Set(du, 0x7FFFu))),
              floats_of_f16_magnitudes(hn::And(hn::ShiftRight<16>(w), hn::Set(du, 0x7FFFu))), first,
              second, factor};
    }
  }
}

// Steps 5 and 6 for magnitudes below 7, or of any number with kClamp: e2m1 minus 4 in the lowest 16
// bits of each lane, ties to even, and more than 127 in the others. Codes count halves up to 2,
// wholes from 2 to 4 and twos from 4 to 6. Adding 2^23 - 2 leaves halves in the low bits of the sum
// below 2 and wholes from there, since it crosses 2^23 there; adding 2^24 leaves twos; both round
// ties to even, too, and the smaller one is right.
template <bool kClamp>
HWY_INLINE VI16 codes_less_4(VF a) {
  const DF df;
  const DI16 d16;
  if (kClamp) a = hn::Min(a, hn::Set(df, nvfp4::kMaxCode));
  const VI16 fine = hn::BitCast(d16, hn::Add(a, hn::Set(df, 0x1p23f - 2)));
  const VI16 twos = hn::BitCast(d16, hn::Add(a, hn::Set(df, 0x1p24f)));
  return hn::Min(fine, twos);
}

// Bits of `yes` where those of the mask are set.
template <class V>
HWY_INLINE V chosen_bits(V mask, V yes, V no) {
#if HWY_MAX_BYTES >= 64  // the mask last, or the compiler copies it
  return V{_mm512_ternarylogic_epi32(yes.raw, no.raw, mask.raw, 0xE4)};
#else
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
#endif
}

// Narrows with saturation, 128-bit block by block: first half of a block = a's.
HWY_INLINE VI16 narrowed(VI a, VI b) { return hn::ReorderDemote2To(DI16(), a, b); }
HWY_INLINE VI8 narrowed(VI16 a, VI16 b) {
#if HWY_MAX_BYTES >= 64
  return VI8{_mm512_packs_epi16(a.raw, b.raw)};
#elif HWY_MAX_BYTES >= 32
  return VI8{_mm256_packs_epi16(a.raw, b.raw)};
#elif HWY_ARCH_X86
  return VI8{_mm_packs_epi16(a.raw, b.raw)};
#else
  const hn::Half<DI8> half;
  return hn::Combine(DI8(), hn::DemoteTo(half, b), hn::DemoteTo(half, a));
#endif
}
HWY_INLINE VU8 narrowed_unsigned(VI16 a, VI16 b) {
#if HWY_MAX_BYTES >= 64
  return VU8{_mm512_packus_epi16(a.raw, b.raw)};
#elif HWY_MAX_BYTES >= 32
  return VU8{_mm256_packus_epi16(a.raw, b.raw)};
#elif HWY_ARCH_X86
  return VU8{_mm_packus_epi16(a.raw, b.raw)};
#else
  const hn::Half<DU8> half;
  return hn::Combine(DU8(), hn::DemoteTo(half, b), hn::DemoteTo(half, a));
#endif
}

// The bytes of the pairs of two vectors in 16 bits each, without signs: low nibble = the first.
template <bool kClamp>
HWY_INLINE VI16 codes_of(const Pairs& x, const Pairs& y) {
  const DI16 d16;
  const VI8 low = narrowed(codes_less_4<kClamp>(hn::Mul(x.even, x.factor)),
                           codes_less_4<kClamp>(hn::Mul(y.even, y.factor)));
  const VI8 high = narrowed(codes_less_4<kClamp>(hn::Mul(x.odd, x.factor)),
                            codes_less_4<kClamp>(hn::Mul(y.odd, y.factor)));
  const VI16 both = chosen_bits(hn::Set(d16, static_cast<std::int16_t>(0xFF0F)),
                                hn::BitCast(d16, low), hn::ShiftLeft<4>(hn::BitCast(d16, high)));
  return hn::Xor(both, hn::Set(d16, 0x7F44));  // the upper byte was 127
}

// A bit 7 a pair, of four vectors.
HWY_INLINE VU8 signs_of(VI a, VI b, VI c, VI d) {
  return hn::BitCast(DU8(), narrowed(narrowed(a, b), narrowed(c, d)));
}

// The bytes of the pairs of four vectors, in the order of the format.
template <bool kClamp>
HWY_INLINE void store_bytes(const Pairs& a, const Pairs& b, const Pairs& c, const Pairs& d,
                            std::uint8_t* out) {
  const DU32 du;
  const DU8 d8;
  const DU16 d16;
  const VU8 codes = narrowed_unsigned(codes_of<kClamp>(a, b), codes_of<kClamp>(c, d));
  const VU8 low = signs_of(a.even_signs, b.even_signs, c.even_signs, d.even_signs);
  const VU8 high = signs_of(a.odd_signs, b.odd_signs, c.odd_signs, d.odd_signs);
  const VU8 moved = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, low)));
  VU8 bytes = chosen_bits(hn::Set(d8, std::uint8_t{0x80}), high, codes);
  bytes = chosen_bits(hn::Set(d8, std::uint8_t{0x08}), moved, bytes);
  constexpr int kBlocks = kLanes / 4;  // dword n of block i belongs to vector n
  alignas(64) static constexpr auto kPlace = [] {
    std::array<std::int32_t, kLanes> place{};
    for (int i = 0; i < kLanes; ++i) place[i] = i % kBlocks * 4 + i / kBlocks;
    return place;
  }();
  const VU32 dwords = hn::BitCast(du, bytes);
  const VU32 sorted =
      kBlocks == 1 ? dwords : hn::TableLookupLanes(dwords, hn::SetTableIndices(du, kPlace.data()));
  hn::StoreU(hn::BitCast(d8, sorted), d8, out);
}

// Bytes to ask for ahead. One line of each eight with its scales and the others with its codes: all
// at once would fill the line buffers and leave them idle while codes are made.
inline constexpr int kBytesAhead = 4096;

// Eight groups, the first of which is group `first` of those of `multiplier`.
template <Element kType, bool kClamp>
HWY_INLINE void codes_of_eight(const std::uint8_t* row, const float* multiplier, int first,
                               std::uint8_t* codes) {
  const DF df;
  constexpr int kVectors = 64 / kLanes;  // of pairs
  for (int b = 64; b < 8 * kGroupBytes<kType>; b += 64) __builtin_prefetch(row + kBytesAhead + b);
  HWY_UNROLL(4)
  for (int v = 0; v < kVectors; v += 4) {
    const auto pairs = [&](int i) HWY_ATTR {
      const int group = first + (v + i) * kLanes / 8;
      VF factor = hn::Set(df, multiplier[group]);
      if constexpr (kLanes == 16)
        factor = hn::IfThenElse(hn::FirstN(df, 8), factor, hn::Set(df, multiplier[group + 1]));
      return load_pairs<kType>(row + (v + i) * kLanes * (kType == Element::f32 ? 8 : 4), factor);
    };
    store_bytes<kClamp>(pairs(0), pairs(1), pairs(2), pairs(3), codes + v * kLanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
