// msa_proxy_score_fp4 and msa_proxy_score: every task scores one tile against a run of columns and
// writes all of the output that belongs to it, -inf included. plan.h says how tasks are cut.
#include <hwy/cache_control.h>

#include <algorithm>
#include <limits>

#include "cpu/operations.h"
#include "cpu/threads.h"
#include "cpu/tile_list.h"
#include "cpu/tile_scorer.h"

namespace kvscout::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kColumnsAhead = 4;  // whose output is asked for while others are filled

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// The output of one tile in one column.
struct Target {
  const ScoreProblem& p;
  const Kernels& kernels;
  float global;
  // Whether -inf beyond the keys goes around the cache: of results that a second-level cache does
  // not hold it leaves that before anybody reads it. (Causal 8192 x 8192 x 4 heads, half of whose
  // 8 MB is -inf, took 3% longer.)
  bool tails_go_around =
      double(p.out_heads()) * double(p.max_k_tiles) * double(p.q.tokens) * sizeof(float) > 1 << 20;

  float* row(std::int64_t head, std::int64_t column, std::int64_t token) const {
    return p.out.data + head * p.out.head_stride + column * p.out.tile_stride +
           token * p.out.token_stride;
  }
  std::int64_t out_head(const Tile& t) const {
    return p.reduce == Reduce::none ? t.head : p.reduce == Reduce::all ? 0 : t.kv;
  }

  void fill(const Tile& t, const Span& s, std::int64_t column, bool around = false) const {
    const int heads = p.reduce == Reduce::none ? t.heads : 1;
    for (int h = 0; h < heads; ++h) {
      float* to = row(out_head(t) + h, column, s.q_begin + t.first);
      if (p.out.token_stride == 1 && around)
        kernels.fill_around(to, t.count, kLowest);
      else if (p.out.token_stride == 1)
        std::fill_n(to, t.count, kLowest);
      else
        for (int i = 0; i < t.count; ++i) to[i * p.out.token_stride] = kLowest;
    }
  }

  // Asks for what `fill` or `write` will store to: they would wait for memory, a line at a time.
  void prefetch(const Tile& t, const Span& s, std::int64_t column) const {
    if (p.out.token_stride != 1) return;
    const int heads = p.reduce == Reduce::none ? t.heads : 1;
    for (int h = 0; h < heads; ++h) {
      const float* to = row(out_head(t) + h, column, s.q_begin + t.first);
      for (int i = 0; i < t.count; i += 16) __builtin_prefetch(to + i, 1);
    }
  }

  float scaled(float maximum) const { return maximum == kLowest ? maximum : global * maximum; }

  // One result a head and query.
  void write(const Tile& t, const Span& s, std::int64_t column, const float* best, int step) const {
    for (int h = 0; h < t.heads; ++h) {
      float* to = row(t.head + h, column, s.q_begin + t.first);
      const float* from = best + static_cast<std::int64_t>(h) * t.count * step;
      if (p.out.token_stride == 1 && step == 1 && global > 0) {
        for (int i = 0; i < t.count; ++i) to[i] = global * from[i];  // -inf stays -inf
      } else {
        for (int i = 0; i < t.count; ++i) to[i * p.out.token_stride] = scaled(from[i * step]);
      }
    }
  }

  // One result a query, the maximum over the heads of all passes: unscaled until the last one.
  void merge(const Tile& t, const Span& s, std::int64_t column, const float* best, int step,
             bool first, bool last) const {
    float* to = row(out_head(t), column, s.q_begin + t.first);
    for (int i = 0; i < t.count; ++i) {
      float m = first ? kLowest : to[i * p.out.token_stride];
      for (int h = 0; best && h < t.heads; ++h) {
        const float x = best[(static_cast<std::int64_t>(h) * t.count + i) * step];
        m = x > m ? x : m;
      }
      to[i * p.out.token_stride] = last ? scaled(m) : m;
    }
  }
};

struct Workspace {
  std::size_t tiles, scratch;  // bytes of the list of tiles; of one worker
  int workers;
  std::size_t bytes() const { return tiles + scratch * static_cast<std::size_t>(workers); }
};

Workspace workspace_of(const ScoreProblem& p, const Launch& l, const ScorePlan& plan) {
  return {aligned(TileList::bytes(p.requests.batch)),
          aligned(TileScorer::scratch_bytes(p, plan.rows())),
          plan_score(p, most_threads(l.threads)).workers};
}

}  // namespace

std::size_t score_workspace(const ScoreProblem& p, const Launch& l) {
  return workspace_of(p, l, plan_score(p, most_threads(l.threads))).bytes();
}

void score(const ScoreProblem& p, const Launch& l) {
  const Kernels& kernels = chosen_kernels("msa_proxy_score");
  const ScorePlan plan = plan_score(p, thread_count(l.threads));
  const Workspace w = workspace_of(p, l, plan);
  auto* memory = static_cast<std::byte*>(l.workspace);
  const TileList tiles(p, plan.queries, memory);
  const Target target{p, kernels, value_of(p.q_global) * value_of(p.k_global)};

  for_unanswered(p, [&](std::int64_t first, std::int64_t last) {
    if (first >= last) return;
    for (std::int64_t h = 0; h < p.out_heads(); ++h)
      for (std::int64_t n = 0; n < p.max_k_tiles; ++n)
        for (std::int64_t i = first; i < last; ++i) *target.row(h, n, i) = kLowest;
  });

  const std::int64_t tasks = tiles.count() * plan.head_tasks * plan.runs;
  for_each_task(std::min(plan.workers, w.workers), tasks, [&](int worker, std::int64_t task) {
    Span span;
    Tile tile = tiles.tile(task / (plan.head_tasks * plan.runs), &span);
    const std::int64_t head_task = task / plan.runs % plan.head_tasks;
    const std::int64_t begin = task % plan.runs * plan.columns;
    const std::int64_t end = std::min(begin + plan.columns, p.max_k_tiles);
    const std::int64_t limit = span.limit(tile.first + tile.count - 1, p.requests.causal);
    const std::int64_t seen =
        clamp(columns_below(limit, p.block_start, p.block_step, p.max_k_tiles), begin, end);

    set_heads(p, plan, head_task, 0, &tile);
    for (std::int64_t n = seen; n < end; ++n) {
      if (!target.tails_go_around && n + kColumnsAhead < end)
        target.prefetch(tile, span, n + kColumnsAhead);
      target.fill(tile, span, n, target.tails_go_around);
    }
    if (target.tails_go_around) hwy::FlushStream();
    if (seen == begin) return;
    TileScorer scorer(p, kernels, memory + w.tiles + w.scratch * static_cast<std::size_t>(worker),
                      plan.rows());
    for (int pass = 0; pass < plan.passes; ++pass) {
      set_heads(p, plan, head_task, pass, &tile);
      scorer.begin(tile, span);
      for (std::int64_t n = begin; n < seen; ++n) {
        target.prefetch(tile, span, n);
        const float* best = scorer.score(p.block_start + n * p.block_step);
        if (p.reduce != Reduce::none)
          target.merge(tile, span, n, best, scorer.place_step(), pass == 0,
                       pass == plan.passes - 1);
        else if (best)
          target.write(tile, span, n, best, scorer.place_step());
        else
          target.fill(tile, span, n);
      }
    }
  });
}

std::string explain_score(const ScoreProblem& p, const Launch& l) {
  const ScorePlan plan = plan_score(p, thread_count(l.threads));
  const Kernels& k = chosen_kernels("explain");
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  return std::string(k.name) + ", tiles of " + number(plan.queries) + " queries x " +
         number(plan.heads) + " heads, " + number(plan.passes) + " passes, runs of " +
         number(plan.columns) + " columns, " + number(plan.workers) + " workers, lanes are " +
         (p.q.type == Element::e2m1 && plan.rows() <= k.max_rows_of_score_keys ? "keys"
                                                                               : "queries");
}

}  // namespace kvscout::cpu
