// Long calls: a tile of query rows is up to eight parts of 64 rows, one after the other along the
// tokens, and a warp keeps one of them in registers.
#pragma once

#include "cuda/sm120/plan.h"
#include "cuda/sm120/score_rows.cuh"

namespace kvscout::sm120 {

// The next run of columns as a warp with this part sees it. `tile`: the shape of a part.
__device__ __forceinline__ void take_part(const ScoreParams& p, const cuda::WorkList<false>& list,
                                          const TileShape& tile, int part, int lane, State& state,
                                          int* limits) {
  Segment& s = state.segment;
  Segment found = list.seek(state.run.begin);
  const std::int64_t left = state.run.end - state.run.begin;
  const int skipped = part * tile.tokens, end = found.end_of(left);
  found.first += skipped, found.tokens = min(found.tokens - skipped, tile.tokens);
  __syncwarp();
  if (lane == 0) {
    s = found;
    s.column_end = end;
    const int last = s.rows.limit(s.first + s.tokens - 1, p.lengths.causal);
    state.own_end = s.tokens > 0 ? min(end, cuda::columns_below(p, last)) : 0;
    state.run.begin += min(found.left, left);
  }
  __syncwarp();
  for (int n = lane; n < kPartRows; n += 32)
    limits[n] = s.rows.limit(s.first + cuda::place_of_row(tile, n).token, p.lengths.causal);
}

// Where row n of a part (with heads reduced: token n) is written.
__device__ __forceinline__ float* target(const ScoreParams& p, const TileShape& tile,
                                         const Segment& s, const HeadChunk& heads, int n) {
  const cuda::RowPlace at = p.folds ? cuda::RowPlace{0, n} : cuda::place_of_row(tile, n);
  if (at.token >= s.tokens || at.head >= heads.heads) return nullptr;
  const std::int64_t head = p.folds ? s.unit : heads.first_head + at.head;
  return p.out + head * p.out_head_stride +
         (s.rows.q_begin + s.first + at.token - p.range_begin) * p.out_token_stride;
}

// The first of the two neighbouring rows that reduce_keys leaves a lane.
__device__ __forceinline__ int row_of_part(int lane) {
  return (lane & 4 ? 32 : 0) + (lane & 8 ? 16 : 0) + (lane & 16 ? 8 : 0) + lane % 4 * 2;
}

// Where a part's rows are written in column 0, looked up once for many columns.
using Targets = float* [kPartRows];
__device__ __forceinline__ void find_targets(const ScoreParams& p, const TileShape& tile,
                                             const Segment& s, const HeadChunk& heads, int lane,
                                             Targets& targets) {
  for (int n = lane; n < kPartRows; n += 32) targets[n] = target(p, tile, s, heads, n);
}

// Two rows' maxima in one column. With heads reduced in several passes, raw maxima gather in the
// output itself (the same lane reads what it wrote) until the last pass.
__device__ __forceinline__ void write_part(const ScoreParams& p, const TileShape& tile,
                                           const Segment& s, const HeadChunk& heads, int pass,
                                           int column, const Targets& targets, float* rows,
                                           int lane, const float (&two)[2]) {
  const int row = row_of_part(lane);
  const std::int64_t at = column * p.out_column_stride;
  const float scale = cuda::global_scale(p);
  if (!p.folds) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (float* out = targets[row + i]) out[at] = finish(two[i], scale);
    return;
  }
  __syncwarp();
  rows[row] = two[0], rows[row + 1] = two[1];
  __syncwarp();
  for (int n = lane; n < s.tokens; n += 32) {
    float* out = targets[n] + at;
    float value = cuda::fold_heads(tile, rows, heads.heads, n);
    if (pass > 0) value = fmaxf(value, *out);
    *out = pass + 1 == p.tile.passes ? finish(value, scale) : value;
  }
}

}  // namespace kvscout::sm120
