// The scale bytes and multipliers of 8 or 16 groups (docs/format.md section 2, steps 1 to 4): their
// largest magnitudes become one vector, or two, and the rest is done side by side.
#include "cpu/kernels.h"

#if defined(KVSCOUT_QUANTIZE_SCALES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_QUANTIZE_SCALES_INL
#undef KVSCOUT_QUANTIZE_SCALES_INL
#else
#define KVSCOUT_QUANTIZE_SCALES_INL
#endif

#include <hwy/highway.h>

#include <array>

#include "cpu/common-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

// Groups side by side: those of two eights where vectors have 16 lanes.
inline constexpr int kScaleGroups = kLanes == 16 ? 16 : 8, kScaleVectors = kScaleGroups / kLanes;

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

// Vectors of at most 256 bits, which hold whole 128-bit halves of groups only.
using DQ = hn::CappedTag<float, 8>;
using DIQ = hn::RebindToSigned<DQ>;
using VIQ = hn::Vec<DIQ>;
inline constexpr int kQuantLanes = static_cast<int>(hn::MaxLanes(DQ()));

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

// Of eight groups of floats, as integers: their order is that of the magnitudes, with NaN on top.
HWY_INLINE void largest_of_floats(const std::uint8_t* row, std::int32_t* amax) {
  const DQ df;
  const DIQ di;
  VIQ largest[8];
  HWY_UNROLL(8)
  for (int g = 0; g < 8; ++g) {
    const auto* x = reinterpret_cast<const float*>(row + g * 64);
    largest[g] = hn::BitCast(di, hn::Abs(hn::LoadU(df, x)));
    for (int i = 1; i < 16 / kQuantLanes; ++i)
      largest[g] =
          hn::Max(largest[g], hn::BitCast(di, hn::Abs(hn::LoadU(df, x + i * kQuantLanes))));
  }
  const VIQ low = largest_of_four(largest[0], largest[1], largest[2], largest[3]);
  const VIQ high = largest_of_four(largest[4], largest[5], largest[6], largest[7]);
#if HWY_MAX_BYTES >= 32
  hn::Store(hn::Max(hn::ConcatLowerLower(di, high, low), hn::ConcatUpperUpper(di, high, low)), di,
            amax);
#else
  hn::Store(low, di, amax);
  hn::Store(high, di, amax + 4);
#endif
}

// Of 16-bit floats, as 16-bit integers: eight vectors become one by interleaving in 128-bit blocks.
template <Element kType>
HWY_INLINE void largest_of_halves(const std::uint8_t* row, const std::uint8_t* next,
                                  VI (&amax)[kScaleVectors]) {
  const DI16 d16;
  const hn::Repartition<std::int32_t, DI16> d32;
  const hn::Repartition<std::int64_t, DI16> d64;
  constexpr int kWords = 2 * kLanes;
  const auto magnitude = hn::Set(d16, std::int16_t{0x7FFF});
  VI16 x[8];
  HWY_UNROLL(8)
  for (int v = 0; v < 8; ++v) {
    const std::uint8_t* bytes =
        kWords == 32 && v >= 4 ? next + (v - 4) * 64 : row + v * (kWords == 32 ? 64 : 32);
    const auto* from = reinterpret_cast<const std::int16_t*>(bytes);
    x[v] = hn::And(hn::LoadU(d16, from), magnitude);
    if constexpr (kWords == 8) x[v] = hn::Max(x[v], hn::And(hn::LoadU(d16, from + 8), magnitude));
  }
  const auto merged = [&](auto d, auto a, auto b) HWY_ATTR {
    const auto low = hn::InterleaveLower(d, hn::BitCast(d, a), hn::BitCast(d, b));
    const auto high = hn::InterleaveUpper(d, hn::BitCast(d, a), hn::BitCast(d, b));
    return hn::Max(hn::BitCast(d16, low), hn::BitCast(d16, high));
  };
  const auto a = merged(d32, merged(d16, x[0], x[1]), merged(d16, x[2], x[3]));
  const auto b = merged(d32, merged(d16, x[4], x[5]), merged(d16, x[6], x[7]));
  const auto all = merged(d64, a, b);  // [vector] in each 128-bit block
#if HWY_MAX_BYTES >= 64  // blocks 0 and 1 are of groups 0, 2, 4 ..., 2 and 3 of the others
  const auto words = hn::Max(all, hn::SwapAdjacentBlocks(all));
  alignas(64) static constexpr auto kPlace = [] {  // word of each half of each group's lane
    std::array<std::uint16_t, 32> place{};
    for (int i = 0; i < 32; ++i) place[i] = static_cast<std::uint16_t>(i / 2 % 2 * 16 + i / 4);
    return place;
  }();
  constexpr __mmask32 kHalf = kType == Element::bf16 ? 0xAAAAAAAA : 0x55555555;
  const VI bits{_mm512_maskz_permutexvar_epi16(kHalf, _mm512_load_si512(kPlace.data()), words.raw)};
  amax[0] = kType == Element::bf16
                ? bits
                : hn::BitCast(DI(), floats_of_f16_magnitudes(hn::BitCast(DU32(), bits)));
#else
  const hn::Rebind<std::int16_t, DI> few;
#if HWY_MAX_BYTES >= 32
  const auto words = hn::Max(hn::LowerHalf(few, all), hn::UpperHalf(few, all));
  const auto part = [&](int) HWY_ATTR { return words; };
#else
  const auto part = [&](int i) HWY_ATTR {
    return i == 0 ? hn::LowerHalf(few, all) : hn::UpperHalf(few, all);
  };
#endif
  const DI di;
  for (int i = 0; i < kScaleVectors; ++i) {
    const VI bits = hn::PromoteTo(di, part(i));
    amax[i] = kType == Element::bf16
                  ? hn::ShiftLeft<16>(bits)
                  : hn::BitCast(di, floats_of_f16_magnitudes(hn::BitCast(DU32(), bits)));
  }
#endif
}

// The low byte of each lane.
HWY_INLINE void store_low_bytes(VI x, std::uint8_t* out) {
#if HWY_MAX_BYTES >= 64
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(x.raw));
#else
  const hn::Rebind<std::uint8_t, DI> few;
  hn::StoreU(hn::DemoteTo(few, x), few, out);
#endif
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

// Scale bytes, largest magnitudes and multipliers of the eight groups at `row` and, where there are
// 16, at `next`. True if no scaled magnitude reaches 7, which also excludes NaN.
template <Element kType>
HWY_INLINE bool scales_of_groups(const std::uint8_t* row, const std::uint8_t* next, float global,
                                 float inverse_global, std::int32_t* largest, float* multiplier,
                                 std::uint8_t* scales) {
  const DF df;
  const DI di;
  VI amax[kScaleVectors];
  if constexpr (kType == Element::f32) {
    largest_of_floats(row, largest);
    if (kScaleGroups == 16) largest_of_floats(next, largest + 8);
    for (int i = 0; i < kScaleVectors; ++i) amax[i] = hn::Load(di, largest + i * kLanes);
  } else {
    largest_of_halves<kType>(row, next, amax);
  }
  bool small = true;
  for (int i = 0; i < kScaleVectors; ++i) {
    const VF sixth = hn::Mul(hn::BitCast(df, amax[i]), hn::Set(df, nvfp4::float_of(0x3E2AAAABu)));
    const VI byte = scale_bytes_of(hn::Mul(hn::Set(df, global), sixth));
    const VF value = hn::Mul(hn::BitCast(df, hn::ShiftLeft<20>(byte)), hn::Set(df, 0x1p120f));
    const VF quotient = hn::Div(hn::Set(df, 1.0f), hn::Mul(value, hn::Set(df, inverse_global)));
    const VF bounded = hn::Max(hn::Min(quotient, hn::Set(df, nvfp4::float_of(0x7F7FFFFFu))),
                               hn::Set(df, nvfp4::float_of(1u)));
    const auto zero = hn::Eq(byte, hn::Zero(di));
    const VF factor = hn::IfThenZeroElse(hn::RebindMask(df, zero), bounded);
    small &= hn::AllTrue(df, hn::Lt(hn::Mul(hn::BitCast(df, amax[i]), factor), hn::Set(df, 7.0f)));
    hn::Store(factor, df, multiplier + i * kLanes);
    hn::Store(amax[i], di, largest + i * kLanes);
    store_low_bytes(byte, scales + i * kLanes);
  }
  return small;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
