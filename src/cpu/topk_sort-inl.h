// Sorting networks whose lanes are rows, eight of them, for selections.
#if defined(KVSCOUT_TOPK_SORT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_TOPK_SORT_INL
#undef KVSCOUT_TOPK_SORT_INL
#else
#define KVSCOUT_TOPK_SORT_INL
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "cpu/common-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

using D8Rows = hn::CappedTag<float, 8>;
using V8Rows = hn::Vec<D8Rows>;
inline constexpr int kTopkLanes = static_cast<int>(hn::MaxLanes(D8Rows()));

// x[a] becomes the larger one of each row, x[b] the smaller one.
HWY_INLINE void exchange(V8Rows& a, V8Rows& b) {
  const V8Rows larger = hn::Max(a, b);
  b = hn::Min(a, b);
  a = larger;
}

// Batcher's odd-even merge sort, descending: no branches, and as many rows as lanes side by side.
// Up to 16 places all in registers (not where sanitizers would make that a minute of compiling).
#ifdef KVSCOUT_SANITIZED
inline constexpr int kUnrolled = 1;
#else
inline constexpr int kUnrolled = 16;
#endif
template <int n, int step>
HWY_INLINE void merge_sorted(V8Rows* x) {
  if constexpr (2 * step < n) {
    merge_sorted<n, 2 * step>(x);
    merge_sorted<n, 2 * step>(x + step);
    HWY_UNROLL(16)
    for (int i = step; i + step < n; i += 2 * step) exchange(x[i], x[i + step]);
  } else {
    exchange(x[0], x[step]);
  }
}
HWY_INLINE void sort_in_memory(V8Rows* x, int n) {
  for (int size = 1; size < n; size *= 2)
    for (V8Rows* block = x; block < x + n; block += 2 * size) {
      for (int i = 0; i < size; ++i) exchange(block[i], block[i + size]);
      for (int step = size / 2; step > 0; step /= 2)
        for (int j = step; j + step < 2 * size; j += 2 * step)
          for (int i = j; i < j + step; ++i) exchange(block[i], block[i + step]);
    }
}
template <int n>
HWY_INLINE void sort(V8Rows* x) {
  if constexpr (n > kUnrolled) {
    sort_in_memory(x, n);
  } else if constexpr (n > 1) {
    sort<n / 2>(x);
    sort<n / 2>(x + n / 2);
    merge_sorted<n, 1>(x);
  }
}

// The k largest of 2k in two sorted halves, in no order.
template <int k>
HWY_INLINE void keep_largest(V8Rows* best, const V8Rows* x) {
  HWY_UNROLL(16)
  for (int i = 0; i < k; ++i) best[i] = hn::Max(best[i], x[k - 1 - i]);
}
// That order is one that n/2 exchanges at a time put right.
template <int n>
HWY_INLINE void sort_bitonic(V8Rows* x) {
  if constexpr (n > kUnrolled) {
    for (int step = n / 2; step > 0; step /= 2)
      for (int i = 0; i < n; ++i)
        if (!(i & step)) exchange(x[i], x[i + step]);
  } else if constexpr (n > 1) {
    HWY_UNROLL(16)
    for (int i = 0; i < n / 2; ++i) exchange(x[i], x[i + n / 2]);
    sort_bitonic<n / 2>(x);
    sort_bitonic<n / 2>(x + n / 2);
  }
}

// Entries 0 .. k-1 of eight rows, rows side by side.
template <int k>
HWY_INLINE void load_turned(const float* const* rows, V8Rows* out) {
  const D8Rows d;
  const hn::Repartition<std::uint64_t, D8Rows> d64;
  for (int i = 0; i < k; i += kTopkLanes) {
    V8Rows quarter[2][4];  // entries i .. i+3 (and, in a second block, i+4 ..) of four rows
    for (int four = 0; four < kTopkLanes / 4; ++four) {
      const float* const* r = rows + 4 * four;
      const V8Rows r0 = hn::LoadU(d, r[0] + i), r1 = hn::LoadU(d, r[1] + i);
      const V8Rows r2 = hn::LoadU(d, r[2] + i), r3 = hn::LoadU(d, r[3] + i);
      const auto a = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
      const auto b = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
      const auto e = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
      const auto f = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
      quarter[four][0] = hn::BitCast(d, hn::InterleaveLower(d64, a, b));
      quarter[four][1] = hn::BitCast(d, hn::InterleaveUpper(d64, a, b));
      quarter[four][2] = hn::BitCast(d, hn::InterleaveLower(d64, e, f));
      quarter[four][3] = hn::BitCast(d, hn::InterleaveUpper(d64, e, f));
    }
    for (int j = 0; j < 4; ++j) {
      if constexpr (kTopkLanes == 8) {
        out[i + j] = hn::ConcatLowerLower(d, quarter[1][j], quarter[0][j]);
        out[i + 4 + j] = hn::ConcatUpperUpper(d, quarter[1][j], quarter[0][j]);
      } else {
        out[i + j] = quarter[0][j];
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
