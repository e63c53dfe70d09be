// The selection of any rows, with no cap on their length, by teams of threads.
//
// Bound: reading the scores once. A team (team.cuh) holds a chunk of its row in registers, and:
//   threshold   every thread's largest scores are maxima of disjoint groups; the k-th largest of
//               these cannot exceed the k-th largest score, and only few scores reach it
//   candidates  the scores that reach the threshold, in shared memory: 22 of 512 at random, k 16
//   rank        how many candidates win against one, by comparing them all; ranks below k stay
// Chunks follow each other; what stayed meets the next chunk's candidates. Where more reach the
// threshold than there is room for (ties, bad luck), bisection over (score, id) raises it: exact,
// and as many passes over registers as there are bits. NaN never is a candidate; rows that lack
// other scores take NaN blocks at the end.
#pragma once

#include <cmath>

#include "cuda/dependent.cuh"
#include "cuda/device.h"
#include "cuda/team.cuh"
#include "order.h"
#include "span.h"

namespace kvscout::cuda {

// Sizes for a class of k: at most kTopk of them.
template <int Topk>
struct Room {
  static constexpr int kTopk = Topk;
  static constexpr int kGroups = 2 * Topk;
  static constexpr int kNew = Topk == 16 ? 48 : 2 * Topk;  // candidates of a chunk
  static constexpr int kList = kTopk + kNew;
};

// Scores at or above `score`; where ties do not all fit, only those whose place in the chunk lies
// below `place`.
struct Threshold {
  float score;
  int place;
};

template <class Team, int PerThread, class Room>
class Selection {
 public:
  static constexpr int kChunk = Team::kMembers * PerThread;
  static constexpr int kOwnGroups = Room::kGroups / Team::kMembers;
  static_assert(kOwnGroups > 0 && PerThread % kOwnGroups == 0);

  struct Shared {
    std::uint64_t list[Room::kList * Team::kRows];
    std::uint32_t maxima[Room::kGroups * Team::kRows];  // as ranks
    std::uint32_t threshold[Team::kRows];
    int sums[8 * Team::kRows];
  };

  __device__ Selection(Shared& shared, int wanted) : s_(shared), wanted_(wanted) {}

  // Takes columns [base, base + kChunk) of the row, of which `live` can be chosen; x[i] is that of
  // column base + i*kMembers + member, NaN if it cannot. Collective over the block.
  __device__ void take(const float (&x)[PerThread], std::int64_t base, std::int64_t live) {
    Threshold t{-INFINITY, kChunk};
    if (!__syncthreads_and(live <= Room::kNew)) t.score = group_threshold(x);
    if (wanted_ == 0) t.score = INFINITY, t.place = 0;
    if (kept_ == wanted_ && wanted_ > 0) {  // later columns lose ties
      const float floor = score_at(static_cast<std::uint32_t>(entry(wanted_ - 1) >> 32));
      if (!(t.score > floor)) t = {floor, 0};
    }
    typename Team::Count count = count_of(x, t);
    if (__syncthreads_or(count.total > Room::kNew)) count = raise(x, t, count);

    int n = kept_ + count.before;
    const std::uint32_t id_bits = 0xFFFFFFFFu - static_cast<std::uint32_t>(base + team_.member);
    each_passing(x, t, [&](int i) {
      s_.list[team_.at(n++, Room::kList)] =
          static_cast<std::uint64_t>(rank_of_number(x[i])) << 32 | (id_bits - i * Team::kMembers);
    });
    __syncthreads();
    keep_best(kept_ + count.total);
  }

  __device__ int kept() const { return kept_; }
  __device__ std::uint64_t entry(int n) const { return s_.list[team_.at(n, Room::kList)]; }
  __device__ std::uint32_t id(int n) const {
    return 0xFFFFFFFFu - static_cast<std::uint32_t>(entry(n));
  }
  __device__ void add(int n, std::uint64_t priority) {
    s_.list[team_.at(n, Room::kList)] = priority;
  }
  __device__ const Team& team() const { return team_; }

 private:
  // Calls action(i) for the scores that pass. Without ties to leave out, one comparison each.
  template <class Action>
  __device__ void each_passing(const float (&x)[PerThread], Threshold t, Action action) {
    if (__syncthreads_or(t.place < kChunk)) {
      const int place = t.place - team_.member;
#pragma unroll
      for (int i = 0; i < PerThread; ++i)
        if (x[i] > t.score || (x[i] == t.score && i * Team::kMembers < place)) action(i);
    } else {
#pragma unroll
      for (int i = 0; i < PerThread; ++i)
        if (x[i] >= t.score) action(i);
    }
  }

  __device__ typename Team::Count count_of(const float (&x)[PerThread], Threshold t) {
    int mine = 0;
    each_passing(x, t, [&](int) { ++mine; });
    return team_.count(mine, s_.sums);
  }

  // The wanted_-th largest of the groups' maxima; -inf where fewer groups hold a score.
  // Neighbouring columns lie in different groups, since a short row must not end up in few of them.
  __device__ float group_threshold(const float (&x)[PerThread]) {
    std::uint32_t own[kOwnGroups];
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) {
      float largest = -INFINITY;
#pragma unroll
      for (int i = g; i < PerThread; i += kOwnGroups) largest = fmaxf(largest, x[i]);
      own[g] = rank_of_number(largest);
    }
    const int first = team_.member * kOwnGroups;
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) s_.maxima[team_.at(first + g, Room::kGroups)] = own[g];
    if (team_.member == 0) s_.threshold[team_.row] = rank_of_number(INFINITY);
    __syncthreads();
    int above[kOwnGroups] = {};
#pragma unroll 8
    for (int j = 0; j < Room::kGroups; ++j) {
      const std::uint32_t other = s_.maxima[team_.at(j, Room::kGroups)];
#pragma unroll
      for (int g = 0; g < kOwnGroups; ++g) above[g] += other > own[g];
    }
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g)  // the smallest of those that fewer than wanted_ exceed
      if (above[g] < wanted_) atomicMin(&s_.threshold[team_.row], own[g]);
    __syncthreads();
    return score_at(s_.threshold[team_.row]);
  }

  // Raises the threshold of the rows that have too many candidates, to wanted_ or more that fit.
  // Bisects ranks of scores, then places in the chunk: `low` has too many (places: too few), `high`
  // the opposite.
  __device__ typename Team::Count raise(const float (&x)[PerThread], Threshold& t,
                                        typename Team::Count count) {
    bool searching = count.total > Room::kNew, places = false;
    std::uint32_t low = rank_of(t.score), high = rank_of(INFINITY) + 1;
    bool tries_next = t.place != 0;  // most often the ties at `low` are the reason
    while (__syncthreads_or(searching)) {
      const std::uint32_t middle = tries_next ? low + 1 : low + (high - low) / 2;
      Threshold trial = t;
      if (searching) {
        if (places)
          trial.place = static_cast<int>(middle);
        else
          trial = {score_at(middle), kChunk};
      }
      const typename Team::Count c = count_of(x, trial);
      if (!searching) continue;
      tries_next = false;
      if (c.total >= wanted_ && c.total <= Room::kNew) {
        t = trial, count = c, searching = false;
      } else {
        ((c.total < wanted_) == places ? low : high) = middle;
        if (!places && high - low == 1) {  // the wanted_-th is one of the ties at `low`
          t.score = score_at(low);
          places = true, low = 0, high = kChunk;
        }
      }
    }
    return count;
  }

  // Ranks the first m entries of the list and leaves the best wanted_, best first.
  __device__ void keep_best(int m) {
    constexpr int kOwn = (Room::kList + Team::kMembers - 1) / Team::kMembers;
    std::uint64_t own[kOwn];
    int rank[kOwn] = {};
#pragma unroll
    for (int o = 0; o < kOwn; ++o) {
      const int n = team_.member + o * Team::kMembers;
      own[o] = n < m ? entry(n) : ~std::uint64_t{0};
    }
#pragma unroll 4
    for (int j = 0; j < m; ++j) {
      const std::uint64_t other = entry(j);
#pragma unroll
      for (int o = 0; o < kOwn; ++o) rank[o] += other > own[o];
    }
    __syncthreads();
#pragma unroll
    for (int o = 0; o < kOwn; ++o)
      if (team_.member + o * Team::kMembers < m && rank[o] < wanted_) add(rank[o], own[o]);
    kept_ = m < wanted_ ? m : wanted_;
    __syncthreads();
  }

  const Team team_;
  Shared& s_;
  const int wanted_;
  int kept_ = 0;
};

template <class Arch, class Team, int PerThread, class Room, class Columns>
__global__ void __launch_bounds__(kSelectThreads, 3)
    select_rows(const __grid_constant__ SelectProblem p, const __grid_constant__ Columns columns) {
  using Rows = Selection<Team, PerThread, Room>;
  __shared__ typename Rows::Shared shared;
  const Team team;
  const std::int64_t token_tiles = (p.tokens + Team::kRows - 1) / Team::kRows;
  const std::int64_t head = blockIdx.x / token_tiles;
  const std::int64_t token = (blockIdx.x - head * token_tiles) * Team::kRows + team.row;
  const bool exists = token < p.tokens;
  const std::int64_t early = exists ? columns.before_wait(token) : 0;
  wait_for_previous();
  release_next();

  // [0, n): forced blocks at both ends, [first, last) chosen by score.
  const std::int64_t n = exists ? clamp(columns(token, early), 0, p.tiles) : 0;
  const std::int64_t first = p.rule.force_begin < n ? p.rule.force_begin : n;
  const std::int64_t last = n - (p.rule.force_end < n - first ? p.rule.force_end : n - first);
  const int wanted = p.rule.topk - static_cast<int>(first + n - last);
  const float* scores = p.scores + head * p.head_stride + token * p.token_stride;
  const auto write = [&](std::int64_t place, std::int64_t id) {
    p.out.ids[token * p.out.token_stride + head * p.out.head_stride + place * p.out.rank_stride] =
        static_cast<std::int32_t>(id);
    if (p.out.scores)
      p.out.scores[token * p.out.score_token_stride + head * p.out.score_head_stride +
                   place * p.out.score_rank_stride] =
          id < 0 ? -INFINITY : __ldg(scores + id * p.tile_stride);
  };

  Rows rows(shared, wanted);
  for (std::int64_t base = 0; __syncthreads_or(base < last); base += Rows::kChunk) {
    float x[PerThread];
    const float* from = scores + (base + team.member) * p.tile_stride;
    const std::int64_t step = Team::kMembers * p.tile_stride;
    const auto count = static_cast<std::uint32_t>(last - first);
    const auto at = static_cast<std::uint32_t>(base + team.member - first);  // wraps below `first`
#pragma unroll
    for (int i = 0; i < PerThread; ++i, from += step)
      x[i] = at + i * Team::kMembers < count ? __ldg(from) : NAN;
    if (p.rule.skip_masked) {
#pragma unroll
      for (int i = 0; i < PerThread; ++i)
        if (!(x[i] > -INFINITY)) x[i] = NAN;
    }
    rows.take(x, base, last - base);
  }

  int kept = rows.kept();
  if (exists && !p.rule.skip_masked && kept < wanted && kept < last - first) {
    // NaN blocks, lowest ids first, where nothing better is left.
    for (std::int64_t column = first; column < last && kept < wanted; ++column) {
      const float x = __ldg(scores + column * p.tile_stride);
      if (!nvfp4::is_nan(x)) continue;
      if (team.member == 0) rows.add(kept, priority_of(x, static_cast<std::uint32_t>(column)));
      ++kept;
    }
  }
  __syncthreads();
  for (int m = team.member; exists && m < kept; m += Team::kMembers) {
    const std::uint32_t id = rows.id(m);
    int place = static_cast<int>(first);
#pragma unroll 4
    for (int j = 0; j < kept; ++j) place += rows.id(j) < id;
    write(place, id);
  }

  for (int place = team.member; exists && place < p.rule.topk; place += Team::kMembers) {
    if (place < first) write(place, place);
    const std::int64_t after = place - first - kept;
    if (after >= 0) write(place, after < n - last ? last + after : -1);
  }
}

}  // namespace kvscout::cuda
