// How a score is cut up, as plain integers: functions of bounds and of the number of threads, never
// of lengths. A unit test can print one.
//
// A *tile* is a run of queries of one request times some heads of one key head: at most kMaxRows
// rows, packed once and then met by every block of a run of columns. A *task* is (tile, heads, run
// of columns); tasks go to whoever is free, which evens out ragged lengths and the causal triangle.
// Where heads are reduced, one task passes over all heads that share a result and merges maxima.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kvscout/problem.h"

namespace kvscout::cpu {

// 512 rows of 192 bytes beside an unpacked block of 24 KB fit the second-level cache; so do those
// of 512 bytes beside 64 KB in the float route, where they share 2.5% of the time for unpacking
// (256: 5%).
inline constexpr int kMaxRows = 512;

struct ScorePlan {
  int heads = 0;          // query heads of a pass
  int queries = 0;        // queries of a tile, at most
  int passes_per_kv = 0;  // passes that cover the heads of one key head
  int passes = 0;         // passes of a task
  std::int64_t head_tasks = 0;
  std::int64_t columns = 0;  // columns of a task
  std::int64_t runs = 0;     // runs of columns
  int workers = 1;

  int rows() const { return heads * queries; }
};

// Parts of a workspace begin at multiples of 256 bytes.
inline std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

inline int lowest_power_at_least(std::int64_t n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

inline ScorePlan plan_score(const ScoreProblem& p, int threads) {
  ScorePlan plan;
  const std::int64_t group = std::max<std::int64_t>(p.group(), 1);
  const std::int64_t max_q =
      std::clamp<std::int64_t>(p.requests.max_seqlen_q, 1, std::max<std::int64_t>(p.q.tokens, 1));
  plan.heads = static_cast<int>(std::min<std::int64_t>(group, kMaxRows));
  plan.queries = static_cast<int>(std::clamp<std::int64_t>(kMaxRows / plan.heads, 1, max_q));
  plan.passes_per_kv = static_cast<int>((group + plan.heads - 1) / plan.heads);
  const std::int64_t all = p.k.heads * plan.passes_per_kv;
  plan.passes = static_cast<int>(p.reduce == Reduce::none       ? 1
                                 : p.reduce == Reduce::kv_group ? plan.passes_per_kv
                                                                : all);
  plan.head_tasks = plan.passes ? all / plan.passes : 0;

  // Long runs spread the packing of the queries; short ones keep everybody busy to the end.
  const std::int64_t tiles =
      std::max<std::int64_t>(p.requests.batch, (p.q.tokens + plan.queries - 1) / plan.queries);
  plan.columns = std::clamp<std::int64_t>(8192 / lowest_power_at_least(plan.rows()), 32, 128);
  const auto tasks = [&] {
    return tiles * plan.head_tasks * ((p.max_k_tiles + plan.columns - 1) / plan.columns);
  };
  while (threads > 1 && plan.columns > 4 && tasks() < 4 * threads) plan.columns /= 2;
  plan.runs = (p.max_k_tiles + plan.columns - 1) / plan.columns;
  plan.workers = static_cast<int>(std::clamp<std::int64_t>(tasks(), 1, threads));
  return plan;
}

}  // namespace kvscout::cpu
