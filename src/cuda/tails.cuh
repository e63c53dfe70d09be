// The -inf tails: what lies beyond the columns that a token sees.
#pragma once

#include "cuda/segment.cuh"
#include "cuda/visible.cuh"

namespace kvscout::cuda {

// Writes -inf beyond the columns live_of(token): every `warps`-th part of the tails, from `part` to
// `end`.
template <class Live>
__device__ __forceinline__ void fill_parts(const ScoreParams& p, unsigned part, unsigned warps,
                                           unsigned end, Live live_of) {
#pragma unroll 1
  for (; part < end; part += warps) {
    const int lane = threadIdx.x % 32, step = 32 / p.fill_lanes;
    const unsigned rest = part / p.fill_token_parts, head = rest / p.fill_column_parts;
    const std::int64_t t = p.range_begin +
                           std::int64_t{part - rest * p.fill_token_parts} * p.fill_lanes +
                           lane % p.fill_lanes;
    if (t >= p.range_end) continue;
    const std::int64_t first = std::int64_t{rest - head * p.fill_column_parts} * p.fill_columns;
    const std::int64_t last = min(first + p.fill_columns, p.all_columns), live = live_of(t);
    if (live >= last) continue;
    std::int64_t n = first + lane / p.fill_lanes;
    if (n < live) n += (live - n + step - 1) / step * step;
    float* out = p.out + head * p.out_head_stride + (t - p.range_begin) * p.out_token_stride +
                 n * p.out_column_stride;
#pragma unroll 4
    for (; n < last; n += step, out += step * p.out_column_stride) *out = -INFINITY;
  }
}

// Beyond the live columns.
__device__ __forceinline__ void fill_live(const ScoreParams& p, unsigned part, unsigned warps,
                                          unsigned end) {
  fill_parts(p, part, warps, end,
             [&](std::int64_t token) { return visible_columns(p.lengths, columns_of(p), token); });
}

// Parts [begin, end): a block of threads writes `begin` and its number, that and `gridDim.x`, and
// so on; by `of_block` of its warps, of which `warp` is this one's number. The last ones begin,
// since they have the least other work.
__device__ __forceinline__ void fill_tails(const ScoreParams& p, unsigned warp, unsigned of_block,
                                           unsigned begin, unsigned end) {
  fill_live(p, begin + blockIdx.x + gridDim.x * (of_block - 1 - warp), gridDim.x * of_block, end);
}
__device__ __forceinline__ void fill_tails(const ScoreParams& p) {
  fill_tails(p, threadIdx.x / 32, blockDim.x / 32, 0, p.fill_parts);
}

// The same parts by the warps that come here first: the last one is what a call waits for, and a
// look at the lengths takes 0.6 us. `next`: in shared memory, the block's number at first.
__device__ __forceinline__ void fill_tails(const ScoreParams& p, unsigned* next) {
#pragma unroll 1
  while (*static_cast<volatile unsigned*>(next) < p.fill_parts) {
    unsigned part = 0;
    if (found_again(threadIdx.x) % 32 == 0) part = atomicAdd(next, gridDim.x);
    fill_live(p, __shfl_sync(kAllLanes, part, 0), p.fill_parts, p.fill_parts);
  }
}

// In a grid of cells, beyond all of its columns: by the blocks of threads beyond, which need no
// length for that.
__device__ __forceinline__ void fill_beyond_cells(const ScoreParams& p) {
  const unsigned each = gridDim.x - p.columns, of_block = blockDim.x / 32;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * each + blockIdx.x - p.columns;
  fill_parts(p, block * of_block + threadIdx.x / 32, each * gridDim.y * gridDim.z * of_block,
             p.fill_parts, [&](std::int64_t) { return p.columns; });
}

}  // namespace kvscout::cuda
