// Vector types and the few steps that all score kernels share.
#if defined(KVSCOUT_COMMON_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_COMMON_INL
#undef KVSCOUT_COMMON_INL
#else
#define KVSCOUT_COMMON_INL
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kvscout/float_types.h"
#include "kvscout/nvfp4.h"

#ifndef HWY_FENCE_POINTER
#define HWY_FENCE_POINTER(p) asm volatile("" : "+r"(p))
#define HWY_UNROLL_TEXT(x) _Pragma(#x)
#define HWY_UNROLL(n) HWY_UNROLL_TEXT(GCC unroll n)
#endif

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;
using DU32 = hn::ScalableTag<std::uint32_t>;
using DU64 = hn::ScalableTag<std::uint64_t>;
using DI16 = hn::ScalableTag<std::int16_t>;
using DU16 = hn::ScalableTag<std::uint16_t>;
using DI8 = hn::ScalableTag<std::int8_t>;
using DU8 = hn::ScalableTag<std::uint8_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU32 = hn::Vec<DU32>;
using VI16 = hn::Vec<DI16>;
using VU8 = hn::Vec<DU8>;
using VI8 = hn::Vec<DI8>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));

// Key of each lane where lanes are keys (score_int-inl.h), relative to the first.
alignas(64) inline constexpr std::int32_t kKeyOfLane[16] = {0, 32, 64, 96, 1, 33, 65, 97,
                                                            2, 34, 66, 98, 3, 35, 67, 99};

// The maximum of the contract: x only if it is larger; a NaN never is.
HWY_INLINE VF larger(VF best, VF x) {
#if HWY_ARCH_X86
  return hn::Max(x, best);  // maxps gives its second operand if one is NaN or both are equal
#else
  return hn::IfThenElse(hn::Gt(x, best), x, best);
#endif
}

// x, or -inf in lanes whose key is not below the number of visible keys.
HWY_INLINE VF hide(VF x, VI visible, VI key) {
  const DF df;
  const auto seen = hn::RebindMask(df, hn::Gt(visible, key));
  return hn::IfThenElse(seen, x, hn::Set(df, -__builtin_inff()));
}

// How many keys the rows of a step see, at least and at most.
struct Sight {
  int least, most;
};
HWY_INLINE Sight sight_of(const std::int32_t* visible, int rows) {
  if (!visible) return {kBlock, kBlock};
  Sight s{kBlock, 0};
  for (int r = 0; r < rows; ++r) {
    s.least = visible[r] < s.least ? visible[r] : s.least;
    s.most = visible[r] > s.most ? visible[r] : s.most;
  }
  return s;
}

// Unsigned e4m3 in the low byte of each lane, as floats; NaN for 0x7F.
template <class V>
HWY_INLINE auto scales_of_low_bytes(V bytes) {
  const hn::DFromV<V> du;
  const hn::RebindToFloat<decltype(du)> df;
  const auto magnitude = hn::And(bytes, hn::Set(du, 0x7Fu));
  const auto value = hn::Mul(hn::BitCast(df, hn::ShiftLeft<20>(magnitude)), hn::Set(df, 0x1p120f));
  const auto nan = hn::VecFromMask(du, hn::Eq(magnitude, hn::Set(du, 0x7Fu)));
  return hn::Or(value, hn::BitCast(df, nan));
}

// The scales of 128 keys, from page form to [key][group].
HWY_INLINE void unpack_scales(const std::uint8_t* page, float (*out)[8]) {
  const hn::FixedTag<std::uint32_t, 4> du;
  const hn::FixedTag<float, 4> df;
  for (int half = 0; half < 2; ++half)
    for (int r = 0; r < 32; ++r) {
      // Lane = key r + 32*lane; its four bytes are the groups of this half.
      auto bytes =
          hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(page + half * 512 + r * 16));
      const auto s0 = scales_of_low_bytes(bytes),
                 s1 = scales_of_low_bytes(hn::ShiftRight<8>(bytes));
      const auto s2 = scales_of_low_bytes(hn::ShiftRight<16>(bytes));
      const auto s3 = scales_of_low_bytes(hn::ShiftRight<24>(bytes));
      const auto a0 = hn::InterleaveLower(df, s0, s1), a1 = hn::InterleaveUpper(df, s0, s1);
      const auto b0 = hn::InterleaveLower(df, s2, s3), b1 = hn::InterleaveUpper(df, s2, s3);
      const hn::Repartition<std::uint64_t, decltype(df)> d64;
      const auto a0x = hn::BitCast(d64, a0), a1x = hn::BitCast(d64, a1);
      const auto b0x = hn::BitCast(d64, b0), b1x = hn::BitCast(d64, b1);
      hn::StoreU(hn::BitCast(df, hn::InterleaveLower(d64, a0x, b0x)), df, &out[r][half * 4]);
      hn::StoreU(hn::BitCast(df, hn::InterleaveUpper(d64, a0x, b0x)), df, &out[r + 32][half * 4]);
      hn::StoreU(hn::BitCast(df, hn::InterleaveLower(d64, a1x, b1x)), df, &out[r + 64][half * 4]);
      hn::StoreU(hn::BitCast(df, hn::InterleaveUpper(d64, a1x, b1x)), df, &out[r + 96][half * 4]);
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
