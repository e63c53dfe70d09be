// The line of work (work_list.cuh) of short queries: every tile of a request counts with the
// columns of the request's last token, which there is all but the same.
//
// Each warp adds up for itself, without a barrier, and in few instructions: every call of the
// streaming schedule waits for them. What a decoding step asks for, a lane a request and a tile
// (`plain`), is laid out without a jump; all that is known of a request then stays in registers
// until the warp has its first place.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/segment.cuh"

namespace kvscout::cuda {

class LevelLine {
 public:
  static constexpr int kSlots = 32;  // partial sums, each over as many requests

  // Before the wait for the kernel before. `sums`: one a thread in shared memory. The line is
  // shorter than 2^29 (plan.cpp).
  __device__ __forceinline__ LevelLine(const ScoreParams& params, unsigned* sums, Ready& ready)
      : p_(params), sums_(sums), lane_(threadIdx.x % 32) {
    const Lengths& r = p_.lengths;
    own_ = least(lane_, most(r.batch - 1, 0));
    inverse_ = inverse_of(gridDim.x);
    ready.add(r.cu_q + own_), ready.add((r.used_k ? r.used_k : r.cu_k) + own_);
    ready.add(inverse_);
  }

  // Behind it. Collective over a warp, as is all below.
  __device__ __forceinline__ void add_up() {
    const Lengths& r = p_.lengths;
    unsigned sum = 0;
    if (p_.plain) {
      const auto load = [](const std::int32_t* a) { return load_behind(a); };
      rows_ = rows_of(r, own_, load_rows(r, own_, load));
      rows_.end = rows_.tokens;
      if (lane_ < r.batch && rows_.end > 0) sum = columns_of_last<true>(rows_) * p_.tile.units;
      through_ = r.batch > 1 ? warp_inclusive_sum(sum, lane_) : __shfl_sync(kAllLanes, sum, 0);
    } else {
      const int each = requests_a_slot(), end = least((lane_ + 1) * each, r.batch);
#pragma unroll 1
      for (int b = lane_ * each; b < end; ++b) sum += cost_of(rows_of(p_, b));
      through_ = warp_inclusive_sum(sum, lane_);
    }
    sums_[threadIdx.x] = through_;
    __syncwarp();
  }

  // The w-th of equal runs, as many as thread blocks.
  __device__ __forceinline__ Run run(unsigned w) const {
    const unsigned total = __shfl_sync(kAllLanes, through_, 31), workers = gridDim.x;
    return run_of(total, w, workers, inverse_);
  }

  // The segment that position x of the line lies in, from there to the end of its tile.
  __device__ __forceinline__ Segment first(unsigned x) const {
    Place at = place_in(through_, x);
    if (!p_.plain) return within_slot(at);
    Segment s;
    Rows& r = s.rows;
    const auto of_slot = [&](int n) { return __shfl_sync(kAllLanes, n, at.slot); };
    r.b = at.slot;
    r.q_begin = of_slot(rows_.q_begin);
    r.tokens = r.end = s.tokens = of_slot(rows_.tokens);
    r.k_begin = of_slot(rows_.k_begin), r.k_count = of_slot(rows_.k_count);
    r.visible = of_slot(rows_.visible);
    const int columns = columns_of_last<true>(r);
    if (p_.tile.units > 1) s.unit = static_cast<int>(at.x / columns), at.x -= s.unit * columns;
    static_cast<Stretch&>(s) = Stretch::of(columns, 0, at.x);
    return s;
  }

  // The same, later: from shared memory.
  __device__ __forceinline__ Segment seek(unsigned x) const {
    return within_slot(place_in(sums_[found_again(threadIdx.x)], x));
  }

 private:
  struct Place {
    int slot;
    unsigned x;  // in the slot
  };
  __device__ __forceinline__ int requests_a_slot() const {
    return (found_again(p_.lengths.batch) + kSlots - 1) / kSlots;
  }
  static __device__ __forceinline__ Place place_in(unsigned through, unsigned x) {
    const int slot = __ffs(__ballot_sync(kAllLanes, through > x)) - 1;
    const unsigned before = __shfl_sync(kAllLanes, through, slot - 1);
    return {slot, slot ? x - before : x};
  }

  template <bool Plain = false>
  __device__ __forceinline__ int columns_of_last(const Rows& r) const {
    ColumnRange columns = columns_of(p_);
    if (Plain) columns.step = 1;
    return columns.below(r.limit(r.end - 1, p_.lengths.causal));
  }
  // Columns of a request, all tiles and units.
  __device__ __forceinline__ unsigned cost_of(const Rows& r) const {
    const int tiles = tiles_of(p_, r);
    return tiles ? static_cast<unsigned>(columns_of_last(r)) * tiles * p_.tile.units : 0;
  }

  __device__ __forceinline__ Segment within_slot(Place at) const {
    const int each = requests_a_slot();
    int b = at.slot * each;
    Segment s;
#pragma unroll 1
    for (int left = each;; ++b) {
      s.rows = rows_of(p_, b);
      const unsigned cost = cost_of(s.rows);
      if (--left == 0 || at.x < cost) break;
      at.x -= cost;
    }
    const int columns = columns_of_last(s.rows), tiles = tiles_of(p_, s.rows);
    int t = 0;
    if (tiles > 1 || p_.tile.units > 1) {
      const int row = static_cast<int>(at.x / columns);
      at.x -= static_cast<unsigned>(row) * columns;
      s.unit = row / tiles, t = row % tiles;
    }
    static_cast<Stretch&>(s) = Stretch::of(columns, 0, at.x);
    s.first = s.rows.begin + t * p_.tile.tokens;
    s.tokens = least(s.rows.end - s.first, p_.tile.tokens);
    return s;
  }

  const ScoreParams& p_;
  unsigned* sums_;
  int lane_, own_;  // the lane's request
  unsigned inverse_;
  Rows rows_;  // plain: of the lane's request
  unsigned through_ = 0;
};

}  // namespace kvscout::cuda
