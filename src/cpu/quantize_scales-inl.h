// The scale bytes and multipliers of eight groups (docs/format.md section 2, steps 1 to 4): their
// largest magnitudes become one vector, and the rest is done side by side.
#include "cpu/kernels.h"

#if defined(KVSCOUT_QUANTIZE_SCALES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_QUANTIZE_SCALES_INL
#undef KVSCOUT_QUANTIZE_SCALES_INL
#else
#define KVSCOUT_QUANTIZE_SCALES_INL
#endif

#include <hwy/highway.h>

#include "cpu/common-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

// Scales are computed in at most 8 lanes: those of eight groups are one vector, or two.
using DQ = hn::CappedTag<float, 8>;
using DIQ = hn::RebindToSigned<DQ>;
using VQ = hn::Vec<DQ>;
using VIQ = hn::Vec<DIQ>;
inline constexpr int kQuantLanes = static_cast<int>(hn::MaxLanes(DQ()));
inline constexpr int kQuantVectors = 16 / kQuantLanes;

template <Element kType>
inline constexpr std::int64_t kGroupBytes = 16 * (kType == Element::f32 ? 4 : 2);

// Magnitudes of fp16 in the low half of each lane, as floats.
template <class V>
HWY_INLINE auto floats_of_f16_magnitudes(V bits) {
  const hn::DFromV<V> du;
  const hn::RebindToFloat<decltype(du)> df;
  const hn::RebindToSigned<decltype(du)> di;
  const auto moved = hn::ShiftLeft<13>(bits);
  const auto value = hn::Mul(hn::BitCast(df, moved), hn::Set(df, 0x1p112f));
  const auto special = hn::BitCast(df, hn::Or(moved, hn::Set(du, 0x7F800000u)));
  const auto is_special = hn::Gt(hn::BitCast(di, moved), hn::Set(di, (0x7C00 << 13) - 1));
  return hn::IfThenElse(hn::RebindMask(df, is_special), special, value);
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

// Of floats, as integers: their order is that of the magnitudes, with NaN on top.
HWY_INLINE void largest_of_floats(const std::uint8_t* row, VIQ (&amax)[8 / kQuantLanes]) {
  const DQ df;
  const DIQ di;
  VIQ largest[8];
  HWY_UNROLL(8)
  for (int g = 0; g < 8; ++g) {
    const auto* x = reinterpret_cast<const float*>(row + g * 64);
    largest[g] = hn::BitCast(di, hn::Abs(hn::LoadU(df, x)));
    for (int i = 1; i < kQuantVectors; ++i)
      largest[g] =
          hn::Max(largest[g], hn::BitCast(di, hn::Abs(hn::LoadU(df, x + i * kQuantLanes))));
  }
  const VIQ low = largest_of_four(largest[0], largest[1], largest[2], largest[3]);
  const VIQ high = largest_of_four(largest[4], largest[5], largest[6], largest[7]);
#if HWY_MAX_BYTES >= 32
  amax[0] = hn::Max(hn::ConcatLowerLower(di, high, low), hn::ConcatUpperUpper(di, high, low));
#else
  amax[0] = low;
  amax[1] = high;
#endif
}

// Of 16-bit floats, as 16-bit integers: eight vectors become one by interleaving in 128-bit blocks.
template <Element kType>
HWY_INLINE void largest_of_halves(const std::uint8_t* row, VIQ (&amax)[8 / kQuantLanes]) {
  const hn::CappedTag<std::int16_t, 16> d16;
  const hn::Repartition<std::int32_t, decltype(d16)> d32;
  const hn::Repartition<std::int64_t, decltype(d16)> d64;
  constexpr int kWords = static_cast<int>(hn::MaxLanes(d16));
  const auto magnitude = hn::Set(d16, std::int16_t{0x7FFF});
  hn::Vec<decltype(d16)> x[8];
  HWY_UNROLL(8)
  for (int g = 0; g < 8; ++g) {
    const auto* from = reinterpret_cast<const std::int16_t*>(row + g * 32);
    x[g] = hn::And(hn::LoadU(d16, from), magnitude);
    if constexpr (kWords == 8) x[g] = hn::Max(x[g], hn::And(hn::LoadU(d16, from + 8), magnitude));
  }
  const auto merged = [&](auto d, auto a, auto b) HWY_ATTR {
    const auto low = hn::InterleaveLower(d, hn::BitCast(d, a), hn::BitCast(d, b));
    const auto high = hn::InterleaveUpper(d, hn::BitCast(d, a), hn::BitCast(d, b));
    return hn::Max(hn::BitCast(d16, low), hn::BitCast(d16, high));
  };
  const auto a = merged(d32, merged(d16, x[0], x[1]), merged(d16, x[2], x[3]));
  const auto b = merged(d32, merged(d16, x[4], x[5]), merged(d16, x[6], x[7]));
  const auto all = merged(d64, a, b);  // [group] in each 128-bit block
  const hn::FixedTag<std::int16_t, 8> eight;
#if HWY_MAX_BYTES >= 32
  const auto words = hn::Max(hn::LowerHalf(eight, all), hn::UpperHalf(eight, all));
  const auto parts = [&](int) HWY_ATTR { return words; };
#else
  const hn::Half<decltype(eight)> four;
  const auto parts = [&](int i) HWY_ATTR {
    return i == 0 ? hn::LowerHalf(four, all) : hn::UpperHalf(four, all);
  };
  (void)eight;
#endif
  const DIQ di;
  const hn::RebindToUnsigned<DIQ> du;
  for (int i = 0; i < 8 / kQuantLanes; ++i) {
    const VIQ bits = hn::PromoteTo(di, parts(i));
    amax[i] = kType == Element::bf16
                  ? hn::ShiftLeft<16>(bits)
                  : hn::BitCast(di, floats_of_f16_magnitudes(hn::BitCast(du, bits)));
  }
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

// Scale bytes and multipliers of eight groups; false, and nothing to be used, if one holds a NaN.
template <Element kType>
HWY_INLINE bool scales_of_eight(const std::uint8_t* row, float global, float inverse_global,
                                float* multiplier, std::uint8_t* scales) {
  const DQ df;
  const DIQ di;
  const hn::Rebind<std::uint8_t, DQ> few_bytes;
  VIQ amax[8 / kQuantLanes];
  if constexpr (kType == Element::f32)
    largest_of_floats(row, amax);
  else
    largest_of_halves<kType>(row, amax);
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

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
