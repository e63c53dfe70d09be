// The selection of a row of at most 128 blocks, by one thread block: every block is compared with
// every other, and how many win against it is its rank. Four barriers; no threshold, no candidates.
//
// Bound: latency. This is what a decode step over a short context waits for.
#pragma once

#include "cuda/team.cuh"
#include "order.h"

namespace kvscout::cuda {

inline constexpr int kFew = 128;

struct FewShared {
  std::uint64_t priority[kFew];
  int above[kFew];
  unsigned chosen[kFew / 32];
};

// The place of this thread's column among the best `wanted` of `count` <= kFew, by ascending
// column; -1 if it is not one of them, or if this thread speaks for none.
struct FewPlace {
  int column = 0, place = -1, kept = 0;
};

// score(column) is asked for columns below `count`. Collective over kSelectThreads threads.
template <class Score>
__device__ __forceinline__ FewPlace choose_few(FewShared& s, int count, int wanted,
                                               bool skip_masked, Score score) {
  const int width = count <= kFew / 2 ? kFew / 2 : kFew;  // columns; several threads share one
  const int column = threadIdx.x % width, part = threadIdx.x / width;
  std::uint64_t mine = 0;  // below every priority
  if (column < count) {
    const float x = score(column);
    if (!skip_masked || x > -INFINITY) mine = priority_of(x, static_cast<std::uint32_t>(column));
  }
  if (part == 0) s.priority[column] = mine, s.above[column] = 0;
  __syncthreads();
  const int each = width * width / kSelectThreads, first = part * each;
  int above = 0;
#pragma unroll 8
  for (int j = first; j < first + each; ++j) above += s.priority[j] > mine;
  if (above) atomicAdd(&s.above[column], above);
  __syncthreads();
  const bool chosen = part == 0 && mine != 0 && s.above[column] < wanted;
  const unsigned mask = __ballot_sync(0xFFFFFFFFu, chosen);
  if (part == 0 && column % 32 == 0) s.chosen[column / 32] = mask;
  __syncthreads();
  FewPlace p;
  p.column = column;
  int before = 0;
  for (int w = 0; w < width / 32; ++w) {
    const unsigned m = s.chosen[w];
    p.kept += __popc(m);
    before += __popc(w < column / 32 ? m : w == column / 32 ? m & ((1u << column % 32) - 1) : 0u);
  }
  if (chosen) p.place = before;
  return p;
}

}  // namespace kvscout::cuda
