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
#include "cpu/topk_copy-inl.h"
#include "cpu/topk_sort-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

inline constexpr int kVectorColumns = kLanes == 16 ? 2 : 1;  // columns of eight rows in a vector

HWY_INLINE V8Rows larger_score(V8Rows best, V8Rows x) {
#if HWY_ARCH_X86
  return hn::Max(x, best);  // a NaN x leaves best
#else
  return hn::IfThenElse(hn::Gt(x, best), x, best);
#endif
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
