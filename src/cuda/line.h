// The line of work as integers: how many columns a tile sees, what taking it up costs, which run a
// worker takes and what that leaves of a tile. The device walks the line in work_list.cuh,
// level_line.cuh and lone_line.cuh; a test lays it out on the host.
#pragma once

#include <cstdint>

#include "cuda/rows.h"

namespace kvscout::cuda {

// What taking up a tile costs (seeking, loading queries, filling the pipe), in columns, unless a
// schedule says otherwise (sm90/warpgroup_shared.cuh, on an early state of which this was found).
inline constexpr int kSetup = 3;

// Columns n of blocks start + n*step.
struct ColumnRange {
  int count = 0, start = 0, step = 1;

  // Those whose block begins below `limit`.
  KVSCOUT_HD int below(int limit) const {
    // Unsigned: limits up to 2^31 - 1.
    int n = static_cast<int>((static_cast<unsigned>(limit) + (kBlock - 1)) / kBlock) - start;
    if (step != 1) n = (n + step - 1) / step;
    return most(0, least(n, count));
  }
};

inline ColumnRange columns_of(const ScoreProblem& p) {
  constexpr std::int64_t kBeyond = 1 << 26;  // no length reaches such a block
  return {.count = cut(p.max_k_tiles),
          .start = static_cast<int>(p.block_start < kBeyond ? p.block_start : kBeyond),
          .step = static_cast<int>(p.block_step < kBeyond ? p.block_step : kBeyond)};
}

KVSCOUT_HD int tiles_of(const Rows& r, int tile_tokens) {
  const int tokens = r.end - r.begin;
  return tokens <= tile_tokens ? (tokens > 0) : (tokens + tile_tokens - 1) / tile_tokens;
}

// Columns that any row of tile t sees: those of its last token.
KVSCOUT_HD int columns_of_tile(const ColumnRange& columns, const Rows& r, int t, int tile_tokens,
                               bool causal) {
  const int last = least(r.begin + (t + 1) * tile_tokens, r.end) - 1;
  return columns.below(r.limit(last, causal));
}

// What a worker that arrives at position x of a tile finds: the tile's cost is `setup` + its
// columns.
struct Stretch {
  int column = 0, column_end = 0;
  std::int64_t left = 0;  // of the line until the end of the tile: columns, and what is left of its
                          // set-up

  KVSCOUT_HD static Stretch of(int cost, int setup, std::int64_t x) {
    return {most(0, static_cast<int>(x) - setup), cost - setup, cost - x};
  }
  // The last column and one of a run that goes on for `count`.
  KVSCOUT_HD int end_of(std::int64_t count) const {
    const std::int64_t beyond = left - count;  // what others do
    if (beyond <= 0) return column_end;
    return most(column, column_end - static_cast<int>(beyond < column_end ? beyond : column_end));
  }
};

// The w-th of `workers` equal runs of [0, total).
struct Run {
  std::int64_t begin, end;
};
KVSCOUT_HD Run run_of(std::int64_t total, int w, int workers) {
  std::int64_t each, rest;
  if (total >> 32) {
    each = total / workers, rest = total - each * workers;
  } else {  // a division of 32 bits takes a fifth of the time
    const auto n = static_cast<unsigned>(total), q = n / static_cast<unsigned>(workers);
    each = q, rest = n - q * static_cast<unsigned>(workers);
  }
  const std::int64_t begin = w * each + (w < rest ? w : rest);
  return {begin, begin + each + (w < rest)};
}

// The same without a division, with inverse_of(workers) at hand.
KVSCOUT_HD unsigned inverse_of(unsigned workers) { return ~0u / workers; }
KVSCOUT_HD Run run_of(unsigned total, unsigned w, unsigned workers, unsigned inverse) {
  auto each = static_cast<unsigned>(std::uint64_t{total} * inverse >> 32);
  unsigned rest = total - each * workers;
  if (rest >= workers) ++each, rest -= workers;  // the product falls short by less than one
  const unsigned begin = w * each + (w < rest ? w : rest);
  return {begin, std::int64_t{begin} + each + (w < rest)};
}

}  // namespace kvscout::cuda
