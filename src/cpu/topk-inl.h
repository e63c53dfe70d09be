// The vector passes of the selection (topk.h has the whole idea).
#include "cpu/kernels.h"

#if defined(KVSCOUT_TOPK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_TOPK_INL
#undef KVSCOUT_TOPK_INL
#else
#define KVSCOUT_TOPK_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "cpu/common-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

using D8Rows = hn::CappedTag<float, 8>;
using V8Rows = hn::Vec<D8Rows>;
inline constexpr int kTopkLanes = static_cast<int>(hn::MaxLanes(D8Rows()));
inline constexpr int kVectorColumns = kLanes == 16 ? 2 : 1;  // columns of eight rows in a vector

HWY_INLINE V8Rows larger_score(V8Rows best, V8Rows x) {
#if HWY_ARCH_X86
  return hn::Max(x, best);  // a NaN x leaves best
#else
  return hn::IfThenElse(hn::Gt(x, best), x, best);
#endif
}

// So many octets of one column.
HWY_INLINE void copy_octets(const float* from, int octets, float* to) {
  const D8Rows d;
  HWY_UNROLL(8)
  for (int o = 0; o < octets; ++o)
    for (int r = 0; r < 8; r += kTopkLanes)
      hn::StoreU(hn::LoadU(d, from + 8 * o + r), d, to + o * ColumnCopy::kOctet + r);
}
// Eight octets of two columns, a whole line each where vectors are that wide.
HWY_INLINE void copy_two(const float* from, const float* second, float* to) {
#if HWY_MAX_BYTES >= 64
  const DF df;
  const D8Rows d;
  HWY_UNROLL(8)
  for (int o = 0; o < 8; ++o)
    hn::StoreU(hn::Combine(df, hn::LoadU(d, second + 8 * o), hn::LoadU(d, from + 8 * o)), df,
               to + o * ColumnCopy::kOctet);
#else
  copy_octets(from, 8, to);
  copy_octets(second, 8, to + 8);
#endif
}
HWY_INLINE void prefetch_column(const ColumnCopy& copy, const float* from) {
  // Columns to ask for ahead, since no hardware prefetcher follows them: of memory, and of the
  // second-level cache. (Columns a page apart share few sets of the first-level one.)
  constexpr int kFar = 24, kNear = 4;
  const float* far = from + (copy.columns > kFar ? kFar * copy.stride : 0);
  const float* near = from + (copy.columns > kNear ? kNear * copy.stride : 0);
  for (int o = 0; o < copy.octets; o += 2) __builtin_prefetch(near + 8 * o);
  for (int o = 0; o < copy.octets; o += 2) __builtin_prefetch(far + 8 * o, 0, 2);
}
// The next columns. Two at a time, at 32 places of what an octet takes, are all of a strip's 512.
constexpr int kTakenAlong = 2;
HWY_INLINE void copy_some(ColumnCopy& copy, int columns = kTakenAlong) {
  for (; columns > 1 && copy.columns > 1 && copy.octets == 8; columns -= 2, copy.columns -= 2) {
    const float* second = copy.from + copy.stride;
    prefetch_column(copy, copy.from);
    prefetch_column(copy, second);
    copy_two(copy.from, second, copy.strip);
    copy.from = second + copy.stride;
    copy.strip += 16;
  }
  for (; columns > 0 && copy.columns > 0; --columns, --copy.columns) {
    prefetch_column(copy, copy.from);
    copy_octets(copy.from, copy.octets, copy.strip);
    copy.from += copy.stride;
    copy.strip += 8;
  }
}
void copy_columns(ColumnCopy& copy) { copy_some(copy, copy.columns); }

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

// Columns fall into 2k groups; of the groups' maxima the k-th largest is a floor of the k-th
// largest score, since k groups hold one that is as large. (Any larger k gives a floor too.)
template <int k>
HWY_NOINLINE void floor_of_octet(const float* strip, int columns, float* floors, ColumnCopy& copy) {
  const DF df;
  const D8Rows d;
  const auto first_of = [&](int group) {
    return group == 2 * k ? columns : group * columns / (2 * k) / kVectorColumns * kVectorColumns;
  };
  for (int r = 0; r < 8; r += kTopkLanes) {
    V8Rows half[2][k];
    int c = 0;
    for (int g = 0; g < 2 * k; ++g) {
      VF x = hn::Set(df, -std::numeric_limits<float>::infinity()), y = x;
      const int end = first_of(g + 1);
      if (g % (k / 4) == 0) copy_some(copy);
      for (; c + 2 * kVectorColumns <= end; c += 2 * kVectorColumns) {
        x = larger(x, hn::LoadU(df, strip + 8 * c + r));
        y = larger(y, hn::LoadU(df, strip + 8 * (c + kVectorColumns) + r));
      }
      x = hn::Max(x, y);
#if HWY_MAX_BYTES >= 64
      V8Rows best = hn::Max(hn::LowerHalf(d, x), hn::UpperHalf(d, x));
#else
      V8Rows best = x;
#endif
      for (; c < end; ++c) best = larger_score(best, hn::LoadU(d, strip + 8 * c + r));
      half[g / k][g % k] = best;
    }
    sort<k>(half[0]);
    sort<k>(half[1]);
    keep_largest<k>(half[0], half[1]);
    V8Rows least = half[0][0];
    for (int i = 1; i < k; ++i) least = hn::Min(least, half[0][i]);
    hn::StoreU(least, d, floors + r);
  }
}

void floor_of(const float* strip, int columns, int k, float* floors, ColumnCopy& copy) {
  if (k <= 8) return floor_of_octet<8>(strip, columns, floors, copy);
  if (k <= 16) return floor_of_octet<16>(strip, columns, floors, copy);
  if (k <= 32) return floor_of_octet<32>(strip, columns, floors, copy);
  floor_of_octet<64>(strip, columns, floors, copy);
}

// First one byte a column, then the bits of a vector of columns sorted by row.
void mark(const float* strip, int columns, const float* floors, std::uint8_t* bits,
          ColumnCopy& copy) {
  const DF df;
  const DU8 d8;
  constexpr int kBytes = static_cast<int>(hn::MaxLanes(d8));
  alignas(64) std::uint8_t byte_of_column[kMarkColumns];
  alignas(64) float twice[16];
  for (int i = 0; i < 16; ++i) twice[i] = floors[i % 8];
  const VF low = hn::Load(df, twice), high = hn::Load(df, twice + 8 - kTopkLanes);
  const auto mark_vector = [&](int c) HWY_ATTR {
    const float* x = strip + 8 * c;
    std::uint8_t mask[16];
    hn::StoreMaskBits(df, hn::Ge(hn::LoadU(df, x), low), mask);
    if constexpr (kTopkLanes == 4) {
      hn::StoreMaskBits(df, hn::Ge(hn::LoadU(df, x + 4), high), mask + 8);
      mask[0] = static_cast<std::uint8_t>((mask[0] & 15) | mask[8] << 4);
    }
    std::memcpy(byte_of_column + c, mask, kVectorColumns);
  };
  int c = 0;
  for (; c + 64 <= columns; c += 64) {
    copy_some(copy);
    HWY_UNROLL(16)
    for (int i = 0; i < 64; i += kVectorColumns) mark_vector(c + i);
  }
  if (c < columns) copy_some(copy);
  for (; c < columns; c += kVectorColumns) mark_vector(c);
  const int padded = (columns + 63) / 64 * 64;
  for (c = columns; c < padded; ++c) byte_of_column[c] = 0;
  for (c = 0; c < padded; c += kBytes) {
    const auto x = hn::Load(d8, byte_of_column + c);
    for (int r = 0; r < 8; ++r) {
      std::uint8_t mask[8];
      hn::StoreMaskBits(d8, hn::TestBit(x, hn::Set(d8, static_cast<std::uint8_t>(1 << r))), mask);
      std::memcpy(bits + r * (kMarkColumns / 8) + c / 8, mask, kBytes / 8);
    }
  }
}

// Marks of a row's columns c0 to c0 + 63.
HWY_INLINE std::uint64_t marks_of(const OctetChoice& c, int row, int c0) {
  std::uint64_t word;
  std::memcpy(&word, c.bits + row * (kMarkColumns / 8) + c0 / 8, 8);
  return word;
}

// Branches that depend on scores would be mispredicted every other time; so every word gives four
// columns, of which as many count as it has bits. Past the last bit that is the column after the
// word's.
int list_marks(const std::uint8_t* bits, int columns, std::int32_t* list) {
  std::int32_t* next = list;
  for (int c0 = 0; c0 < columns; c0 += 64) {
    std::uint64_t word;
    std::memcpy(&word, bits + c0 / 8, 8);
    const int marked = std::popcount(word);
    const auto take = [&](int i) {
      next[i] = c0 + std::countr_zero(word);
      word &= word - 1;
    };
    take(0), take(1), take(2), take(3);
    for (int i = 4; i < marked; ++i) take(i);
    next += marked;
  }
  for (int i = 0; i < kMoreListed; ++i) next[i] = 0;
  return static_cast<int>(next - list);
}

// Candidates of a row, kept ones first, in the order of their ids.
struct Candidates {
  int count = 0;
  float scores[kMostCandidates + 2 * kMoreListed];
  std::int32_t ids[kMostCandidates + 2 * kMoreListed];
};

// A row's candidates; behind them, to a multiple of `batch`, -inf.
HWY_INLINE void gather(const OctetChoice& c, int row, int batch, Candidates& out) {
  const DF df;
  const int kept = c.counts[row];
  std::copy_n(c.scores + row * c.stride, kept, out.scores);
  std::copy_n(c.ids + row * c.stride, kept, out.ids);
  float* scores = out.scores + kept;
  std::int32_t* ids = out.ids + kept;
  const int listed = c.list_marks(c.bits + row * (kMarkColumns / 8), c.columns, ids);
  const float* strip = c.strip + row;
  for (int i = 0; i < listed; i += 4)  // (instructions that gather take longer)
    for (int j = i; j < i + 4; ++j) {
      scores[j] = strip[8 * static_cast<std::ptrdiff_t>(ids[j])];
      ids[j] += c.first;
    }
  out.count = kept + listed;
  for (int i = out.count; i < (out.count + batch - 1) / batch * batch; i += kLanes)
    hn::StoreU(hn::Set(df, -std::numeric_limits<float>::infinity()), df, out.scores + i);
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

// The candidates that reach the threshold; of equal ones the first, where they are more than
// `room`.
HWY_INLINE void keep(const OctetChoice& c, int row, const Candidates& from, float threshold) {
  const D8Rows d;
  const hn::RebindToSigned<D8Rows> di;
  float* scores = c.scores + row * c.stride;
  std::int32_t* ids = c.ids + row * c.stride;
  const auto in = [&](int i) HWY_ATTR {
    return hn::And(hn::Ge(hn::LoadU(d, from.scores + i), hn::Set(d, threshold)),
                   hn::FirstN(d, static_cast<std::size_t>(from.count - i)));
  };
  int n = 0;
  for (int i = 0; i < from.count; i += kTopkLanes) n += static_cast<int>(hn::CountTrue(d, in(i)));
  int ties = 0;
  if (n > c.room[row]) {
    ties = c.room[row];
    for (int i = 0; i < from.count; ++i) ties -= from.scores[i] > threshold;
  }
  n = 0;
  if (ties == 0) {
    for (int i = 0; i < from.count; i += kTopkLanes) {
      const auto chosen = in(i);
      hn::CompressBlendedStore(hn::LoadU(di, from.ids + i), hn::RebindMask(di, chosen), di,
                               ids + n);
      n += static_cast<int>(
          hn::CompressBlendedStore(hn::LoadU(d, from.scores + i), chosen, d, scores + n));
    }
  } else {
    for (int i = 0; i < from.count; ++i) {
      if (from.scores[i] < threshold || (from.scores[i] == threshold && ties-- <= 0)) continue;
      scores[n] = from.scores[i], ids[n] = from.ids[i];
      ++n;
    }
  }
  c.counts[row] = n;
}

template <int k>
HWY_NOINLINE unsigned choose_of_octet(const OctetChoice& c, unsigned rows) {
  unsigned left = 0, changed = 0;
  int most = 0;
  for (int r = 0; r < 8; ++r) {
    if (!(rows >> r & 1)) continue;
    int marked = 0;
    for (int c0 = 0; c0 < c.columns; c0 += 64) marked += std::popcount(marks_of(c, r, c0));
    const int count = c.counts[r] + marked;
    if (count > kMostCandidates)
      left |= 1u << r;
    else if (marked > 0)
      changed |= 1u << r, most = count > most ? count : most;
  }
  if (!changed) return left;
  Candidates candidates[8];
  const int batches = (most + k - 1) / k;
  float nothing[k];
  std::fill_n(nothing, k, -std::numeric_limits<float>::infinity());
  for (int r = 0; r < 8; ++r) {
    if (!(changed >> r & 1)) continue;
    copy_some(*c.copy);
    gather(c, r, k, candidates[r]);
  }
  alignas(64) float sorted[8 * k];
  for (int r = 0; r < 8; r += kTopkLanes) {
    const D8Rows d;
    V8Rows best[k], x[k];
    for (int b = 0; b < batches; ++b) {
      const float* from[kTopkLanes];
      for (int i = 0; i < kTopkLanes; ++i) {
        const Candidates& of_row = candidates[r + i];
        const bool more = (changed >> (r + i) & 1) && b * k < of_row.count;
        from[i] = more ? of_row.scores + b * k : nothing;
      }
      load_turned<k>(from, x);
      sort<k>(x);
      if (b == 0) {
        for (int i = 0; i < k; ++i) best[i] = x[i];
      } else {
        keep_largest<k>(best, x);
        sort_bitonic<k>(best);
      }
    }
    for (int i = 0; i < k; ++i) hn::Store(best[i], d, sorted + 8 * i + r);
  }
  for (int r = 0; r < 8; ++r) {
    if (!(changed >> r & 1)) continue;
    copy_some(*c.copy);
    keep(c, r, candidates[r], sorted[8 * (c.room[r] - 1) + r]);
  }
  return left;
}

unsigned choose(const OctetChoice& c, int k, unsigned rows) {
  if (k <= 8) return choose_of_octet<8>(c, rows);
  if (k <= 16) return choose_of_octet<16>(c, rows);
  if (k <= 32) return choose_of_octet<32>(c, rows);
  return choose_of_octet<64>(c, rows);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
