// The two vector passes of the selection (topk.h has the whole idea).
#include "cpu/kernels.h"

#if defined(KVSCOUT_TOPK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_TOPK_INL
#undef KVSCOUT_TOPK_INL
#else
#define KVSCOUT_TOPK_INL
#endif

#include <hwy/highway.h>

#include <cstring>
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
// k-th largest score, since k groups hold one that is as large. (Any larger k gives a floor too.)
template <int k>
HWY_INLINE void floor_of_octet(const float* strip, int columns, float* floors) {
  const D8Rows d;
  const V8Rows lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  constexpr int kGroups = k <= kFloorGroups / 2 ? 2 * k : kFloorGroups;
  const int size = columns / kGroups > 0 ? columns / kGroups : 1;
  for (int r = 0; r < 8; r += kTopkLanes) {
    // Sorted insertion without a chain: every place takes the median of itself, its neighbour
    // above, x.
    V8Rows sorted[k];
    for (int i = 0; i < k; ++i) sorted[i] = lowest;
    for (int first = 0; first < columns; first += size) {
      const int end = first + size < columns ? first + size : columns;
      V8Rows x = lowest, y = lowest;
      int c = first;
      for (; c + 2 <= end; c += 2) {
        x = larger_score(x, hn::LoadU(d, strip + 8 * c + r));
        y = larger_score(y, hn::LoadU(d, strip + 8 * c + 8 + r));
      }
      if (c < end) x = larger_score(x, hn::LoadU(d, strip + 8 * c + r));
      x = hn::Max(x, y);
      HWY_UNROLL(64)
      for (int i = k - 1; i > 0; --i) sorted[i] = hn::Max(sorted[i], hn::Min(sorted[i - 1], x));
      sorted[0] = hn::Max(sorted[0], x);
    }
    hn::StoreU(sorted[k - 1], d, floors + r);
  }
}

void floor_of(const float* strip, int columns, int k, float* floors) {
  if (k <= 8) return floor_of_octet<8>(strip, columns, floors);
  if (k <= 16) return floor_of_octet<16>(strip, columns, floors);
  if (k <= 32) return floor_of_octet<32>(strip, columns, floors);
  floor_of_octet<64>(strip, columns, floors);
}

// First one byte a column, then the bits of 32 (or 16) columns at a time sorted by row.
void mark(const float* strip, int columns, const float* floors, std::uint8_t* bits) {
  const D8Rows d;
  const hn::CappedTag<std::uint8_t, 32> d8;
  constexpr int kBytes = static_cast<int>(hn::MaxLanes(d8));
  alignas(64) std::uint8_t byte_of_column[kMarkColumns];
  const V8Rows low = hn::LoadU(d, floors), high = hn::LoadU(d, floors + 8 - kTopkLanes);
  for (int c = 0; c < columns; ++c) {
    const float* x = strip + 8 * c;
    std::uint8_t mask[16];
    hn::StoreMaskBits(d, hn::Ge(hn::LoadU(d, x), low), mask);
    if constexpr (kTopkLanes == 4) {
      hn::StoreMaskBits(d, hn::Ge(hn::LoadU(d, x + 4), high), mask + 8);
      mask[0] = static_cast<std::uint8_t>((mask[0] & 15) | mask[8] << 4);
    }
    byte_of_column[c] = mask[0];
  }
  const int padded = (columns + 63) / 64 * 64;
  for (int c = columns; c < padded; ++c) byte_of_column[c] = 0;
  for (int c = 0; c < padded; c += kBytes) {
    const auto x = hn::Load(d8, byte_of_column + c);
    for (int r = 0; r < 8; ++r) {
      std::uint8_t mask[8];
      hn::StoreMaskBits(d8, hn::TestBit(x, hn::Set(d8, static_cast<std::uint8_t>(1 << r))), mask);
      std::memcpy(bits + r * (kMarkColumns / 8) + c / 8, mask, kBytes / 8);
    }
  }
}

// How many of the n scores (padded with -inf to a multiple of eight) are larger than each.
void count_larger(const float* scores, int n, std::int32_t* counts) {
  const D8Rows d;
  const hn::RebindToSigned<D8Rows> di;
  for (int i = 0; i < n; i += kTopkLanes) {
    const V8Rows mine = hn::LoadU(d, scores + i);
    auto count = hn::Zero(di);
    for (int j = 0; j < n; ++j)
      count = hn::Sub(count,
                      hn::VecFromMask(di, hn::RebindMask(di, hn::Gt(hn::Set(d, scores[j]), mine))));
    hn::StoreU(count, di, counts + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
