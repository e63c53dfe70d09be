// What a score kernel is told, and the columns that its rows see.
#pragma once

#include <cuda_runtime.h>

#include "cuda/line.h"
#include "cuda/plan.h"

namespace kvscout::cuda {

inline constexpr int kWarps = kThreads / 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Everything a score kernel is told, small and in one place: it is the first thing that a call
// waits for.
struct ScoreParams {
  Lengths lengths;
  std::int64_t range_begin, range_end;  // query tokens
  int min_tokens, max_tokens;           // of a request that this kernel answers
  int columns, block_start, block_step;
  TileShape tile;
  const std::uint8_t *q, *q_scale, *k, *k_scale;
  const std::int32_t* page_table;
  const float *q_global, *k_global;  // null: q_value, k_value
  float q_value, k_value;
  float* out;
  std::int64_t q_token_stride, q_head_stride;
  std::int64_t k_page_stride, k_head_stride, k_token_stride, scale_page_stride;
  std::int64_t table_row_stride, table_column_stride;
  std::int64_t out_head_stride, out_column_stride, out_token_stride;
  int pages, q_heads, k_heads;  // flat keys: all indices are pages
  // Flags: smaller ones are no operands of instructions, and would take a register.
  int paged, folds;  // folds: heads are reduced
  int all_rows;      // nothing is cut off by min_tokens, max_tokens and the range
  int plain;         // a lane a request, and a tile
  // The -inf tails: parts of fill_columns columns x fill_lanes tokens x one head.
  std::int64_t all_columns;
  unsigned fill_parts, fill_token_parts, fill_column_parts;
  int fill_lanes, fill_columns;
  int cell_tiles;  // tiles of a request in a grid of cells
  bool fills;
  int lone;  // of a lone request, tiles a lane (lone_line.cuh); 0: work_list.cuh
};

// Which special case of a call it is, where rows of keys are `row_bytes` long.
inline Call call_of(const ScoreParams& p, std::int64_t row_bytes) {
  if (!p.paged || p.folds || !p.all_rows || p.tile.chunks != 1 || p.block_start != 0 ||
      p.block_step != 1 || p.k_token_stride != row_bytes || !p.lengths.used_k)
    return Call::any;
  const Lengths& r = p.lengths;
  const bool single =
      p.plain && p.tile.units == 1 && p.tile.tokens == 1 && r.causal && !r.offsets && !r.has_offset;
  return single ? Call::single : Call::decode;
}
// A kernel's parameters with that as constants; of any call, as they are.
template <Call kCall>
__device__ __forceinline__ decltype(auto) as_call(const ScoreParams& given,
                                                  std::int64_t row_bytes) {
  if constexpr (kCall == Call::any) {
    return (given);
  } else {
    ScoreParams p = given;
    p.paged = p.all_rows = 1, p.folds = 0;
    p.tile.chunks = p.tile.passes = 1, p.block_start = 0, p.block_step = 1;
    p.k_token_stride = row_bytes;
    if constexpr (kCall == Call::single) {
      p.plain = p.tile.units = p.tile.tokens = 1;
      p.lengths.offsets = nullptr, p.lengths.has_offset = false, p.lengths.causal = true;
    }
    __builtin_assume(p.lengths.used_k != nullptr);
    return p;
  }
}

// Request b as this kernel answers it.
__device__ __forceinline__ Rows rows_of(const ScoreParams& p, int b) {
  Rows r = rows_of(p.lengths, b);
  if (__builtin_expect(p.all_rows, 1)) {
    r.end = r.tokens;
  } else if (r.tokens >= p.min_tokens && r.tokens <= p.max_tokens) {
    r.begin = static_cast<int>(
        max(std::int64_t{0}, min(p.range_begin - r.q_begin, std::int64_t{r.tokens})));
    r.end = static_cast<int>(
        max(std::int64_t{r.begin}, min(p.range_end - r.q_begin, std::int64_t{r.tokens})));
  }
  return r;
}

__device__ __forceinline__ ColumnRange columns_of(const ScoreParams& p) {
  return {p.columns, p.block_start, p.block_step};
}
// Columns whose block begins below `limit`.
__device__ __forceinline__ int columns_below(const ScoreParams& p, int limit) {
  return columns_of(p).below(limit);
}
__device__ __forceinline__ int block_of(const ScoreParams& p, int column) {
  return p.block_start + column * p.block_step;
}

__device__ __forceinline__ int columns_of_tile(const ScoreParams& p, const Rows& r, int t) {
  return columns_of_tile(columns_of(p), r, t, p.tile.tokens, p.lengths.causal);
}
__device__ __forceinline__ int tiles_of(const ScoreParams& p, const Rows& r) {
  return tiles_of(r, p.tile.tokens);
}

}  // namespace kvscout::cuda
