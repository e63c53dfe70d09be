// Which work there is and who does it, decided on the device from the lengths.
//
// All (request, unit, tile of query rows, column) combinations that can be visible stand in one
// line, columns innermost. Worker w of W takes the w-th equal run of that line: a warp in the short
// schedule, a block of threads in the long ones. Nobody needs memory, atomics or a second launch
// for that: each block of threads adds up the lengths itself (a few hundred requests cost about as
// much as one load).
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
  std::int64_t pages;
  int q_heads, k_heads;
  bool paged, folds;  // folds: heads are reduced
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
  if (r.tokens >= p.min_tokens && r.tokens <= p.max_tokens) {
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

template <class T>
__device__ __forceinline__ T warp_inclusive_sum(T x, int lane) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const T y = __shfl_up_sync(kAllLanes, x, d);
    if (lane >= d) x += y;
  }
  return x;
}

// A run of columns that one tile sees.
struct Segment {
  Rows rows;
  int first = 0;  // the tile's first token, local index
  int tokens = 0;
  int unit = 0;
  int column = 0, column_end = 0;
  std::int64_t left =
      0;  // of the line until the end of the tile: columns, and what is left of its set-up

  // The last column and one of a run that goes on for `count`.
  __device__ int end_of(std::int64_t count) const {
    const std::int64_t beyond = left - count;  // what others do
    return beyond <= 0
               ? column_end
               : max(column, column_end - static_cast<int>(min(beyond, std::int64_t{column_end})));
  }
};

// What taking up a tile costs in a long schedule (staging queries), in columns.
// Causal 8192 x 8192 on an H200: 105 us with 1, 81 with 3, 77 with 6.
inline constexpr int kSetup = 6;

// The line of work. `Level`: every tile of a request counts with the columns of the request's last
// token (short queries, where the difference is nothing); otherwise with its own (causal tiles are
// skipped). Up to 32 requests, each warp of a short schedule adds up for itself, without a barrier.
// What is found lies in shared memory, since the kernels have no register to spare for it.
template <bool Level>
class WorkList {
 public:
  // Collective over all threads of the block. `sums` has kThreads entries.
  __device__ __forceinline__ WorkList(const ScoreParams& params, std::int64_t* sums)
      : p_(params), sums_(sums) {
    const int batch = p_.lengths.batch;
    lane_ = threadIdx.x % 32;
    if (is_small()) {
      std::int64_t sum = cost_of(lane_, lane_ < batch);
      if (batch > 1) sum = warp_inclusive_sum(sum, lane_);
      sums_[threadIdx.x] = sum;
      __syncwarp();
      return;
    }
    std::int64_t sum = 0;
#pragma unroll 1
    for (int i = 0; i < requests_a_thread(); ++i) {
      const int b = threadIdx.x * requests_a_thread() + i;
      sum += cost_of(b, b < batch);
    }
    sums_[threadIdx.x] = warp_inclusive_sum(sum, lane_);
    __syncthreads();
    std::int64_t before = lane_ < static_cast<int>(threadIdx.x / 32) ? sums_[lane_ * 32 + 31] : 0;
    before = __shfl_sync(kAllLanes, warp_inclusive_sum(before, lane_), 31);
    __syncthreads();
    sums_[threadIdx.x] += before;
    __syncthreads();
  }

  __device__ std::int64_t total() const {
    return sums_[is_small() ? threadIdx.x / 32 * 32 + max(p_.lengths.batch - 1, 0) : kThreads - 1];
  }

  // The segment that position x < total() of the line lies in, from x to the end of its tile.
  // Collective over a warp; the same for all lanes.
  __device__ __forceinline__ Segment seek(std::int64_t x) const {
    int b;
    if (is_small()) {
      b = 0;
      if (p_.lengths.batch > 1) {
        b = __ffs(__ballot_sync(kAllLanes, lane_ < p_.lengths.batch && sums_[threadIdx.x] > x)) - 1;
        if (b > 0) x -= sums_[threadIdx.x / 32 * 32 + b - 1];
      }
    } else {
      int slot = 0;
#pragma unroll
      for (int width = kThreads / 32; width;
           width = width == 1 ? 0 : 1) {  // 32 groups of 8, then 8 entries
        const int entry = slot + (lane_ + 1) * width - 1;
        const unsigned beyond = __ballot_sync(kAllLanes, entry < kThreads && sums_[entry] > x);
        slot += (__ffs(beyond) - 1) * width;
      }
      if (slot) x -= sums_[slot - 1];
      b = slot * requests_a_thread();
#pragma unroll 1
      for (int i = 1; i < requests_a_thread(); ++i, ++b) {
        const std::int64_t cost = __shfl_sync(kAllLanes, cost_of(b, lane_ == 0), 0);
        if (x < cost) break;
        x -= cost;
      }
    }
    return within(b, x);
  }

 private:
  __device__ bool is_small() const { return Level && p_.lengths.batch <= 32; }
  __device__ int requests_a_thread() const { return (p_.lengths.batch + kThreads - 1) / kThreads; }

  // Columns of request b, all tiles and units. Collective over a warp; each lane has its own b.
  __device__ __forceinline__ std::int64_t cost_of(int b, bool exists) const {
    std::int64_t cost = 0;
    Rows r;
    if (exists) r = rows_of(p_, b);
    const int tiles = tiles_of(p_, r);
    const bool level = Level || !p_.lengths.causal || tiles <= 1;
    if (level && tiles) cost = static_cast<std::int64_t>(cost_of_tile(r, tiles - 1)) * tiles;
    if constexpr (!Level)
      for (unsigned left = __ballot_sync(kAllLanes, !level); left; left &= left - 1) {
        const int owner = __ffs(left) - 1;
        const std::int64_t sum = cost_of_all_tiles(rows_of(p_, __shfl_sync(kAllLanes, b, owner)));
        if (lane_ == owner) cost = sum;
      }
    return cost * p_.tile.units;
  }

  // A tile without columns costs nothing.
  __device__ __forceinline__ int cost_of_tile(const Rows& r, int t) const {
    const int columns = columns_of_tile(p_, r, t);
    return Level || columns == 0 ? columns : columns + kSetup;
  }

  __device__ __forceinline__ std::int64_t cost_of_all_tiles(const Rows& r) const {
    const int tiles = tiles_of(p_, r);
    std::int64_t sum = 0;
#pragma unroll 1
    for (int t = lane_; t < tiles; t += 32) sum += cost_of_tile(r, t);
    return __shfl_sync(kAllLanes, warp_inclusive_sum(sum, lane_), 31);
  }

  __device__ __forceinline__ Segment within(int b, std::int64_t x) const {
    Segment s;
    s.rows = rows_of(p_, b);
    const int tiles = tiles_of(p_, s.rows);
    int t = 0;
    int cost;  // of the tile
    if (Level || !p_.lengths.causal || tiles <= 1) {
      cost = cost_of_tile(s.rows, tiles - 1);
      if (tiles > 1 || p_.tile.units > 1) {
        const auto row = static_cast<int>(x / cost);
        x -= static_cast<std::int64_t>(row) * cost;
        s.unit = row / tiles;
        t = row - s.unit * tiles;
      }
    } else {
      if (p_.tile.units > 1) {
        const std::int64_t a_unit = cost_of_all_tiles(s.rows);
        s.unit = static_cast<int>(x / a_unit);
        x -= s.unit * a_unit;
      }
      cost = 0;
#pragma unroll 1
      for (int t0 = 0; t0 < tiles; t0 += 32) {
        const int c = t0 + lane_ < tiles ? cost_of_tile(s.rows, t0 + lane_) : 0;
        const std::int64_t sum = warp_inclusive_sum<std::int64_t>(c, lane_);
        const unsigned beyond = __ballot_sync(kAllLanes, sum > x);
        if (beyond) {
          const int at = __ffs(beyond) - 1;
          t = t0 + at;
          cost = __shfl_sync(kAllLanes, c, at);
          x -= __shfl_sync(kAllLanes, sum, at) - cost;
          break;
        }
        x -= __shfl_sync(kAllLanes, sum, 31);
      }
    }
    const int setup = Level ? 0 : kSetup;
    s.column_end = cost - setup;
    s.column = max(0, static_cast<int>(x) - setup);
    s.left = cost - x;
    s.first = s.rows.begin + t * p_.tile.tokens;
    s.tokens = min(s.rows.end - s.first, p_.tile.tokens);
    return s;
  }

  const ScoreParams& p_;
  std::int64_t* sums_;
  int lane_ = 0;
};

// The w-th of `workers` equal runs of [0, total).
struct Run {
  std::int64_t begin, end;
};
__device__ inline Run run_of(std::int64_t total, std::int64_t w, std::int64_t workers) {
  const std::int64_t each = total / workers, rest = total - each * workers;
  const std::int64_t begin = w * each + (w < rest ? w : rest);
  return {begin, begin + each + (w < rest)};
}

// Columns of `token` that hold scores; beyond lie the -inf tails.
__device__ __forceinline__ int live_columns(const ScoreParams& p, std::int64_t token) {
  const Lengths& r = p.lengths;
  if (r.batch == 0 || token >= r.q_tokens) return 0;
  const int t = static_cast<int>(token);
  int b = 0;
  if (r.batch > 1) {
    b = min(static_cast<int>(__fdividef(static_cast<float>(t) * r.batch, r.q_tokens)),
            r.batch - 1);  // if all are alike
    if (r.cu_q[b] > t || t >= r.cu_q[b + 1]) {
      int high = r.batch;  // the first b with t < cu_q[b + 1]
      b = 0;
#pragma unroll 1
      while (b < high) {
        const int middle = (b + high) / 2;
        if (r.cu_q[middle + 1] <= t)
          b = middle + 1;
        else
          high = middle;
      }
      if (b == r.batch) return 0;
    }
  }
  const Rows s = rows_of(r, b);
  const int i = t - s.q_begin;
  return i < 0 || i >= s.tokens ? 0 : columns_below(p, s.limit(i, r.causal));
}

// Writes -inf beyond the live columns. The last warps begin, since they have the least other work.
__device__ __forceinline__ void fill_tails(const ScoreParams& p) {
  const unsigned warps = gridDim.x * kWarps;
#pragma unroll 1
  for (unsigned part = warps - 1 - blockIdx.x * kWarps - threadIdx.x / 32; part < p.fill_parts;
       part += warps) {
    const int lane = threadIdx.x % 32, step = 32 / p.fill_lanes;
    const unsigned rest = part / p.fill_token_parts, head = rest / p.fill_column_parts;
    const std::int64_t t = p.range_begin +
                           std::int64_t{part - rest * p.fill_token_parts} * p.fill_lanes +
                           lane % p.fill_lanes;
    if (t >= p.range_end) continue;
    const std::int64_t first = std::int64_t{rest - head * p.fill_column_parts} * p.fill_columns;
    const std::int64_t last = min(first + p.fill_columns, p.all_columns), live = live_columns(p, t);
    if (live >= last) continue;
    std::int64_t n = first + lane / p.fill_lanes;
    if (n < live) n += (live - n + step - 1) / step * step;
    float* out = p.out + head * p.out_head_stride + (t - p.range_begin) * p.out_token_stride +
                 n * p.out_column_stride;
#pragma unroll 4
    for (; n < last; n += step, out += step * p.out_column_stride) *out = -INFINITY;
  }
}

}  // namespace kvscout::cuda
