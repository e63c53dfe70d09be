// From a plan to launches; shared by the architecture folders.
#pragma once

#include <algorithm>
#include <limits>

#include "cuda/device.h"
#include "cuda/score.h"
#include "cuda/score_cells.cuh"
#include "cuda/score_columns.cuh"
#include "cuda/score_single.cuh"
#include "cuda/score_stream.cuh"
#include "cuda/score_unaligned.cuh"

namespace kvscout::cuda {

using ScoreFunction = void (*)(const ScoreParams);

struct ScoreEntry {
  ScoreFunction function = nullptr;
  int shared_bytes = 0;
};

// Not with 16 rows of 16-bit queries, nor single tokens of theirs, where some registers would go to
// the stack. 16 rows of single tokens are as fast by the kernel for all decoding calls.
template <class Ops, int Tiles>
ScoreFunction stream_of(Call call) {
  if constexpr (Ops::kKnowsCalls && (Tiles == 1 || Ops::kQueryScales)) {
    if constexpr (Tiles == 1 && Ops::kQueryScales)
      if (call == Call::single) return score_stream<Ops, Tiles, Call::single>;
    if (call != Call::any) return score_stream<Ops, Tiles, Call::decode>;
  }
  return score_stream<Ops, Tiles>;
}

template <class Ops>
ScoreFunction columns_of(Call call) {
  if constexpr (Ops::kKnowsCalls)
    if (call == Call::single) return score_columns<Ops, Call::single>;
  return score_columns<Ops>;
}

// Queries in registers.
template <class Ops>
ScoreEntry register_entry(const ScoreKernel& k) {
  if (k.schedule == Schedule::unaligned) return {score_unaligned<Ops>};
  constexpr int kTable = Ops::kLooksUp ? ByTable::kBytes : 0;
  if constexpr (Ops::kKeyScales) {
    if (k.schedule == Schedule::singles)
      return {k.threads == kThreads ? score_single<Ops, 1> : score_single<Ops, 2>};
    if (k.schedule == Schedule::columns) return {columns_of<Ops>(k.call), kTable};
  }
  if (k.schedule == Schedule::cells) {
    if constexpr (Ops::kKeyScales)
      if (k.tile.rows == 16) return {score_cells<Ops, 2>};
    return {score_cells<Ops, 1>};
  }
  if (k.tile.rows == 8) return {stream_of<Ops, 1>(k.call), kTable};
  if constexpr (Ops::kKeyScales)
    if (k.tile.rows == 16) return {stream_of<Ops, 2>(k.call), kTable};
  return {score_stream<Ops, 4>, kTable};
}

// Calls entry.operator()<Operands<A, Q, K>>() for the problem's pair of types.
template <class A, class Entry>
ScoreEntry for_types(const ScoreProblem& p, Entry entry) {
  using enum Element;
  const auto is = [&](Element q, Element k) { return p.q.type == q && p.k.type == k; };
  if (is(e2m1, e2m1)) return entry.template operator()<Operands<A, e2m1, e2m1>>();
  if (is(bf16, e2m1)) return entry.template operator()<Operands<A, bf16, e2m1>>();
  if (is(f16, e2m1)) return entry.template operator()<Operands<A, f16, e2m1>>();
  if (is(bf16, bf16)) return entry.template operator()<Operands<A, bf16, bf16>>();
  if (is(f16, f16)) return entry.template operator()<Operands<A, f16, f16>>();
  if (is(bf16, e4m3)) return entry.template operator()<Operands<A, bf16, e4m3>>();
  if (is(f16, e4m3)) return entry.template operator()<Operands<A, f16, e4m3>>();
  return entry.template operator()<Operands<A, e4m3, e4m3>>();
}

inline ScoreParams score_params(const ScoreProblem& x, const ScoreKernel& k, TokenRange range) {
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const Requests& r = x.requests;
  const ColumnRange columns = columns_of(x);
  ScoreParams p{};
  p.lengths = lengths_of(x);
  p.range_begin = range.begin, p.range_end = std::min(range.end, x.q.tokens);
  p.min_tokens = cut(k.min_tokens), p.max_tokens = cut(k.max_tokens);
  p.columns = k.columns ? k.columns : columns.count;
  p.block_start = columns.start, p.block_step = columns.step;
  p.tile = k.tile;
  p.q = static_cast<const std::uint8_t*>(x.q.data), p.q_scale = x.q.scale;
  p.k = static_cast<const std::uint8_t*>(x.k.data), p.k_scale = x.k.scale;
  p.page_table = r.page_table;
  p.q_global = x.q_global.pointer, p.k_global = x.k_global.pointer;
  p.q_value = x.q_global.value, p.k_value = x.k_global.value;
  p.out = x.out.data;
  p.q_token_stride = x.q.token_stride, p.q_head_stride = x.q.head_stride;
  p.k_page_stride = x.k.page_stride, p.k_head_stride = x.k.head_stride,
  p.k_token_stride = x.k.token_stride;
  p.scale_page_stride = x.k.scale_page_stride;
  p.table_row_stride = r.table_row_stride, p.table_column_stride = r.table_column_stride;
  p.out_head_stride = x.out.head_stride, p.out_column_stride = x.out.tile_stride,
  p.out_token_stride = x.out.token_stride;
  p.pages = x.k.paged ? cut(x.k.count) : std::numeric_limits<int>::max();
  p.q_heads = static_cast<int>(x.q.heads), p.k_heads = static_cast<int>(x.k.heads);
  p.paged = x.k.paged, p.folds = x.reduce != Reduce::none;
  p.all_columns = x.max_k_tiles;
  p.fill_lanes = k.fill_lanes, p.fill_columns = k.fill_columns;
  p.fill_token_parts = static_cast<unsigned>(ceil_div(p.range_end - p.range_begin, k.fill_lanes));
  p.fill_column_parts = static_cast<unsigned>(ceil_div(x.max_k_tiles, k.fill_columns));
  p.all_rows = p.range_begin == 0 && p.range_end == x.q.tokens && p.min_tokens <= 0 &&
               k.max_tokens >= r.max_seqlen_q;
  const int most_tokens = std::min(p.lengths.max_tokens, p.lengths.q_tokens);
  p.plain = p.all_rows && r.batch > 0 && r.batch <= LevelLine::kSlots && p.block_step == 1 &&
            most_tokens <= k.tile.tokens;
  if (k.short_line && r.batch == 1 && p.block_step == 1 && most_tokens <= 1 << 30)
    p.lone = static_cast<int>(ceil_div(ceil_div(most_tokens, k.tile.tokens), 32));
  p.fills = k.fills && range.fills, p.cell_tiles = k.cell_tiles;
  if (p.fills)
    p.fill_parts = static_cast<unsigned>(p.fill_token_parts * p.fill_column_parts * x.out_heads());
  return p;
}

// Launches what the plan says. entry_of(problem, kernel) finds a kernel's function.
template <class EntryOf>
void launch_score(const ScoreProblem& problem, const ScorePlan& plan, const Launch& launch,
                  TokenRange range, EntryOf entry_of) {
  if (range.begin >= std::min(range.end, problem.q.tokens)) return;
  const DeviceGuard guard(
      launch.device.index);  // explicit: the caller's current device does not matter
  for (int i = 0; i < plan.kernels; ++i) {
    ScoreKernel k = plan.kernel[i];
    ScoreParams params = score_params(problem, k, range);
    k.call = call_of(params, row_bytes(problem.k.type));
    const ScoreEntry entry = entry_of(problem, k);
    const bool cells = are_cells(k.schedule);
    void* arguments[] = {&params};
    cuda::launch("score", reinterpret_cast<const void*>(entry.function),
                 {.blocks = k.blocks + (params.fills ? k.fill_blocks : 0),
                  .blocks_y = k.cell_tiles * (cells ? k.tile.units : 1),
                  .blocks_z = k.cell_batch,
                  .threads = k.threads,
                  .shared_bytes = entry.shared_bytes,
                  .overlaps = plan.overlaps},
                 arguments, launch);
  }
}

}  // namespace kvscout::cuda
