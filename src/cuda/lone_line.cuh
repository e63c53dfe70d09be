// The line of work (work_list.cuh) of one request whose tiles may differ (causal: later ones see
// more columns).
//
// Each warp adds up for itself, a lane a run of tiles, without a barrier and in few instructions:
// nothing is multiplied before the first tile is known. All that is known of the request stays in
// registers until then.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/segment.cuh"

namespace kvscout::cuda {

// `Setup`: what taking up a tile costs, in columns.
template <int Setup>
class LoneLine {
 public:
  static constexpr int kSlots = 32;  // partial sums, each over as many tiles

  // Before the wait for the kernel before. `sums`: kSlots in shared memory. The line is
  // shorter than 2^31, and each block is a column (launch.cuh).
  __device__ __forceinline__ LoneLine(const ScoreParams& params, unsigned* sums, Ready& ready)
      : p_(params), sums_(sums), lane_(threadIdx.x % 32) {
    inverse_ = inverse_of(gridDim.x);
    ready.add(inverse_);
  }

  // Behind it. Collective over a warp, as is all below.
  __device__ __forceinline__ void add_up() {
    rows_ = rows_of(p_, 0);
    const int tokens = rows_.end - rows_.begin, end = (lane_ + 1) * p_.lone;
    unsigned sum = 0;
#pragma unroll 1
    for (int t = lane_ * p_.lone; t < end && t * p_.tile.tokens < tokens; ++t)
      sum += cost_of_tile(p_, rows_, t);
    through_ = warp_inclusive_sum(sum, lane_);
    sums_[lane_] = through_;
    __syncwarp();
  }

  // The w-th of equal runs, as many as thread blocks.
  __device__ __forceinline__ Run run(unsigned w) const {
    const unsigned total = __shfl_sync(kAllLanes, through_, 31) * p_.tile.units;
    return run_of(total, w, gridDim.x, inverse_);
  }

  // The segment that position x of the line lies in, from there to the end of its tile.
  __device__ __forceinline__ Segment first(unsigned x) const {
    return find(p_, rows_, through_, x);
  }
  // The same, later: from shared memory.
  static __device__ __forceinline__ Segment seek(const ScoreParams& p, const unsigned* sums,
                                                 unsigned x) {
    return find(p, rows_of(p, 0), sums[threadIdx.x % 32], x);
  }

 private:
  // A tile without columns costs nothing.
  static __device__ __forceinline__ unsigned cost_of_tile(const ScoreParams& p, const Rows& r,
                                                          int t) {
    ColumnRange columns = columns_of(p);
    columns.step = 1;
    const int n = columns_of_tile(columns, r, t, p.tile.tokens, p.lengths.causal);
    return n ? n + Setup : 0;
  }

  static __device__ __forceinline__ Segment find(const ScoreParams& p, const Rows& rows,
                                                 unsigned through, unsigned x) {
    Segment s;
    s.rows = rows;
    if (p.tile.units > 1) {
      const unsigned a_unit = __shfl_sync(kAllLanes, through, 31);
      s.unit = static_cast<int>(x / a_unit), x -= s.unit * a_unit;
    }
    const int slot = __ffs(__ballot_sync(kAllLanes, through > x)) - 1;
    const unsigned before = __shfl_sync(kAllLanes, through, slot - 1);
    if (slot) x -= before;
    unsigned cost;
    int t = slot * p.lone;
#pragma unroll 1
    for (;; ++t) {
      cost = cost_of_tile(p, rows, t);
      if (x < cost) break;
      x -= cost;
    }
    static_cast<Stretch&>(s) = Stretch::of(cost, Setup, x);
    s.first = rows.begin + t * p.tile.tokens;
    s.tokens = least(rows.end - s.first, p.tile.tokens);
    return s;
  }

  const ScoreParams& p_;
  unsigned* sums_;
  int lane_;
  unsigned inverse_;
  Rows rows_;
  unsigned through_ = 0;
};

}  // namespace kvscout::cuda
