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

// Where the results of a tile lie, one a head and query or one a query, column by column. (Nothing
// overlaps with what is done between two blocks of few rows: it should be few instructions.)
class TileOutput {
 public:
  TileOutput(const ScoreProblem& p, const Tile& t, const Span& s, float global)
      : global_(global),
        heads_(t.heads),
        results_(p.reduce == Reduce::none ? t.heads : 1),
        count_(t.count),
        head_stride_(p.out.head_stride),
        tile_stride_(p.out.tile_stride),
        token_stride_(p.out.token_stride) {
    const std::int64_t head = p.reduce == Reduce::none  ? t.head
                              : p.reduce == Reduce::all ? 0
                                                        : t.kv;
    first_ = p.out.data + head * head_stride_ + (s.q_begin + t.first) * token_stride_;
    if (p.reduce != Reduce::none || t.rows() > kFew) return;
    few_ = t.rows();
    for (int r = 0; r < few_; ++r)
      place_[r] = r / count_ * head_stride_ + r % count_ * token_stride_;
  }

  // `around`: of these kernels, to go around the cache.
  void fill(std::int64_t column, const Kernels* around = nullptr) const {
    float* to = first_ + column * tile_stride_;
    for (int h = 0; h < results_; ++h, to += head_stride_) {
      if (token_stride_ == 1 && around)
        around->fill_around(to, count_, kLowest);
      else if (token_stride_ == 1)
        std::fill_n(to, count_, kLowest);
      else
        for (int i = 0; i < count_; ++i) to[i * token_stride_] = kLowest;
    }
  }

  // Asks for what `fill` or `write` will store to: they would wait for memory, a line at a time.
  // (Where columns share lines, few of them are new.)
  void prefetch(std::int64_t column) const {
    if (token_stride_ != 1 || tile_stride_ < 16) return;
    const float* to = first_ + column * tile_stride_;
    for (int h = 0; h < results_; ++h, to += head_stride_)
      for (int i = 0; i < count_; i += 16) __builtin_prefetch(to + i, 1);
  }

  // One result a head and query.
  void write(std::int64_t column, const float* best) const {
    float* to = first_ + column * tile_stride_;
    if (few_ > 0 && global_ > 0) {
      for (int r = 0; r < few_; ++r) to[place_[r]] = global_ * best[r];
      return;
    }
    for (int h = 0; h < heads_; ++h, to += head_stride_, best += count_) {
      if (token_stride_ == 1 && global_ > 0) {
        for (int i = 0; i < count_; ++i) to[i] = global_ * best[i];  // -inf stays -inf
      } else {
        for (int i = 0; i < count_; ++i) to[i * token_stride_] = scaled(best[i]);
      }
    }
  }

  // One result a query, the maximum over the heads of all passes: unscaled until the last one.
  void merge(std::int64_t column, const float* best, bool first, bool last) const {
    float* to = first_ + column * tile_stride_;
    for (int i = 0; i < count_; ++i) {
      float m = first ? kLowest : to[i * token_stride_];
      for (int h = 0; best && h < heads_; ++h) {
        const float x = best[static_cast<std::int64_t>(h) * count_ + i];
        m = x > m ? x : m;
      }
      to[i * token_stride_] = last ? scaled(m) : m;
    }
  }

 private:
  float scaled(float maximum) const { return maximum == kLowest ? maximum : global_ * maximum; }

  static constexpr int kFew = 16;
  int few_ = 0;               // rows, if they are few
  std::int64_t place_[kFew];  // of their results in a column
  float* first_;              // of column 0
  float global_;
  int heads_, results_, count_;
  std::int64_t head_stride_, tile_stride_, token_stride_;
};

// Whether -inf beyond the keys goes around the cache: of results that a second-level cache does not
// hold it leaves that before anybody reads it. (Causal 8192 x 8192 x 4 heads, half of whose 8 MB is
// -inf, took 3% longer.)
bool tails_go_around(const ScoreProblem& p) {
  return double(p.out_heads()) * double(p.max_k_tiles) * double(p.q.tokens) * sizeof(float) >
         1 << 20;
}

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
  const float global = value_of(p.q_global) * value_of(p.k_global);
  const Kernels* around = tails_go_around(p) ? &kernels : nullptr;

  for_unanswered(p, [&](std::int64_t first, std::int64_t last) {
    if (first >= last) return;
    for (std::int64_t h = 0; h < p.out_heads(); ++h)
      for (std::int64_t n = 0; n < p.max_k_tiles; ++n)
        for (std::int64_t i = first; i < last; ++i)
          p.out.data[h * p.out.head_stride + n * p.out.tile_stride + i * p.out.token_stride] =
              kLowest;
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
    const TileOutput all(p, tile, span, global);
    for (std::int64_t n = seen; n < end; ++n) {
      if (!around && n + kColumnsAhead < end) all.prefetch(n + kColumnsAhead);
      all.fill(n, around);
    }
    if (around) hwy::FlushStream();
    if (seen == begin) return;
    TileScorer scorer(p, kernels, memory + w.tiles + w.scratch * static_cast<std::size_t>(worker),
                      plan.rows());
    for (int pass = 0; pass < plan.passes; ++pass) {
      set_heads(p, plan, head_task, pass, &tile);
      scorer.begin(tile, span);
      const TileOutput out(p, tile, span, global);
      for (std::int64_t n = begin; n < seen;) {
        const int most = static_cast<int>(std::min<std::int64_t>(scorer.together(), seen - n));
        for (int i = 0; i < most; ++i) out.prefetch(n + i);
        const auto scored = scorer.score(p.block_start + n * p.block_step, most);
        for (int i = 0; i < scored.blocks; ++i, ++n) {
          const float* best = scored.of(i);
          if (p.reduce != Reduce::none)
            out.merge(n, best, pass == 0, pass == plan.passes - 1);
          else if (best)
            out.write(n, best);
          else
            out.fill(n);
        }
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
