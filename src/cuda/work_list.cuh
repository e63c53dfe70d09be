// Which work there is and who does it, decided on the device from the lengths.
//
// All (request, unit, tile of query rows, column) combinations that can be visible stand in one
// line, columns innermost; every block of threads takes an equal run of that line. Nobody needs
// memory, atomics or a second launch for that: each block adds up the lengths itself (a few hundred
// requests cost about as much as one load).
#pragma once

#include "cuda/segment.cuh"

namespace kvscout::cuda {

// The line of work. `Level`: every tile of a request counts with the columns of the request's last
// token (short queries, where the difference is nothing); otherwise with its own (causal tiles are
// skipped). What is found lies in shared memory, since the kernels have no register to spare.
template <bool Level, int Setup = kSetup>
class WorkList {
 public:
  static constexpr int kSlots = 128;  // partial sums, each over as many requests

  // `sums` has kSlots entries.
  __device__ __forceinline__ WorkList(const ScoreParams& params, std::int64_t* sums)
      : p_(params), sums_(sums), lane_(threadIdx.x % 32) {}

  // Collective over all threads of the block.
  __device__ __forceinline__ void add_up() {
    const int batch = p_.lengths.batch;
    const int slot = threadIdx.x;
    if (slot < (batch <= 32 ? 32 : kSlots)) add_up_to(slot);
    __syncthreads();
    if (batch <= 32) return;
    std::int64_t before = 0;
    for (int w = 0; w < slot / 32 && slot < kSlots; ++w) before += sums_[w * 32 + 31];
    __syncthreads();
    if (slot < kSlots) sums_[slot] += before;
    __syncthreads();
  }

  __device__ std::int64_t total() const {
    const int batch = p_.lengths.batch;
    return sums_[batch <= 32 ? max(batch - 1, 0) : kSlots - 1];
  }

  // The segment that position x < total() of the line lies in, from x to the end of its tile.
  // Collective over a warp; the same for all lanes.
  __device__ __forceinline__ Segment seek(std::int64_t x) const {
    int slot = 0;
    if (p_.lengths.batch > 1) {
#pragma unroll
      for (int width = p_.lengths.batch <= 32 ? 1 : kSlots / 32; width; width /= 4) {
        const int entry = slot + (lane_ + 1) * width - 1;
        const bool beyond = entry < kSlots && sums_[entry] > x;
        slot += (__ffs(__ballot_sync(kAllLanes, beyond)) - 1) * width;
      }
      if (slot) x -= sums_[slot - 1];
    }
    return within_slot(slot, x);
  }

  // The segment behind that one, of the same request and unit, if that has more tiles: without a
  // search. (Later tiles see at least as many columns.)
  __device__ __forceinline__ bool step(Segment& s) const {
    const int first = s.first + p_.tile.tokens;
    if (first >= s.rows.end) return false;
    s.first = first, s.tokens = min(s.rows.end - first, p_.tile.tokens);
    const int columns = columns_below(p_, s.rows.limit(first + s.tokens - 1, p_.lengths.causal));
    static_cast<Stretch&>(s) = Stretch::of(columns + (Level ? 0 : Setup), Level ? 0 : Setup, 0);
    return true;
  }

 private:
  // A slot of the warp's 32: its sum and those before it in the warp.
  __device__ __forceinline__ void add_up_to(int slot) {
    std::int64_t sum = 0;
    const int each = requests_a_slot();
#pragma unroll 1
    for (int i = 0; i < each; ++i) {
      const int b = slot * each + i;
      Rows r;
      if (b < p_.lengths.batch) r = rows_of(p_, b);
      sum += cost_of(r);
    }
    sums_[slot] = p_.lengths.batch > 1 ? warp_inclusive_sum(sum, lane_) : sum;
  }

  // Position x of a slot's requests.
  __device__ __forceinline__ Segment within_slot(int slot, std::int64_t x) const {
    int b = slot * requests_a_slot();
#pragma unroll 1
    for (int i = 1; i < requests_a_slot(); ++i, ++b) {
      const std::int64_t cost =
          __shfl_sync(kAllLanes, cost_of(lane_ == 0 ? rows_of(p_, b) : Rows{}), 0);
      if (x < cost) break;
      x -= cost;
    }
    return within(rows_of(p_, b), x);
  }

  __device__ int requests_a_slot() const { return (p_.lengths.batch + kSlots - 1) / kSlots; }

  // Columns of a request, all tiles and units. Collective over a warp; each lane has its own.
  __device__ __forceinline__ std::int64_t cost_of(const Rows& r) const {
    std::int64_t cost = 0;
    const int tiles = tiles_of(p_, r);
    const bool level = Level || !p_.lengths.causal || tiles <= 1;
    if (level && tiles) cost = static_cast<std::int64_t>(cost_of_tile(r, tiles - 1)) * tiles;
    if constexpr (!Level)
      for (unsigned left = __ballot_sync(kAllLanes, !level); left; left &= left - 1) {
        const int owner = __ffs(left) - 1;
        const std::int64_t sum = cost_of_all_tiles(rows_of(p_, __shfl_sync(kAllLanes, r.b, owner)));
        if (lane_ == owner) cost = sum;
      }
    return cost * p_.tile.units;
  }

  // A tile without columns costs nothing.
  __device__ __forceinline__ int cost_of_tile(const Rows& r, int t) const {
    const int columns = columns_of_tile(p_, r, t);
    return Level || columns == 0 ? columns : columns + Setup;
  }

  __device__ __forceinline__ std::int64_t cost_of_all_tiles(const Rows& r) const {
    const int tiles = tiles_of(p_, r);
    std::int64_t sum = 0;
#pragma unroll 1
    for (int t = lane_; t < tiles; t += 32) sum += cost_of_tile(r, t);
    return __shfl_sync(kAllLanes, warp_inclusive_sum(sum, lane_), 31);
  }

  __device__ __forceinline__ Segment within(const Rows& rows, std::int64_t x) const {
    Segment s;
    s.rows = rows;
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
        const unsigned all = __reduce_add_sync(kAllLanes, static_cast<unsigned>(c));
        if (x >= all) {
          x -= all;
          continue;
        }
        const int sum = warp_inclusive_sum(c, lane_);
        const int at = __ffs(__ballot_sync(kAllLanes, sum > x)) - 1;
        t = t0 + at;
        cost = __shfl_sync(kAllLanes, c, at);
        x -= __shfl_sync(kAllLanes, sum, at) - cost;
        break;
      }
    }
    static_cast<Stretch&>(s) = Stretch::of(cost, Level ? 0 : Setup, x);
    s.first = s.rows.begin + t * p_.tile.tokens;
    s.tokens = min(s.rows.end - s.first, p_.tile.tokens);
    return s;
  }

  const ScoreParams& p_;
  std::int64_t* sums_;
  int lane_;
};

}  // namespace kvscout::cuda
