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

using FourFloats = hn::FixedTag<float, 4>;

// Vectors that hold a group never exceed 8 lanes here, so that a group is a whole number of them.
using DQ = hn::CappedTag<float, 8>;
using VQ = hn::Vec<DQ>;
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
// halves, and adding 2^22 rounds to halves; from 1 on, rounding the bit pattern to one mantissa bit
// gives them.
template <class VI32>
HWY_INLINE VI32 codes_of(VQ x) {
  const DQ df;
  const hn::RebindToSigned<DQ> di;
  const hn::RebindToUnsigned<DQ> du;
  const VQ a = hn::Min(hn::Abs(x), hn::Set(df, 6.0f));
  const auto halves =
      hn::Sub(hn::BitCast(di, hn::Add(a, hn::Set(df, 0x1p22f))), hn::Set(di, 0x4A800000));
  const auto bits = hn::BitCast(du, a);
  const auto odd = hn::And(hn::ShiftRight<22>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<22>(hn::Add(hn::Add(bits, odd), hn::Set(du, 0x1FFFFFu)));
  const auto large = hn::Sub(hn::BitCast(di, rounded), hn::Set(di, 252));
  const auto magnitude = hn::Max(large, hn::Min(halves, hn::Set(di, 2)));
  const auto sign = hn::And(hn::ShiftRight<28>(hn::BitCast(du, x)), hn::Set(du, 8u));
  return hn::Or(magnitude, hn::BitCast(di, sign));
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

// A group that holds a NaN: the scalar definition.
inline std::uint8_t quantize_odd_group(const float* x, float global, std::uint8_t* codes) {
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
  constexpr std::int64_t kBytes = 16 * (kType == Element::f32 ? 4 : 2);
  const DQ df;
  const hn::RebindToSigned<DQ> di;
  const hn::Repartition<std::int8_t, DQ> d8;
  const hn::Rebind<std::uint8_t, DQ> few_bytes;
  const float inverse_global = 1.0f / global;
  for (std::int64_t first = 0; first < groups; first += 8) {
    const int count = groups - first < 8 ? static_cast<int>(groups - first) : 8;
    alignas(32) float x[8][16], amax[8], multiplier[8];
    alignas(32) std::uint8_t bytes[8];
    bool has_nan = false;
    for (int g = 0; g < 8; ++g) amax[g] = 0;
    for (int g = 0; g < count; ++g) {
      VQ v[kQuantVectors];
      load_group<kType>(row + (first + g) * kBytes, v);
      // Magnitudes as integers: their order is that of the floats, with NaN on top.
      auto largest = hn::BitCast(di, hn::Abs(v[0]));
      for (int i = 0; i < kQuantVectors; ++i) {
        largest = hn::Max(largest, hn::BitCast(di, hn::Abs(v[i])));
        hn::Store(v[i], df, x[g] + i * kQuantLanes);
      }
      const std::int32_t bits = hn::GetLane(hn::MaxOfLanes(di, largest));
      std::memcpy(&amax[g], &bits, 4);
      has_nan |= bits > 0x7F800000;
    }
    for (int g = 0; g < 8; g += kQuantLanes) {
      const VQ m = hn::Load(df, amax + g);
      const VQ sixth = hn::Mul(m, hn::Set(df, nvfp4::float_of(0x3E2AAAABu)));
      const auto byte = scale_bytes_of(hn::Mul(hn::Set(df, global), sixth));
      const VQ value = hn::Mul(hn::BitCast(df, hn::ShiftLeft<20>(byte)), hn::Set(df, 0x1p120f));
      const VQ quotient = hn::Div(hn::Set(df, 1.0f), hn::Mul(value, hn::Set(df, inverse_global)));
      const VQ out = hn::Max(hn::Min(quotient, hn::Set(df, nvfp4::float_of(0x7F7FFFFFu))),
                             hn::Set(df, nvfp4::float_of(1u)));
      const auto zero = hn::Eq(byte, hn::Zero(di));
      hn::Store(hn::IfThenZeroElse(hn::RebindMask(df, zero), out), df, multiplier + g);
      hn::StoreU(hn::DemoteTo(few_bytes, byte), few_bytes, bytes + g);
    }
    std::memcpy(scales + first, bytes, static_cast<std::size_t>(count));
    for (int g = 0; g < count; ++g) {
      std::uint8_t* out = codes + (first + g) * 8;
      if (has_nan) {
        bool odd = false;
        for (int i = 0; i < 16; ++i) odd |= nvfp4::is_nan(x[g][i]);
        if (odd) {
          scales[first + g] = quantize_odd_group(x[g], global, out);
          continue;
        }
      }
      const VQ factor = hn::Set(df, multiplier[g]);
      // Codes of 16 elements, then neighbours joined: low nibble = even element.
      alignas(32) std::int32_t code[16];
      for (int i = 0; i < kQuantVectors; ++i)
        hn::Store(
            codes_of<hn::Vec<decltype(di)>>(hn::Mul(hn::Load(df, x[g] + i * kQuantLanes), factor)),
            di, code + i * kQuantLanes);
      for (int i = 0; i < 8; ++i)
        out[i] = static_cast<std::uint8_t>(code[2 * i] | code[2 * i + 1] << 4);
    }
  }
  (void)d8;
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
