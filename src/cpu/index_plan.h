// How an index is cut up and what its workspace holds, as plain integers; what the splits of a row
// leave there for the merge.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/plan.h"
#include "cpu/topk.h"

namespace kvscout::cpu {

inline constexpr int kLeastStrip = 64;  // columns of a strip

// The workspace: the list of tiles, candidates by row, each worker's scratch.
struct IndexPlan {
  ScorePlan score;
  int rows = 0;                          // results of a tile
  std::int64_t tiles = 0;                // at most
  std::int64_t splits = 1, columns = 0;  // splits of the columns, columns of each
  std::size_t list_bytes = 0, row_bytes = 0, candidate_bytes = 0, scorer_bytes = 0, strip_bytes = 0,
              scratch_bytes = 0;
  int workers = 1;

  int stride() const { return (rows + 7) / 8 * 8; }
  // 16 KB, or 64 columns where there are many rows: what a strip costs is shared by its columns.
  int strip() const { return std::clamp(4096 / stride(), kLeastStrip, kMarkColumns) / 64 * 64; }
  std::size_t bytes() const {
    return list_bytes + candidate_bytes + scratch_bytes * static_cast<std::size_t>(workers);
  }
};

// `threads`: as many as may work on it.
IndexPlan plan_index(const IndexProblem& ip, int threads);

// What the splits of one row left: the row's forced scores, then of each split a count, ids and
// scores.
struct Candidates {
  std::byte* at;
  int topk;
  // Bytes before split s, and so of s splits.
  static std::int64_t offset(int topk, std::int64_t s) { return 4 * topk + s * (4 + 8 * topk); }
  float* forced() const { return reinterpret_cast<float*>(at); }
  std::byte* split(std::int64_t s) const { return at + offset(topk, s); }
  std::int32_t& count(std::int64_t s) const { return *reinterpret_cast<std::int32_t*>(split(s)); }
  std::int32_t* ids(std::int64_t s) const { return reinterpret_cast<std::int32_t*>(split(s) + 4); }
  float* scores(std::int64_t s) const { return reinterpret_cast<float*>(split(s) + 4 + 4 * topk); }
};

}  // namespace kvscout::cpu
