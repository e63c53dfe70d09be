// nvfp4_quantize of one row, eight groups at a time: the largest magnitudes of eight groups become
// one vector, their scale bytes and multipliers are computed side by side (docs/format.md section
// 2, steps 1 to 4), then each group is multiplied, rounded to e2m1 and packed. NaN elements take
// the scalar way.
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

#include <cstring>

#include "cpu/common-inl.h"
#include "cpu/score_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

// Vectors that hold a group never exceed 8 lanes here, so that a group is a whole number of them.
using DQ = hn::CappedTag<float, 8>;
using DIQ = hn::RebindToSigned<DQ>;
using VQ = hn::Vec<DQ>;
using VIQ = hn::Vec<DIQ>;
inline constexpr int kQuantLanes = static_cast<int>(hn::MaxLanes(DQ()));
inline constexpr int kQuantVectors = 16 / kQuantLanes;

template <class V>
HWY_INLINE VQ floats_of_f16_group(V bits) {
  const DQ df;
  const hn::RebindToUnsigned<DQ> du;
  const hn::RebindToSigned<DQ> di;
  const auto moved = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFFu)));
  const auto value = hn::Mul(hn::BitCast(df, moved), hn::Set(df, 0x1p112f));
  const auto special = hn::Or(moved, hn::Set(du, 0x7F800000u));
  const auto is_special = hn::Gt(hn::BitCast(di, moved), hn::Set(di, (0x7C00 << 13) - 1));
  const auto magnitude =
      hn::IfThenElse(hn::RebindMask(du, is_special), special, hn::BitCast(du, value));
  return hn::BitCast(df, hn::Or(magnitude, hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)))));
}

template <Element kType>
HWY_INLINE void load_group(const std::uint8_t* x, VQ (&out)[kQuantVectors]) {
  const DQ df;
  const hn::RebindToUnsigned<DQ> du;
  const hn::Rebind<std::uint16_t, DQ> d16;
  for (int i = 0; i < kQuantVectors; ++i) {
    if constexpr (kType == Element::f32) {
      out[i] = hn::LoadU(df, reinterpret_cast<const float*>(x) + i * kQuantLanes);
    } else {
      const auto bits = hn::PromoteTo(
          du, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(x) + i * kQuantLanes));
      out[i] = kType == Element::bf16 ? hn::BitCast(df, hn::ShiftLeft<16>(bits))
                                      : floats_of_f16_group(bits);
    }
  }
}

// Steps 5 and 6 for numbers: e2m1, ties to even, saturating, sign kept. Below 2 the codes count
// halves, and adding 2^22 rounds to halves, ties to even; the three codes above are counted.
HWY_INLINE VIQ codes_of(VQ x) {
  const DQ df;
  const DIQ di;
  const VQ a = hn::Abs(x);
  const VIQ bits = hn::BitCast(di, a);  // in the order of the magnitudes
  VIQ code = hn::Min(hn::BitCast(di, hn::Add(a, hn::Set(df, 0x1p22f))), hn::Set(di, 0x4A800004));
  code = hn::Sub(code, hn::VecFromMask(di, hn::Gt(bits, hn::Set(di, 0x40200000))));      // > 2.5
  code = hn::Sub(code, hn::VecFromMask(di, hn::Gt(bits, hn::Set(di, 0x40600000 - 1))));  // >= 3.5
  code = hn::Sub(code, hn::VecFromMask(di, hn::Gt(bits, hn::Set(di, 0x40A00000))));      // > 5
  const hn::RebindToUnsigned<DQ> du;
  const VIQ sign = hn::BitCast(di, hn::ShiftRight<28>(hn::BitCast(du, x)));
  return hn::Or(hn::And(code, hn::Set(di, 7)), hn::And(sign, hn::Set(di, 8)));
}

// The codes of four vectors, two to a byte, low nibble = even element: 2 * kQuantLanes bytes.
HWY_INLINE void store_codes(VIQ a, VIQ b, VIQ c, VIQ d, std::uint8_t* out) {
  const hn::Repartition<std::uint64_t, DQ> d64;
  const hn::Repartition<std::uint8_t, DQ> d8;
  const auto joined = [&](VIQ x)
                          HWY_ATTR {  // the byte of each pair of neighbours, lowest in 64 bits
                            const auto y = hn::BitCast(d64, x);
                            return hn::Or(y, hn::ShiftRight<28>(y));
                          };
  const auto ab = hn::Or(joined(a), hn::ShiftLeft<8>(joined(b)));
  const auto cd = hn::Or(joined(c), hn::ShiftLeft<8>(joined(d)));
  const auto all = hn::BitCast(d8, hn::Or(ab, hn::ShiftLeft<16>(cd)));
  alignas(16) static constexpr std::uint8_t kPick[16] = {0, 8, 1, 9, 2, 10, 3, 11,
                                                         0, 8, 1, 9, 2, 10, 3, 11};
  const auto picked = hn::TableLookupBytes(all, hn::LoadDup128(d8, kPick));
#if HWY_MAX_BYTES >= 32  // words of the two halves take turns
  const hn::FixedTag<std::uint16_t, 8> d16;
  const hn::Half<decltype(d8)> half;
  const auto low = hn::BitCast(d16, hn::LowerHalf(half, picked));
  const auto high = hn::BitCast(d16, hn::UpperHalf(half, picked));
  hn::StoreU(hn::BitCast(half, hn::InterleaveLower(d16, low, high)), half, out);
#else
  const hn::FixedTag<std::uint8_t, 8> eight;
  hn::StoreU(hn::LowerHalf(eight, picked), eight, out);
#endif
}

// The largest of each of four vectors' lanes: one 128-bit block a block.
HWY_INLINE VIQ largest_of_four(VIQ a, VIQ b, VIQ c, VIQ d) {
  const DIQ di;
  const hn::Repartition<std::uint64_t, DQ> d64;
  const auto ab =
      hn::BitCast(d64, hn::Max(hn::InterleaveLower(di, a, b), hn::InterleaveUpper(di, a, b)));
  const auto cd =
      hn::BitCast(d64, hn::Max(hn::InterleaveLower(di, c, d), hn::InterleaveUpper(di, c, d)));
  return hn::Max(hn::BitCast(di, hn::InterleaveLower(d64, ab, cd)),
                 hn::BitCast(di, hn::InterleaveUpper(d64, ab, cd)));
}

// Step 2 and 3: float_to_e4m3 of nvfp4.h, for values that are not NaN.
template <class V>
HWY_INLINE auto scale_bytes_of(V scale) {
  const hn::DFromV<V> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::RebindToUnsigned<decltype(df)> du;
  const auto x = hn::Min(scale, hn::Set(df, 448.0f));
  const auto small =
      hn::Sub(hn::BitCast(di, hn::Add(x, hn::Set(df, 16384.0f))), hn::Set(di, 0x46800000));
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<20>(hn::Add(hn::Add(bits, odd), hn::Set(du, 0x7FFFFu)));
  const auto large = hn::Sub(hn::BitCast(di, rounded), hn::Set(di, 120 << 3));
  return hn::IfThenElse(hn::RebindMask(di, hn::Lt(x, hn::Set(df, 0x1p-6f))), small, large);
}

template <Element kType>
HWY_INLINE void floats_of_group(const std::uint8_t* row, float* out) {
  VQ v[kQuantVectors];
  load_group<kType>(row, v);
  for (int i = 0; i < kQuantVectors; ++i) hn::StoreU(v[i], DQ(), out + i * kQuantLanes);
}

// One group by the scalar definition: where there is a NaN, and at the end of odd rows.
inline std::uint8_t quantize_plain(const float* x, float global, std::uint8_t* codes) {
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

// Scale bytes and multipliers of eight groups; false, and nothing to be used, if one holds a NaN.
template <Element kType>
HWY_INLINE bool scales_of_eight(const std::uint8_t* row, float global, float inverse_global,
                                float* multiplier, std::uint8_t* scales) {
  constexpr std::int64_t kBytes = 16 * (kType == Element::f32 ? 4 : 2);
  const DQ df;
  const DIQ di;
  const hn::Rebind<std::uint8_t, DQ> few_bytes;
  // Magnitudes as integers: their order is that of the floats, with NaN on top.
  VIQ largest[8];
  for (int g = 0; g < 8; ++g) {
    VQ v[kQuantVectors];
    load_group<kType>(row + g * kBytes, v);
    largest[g] = hn::BitCast(di, hn::Abs(v[0]));
    for (int i = 1; i < kQuantVectors; ++i)
      largest[g] = hn::Max(largest[g], hn::BitCast(di, hn::Abs(v[i])));
  }
  const VIQ low = largest_of_four(largest[0], largest[1], largest[2], largest[3]);
  const VIQ high = largest_of_four(largest[4], largest[5], largest[6], largest[7]);
  VIQ amax[8 / kQuantLanes];
#if HWY_MAX_BYTES >= 32
  amax[0] = hn::Max(hn::ConcatLowerLower(di, high, low), hn::ConcatUpperUpper(di, high, low));
#else
  amax[0] = low;
  amax[1] = high;
#endif
  bool numbers = true;
  for (int i = 0; i < 8 / kQuantLanes; ++i) {
    numbers &= hn::AllFalse(di, hn::Gt(amax[i], hn::Set(di, 0x7F800000)));
    const VQ sixth = hn::Mul(hn::BitCast(df, amax[i]), hn::Set(df, nvfp4::float_of(0x3E2AAAABu)));
    const VIQ byte = scale_bytes_of(hn::Mul(hn::Set(df, global), sixth));
    const VQ value = hn::Mul(hn::BitCast(df, hn::ShiftLeft<20>(byte)), hn::Set(df, 0x1p120f));
    const VQ quotient = hn::Div(hn::Set(df, 1.0f), hn::Mul(value, hn::Set(df, inverse_global)));
    const VQ out = hn::Max(hn::Min(quotient, hn::Set(df, nvfp4::float_of(0x7F7FFFFFu))),
                           hn::Set(df, nvfp4::float_of(1u)));
    const auto zero = hn::Eq(byte, hn::Zero(di));
    hn::Store(hn::IfThenZeroElse(hn::RebindMask(df, zero), out), df, multiplier + i * kQuantLanes);
    hn::StoreU(hn::DemoteTo(few_bytes, byte), few_bytes, scales + i * kQuantLanes);
  }
  return numbers;
}

template <Element kType>
HWY_INLINE void codes_of_eight(const std::uint8_t* row, const float* multiplier,
                               std::uint8_t* codes) {
  constexpr std::int64_t kBytes = 16 * (kType == Element::f32 ? 4 : 2);
  const DQ df;
  for (int g = 0; g < 8; g += 4 / kQuantVectors) {
    VIQ code[4];
    for (int n = 0; n < 4 / kQuantVectors; ++n) {
      VQ v[kQuantVectors];
      load_group<kType>(row + (g + n) * kBytes, v);
      const VQ factor = hn::Set(df, multiplier[g + n]);
      for (int i = 0; i < kQuantVectors; ++i)
        code[n * kQuantVectors + i] = codes_of(hn::Mul(v[i], factor));
    }
    store_codes(code[0], code[1], code[2], code[3], codes + g * 8);
  }
}

template <Element kType>
HWY_INLINE void quantize_groups(const std::uint8_t* row, std::int64_t groups, float global,
                                std::uint8_t* codes, std::uint8_t* scales) {
  constexpr std::int64_t kBytes = 16 * (kType == Element::f32 ? 4 : 2);
  const float inverse_global = 1.0f / global;
  // Scales of several eights first: the way to a multiplier is long, and a single one would leave
  // the processor waiting for it.
  constexpr int kEights = 8;
  std::int64_t first = 0;
  while (first + 8 <= groups) {
    const std::int64_t left = (groups - first) / 8;
    const int eights = left < kEights ? static_cast<int>(left) : kEights;
    alignas(32) float multiplier[kEights][8];
    bool numbers[kEights];
    for (int e = 0; e < eights; ++e)
      numbers[e] = scales_of_eight<kType>(row + (first + 8 * e) * kBytes, global, inverse_global,
                                          multiplier[e], scales + first + 8 * e);
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
