// The candidates of one row, which some warps list with few instructions behind the load.
//
//   threshold   lanes of all warps are 32 groups; the wanted-th largest of the groups' maxima
//               cannot exceed the wanted-th largest score, and few scores reach it (21 of 1024 at
//               random, k 16)
//   candidates  those, in shared memory in the order of their columns
// Longer rows go through in chunks; what was chosen meets the next chunk's candidates. Where more
// reach the threshold than there is room for (ties, large k), bisection over scores raises it:
// exact, and as many passes over registers as there are bits. NaN never is a candidate.
#pragma once

#include <cmath>

#include "order.h"
#include "span.h"

namespace kvscout::cuda {

inline constexpr int kManySlots = 8;  // columns of a lane
inline constexpr int kFewSlots = 2;   // the same in a row of few columns
inline constexpr int kWarpColumns = 32 * kManySlots;
inline constexpr int kFewColumns = 32 * kFewSlots;

// Sizes for a class of k: at most kTopk of them.
template <int Topk>
struct RowRoom {
  static constexpr int kTopk = Topk;
  static constexpr int kNew = Topk == 16 ? 48 : 2 * Topk;  // candidates of a chunk
  static constexpr int kList = kTopk + kNew;
  static constexpr int kWarps = Topk == 16 ? 32 : 16;  // at most; else registers spill
  static_assert(kFewColumns <= kList);
};

// n += x > y in two instructions; the compiler takes three, and each waits for the one before.
__device__ __forceinline__ void count_above(int& n, std::uint32_t x, std::uint32_t y) {
  asm("{ .reg .pred p; setp.gt.u32 p, %1, %2; @p add.s32 %0, %0, 1; }" : "+r"(n) : "r"(x), "r"(y));
}
__device__ __forceinline__ void count_above(int& n, float x, float y) {
  asm("{ .reg .pred p; setp.gt.f32 p, %1, %2; @p add.s32 %0, %0, 1; }" : "+r"(n) : "f"(x), "f"(y));
}
// Stores without a branch around them.
__device__ __forceinline__ void store_if(bool condition, float* to, float x, std::int32_t* also,
                                         std::int32_t y) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %0, 0;"
      " @p st.shared.f32 [%1], %2; @p st.shared.s32 [%3], %4; }" ::"r"(
          static_cast<unsigned>(condition)),
      "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))), "f"(x),
      "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(also))), "r"(y)
      : "memory");
}
// How many of 32 numbers in shared memory lie above one.
template <class Number, class Four>
__device__ __forceinline__ int above_in_32(const Number* numbers, Number one) {
  int n[4] = {};
#pragma unroll
  for (int j = 0; j < 32; j += 4) {
    const Four four = *reinterpret_cast<const Four*>(numbers + j);
    count_above(n[0], four.x, one), count_above(n[1], four.y, one);
    count_above(n[2], four.z, one), count_above(n[3], four.w, one);
  }
  return n[0] + n[1] + (n[2] + n[3]);
}

template <class Room>
class RowList {
 public:
  struct Shared {
    alignas(16) std::uint32_t maxima[32];       // of the groups, as ranks
    int sums[2][32];                            // of the warps, in turn; 0 where there is none
    alignas(16) float score[Room::kList + 32];  // candidates, NaN behind them
    std::int32_t id[Room::kList];
    std::uint32_t floor;  // the least rank chosen
  };

  // `warps` of the block choose `wanted` (at least one) of `count` columns, the first of which has
  // id `first`.
  __device__ RowList(Shared& shared, int warps, int wanted, int count, int first)
      : s_(shared),
        warps_(warps),
        wanted_(wanted),
        count_(count),
        first_(first),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        below_((1u << lane_) - 1) {}

  // Adds the candidates among columns from `base` on to the list; x[i] is that of base + column(i),
  // NaN if it cannot be chosen.
  template <int Slots>
  __device__ void take(float (&x)[Slots], unsigned base) {
    float limit = -INFINITY;
    if (base > 0 || count_ > 32) limit = threshold(x, base > 0);
    unsigned passing[Slots];
    Count count = count_of(x, limit, passing);
    if constexpr (Slots > kFewSlots)
      if (__builtin_expect(count.total > Room::kNew, 0)) count = raise(x, limit, passing);
    int before = kept_ + count.before;
#pragma unroll
    for (int i = 0; i < Slots; ++i) {
      const int place = before + __popc(passing[i] & below_);
      store_if(x[i] >= limit, &s_.score[place], x[i], &s_.id[place],
               first_ + static_cast<int>(base) + column(i));
      before += __popc(passing[i]);
    }
    listed_ = kept_ + count.total;
    if (warp_ == 0) s_.score[listed_ + lane_] = NAN;
    sync<Slots>();
    kept_ = listed_ < wanted_ ? listed_ : wanted_;
  }

  __device__ int kept() const { return kept_; }
  // Whether NaN blocks belong to the result.
  __device__ bool lacks() const { return kept_ < wanted_ && kept_ < count_; }
  // Of this thread in a chunk.
  __device__ int column(int i) const { return warp_ * kWarpColumns + i * 32 + lane_; }

  template <int Slots>
  __device__ void sync() const {
    if (Slots <= kFewSlots || warps_ == 1)
      __syncwarp();
    else
      asm volatile("bar.sync 1, %0;" ::"r"(warps_ * 32) : "memory");
  }

 protected:
  Shared& s_;
  const int warps_, wanted_, count_, first_, warp_, lane_;
  const unsigned below_;  // lanes before this one
  int kept_ = 0, listed_ = 0, turn_ = 0;

 private:
  struct Count {
    int before, total;  // of the warps before this one; of all
  };

  // Sums over the warps.
  template <int Slots>
  __device__ Count sum(int mine) {
    if (Slots <= kFewSlots || warps_ == 1) return {0, mine};
    int(&sums)[32] = s_.sums[turn_ ^= 1];
    if (lane_ == 0) sums[warp_] = mine;
    sync<Slots>();
    const int n = sums[lane_];
    return {__reduce_add_sync(0xFFFFFFFFu, lane_ < warp_ ? n : 0),
            __reduce_add_sync(0xFFFFFFFFu, n)};
  }

  // Scores at or above `limit`; of this warp, which they are.
  template <int Slots>
  __device__ Count count_of(const float (&x)[Slots], float limit, unsigned (&passing)[Slots]) {
    int mine = 0;
#pragma unroll
    for (int i = 0; i < Slots; ++i) {
      passing[i] = __ballot_sync(0xFFFFFFFFu, x[i] >= limit);
      mine += __popc(passing[i]);
    }
    return sum<Slots>(mine);
  }

  // The wanted-th largest of the groups' maxima, but above all that is to lose a tie against what
  // was chosen before. Neighbouring columns lie in different groups, since a short row must not end
  // up in few of them.
  template <int Slots>
  __device__ float threshold(const float (&x)[Slots], bool goes_on) {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < Slots; ++i) largest = fmaxf(largest, x[i]);
    const std::uint32_t rank = rank_of_number(largest);
    if (Slots <= kFewSlots || warps_ == 1)
      s_.maxima[lane_] = rank;
    else
      atomicMax(&s_.maxima[lane_], rank);
    sync<Slots>();
    std::uint32_t limit = kRankOfMasked;
    if (wanted_ <= 32) {
      const std::uint32_t own = s_.maxima[lane_];
      const bool reaches = above_in_32<std::uint32_t, uint4>(s_.maxima, own) < wanted_;
      limit = __reduce_min_sync(0xFFFFFFFFu, reaches ? own : 0xFFFFFFFFu);
    }
    if (goes_on && kept_ == wanted_) limit = max(limit, s_.floor + 1);
    return score_at(limit);
  }

  // Too many reach `limit`: raises it to where at least wanted_ do and all of them fit. Of ties
  // that do not fit, the last ones are dropped from x.
  template <int Slots>
  __device__ Count raise(float (&x)[Slots], float& limit, unsigned (&passing)[Slots]) {
    // More than fit reach `low`, fewer than wanted_ reach `high`.
    std::uint32_t low = rank_of_number(limit), high = rank_of_number(INFINITY) + 1;
    std::uint32_t middle = low + 1;  // most often ties at `low` are the reason
    int larger = 0;                  // that reach `high`
#pragma unroll 1
    while (high - low > 1) {
      limit = score_at(middle);
      const Count c = count_of(x, limit, passing);
      if (c.total >= wanted_ && c.total <= Room::kNew) return c;
      if (c.total >= wanted_)
        low = middle;
      else
        high = middle, larger = c.total;
      middle = low + (high - low) / 2;
    }
    limit = score_at(low);
    int ties = 0;
#pragma unroll
    for (int i = 0; i < Slots; ++i) ties += __popc(__ballot_sync(0xFFFFFFFFu, x[i] == limit));
    int before = sum<Slots>(ties).before;
#pragma unroll
    for (int i = 0; i < Slots; ++i) {
      const unsigned mask = __ballot_sync(0xFFFFFFFFu, x[i] == limit);
      if (x[i] == limit && before + __popc(mask & below_) >= wanted_ - larger) x[i] = NAN;
      before += __popc(mask);
    }
    return count_of(x, limit, passing);
  }
};

}  // namespace kvscout::cuda
