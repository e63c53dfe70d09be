// What becomes of products in the streaming schedule: keys that rows do not see are hidden, and the
// maxima of a block go into the output or wait for those of other warps.
#pragma once

#include "cuda/stream_units.cuh"

namespace kvscout::cuda {

// Rows, or tokens where heads fold, are spread over lanes; of the lanes that hold the same one, one
// speaks.
template <int Tiles>
struct Speaker {
  int lane, row;
  bool speaks;
  __device__ __forceinline__ Speaker(const ScoreParams& p, int of) : lane(found_again(of)) {
    speaks = p.folds ? lane < Tiles * 8 : is_speaker<Tiles>(lane);
    row = p.folds ? lane : row_of_lane<Tiles>(lane);
  }
};

// To global memory, which the compiler cannot tell of a pointer that comes from shared memory.
__device__ __forceinline__ void write_result(float* target, float value) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(target), "f"(value) : "memory");
}

// Puts the rows' maxima of a block of keys where they belong: into the output, or, where an earlier
// warp began the block or a later one goes on with it, beside its share.
template <class Ops, int Tiles>
__device__ __forceinline__ void write_block(const ScoreParams& p, Position<Tiles>& here,
                                            float value, bool joins, bool stays, float* target,
                                            int lane) {
  if (__builtin_expect(!p.folds && !(joins || stays), 1)) {  // one pass, too
    if (target) write_result(target, finish<Ops>(value, here.scale));
    return;
  }
  const Speaker<Tiles> of(p, lane);
  if (p.folds) {
    __syncwarp();
    if (is_speaker<Tiles>(of.lane)) here.rows[row_of_lane<Tiles>(of.lane)] = value;
    __syncwarp();
    value = of.lane < here.segment.tokens ? fold_heads(p.tile, here.rows, here.heads.heads, of.lane)
                                          : -INFINITY;
  }
  if (joins || stays) {
    float* const share = joins ? here.joined : here.begun;
    if (of.speaks) share[of.row] = here.pass == 0 ? value : fmaxf(share[of.row], value);
  } else if (target) {
    if (here.pass > 0) value = fmaxf(value, *target);  // raw maxima gather in the output
    write_result(target, here.pass + 1 == p.tile.passes ? finish<Ops>(value, here.scale) : value);
  }
}

// Hides keys that rows do not see, of a step whose first key is the lane's `first`. `limits`: of
// the tile's rows.
template <class Ops, int Tiles>
__device__ __forceinline__ void mask_step(const int* limits, int first, int lane,
                                          float (&d)[Unit<Ops, Tiles>::kStep][Tiles][4]) {
#pragma unroll
  for (int t = 0; t < Tiles; ++t)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int visible = limits[t * 8 + lane % 4 * 2 + e] - first;
#pragma unroll
      for (int g = 0; g < Unit<Ops, Tiles>::kStep; ++g) {
        if (g * 32 >= visible) d[g][t][e] = -INFINITY;
        if (g * 32 + 8 >= visible) d[g][t][2 + e] = -INFINITY;
      }
    }
}

}  // namespace kvscout::cuda
