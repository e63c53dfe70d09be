// The two vector passes of the selection (topk.h has the whole idea).
#include "cpu/kernels.h"

#if defined(KVSCOUT_TOPK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_TOPK_INL
#undef KVSCOUT_TOPK_INL
#else
#define KVSCOUT_TOPK_INL
#endif

#include <hwy/highway.h>

#include <limits>

#include "cpu/common-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

using D8Rows = hn::CappedTag<float, 8>;
using V8Rows = hn::Vec<D8Rows>;
inline constexpr int kTopkLanes = static_cast<int>(hn::MaxLanes(D8Rows()));

HWY_INLINE V8Rows larger_score(V8Rows best, V8Rows x) {
#if HWY_ARCH_X86
  return hn::Max(x, best);  // a NaN x leaves best
#else
  return hn::IfThenElse(hn::Gt(x, best), x, best);
#endif
}

// Columns fall into at least k groups; of the groups' maxima the k-th largest is a floor of the
// k-th largest score, since k groups hold one that is as large.
void floor_of(const float* strip, std::int64_t stride, int columns, int rows, int k,
              float* floors) {
  const D8Rows d;
  const V8Rows lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const int wanted = k <= kFloorGroups / 2 ? 2 * k : kFloorGroups;
  const int size = columns / wanted > 0 ? columns / wanted : 1;
  for (int r = 0; r < rows; r += kTopkLanes) {
    // Sorted insertion without a chain: every place takes the median of itself, its neighbour
    // above, x.
    V8Rows sorted[kFloorGroups];
    for (int i = 0; i < k; ++i) sorted[i] = lowest;
    for (int first = 0; first < columns; first += size) {
      const int end = first + size < columns ? first + size : columns;
      V8Rows x = lowest;
      for (int c = first; c < end; ++c) x = larger_score(x, hn::LoadU(d, strip + c * stride + r));
      for (int i = k - 1; i > 0; --i) sorted[i] = hn::Max(sorted[i], hn::Min(sorted[i - 1], x));
      sorted[0] = hn::Max(sorted[0], x);
    }
    hn::StoreU(sorted[k - 1], d, floors + r);
  }
}

void mark(const float* strip, std::int64_t stride, int columns, int rows, const float* floors,
          std::uint8_t* marks) {
  const D8Rows d;
  for (int r = 0; r < rows; r += 8) {
    std::uint8_t* out = marks + r / 8 * static_cast<std::int64_t>(columns);
    for (int c = 0; c < columns; ++c) {
      const float* x = strip + c * stride + r;
      std::uint8_t bits[2 * 8] = {};
      hn::StoreMaskBits(d, hn::Ge(hn::LoadU(d, x), hn::LoadU(d, floors + r)), bits);
      if (kTopkLanes == 4) {
        hn::StoreMaskBits(d, hn::Ge(hn::LoadU(d, x + 4), hn::LoadU(d, floors + r + 4)), bits + 8);
        bits[0] = static_cast<std::uint8_t>((bits[0] & 15) | bits[8] << 4);
      }
      out[c] = bits[0];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
