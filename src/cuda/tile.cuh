// Which work there is and who does it, decided on the device from the lengths.
//
// All (request, unit, tile of query rows, column) combinations that can be visible stand in one line, columns
// innermost. Worker w of W takes the w-th equal run of that line: a warp in the short schedule, a block of
// threads in the long ones. Nobody needs memory, atomics or a second launch for that: each block of threads
// adds up the lengths itself (a few hundred requests cost about as much as one load).
#pragma once

#include <cuda_runtime.h>

#include "cuda/plan.h"
#include "cuda/score.h"
#include "span.h"

namespace kvscout::cuda {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Everything a score kernel is told. Lengths are 32-bit numbers, so blocks and columns are, too.
struct ScoreParams {
  ScoreProblem problem;
  TokenRange range;
  TileShape tile;
  std::int64_t out_heads;
  int min_tokens, max_tokens;
  int columns, block_start, block_step;  // of the problem, cut to what 32-bit lengths can reach
  bool fills;
  int fill_lanes, fill_columns;
};

// One request, as far as this kernel answers it: its tokens [begin, end), as local indices.
struct Rows {
  int b = 0;
  int q_begin = 0, begin = 0, end = 0;
  int k_begin = 0, k_count = 0;
  std::int64_t visible = 0;  // keys that query 0 sees, before clamping

  __device__ int limit(int i, bool causal) const {
    return causal ? static_cast<int>(clamp(i + visible, 0, k_count)) : k_count;
  }
};

__device__ __forceinline__ Rows rows_of(const ScoreParams& p, int b) {
  const ScoreProblem& x = p.problem;
  const Span s = span_of(x.requests, x.q.tokens, x.k.paged, x.k.count, b);
  Rows r;
  r.b = b;
  r.q_begin = static_cast<int>(s.q_begin);
  r.k_begin = static_cast<int>(s.k_begin);
  r.k_count = static_cast<int>(s.k_count);
  r.visible = s.offset + 1;
  if (s.q_count >= p.min_tokens && s.q_count <= p.max_tokens) {
    r.begin = static_cast<int>(clamp(p.range.begin - s.q_begin, 0, s.q_count));
    r.end = static_cast<int>(clamp(p.range.end - s.q_begin, r.begin, s.q_count));
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
  return columns_below(p, r.limit(last, p.problem.requests.causal));
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
};

// The line of work. `Level`: every tile of a request counts with the columns of the request's last token
// (short queries, where the difference is nothing); otherwise with its own (causal tiles are skipped).
// Up to 32 requests, a short schedule's warps keep the sums in registers; otherwise they lie in shared memory.
template <bool Level>
class WorkList {
 public:
  // Collective over all threads of the block. `sums` has kThreads entries.
  __device__ __forceinline__ WorkList(const ScoreParams& params, std::int64_t* sums) : p_(params), sums_(sums) {
    const int batch = static_cast<int>(p_.problem.requests.batch);
    lane_ = threadIdx.x % 32;
    if (in_registers()) {  // every warp for itself, without a barrier
      mine_ = warp_inclusive_sum(cost_of(lane_, lane_ < batch), lane_);
      total_ = __shfl_sync(kAllLanes, mine_, 31);
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

  __device__ std::int64_t total() const { return in_registers() ? total_ : sums_[kThreads - 1]; }

  // The segment that position x < total() of the line lies in, from x to the end of its tile. Collective
  // over a warp; the same for all lanes.
  __device__ __forceinline__ Segment seek(std::int64_t x) const {
    int b;
    if (in_registers()) {
      const unsigned beyond = __ballot_sync(kAllLanes, mine_ > x);
      b = __ffs(beyond) - 1;
      const std::int64_t before = __shfl_sync(kAllLanes, mine_, max(b - 1, 0));
      if (b > 0) x -= before;
    } else {
      int slot = 0;
#pragma unroll
      for (int width = kThreads / 32; width; width = width == 1 ? 0 : 1) {  // 32 groups of 8, then 8 entries
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
  __device__ bool in_registers() const { return Level && p_.problem.requests.batch <= 32; }
  __device__ int requests_a_thread() const {
    return (static_cast<int>(p_.problem.requests.batch) + kThreads - 1) / kThreads;
  }

  // Columns of request b, all tiles and units. Collective over a warp; each lane has its own b.
  __device__ __forceinline__ std::int64_t cost_of(int b, bool exists) const {
    std::int64_t cost = 0;
    Rows r;
    if (exists) r = rows_of(p_, b);
    const int tiles = tiles_of(p_, r);
    const bool level = Level || !p_.problem.requests.causal || tiles <= 1;
    if (level && tiles) cost = static_cast<std::int64_t>(columns_of_tile(p_, r, tiles - 1)) * tiles;
    if constexpr (!Level)
      for (unsigned left = __ballot_sync(kAllLanes, !level); left; left &= left - 1) {
        const int owner = __ffs(left) - 1;
        const std::int64_t sum = columns_of_all_tiles(rows_of(p_, __shfl_sync(kAllLanes, b, owner)));
        if (lane_ == owner) cost = sum;
      }
    return cost * p_.tile.units;
  }

  __device__ __forceinline__ std::int64_t columns_of_all_tiles(const Rows& r) const {
    const int tiles = tiles_of(p_, r);
    std::int64_t sum = 0;
#pragma unroll 1
    for (int t = lane_; t < tiles; t += 32) sum += columns_of_tile(p_, r, t);
    return __shfl_sync(kAllLanes, warp_inclusive_sum(sum, lane_), 31);
  }

  __device__ __forceinline__ Segment within(int b, std::int64_t x) const {
    Segment s;
    s.rows = rows_of(p_, b);
    const int tiles = tiles_of(p_, s.rows);
    int t = 0;
    if (Level || !p_.problem.requests.causal || tiles <= 1) {
      s.column_end = columns_of_tile(p_, s.rows, tiles - 1);
      s.column = static_cast<int>(x);
      if (tiles > 1 || p_.tile.units > 1) {
        const auto row = static_cast<int>(x / s.column_end);
        s.column = static_cast<int>(x - static_cast<std::int64_t>(row) * s.column_end);
        s.unit = row / tiles;
        t = row - s.unit * tiles;
      }
    } else {
      if (p_.tile.units > 1) {
        const std::int64_t a_unit = columns_of_all_tiles(s.rows);
        s.unit = static_cast<int>(x / a_unit);
        x -= s.unit * a_unit;
      }
#pragma unroll 1
      for (int t0 = 0; t0 < tiles; t0 += 32) {
        const int c = t0 + lane_ < tiles ? columns_of_tile(p_, s.rows, t0 + lane_) : 0;
        const std::int64_t sum = warp_inclusive_sum<std::int64_t>(c, lane_);
        const unsigned beyond = __ballot_sync(kAllLanes, sum > x);
        if (beyond) {
          const int at = __ffs(beyond) - 1;
          t = t0 + at;
          s.column_end = __shfl_sync(kAllLanes, c, at);
          s.column = static_cast<int>(x - __shfl_sync(kAllLanes, sum, at)) + s.column_end;
          break;
        }
        x -= __shfl_sync(kAllLanes, sum, 31);
      }
    }
    s.first = s.rows.begin + t * p_.tile.tokens;
    s.tokens = min(s.rows.end - s.first, p_.tile.tokens);
    return s;
  }

  const ScoreParams& p_;
  std::int64_t* sums_;
  std::int64_t mine_ = 0, total_ = 0;
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
__device__ __forceinline__ int live_columns(const ScoreParams& p, int token) {
  const Requests& r = p.problem.requests;
  const int batch = static_cast<int>(r.batch);
  if (batch == 0) return 0;
  int b = 0;
  if (batch > 1) {
    b = static_cast<int>(static_cast<float>(token) * batch / p.problem.q.tokens);  // right when all are alike
    b = min(b, batch - 1);
    if (r.cu_q[b] > token || token >= r.cu_q[b + 1]) {
      int low = 0, high = batch;  // the first b with token < cu_q[b + 1]
#pragma unroll 1
      while (low < high) {
        const int middle = (low + high) / 2;
        if (r.cu_q[middle + 1] <= token) low = middle + 1; else high = middle;
      }
      b = low;
      if (b == batch) return 0;
    }
  }
  const Span s = span_of(r, p.problem.q.tokens, p.problem.k.paged, p.problem.k.count, b);
  const std::int64_t i = token - s.q_begin;
  if (i < 0 || i >= s.q_count) return 0;
  return columns_below(p, static_cast<int>(s.limit(i, r.causal)));
}

// Writes -inf beyond the live columns. The last warps begin, since they have the least other work.
__device__ __forceinline__ void fill_tails(const ScoreParams& p) {
  if (!p.fills) return;
  const ScoreProblem& x = p.problem;
  const auto end = static_cast<int>(p.range.end < x.q.tokens ? p.range.end : x.q.tokens);
  const auto begin = static_cast<int>(p.range.begin);
  if (begin >= end) return;
  const int lane = threadIdx.x % 32, step = 32 / p.fill_lanes;
  const int token_parts = (end - begin + p.fill_lanes - 1) / p.fill_lanes;
  const std::int64_t all_columns = x.max_k_tiles;
  const std::int64_t column_parts = (all_columns + p.fill_columns - 1) / p.fill_columns;
  const std::int64_t parts = token_parts * column_parts * p.out_heads;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (blockDim.x / 32);
#pragma unroll 1
  for (std::int64_t part = warps - 1 - blockIdx.x * (blockDim.x / 32) - threadIdx.x / 32; part < parts; part += warps) {
    const std::int64_t rest = part / token_parts;
    const int t = static_cast<int>(part - rest * token_parts) * p.fill_lanes + lane % p.fill_lanes;
    const std::int64_t head = rest / column_parts;
    const std::int64_t first = (rest - head * column_parts) * p.fill_columns;
    if (t >= end - begin) continue;
    const std::int64_t last = first + p.fill_columns < all_columns ? first + p.fill_columns : all_columns;
    const std::int64_t live = live_columns(p, begin + t);
    if (live >= last) continue;
    std::int64_t n = first + lane / p.fill_lanes;
    if (n < live) n += (live - n + step - 1) / step * step;
    float* out = x.out.data + head * x.out.head_stride + t * x.out.token_stride + n * x.out.tile_stride;
#pragma unroll 4
    for (; n < last; n += step, out += step * x.out.tile_stride) *out = -INFINITY;
  }
}

}  // namespace kvscout::cuda
