// What a score kernel is told, and the columns that its rows see.
#pragma once

#include <cuda_runtime.h>

#include "cuda/plan.h"
#include "cuda/rows.h"

namespace kvscout::cuda {

inline constexpr int kThreads = 256;
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
  const float *q_global, *k_global;  // null: `scale` is their product
  float q_value, k_value;
  float* out;
  std::int64_t q_token_stride, q_head_stride;
  std::int64_t k_page_stride, k_head_stride, k_token_stride, scale_page_stride;
  std::int64_t table_row_stride, table_column_stride;
  std::int64_t out_head_stride, out_column_stride, out_token_stride;
  int pages, q_heads, k_heads;
  bool paged, folds;  // folds: heads are reduced
  bool all_rows;      // nothing is cut off by min_tokens, max_tokens and the range
  // The -inf tails: parts of fill_columns columns x fill_lanes tokens x one head.
  std::int64_t all_columns;
  unsigned fill_parts, fill_token_parts, fill_column_parts;
  int fill_lanes, fill_columns;
  int cell_tiles;  // tiles of a request in a grid of cells
  bool fills;
};

// Request b as this kernel answers it.
__device__ __forceinline__ Rows rows_of(const ScoreParams& p, int b) {
  Rows r = rows_of(p.lengths, b);
  if (p.all_rows) {
    r.end = r.tokens;
  } else if (r.tokens >= p.min_tokens && r.tokens <= p.max_tokens) {
    r.begin = static_cast<int>(
        max(std::int64_t{0}, min(p.range_begin - r.q_begin, std::int64_t{r.tokens})));
    r.end = static_cast<int>(
        max(std::int64_t{r.begin}, min(p.range_end - r.q_begin, std::int64_t{r.tokens})));
  }
  return r;
}

// Columns whose block begins below `limit`.
__device__ __forceinline__ int columns_below(const ScoreParams& p, int limit) {
  int n = (limit + (kBlock - 1)) / kBlock - p.block_start;
  if (p.block_step != 1) n = (n + p.block_step - 1) / p.block_step;
  return max(0, min(n, p.columns));
}
__device__ __forceinline__ int block_of(const ScoreParams& p, int column) {
  return p.block_start + column * p.block_step;
}

// Columns that any row of tile t sees: those of its last token.
__device__ __forceinline__ int columns_of_tile(const ScoreParams& p, const Rows& r, int t) {
  const int last = min(r.begin + (t + 1) * p.tile.tokens, r.end) - 1;
  return columns_below(p, r.limit(last, p.lengths.causal));
}

__device__ __forceinline__ int tiles_of(const ScoreParams& p, const Rows& r) {
  const int tokens = r.end - r.begin;
  return tokens <= p.tile.tokens ? (tokens > 0) : (tokens + p.tile.tokens - 1) / p.tile.tokens;
}

}  // namespace kvscout::cuda
