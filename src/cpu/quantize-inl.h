// nvfp4_quantize of one row, eight groups at a time: scales first (quantize_scales-inl.h), then
// pairs of neighbours are multiplied and rounded to e2m1 (docs/format.md section 2, steps 5 to 7),
// the first ones in one vector and the second ones in another, so that both land in their byte
// without shuffles. Groups with NaN elements take the scalar way.
//
// Bound: on AVX-512, 7 vector instructions a group of bf16; memory beyond, 41 bytes a group.
#include "cpu/kernels.h"

#if defined(KVSCOUT_QUANTIZE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_QUANTIZE_INL
#undef KVSCOUT_QUANTIZE_INL
#else
#define KVSCOUT_QUANTIZE_INL
#endif

#include <hwy/highway.h>

#include <array>
#include <cstring>

#include "cpu/common-inl.h"
#include "cpu/quantize_scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

// kLanes pairs of neighbours: magnitudes of the first and of the second ones, and their signs in
// bits 3 and 7 (other bits: 0).
struct Pairs {
  VF even, odd;
  VU32 signs;
};
template <Element kType>
HWY_INLINE Pairs load_pairs(const std::uint8_t* x) {
  const DF df;
  const DU32 du;
  if constexpr (kType == Element::f32) {
    const auto* from = reinterpret_cast<const float*>(x);
    const VF a = hn::LoadU(df, from), b = hn::LoadU(df, from + kLanes);
    const VF even = hn::ConcatEven(df, b, a), odd = hn::ConcatOdd(df, b, a);
    const VU32 low = hn::And(hn::ShiftRight<28>(hn::BitCast(du, even)), hn::Set(du, 8u));
    const VU32 high = hn::And(hn::ShiftRight<24>(hn::BitCast(du, odd)), hn::Set(du, 0x80u));
    return {hn::Abs(even), hn::Abs(odd), hn::Or(low, high)};
  } else {
    const VU32 w = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(x));
    const VU32 magnitudes = hn::And(w, hn::Set(du, 0x7FFF7FFFu));
    const VU32 signs = hn::Or(hn::And(hn::ShiftRight<12>(w), hn::Set(du, 8u)),
                              hn::And(hn::ShiftRight<24>(w), hn::Set(du, 0x80u)));
    if constexpr (kType == Element::bf16) {
      return {hn::BitCast(df, hn::ShiftLeft<16>(magnitudes)),
              hn::BitCast(df, hn::And(magnitudes, hn::Set(du, 0xFFFF0000u))), signs};
    } else {
      return {floats_of_f16_magnitudes(hn::And(magnitudes, hn::Set(du, 0xFFFFu))),
              floats_of_f16_magnitudes(hn::ShiftRight<16>(magnitudes)), signs};
    }
  }
}

// Steps 5 and 6 for magnitudes below 7, or of any number with kClamp: e2m1 minus 4 in the lowest 16
// bits, ties to even. Codes count halves up to 2, wholes from 2 to 4 and twos from 4 to 6. Adding
// 2^23 - 2 leaves halves in the low bits of the sum below 2 and wholes from there, since it crosses
// 2^23 there; adding 2^24 leaves twos; both round ties to even, too, and the smaller one is right.
template <bool kClamp>
HWY_INLINE VU32 codes_less_4(VF a) {
  const DF df;
  const DI16 d16;
  if (kClamp) a = hn::Min(a, hn::Set(df, nvfp4::kMaxCode));
  const VI16 fine = hn::BitCast(d16, hn::Add(a, hn::Set(df, 0x1p23f - 2)));
  const VI16 twos = hn::BitCast(d16, hn::Add(a, hn::Set(df, 0x1p24f)));
  return hn::BitCast(DU32(), hn::Min(fine, twos));
}

// The byte of each pair, its bits 0x44 inverted: low nibble = the first.
template <bool kClamp>
HWY_INLINE VU32 bytes_of(const Pairs& x, VF multiplier) {
  const DU32 du;
  const VU32 low = codes_less_4<kClamp>(hn::Mul(x.even, multiplier));
  const VU32 high = codes_less_4<kClamp>(hn::Mul(x.odd, multiplier));
  const VU32 codes = hn::Or(hn::And(low, hn::Set(du, 7u)), hn::ShiftLeft<4>(high));
  return hn::Or(hn::And(codes, hn::Set(du, 0x77u)), x.signs);
}

// Four vectors with one such byte a lane, as the bytes of the format, in the order of the lanes.
HWY_INLINE void store_bytes(VU32 a, VU32 b, VU32 c, VU32 d, std::uint8_t* out) {
  const DU32 du;
  const DU8 d8;
  const VU32 ab = hn::Or(a, hn::ShiftLeft<8>(b));
  const VU32 all = hn::Or(ab, hn::Or(hn::ShiftLeft<16>(c), hn::ShiftLeft<24>(d)));
  alignas(16) static constexpr std::uint8_t kTransposed[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                               2, 6, 10, 14, 3, 7, 11, 15};
  const auto order = hn::LoadDup128(d8, kTransposed);
  const VU32 dwords = hn::BitCast(du, hn::TableLookupBytes(hn::BitCast(d8, all), order));
  constexpr int kBlocks = kLanes / 4;  // dword n of block i belongs to vector n
  alignas(64) static constexpr auto kPlace = [] {
    std::array<std::int32_t, kLanes> place{};
    for (int i = 0; i < kLanes; ++i) place[i] = i % kBlocks * 4 + i / kBlocks;
    return place;
  }();
  const VU32 sorted =
      kBlocks == 1 ? dwords : hn::TableLookupLanes(dwords, hn::SetTableIndices(du, kPlace.data()));
  hn::StoreU(hn::Xor(hn::BitCast(d8, sorted), hn::Set(d8, std::uint8_t{0x44})), d8, out);
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
    VU32 bytes[4];
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      const int group = first + (v + i) * kLanes / 8;
      VF factor = hn::Set(df, multiplier[place_of<kType>(group)]);
      if constexpr (kLanes == 16)
        factor = hn::IfThenElse(hn::FirstN(df, 8), factor,
                                hn::Set(df, multiplier[place_of<kType>(group + 1)]));
      bytes[i] = bytes_of<kClamp>(
          load_pairs<kType>(row + (v + i) * kLanes * (kType == Element::f32 ? 8 : 4)), factor);
    }
    store_bytes(bytes[0], bytes[1], bytes[2], bytes[3], codes + v * kLanes);
  }
}

template <Element kType>
HWY_NOINLINE void floats_of_group(const std::uint8_t* row, float* out) {
  for (int i = 0; i < 16; ++i) {
    if constexpr (kType == Element::f32) {
      std::memcpy(out + i, row + 4 * i, 4);
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, row + 2 * i, 2);
      out[i] = kType == Element::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
    }
  }
}

// One group by the scalar definition: where there is a NaN, and at the end of odd rows.
HWY_NOINLINE std::uint8_t quantize_plain(const float* x, float global, std::uint8_t* codes) {
  float amax = 0;
  bool any = false;
  for (int i = 0; i < 16; ++i) {
    if (nvfp4::is_nan(x[i])) continue;
    const float a = nvfp4::float_of(nvfp4::bits_of(x[i]) & 0x7FFFFFFFu);
    amax = a > amax ? a : amax;
    any = true;
  }
  const std::uint8_t scale = any ? nvfp4::scale_of(amax, global) : nvfp4::kNanScale;
  const float multiplier = any ? nvfp4::multiplier_of(scale, amax, global) : 0.0f;
  for (int i = 0; i < 16; i += 2)
    codes[i / 2] = static_cast<std::uint8_t>(nvfp4::float_to_e2m1(x[i] * multiplier) |
                                             nvfp4::float_to_e2m1(x[i + 1] * multiplier) << 4);
  return scale;
}

// What is known of several eights before their codes: the way to a multiplier is long, and a single
// one would leave the processor waiting for it.
inline constexpr int kMostGroups = 128;
struct Scales {
  alignas(64) std::int32_t largest[kMostGroups];
  alignas(64) float multiplier[kMostGroups];
};

template <Element kType, bool kClamp>
HWY_INLINE void codes_of_groups(const std::uint8_t* row, int groups, const Scales& s,
                                std::uint8_t* codes) {
  constexpr std::int64_t kBytes = kGroupBytes<kType>;
  int g = 0;
  for (; g + kScaleGroups <= groups; g += kScaleGroups)
    for (int e = 0; e < kScaleGroups; e += 8)
      codes_of_eight<kType, kClamp>(row + (g + e) * kBytes, s.multiplier + g, e,
                                    codes + (g + e) * 8);
  if (g < groups)
    codes_of_eight<kType, kClamp>(row + g * kBytes, s.multiplier + g, 0, codes + g * 8);
}

// Where a scaled magnitude reaches 7 (subnormal scales, infinities), and NaN.
template <Element kType>
HWY_NOINLINE void large_codes_of_groups(const std::uint8_t* row, int groups, float global,
                                        const Scales& s, std::uint8_t* codes,
                                        std::uint8_t* scales) {
  codes_of_groups<kType, true>(row, groups, s, codes);
  for (int g = 0; g < groups; ++g) {
    const int at = g / kScaleGroups * kScaleGroups;
    if (s.largest[at + place_of<kType>(g - at)] <= 0x7F800000) continue;
    float x[16];
    floats_of_group<kType>(row + g * kGroupBytes<kType>, x);
    scales[g] = quantize_plain(x, global, codes + g * 8);
  }
}

template <Element kType>
HWY_INLINE void quantize_groups(const std::uint8_t* row, std::int64_t groups, float global,
                                std::uint8_t* codes, std::uint8_t* scales) {
  constexpr std::int64_t kBytes = kGroupBytes<kType>;
  const float inverse_global = 1.0f / global;
  while (groups >= 8) {
    const int count = groups < kMostGroups ? static_cast<int>(groups / 8 * 8) : kMostGroups;
    Scales s;
    std::uint8_t bytes[kMostGroups];
    bool small = true;
    for (int g = 0; g < count; g += kScaleGroups) {
      const std::uint8_t* first = row + g * kBytes;
      const std::uint8_t* next = g + 8 < count ? first + 8 * kBytes : first;
      for (int b = 0; b < kScaleGroups * kBytes; b += 8 * kBytes)
        __builtin_prefetch(first + kBytesAhead + b);
      small &= scales_of_groups<kType>(first, next, global, inverse_global, s.largest + g,
                                       s.multiplier + g, bytes + g);
    }
    std::memcpy(scales, bytes, static_cast<std::size_t>(count));
    if (small)
      codes_of_groups<kType, false>(row, count, s, codes);
    else
      large_codes_of_groups<kType>(row, count, global, s, codes, scales);
    groups -= count, row += count * kBytes, codes += count * 8, scales += count;
  }
  for (; groups > 0; --groups, row += kBytes, codes += 8, ++scales) {
    float x[16];
    floats_of_group<kType>(row, x);
    *scales = quantize_plain(x, global, codes);
  }
}

void quantize(const void* row, Element type, std::int64_t groups, float global, std::uint8_t* codes,
              std::uint8_t* scales) {
  const auto* x = static_cast<const std::uint8_t*>(row);
  if (type == Element::f32) quantize_groups<Element::f32>(x, groups, global, codes, scales);
  if (type == Element::f16) quantize_groups<Element::f16>(x, groups, global, codes, scales);
  if (type == Element::bf16) quantize_groups<Element::bf16>(x, groups, global, codes, scales);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
