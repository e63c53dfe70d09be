// msa_index_select_fp4: a task scores its tile strip by strip and keeps the best of every row, so
// scores never leave the cache. Where there are too few tiles for the threads (decoding), the
// columns are split; each split leaves its best in the workspace and a second pass merges them in
// order.
#include <algorithm>
#include <limits>
#include <utility>

#include "cpu/index_plan.h"
#include "cpu/operations.h"
#include "cpu/threads.h"
#include "cpu/tile_list.h"
#include "cpu/tile_scorer.h"
#include "cpu/topk.h"

namespace kvscout::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

class Indexer {
 public:
  Indexer(const IndexProblem& ip, const IndexPlan& plan, void* workspace)
      : ip_(ip),
        p_(ip.score),
        kernels_(chosen_kernels("msa_index_select_fp4")),
        plan_(plan),
        memory_(static_cast<std::byte*>(workspace)),
        tiles_(p_, plan.score.queries, workspace),
        global_(value_of(p_.q_global) * value_of(p_.k_global)) {
    // Requests that overlap (nobody checked their lengths) can make more tiles than candidates have
    // room for; without splits there are none.
    if (tiles_.count() > plan_.tiles) {
      plan_.splits = 1;
      plan_.columns = std::max<std::int64_t>(1, p_.max_k_tiles);
    }
  }

  void run() {
    unanswered();
    const std::int64_t units = tiles_.count() * plan_.score.head_tasks;
    for_each_task(plan_.workers, units * plan_.splits, [&](int worker, std::int64_t task) {
      score_split(worker, task / plan_.splits, task % plan_.splits);
    });
    if (plan_.splits > 1)
      for_each_task(plan_.workers, units,
                    [&](int worker, std::int64_t unit) { merge(worker, unit); });
  }

 private:
  // A unit is a tile and the heads of one task.
  Tile unit_tile(std::int64_t unit, Span* span) const {
    Tile t = tiles_.tile(unit / plan_.score.head_tasks, span);
    set_heads(p_, plan_.score, unit % plan_.score.head_tasks, 0, &t);
    return t;
  }
  int results(const Tile& t) const { return p_.reduce == Reduce::none ? t.rows() : t.count; }
  std::byte* scratch(int worker) const {
    return memory_ + plan_.list_bytes + plan_.candidate_bytes +
           plan_.scratch_bytes * static_cast<std::size_t>(worker);
  }
  RowTopk topk(int worker) const {
    return RowTopk(kernels_, ip_.rule, scratch(worker) + plan_.scorer_bytes + plan_.strip_bytes,
                   plan_.rows);
  }
  // Row r of column 0 in a strip, in the order of topk.h.
  std::int64_t in_strip(int r) const { return r / 8 * 8 * plan_.strip() + r % 8; }
  float* strip(int worker) const {
    return reinterpret_cast<float*>(scratch(worker) + plan_.scorer_bytes);
  }
  void set_ranges(const Tile& t, const Span& s, RowTopk& rows) const {
    for (int r = 0; r < results(t); ++r) {
      const std::int64_t limit = s.limit(t.first + r % t.count, p_.requests.causal);
      rows.ranges()[r] =
          row_range(ip_.rule, columns_below(limit, p_.block_start, p_.block_step, p_.max_k_tiles));
    }
  }
  Candidates candidates(std::int64_t unit, int row) const {
    return {memory_ + plan_.list_bytes +
                static_cast<std::size_t>(unit * plan_.rows + row) * plan_.row_bytes,
            ip_.rule.topk};
  }

  void score_split(int worker, std::int64_t unit, std::int64_t split) const {
    Span span;
    Tile tile = unit_tile(unit, &span);
    RowTopk rows = topk(worker);
    set_ranges(tile, span, rows);
    rows.start(results(tile));
    const std::int64_t limit = span.limit(tile.first + tile.count - 1, p_.requests.causal);
    const std::int64_t seen = columns_below(limit, p_.block_start, p_.block_step, p_.max_k_tiles);
    const std::int64_t end = std::min((split + 1) * plan_.columns, seen);
    TileScorer scorer(p_, kernels_, scratch(worker), plan_.score.rows());
    float* const scores = strip(worker);
    for (std::int64_t first = split * plan_.columns; first < end; first += plan_.strip()) {
      const int columns = static_cast<int>(std::min<std::int64_t>(plan_.strip(), end - first));
      for (int pass = 0; pass < plan_.score.passes; ++pass) {
        set_heads(p_, plan_.score, unit % plan_.score.head_tasks, pass, &tile);
        if (plan_.score.passes > 1 || first == split * plan_.columns) scorer.begin(tile, span);
        for (int c = 0; c < columns;) {
          const auto scored = scorer.score(p_.block_start + (first + c) * p_.block_step,
                                           std::min(scorer.together(), columns - c));
          for (int i = 0; i < scored.blocks; ++i, ++c)
            add_column(tile, scored.of(i), pass, scores + 8 * c);
        }
      }
      set_heads(p_, plan_.score, unit % plan_.score.head_tasks, 0, &tile);
      ColumnCopy nothing;
      rows.add(scores, 8 * plan_.strip(), first, columns, nothing);
    }
    if (plan_.splits == 1)
      store(tile, span, rows);
    else
      leave(unit, split, tile, rows, split * plan_.columns, end);
  }

  // Scores of one column into the strip (topk.h has its order); unscaled until the last pass.
  void add_column(const Tile& t, const float* best, int pass, float* strip) const {
    const bool last = pass == plan_.score.passes - 1;
    const auto scaled = [&](float m) { return m == kLowest || !last ? m : global_ * m; };
    // score_of(row, what is there).
    const auto store = [&](const auto& score_of) {
      for (int first = 0, rows = results(t); first < rows; first += 8) {
        float* to = strip + in_strip(first);
        const int n = std::min(rows - first, 8);
        for (int r = 0; r < n; ++r) to[r] = score_of(first + r, to[r]);
        for (int r = n; r < 8; ++r) to[r] = 0;
      }
    };
    if (p_.reduce != Reduce::none) {
      store([&](int i, const float& before) {
        float m = pass == 0 ? kLowest : before;
        for (int h = 0; best && h < t.heads; ++h) {
          const float x = best[static_cast<std::int64_t>(h) * t.count + i];
          m = x > m ? x : m;
        }
        return scaled(m);
      });
    } else if (!best) {
      store([](int, const float&) { return kLowest; });
    } else if (global_ > 0) {
      store([&](int r, const float&) { return global_ * best[r]; });  // -inf stays -inf
    } else {
      store([&](int r, const float&) { return scaled(best[r]); });
    }
  }

  void store(const Tile& t, const Span& s, const RowTopk& rows) const {
    for (int r = 0; r < results(t); ++r) {
      const std::int64_t token = s.q_begin + t.first + r % t.count;
      const std::int64_t head = p_.reduce == Reduce::none  ? t.head + r / t.count
                                : p_.reduce == Reduce::all ? 0
                                                           : t.kv;
      const SelectOutput& o = ip_.out;
      rows.store(
          r, o.ids + token * o.token_stride + head * o.head_stride, o.rank_stride,
          o.scores ? o.scores + token * o.score_token_stride + head * o.score_head_stride : nullptr,
          o.score_rank_stride);
    }
  }

  // Columns [first, end) of a unit, for the merge.
  void leave(std::int64_t unit, std::int64_t split, const Tile& t, RowTopk& rows,
             std::int64_t first, std::int64_t end) const {
    for (int r = 0; r < results(t); ++r) {
      const Candidates to = candidates(unit, r);
      const std::int32_t* ids;
      const float* scores;
      to.count(split) = rows.chosen(r, &ids, &scores);
      std::copy(ids, ids + to.count(split), to.ids(split));
      std::copy(scores, scores + to.count(split), to.scores(split));
      rows.for_forced(r, first, end,
                      [&](std::int64_t place, float score) { to.forced()[place] = score; });
    }
  }

  // What splits have left lies in a strip, row by row without gaps. Its columns stand for ids until
  // the best of them are known.
  void merge(int worker, std::int64_t unit) const {
    Span span;
    const Tile tile = unit_tile(unit, &span);
    RowTopk rows = topk(worker);
    set_ranges(tile, span, rows);
    rows.start(results(tile));
    float* const scores = strip(worker);
    const std::int64_t topk = ip_.rule.topk, together = plan_.strip() / topk;  // splits in a strip
    for (std::int64_t s = 0; s < plan_.splits; s += together) {
      const std::int64_t end = std::min(s + together, plan_.splits), first = s * topk;
      const int columns = static_cast<int>((end - s) * topk);
      for (int r = 0; r < plan_.stride(); ++r) {
        float* row = scores + in_strip(r);
        int n = 0;
        if (r < results(tile)) {
          const Candidates from = candidates(unit, r);
          for (std::int64_t q = s; q < end; ++q)
            for (int i = 0; i < from.count(q); ++i) row[8 * n++] = from.scores(q)[i];
          rows.ranges()[r] = {0, first + n, first + n, rows.ranges()[r].room};
        }
        for (; n < columns; ++n) row[8 * n] = kLowest;
      }
      ColumnCopy nothing;
      rows.add(scores, 8 * plan_.strip(), first, columns, nothing);
    }
    for (int r = 0; r < results(tile); ++r) {
      const Candidates from = candidates(unit, r);
      rows.rename(r, [&](std::int64_t column) {
        std::int64_t s = column / topk / together * together, i = column - s * topk;
        while (i >= from.count(s)) i -= from.count(s++);
        return from.ids(s)[i];
      });
    }
    set_ranges(tile, span, rows);
    for (int r = 0; r < results(tile); ++r) rows.set_forced_scores(r, candidates(unit, r).forced());
    store(tile, span, rows);
  }

  void unanswered() const {
    for_unanswered(p_, [&](std::int64_t first, std::int64_t last) {
      const SelectOutput& o = ip_.out;
      for (std::int64_t i = first; i < last; ++i)
        for (std::int64_t h = 0; h < p_.out_heads(); ++h)
          for (int r = 0; r < ip_.rule.topk; ++r) {
            o.ids[i * o.token_stride + h * o.head_stride + r * o.rank_stride] = -1;
            if (o.scores)
              o.scores[i * o.score_token_stride + h * o.score_head_stride +
                       r * o.score_rank_stride] = kLowest;
          }
    });
  }

  const IndexProblem& ip_;
  const ScoreProblem& p_;
  const Kernels& kernels_;
  IndexPlan plan_;
  std::byte* memory_;
  TileList tiles_;
  float global_;
};

}  // namespace

std::size_t index_workspace(const IndexProblem& ip, const Launch& l) {
  return plan_index(ip, most_threads(l.threads)).bytes();
}

void index(const IndexProblem& ip, const Launch& l) {
  IndexPlan plan = plan_index(ip, most_threads(l.threads));
  plan.workers = std::min(plan.workers, thread_count(l.threads));
  Indexer(ip, plan, l.workspace).run();
}

}  // namespace kvscout::cpu
