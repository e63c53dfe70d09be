// What the line of work is made of (work_list.cuh, level_line.cuh, lone_line.cuh).
#pragma once

#include "cuda/score_params.cuh"

namespace kvscout::cuda {

template <class T>
__device__ __forceinline__ T warp_inclusive_sum(T x, int lane) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const T y = __shfl_up_sync(kAllLanes, x, d);
    if (lane >= d) x += y;
  }
  return x;
}

// What follows from this is found again where it is used, by force: over a long loop there is no
// register to keep it in.
__device__ __forceinline__ int found_again(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// A run of columns that one tile sees.
struct Segment : Stretch {
  Rows rows;
  int first = 0;  // the tile's first token, local index
  int tokens = 0;
  int unit = 0;
};

}  // namespace kvscout::cuda
