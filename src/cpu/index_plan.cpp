// Splits of the columns and memory for an index, by bounds and the number of threads.
#include "cpu/index_plan.h"

#include "cpu/tile_list.h"
#include "cpu/tile_scorer.h"

namespace kvscout::cpu {
namespace {

constexpr std::size_t kMostLeft = 16u << 20;     // bytes of what splits leave
constexpr std::size_t kMostScratch = 47u << 20;  // bytes of all workers

}  // namespace

IndexPlan plan_index(const IndexProblem& ip, int threads) {
  const ScoreProblem& p = ip.score;
  IndexPlan plan;
  plan.score = plan_score(p, threads);
  plan.rows = (p.reduce == Reduce::none ? plan.score.heads : 1) * plan.score.queries;
  const std::int64_t batch = p.requests.batch;
  plan.tiles = std::min<std::int64_t>(p.q.tokens, p.q.tokens / plan.score.queries + batch);

  const auto row_bytes = [&](std::int64_t splits) {
    return static_cast<std::size_t>(Candidates::offset(ip.rule.topk, splits));
  };
  const std::int64_t rows = plan.tiles * plan.score.head_tasks * plan.rows;
  const std::int64_t least = std::max<std::int64_t>(
      1, std::max(batch, p.q.tokens / plan.score.queries) * plan.score.head_tasks);
  // More tasks even out better what other work takes of a core; each packs its queries and leaves
  // candidates, which is next to nothing for few rows and many columns.
  const bool cheap = plan.score.rows() <= kMaxLanes && p.max_k_tiles >= 4096 * threads;
  const std::int64_t tasks = (cheap ? 8 : 4) * threads;
  if (threads > 1 && least < tasks) {
    plan.splits =
        std::clamp<std::int64_t>(p.max_k_tiles / kLeastStrip, 1, (tasks + least - 1) / least);
    while (plan.splits > 1 && static_cast<std::size_t>(rows) * row_bytes(plan.splits) > kMostLeft)
      plan.splits /= 2;
  }
  plan.columns = std::max<std::int64_t>(1, (p.max_k_tiles + plan.splits - 1) / plan.splits);
  plan.list_bytes = aligned(TileList::bytes(batch));
  plan.row_bytes = row_bytes(plan.splits);
  plan.candidate_bytes =
      plan.splits > 1 ? aligned(static_cast<std::size_t>(rows) * plan.row_bytes) : 0;
  plan.scorer_bytes = aligned(TileScorer::scratch_bytes(p, plan.score.rows()));
  plan.strip_bytes =
      aligned(static_cast<std::size_t>(plan.stride()) * plan.strip() * sizeof(float));
  plan.scratch_bytes =
      plan.scorer_bytes + plan.strip_bytes + aligned(RowTopk::bytes(plan.rows, ip.rule.topk));
  const auto most_workers =
      static_cast<std::int64_t>(std::max<std::size_t>(1, kMostScratch / plan.scratch_bytes));
  plan.workers = static_cast<int>(std::clamp<std::int64_t>(
      std::min<std::int64_t>(threads, most_workers), 1,
      std::max<std::int64_t>(1, plan.tiles * plan.score.head_tasks * plan.splits)));
  return plan;
}

}  // namespace kvscout::cpu
