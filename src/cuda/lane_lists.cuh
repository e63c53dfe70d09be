// What 32 rows, a lane each, keep in shared memory, and the choice among their candidates: networks
// that sort 16 numbers in registers, for 32 rows at a time by one warp, and merge such lists.
#pragma once

#include <cmath>
#include <utility>

#include "cuda/team.cuh"

namespace kvscout::cuda {

inline constexpr int kLaneTopk = 16;     // at most
inline constexpr int kLaneRoom = 32;     // candidates of a row, those of earlier chunks among them
inline constexpr int kLaneColumns = 64;  // of a warp in a chunk
inline constexpr int kLaneGroups = 8;    // of a warp in a chunk
inline constexpr int kLaneWarps = kSelectThreads / 32;
inline constexpr int kLaneChunk = kLaneWarps * kLaneColumns;

struct LaneShared {
  float lists[kLaneWarps * kLaneGroups][32];  // of 16, to be sorted
  float threshold[32];
  int count[kLaneWarps][32];
  // Candidates, and room for those that stay. Scores and ids apart: pairs would need pairs of
  // registers.
  float score[2][kLaneRoom][32];
  std::int32_t id[2][kLaneRoom][32];
  unsigned chosen[32];  // candidates that stay
  float floor[32];      // what later columns have to exceed
  // Of each row: [first, last) of [0, columns) chosen by score, `wanted` of them, `kept` so far.
  // Here because the scores take all registers; the same goes for where the rows lie.
  int first[32], last[32], columns[32], wanted[32], kept[32], found[32];
  const float* rows;
  std::int64_t token, head;
  int longest, buffer;  // columns of the longest row; where the candidates are
};

__device__ __forceinline__ void order_pair(float& larger, float& smaller) {
  const float a = larger, b = smaller;
  larger = fmaxf(a, b), smaller = fminf(a, b);
}
// Batcher's odd-even merges: the n-th comparison of 63.
struct Pair {
  int larger, smaller;
};
consteval Pair pair_of_16(int n) {
  for (int p = 1; p < 16; p *= 2)
    for (int k = p; k >= 1; k /= 2)
      for (int j = k % p; j < 16 - k; j += 2 * k)
        for (int i = j; i < j + k && i + k < 16; ++i)
          if (i / (2 * p) == (i + k) / (2 * p) && n-- == 0) return {i, i + k};
  return {};
}
template <int... N>
__device__ __forceinline__ void sort_16(float (&v)[16], std::integer_sequence<int, N...>) {
  (order_pair(v[pair_of_16(N).larger], v[pair_of_16(N).smaller]), ...);
}
// Largest first.
__device__ __forceinline__ void sort_16(float (&v)[16]) {
  sort_16(v, std::make_integer_sequence<int, 63>{});
}
// Sorts 16 numbers that rise to one place and fall from it, or such a sequence rotated.
__device__ __forceinline__ void sort_bitonic_16(float (&v)[16]) {
#pragma unroll
  for (int step = 0; step < 4; ++step)
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if ((i & 8 >> step) == 0) order_pair(v[i], v[i + (8 >> step)]);
}
// Warps below `Lists` sort a list each; then warp 0 has the 16 largest of all of them in v, in no
// order. Collective over the block.
template <int Lists>
__device__ __forceinline__ void largest_16(LaneShared& s, int warp, int lane, float (&v)[16]) {
  __syncthreads();
  if (warp < Lists) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = s.lists[16 * warp + i][lane];
    sort_16(v);
#pragma unroll
    for (int i = 0; i < 16; ++i) s.lists[16 * warp + i][lane] = v[i];
  }
  __syncthreads();
  if (warp == 0) {
#pragma unroll
    for (int l = 1; l < Lists; ++l) {
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = fmaxf(v[i], s.lists[16 * l + 15 - i][lane]);
      if (l + 1 < Lists) sort_bitonic_16(v);
    }
  }
}

// Which of a row's first m candidates are the best `wanted`: one bit each. Collective over the
// block, the same for all warps.
__device__ __forceinline__ unsigned choose(LaneShared& s, int buffer, int warp, int lane, int m,
                                           int wanted) {
  const unsigned all = m < 32 ? (1u << m) - 1 : ~0u;
  if (__all_sync(0xFFFFFFFFu, m <= wanted)) return all;
  if (warp < kLaneRoom / 16) {
#pragma unroll
    for (int i = 0; i < 16; ++i)
      s.lists[16 * warp + i][lane] =
          16 * warp + i < m ? s.score[buffer][16 * warp + i][lane] : -INFINITY;
  }
  float v[16];
  largest_16<kLaneRoom / 16>(s, warp, lane, v);
  if (warp == 0) {
    sort_bitonic_16(v);
    // The wanted-th, by halves: an index would move the list out of registers.
    float a[8], b[4];
    const int which = wanted - 1;
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = which & 8 ? v[i + 8] : v[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = which & 4 ? a[i + 4] : a[i];
    const float c = which & 2 ? b[2] : b[0], d = which & 2 ? b[3] : b[1];
    const float least = which & 1 ? d : c;
    unsigned larger = 0, equal = 0;
#pragma unroll
    for (int i = 0; i < kLaneRoom; ++i) {
      const float x = s.score[buffer][i][lane];
      larger |= x > least ? 1u << i : 0u;
      equal |= x == least ? 1u << i : 0u;
    }
    larger &= all, equal &= all;
    const int ties = wanted - __popc(larger);
    while (__popc(equal) > ties) equal &= ~(0x80000000u >> __clz(equal));  // the last ones go
    if (m <= wanted) larger = all;
    s.chosen[lane] = larger | equal;
    s.floor[lane] = m >= wanted ? least : NAN;
  }
  __syncthreads();
  return s.chosen[lane];
}

}  // namespace kvscout::cuda
