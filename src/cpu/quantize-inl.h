// nvfp4_quantize of one row, eight groups at a time: scales first (quantize_scales-inl.h), then
// pairs of neighbours are multiplied and rounded to e2m1 (docs/format.md section 2, steps 5 to 7),
// the first ones in one vector and the second ones in another, so that both land in their byte
// without shuffles. NaN elements take the scalar way.
//
// Bound: memory; 41 bytes a group of bf16.
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
// bits 3 and 7 (other bits: anything).
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
    const VU32 sign_bits = hn::And(w, hn::Set(du, 0x80008000u));
    const VU32 signs = hn::Or(hn::ShiftRight<12>(sign_bits), hn::ShiftRight<24>(sign_bits));
    if constexpr (kType == Element::bf16) {
      return {hn::BitCast(df, hn::ShiftLeft<16>(magnitudes)),
              hn::BitCast(df, hn::And(magnitudes, hn::Set(du, 0xFFFF0000u))), signs};
    } else {
      return {floats_of_f16_magnitudes(hn::And(magnitudes, hn::Set(du, 0xFFFFu))),
              floats_of_f16_magnitudes(hn::ShiftRight<16>(magnitudes)), signs};
    }
  }
}

// Steps 5 and 6 for magnitudes of numbers: e2m1 in the lowest three bits (others: anything), ties
// to even, saturating. Codes count halves up to 2, wholes from 2 to 4 and twos from 4 to 6, so a
// code is the smallest of round(2a), round(a) + 2 and round(a/2) + 4. Each comes from one addition
// that leaves it in the low bits of the sum, with the ties of the addition: also to even.
HWY_INLINE VU32 codes_of(VF magnitude) {
  const DF df;
  const DU16 d16;
  const VF a = hn::Min(magnitude, hn::Set(df, nvfp4::kMaxCode));
  const auto halves = hn::BitCast(d16, hn::Add(a, hn::Set(df, 0x1p22f)));
  const auto wholes = hn::BitCast(d16, hn::Add(a, hn::Set(df, 0x1p23f + 2)));
  const auto twos = hn::BitCast(d16, hn::Add(a, hn::Set(df, 0x1p24f + 8)));
  return hn::BitCast(DU32(), hn::Min(halves, hn::Min(wholes, twos)));
}

// The byte of each pair: low nibble = the first.
HWY_INLINE VU32 bytes_of(const Pairs& x, VF multiplier) {
  const DU32 du;
  const VU32 low = codes_of(hn::Mul(x.even, multiplier));
  const VU32 high = codes_of(hn::Mul(x.odd, multiplier));
  const VU32 codes = hn::And(hn::Or(low, hn::ShiftLeft<4>(high)), hn::Set(du, 0x77u));
  return hn::OrAnd(codes, x.signs, hn::Set(du, 0x88u));
}

// Four vectors with one byte a lane, as bytes in the order of the lanes.
HWY_INLINE void store_bytes(VU32 a, VU32 b, VU32 c, VU32 d, std::uint8_t* out) {
  const DU32 du;
  const DU8 d8;
  const VU32 ab = hn::Or(a, hn::ShiftLeft<8>(b)), cd = hn::Or(c, hn::ShiftLeft<8>(d));
  const VU8 all = hn::BitCast(d8, hn::Or(ab, hn::ShiftLeft<16>(cd)));
  alignas(16) static constexpr std::uint8_t kTransposed[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                               2, 6, 10, 14, 3, 7, 11, 15};
  const VU32 dwords = hn::BitCast(du, hn::TableLookupBytes(all, hn::LoadDup128(d8, kTransposed)));
  constexpr int kBlocks = kLanes / 4;  // dword n of block i belongs to vector n
  alignas(64) static constexpr auto kPlace = [] {
    std::array<std::int32_t, kLanes> place{};
    for (int i = 0; i < kLanes; ++i) place[i] = i % kBlocks * 4 + i / kBlocks;
    return place;
  }();
  const VU32 sorted =
      kBlocks == 1 ? dwords : hn::TableLookupLanes(dwords, hn::SetTableIndices(du, kPlace.data()));
  hn::StoreU(hn::BitCast(d8, sorted), d8, out);
}

template <Element kType>
HWY_INLINE void codes_of_eight(const std::uint8_t* row, const float* multiplier,
                               std::uint8_t* codes) {
  const DF df;
  constexpr int kVectors = 64 / kLanes;  // of pairs
  for (int v = 0; v < kVectors; v += 4) {
    VU32 bytes[4];
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      const float* of_group = multiplier + (v + i) * kLanes / 8;
      VF factor = hn::Set(df, of_group[0]);
      if constexpr (kLanes == 16)
        factor = hn::IfThenElse(hn::FirstN(df, 8), factor, hn::Set(df, of_group[1]));
      bytes[i] = bytes_of(
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

template <Element kType>
HWY_INLINE void quantize_groups(const std::uint8_t* row, std::int64_t groups, float global,
                                std::uint8_t* codes, std::uint8_t* scales) {
  constexpr std::int64_t kBytes = kGroupBytes<kType>;
  const float inverse_global = 1.0f / global;
  // Scales of several eights first: the way to a multiplier is long, and a single one would leave
  // the processor waiting for it.
  constexpr int kEights = 8;
  constexpr int kAhead = 2 * kEights * 8 * kBytes;  // bytes: reading comes in bursts
  std::int64_t first = 0;
  while (first + 8 <= groups) {
    const std::int64_t left = (groups - first) / 8;
    const int eights = left < kEights ? static_cast<int>(left) : kEights;
    alignas(32) float multiplier[kEights][8];
    bool numbers[kEights];
    for (int e = 0; e < eights; ++e) {
      const std::uint8_t* eight = row + (first + 8 * e) * kBytes;
      for (int b = 0; b < 8 * kBytes; b += 64) __builtin_prefetch(eight + kAhead + b);
      numbers[e] = scales_of_eight<kType>(eight, global, inverse_global, multiplier[e],
                                          scales + first + 8 * e);
    }
    for (int e = 0; e < eights; ++e, first += 8) {
      if (numbers[e]) {
        codes_of_eight<kType>(row + first * kBytes, multiplier[e], codes + first * 8);
        continue;
      }
      for (std::int64_t g = first; g < first + 8; ++g) {
        float x[16];
        floats_of_group<kType>(row + g * kBytes, x);
        scales[g] = quantize_plain(x, global, codes + g * 8);
      }
    }
  }
  for (; first < groups; ++first) {
    float x[16];
    floats_of_group<kType>(row + first * kBytes, x);
    scales[first] = quantize_plain(x, global, codes + first * 8);
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
