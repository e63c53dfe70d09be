// What some warps choose of one row, with few instructions between a load and the result.
//
//   candidates  of a chunk, and what was chosen before (row_list.cuh)
//   choice      how many candidates exceed one; of those that tie for the last places, the first
// Rows that lack other scores take NaN blocks at the end.
#pragma once

#include "cuda/row_list.cuh"

namespace kvscout::cuda {

template <class Room>
class RowSelection : public RowList<Room> {
  using List = RowList<Room>;
  using List::s_, List::wanted_, List::count_, List::first_, List::lane_, List::below_, List::kept_,
      List::listed_;

 public:
  using List::List;

  // The best of the list, to where they belong: the result, by write(place, id, score), or, in the
  // same order, the beginning of the list. By the first warp.
  template <class Write>
  __device__ void choose(bool ends, Write write) {
    std::uint32_t floor = 0xFFFFFFFFu;
    const auto settle = [&](int place, float score, int id) {
      if (ends)
        write(place, id, score);
      else
        s_.score[place] = score, s_.id[place] = id, floor = min(floor, rank_of_number(score));
    };
    if (__builtin_expect(listed_ <= 32, 1))
      choose_of<1>(ends, settle);
    else
      choose_of<Room::kList / 32>(ends, settle);
    if (ends) return;
    floor = __reduce_min_sync(0xFFFFFFFFu, floor);
    if (lane_ == 0) s_.floor = floor;
    s_.maxima[lane_] = 0;
    __syncwarp();
  }

  // NaN blocks, lowest ids first, where nothing better is left. By the first warp.
  template <class Load, class Write>
  __device__ void fill_up(Load load, Write write) {
    const int scored = kept_;
#pragma unroll 1
    for (int base = 0; base < count_ && kept_ < wanted_; base += 32) {
      const int column = base + lane_;
      const bool fits = column < count_ && nvfp4::is_nan(load(column));
      const unsigned mask = __ballot_sync(0xFFFFFFFFu, fits);
      const int place = kept_ + __popc(mask & below_);
      if (fits && place < wanted_) s_.id[place] = first_ + column;
      kept_ = min(kept_ + __popc(mask), wanted_);
    }
    __syncwarp();
#pragma unroll 1
    for (int n = lane_; n < kept_; n += 32) {
      const int id = s_.id[n];
      int place = 0;
#pragma unroll 1
      for (int j = 0; j < kept_; ++j) place += s_.id[j] < id;
      write(place, id, n < scored ? s_.score[n] : load(id - first_));
    }
  }

 private:
  // From a list of at most 32 * Own entries, by settle(place, score, id).
  template <int Own, class Settle>
  __device__ void choose_of(bool ends, Settle settle) {
    float mine[Own];
    int id[Own], above[Own], found = 0;
    unsigned chosen[Own];
#pragma unroll
    for (int o = 0; o < Own; ++o) {
      mine[o] = s_.score[lane_ + 32 * o], id[o] = s_.id[lane_ + 32 * o];
      above[o] = lane_ + 32 * o < listed_ ? 0 : Room::kList;
    }
    if (Own > 1 || listed_ > wanted_) {  // else all stay
#pragma unroll
      for (int o = 0; o < Own; ++o)
#pragma unroll 1
        for (int j = 0; j < (Own == 1 ? 32 : listed_); j += 32)
          above[o] += above_in_32<float, float4>(s_.score + j, mine[o]);
    }
#pragma unroll
    for (int o = 0; o < Own; ++o) {
      chosen[o] = __ballot_sync(0xFFFFFFFFu, above[o] < wanted_);
      found += __popc(chosen[o]);
    }
    if (__builtin_expect(found > wanted_, 0)) {  // the last of those that tie go
      int most = 0, excess = found - wanted_;
#pragma unroll
      for (int o = 0; o < Own; ++o)
        if (above[o] < wanted_) most = max(most, above[o]);
      most = __reduce_max_sync(0xFFFFFFFFu, most);
#pragma unroll
      for (int o = Own - 1; o >= 0; --o) {
        const unsigned ties = __ballot_sync(0xFFFFFFFFu, above[o] == most);
        const bool goes = above[o] == most && __popc(ties & ~below_) <= excess;
        chosen[o] &= ~__ballot_sync(0xFFFFFFFFu, goes);
        excess = max(excess - __popc(ties), 0);
      }
    }
    if (Own > 1 || !ends) __syncwarp();  // others still read what is overwritten
    int before = 0;
#pragma unroll
    for (int o = 0; o < Own; ++o) {
      if (chosen[o] >> lane_ & 1) settle(before + __popc(chosen[o] & below_), mine[o], id[o]);
      before += __popc(chosen[o]);
    }
  }
};

}  // namespace kvscout::cuda
