// The 16-bit matrix instruction with keys as its M operand and query rows as its N operand, and
// what surrounds it: the order of k is free, so that 16 bytes of a key row are a lane's operand as
// they come; maxima over keys stay with the lanes until a block is done.
#pragma once

#include "cuda/keys.cuh"

namespace kvscout::cuda {

template <bool Bf16>
__device__ __forceinline__ void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                    std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                    std::uint32_t b1) {
  if constexpr (Bf16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Brings the constants of a kernel near; they are far after each launch, and a small call would
// stumble over each of them in turn.
__device__ __forceinline__ void warm_constants(const ScoreParams& p) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(&p);
#pragma unroll
  for (unsigned i = 0; i < sizeof(ScoreParams) / 4; i += 16) asm volatile("" ::"r"(words[i]));
  asm volatile("" ::"r"(kUp[0]));
}

// Queries of a tile as the N operand: Tiles x 8 rows.
template <int Tiles>
using QueryFragments = std::uint32_t[Tiles][16];
// Running maxima: rows 8t + 2c and 8t + 2c + 1, over the keys that a lane has seen. fmaxf drops
// NaN.
template <int Tiles>
using Maxima = float[Tiles][2];

template <int Tiles>
__device__ __forceinline__ void clear(Maxima<Tiles>& m) {
#pragma unroll
  for (int t = 0; t < Tiles; ++t) m[t][0] = m[t][1] = -INFINITY;
}

// Groups of 16 keys against all rows, their k-steps side by side.
template <class Ops, int Tiles, int Groups, class Unpack = ByArithmetic<true>>
__device__ __forceinline__ void multiply(const typename Ops::Raw (*raw)[2],
                                         const typename Ops::Scale (*scale)[2],
                                         const QueryFragments<Tiles>& q,
                                         float (&d)[Groups][Tiles][4], const Unpack& by = {}) {
#pragma unroll
  for (int g = 0; g < Groups; ++g)
#pragma unroll
    for (int t = 0; t < Tiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) d[g][t][e] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)  // two k-steps at a time, to save registers
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      std::uint32_t x[4], y[4];
      Ops::quarter(by, raw[g][0], scale[g][0], i, x);
      Ops::quarter(by, raw[g][1], scale[g][1], i, y);
#pragma unroll
      for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int t = 0; t < Tiles; ++t)
          mma<Ops::kBf16>(d[g][t], x[2 * s], y[2 * s], x[2 * s + 1], y[2 * s + 1],
                          q[t][4 * i + 2 * s], q[t][4 * i + 2 * s + 1]);
    }
}

// Keys that a row does not see: `row` is the block's row that d[.][0] belongs to, `first` the
// tile's first token.
template <int Tiles>
__device__ __forceinline__ void mask(const ScoreParams& p, const Rows& r, int first, int block,
                                     int row, int lane, float (&d)[Tiles][4]) {
#pragma unroll
  for (int t = 0; t < Tiles; ++t)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = place_of_row(p.tile, t * 8 + lane % 4 * 2 + e).token;
      const int visible = r.limit(first + token, p.lengths.causal) - block * kBlock;
      if (row >= visible) d[t][e] = -INFINITY;
      if (row + 8 >= visible) d[t][2 + e] = -INFINITY;
    }
}

template <int Tiles>
__device__ __forceinline__ void raise(Maxima<Tiles>& m, const float (&d)[Tiles][4]) {
#pragma unroll
  for (int t = 0; t < Tiles; ++t)
#pragma unroll
    for (int e = 0; e < 2; ++e) m[t][e] = fmaxf(m[t][e], fmaxf(d[t][e], d[t][2 + e]));
}

// Maxima over the 8 lanes that share c. Exchanges halves, so that each lane ends with one row:
// `row_of_lane`.
template <int Tiles>
__device__ __forceinline__ float reduce_keys(Maxima<Tiles>& m, int lane) {
  float* v = &m[0][0];
#pragma unroll
  for (int step = 0, width = Tiles; step < 3; ++step, width /= 2) {
    const int distance = 4 << step;
    if (width >= 1) {
      const bool high = lane & distance;
#pragma unroll
      for (int i = 0; i < Tiles; ++i)
        if (i < width) {
          const float sent = high ? v[i] : v[i + width], kept = high ? v[i + width] : v[i];
          v[i] = fmaxf(kept, __shfl_xor_sync(kAllLanes, sent, distance));
        }
    } else {
      v[0] = fmaxf(v[0], __shfl_xor_sync(kAllLanes, v[0], distance));
    }
  }
  return v[0];
}
template <int Tiles>
__device__ __forceinline__ int row_of_lane(int lane) {
  int index = 0;
  for (int step = 0, width = Tiles; step < 3 && width >= 1; ++step, width /= 2)
    if (lane & (4 << step)) index += width;
  return index / 2 * 8 + lane % 4 * 2 + index % 2;
}
// Of the lanes that hold the same row, one speaks.
template <int Tiles>
__device__ __forceinline__ bool is_speaker(int lane) {
  return Tiles == 4 || lane / 4 < 2 * Tiles;
}

template <class Ops, int Tiles, bool Aligned>
__device__ __forceinline__ void load_queries(const ScoreParams& p, const Segment& s,
                                             const HeadChunk& heads, int lane,
                                             QueryFragments<Tiles>& q) {
#pragma unroll
  for (int t = 0; t < Tiles; ++t)
    load_query<Ops, Aligned>(p, s, heads, t * 8 + lane / 4, lane % 4, q[t]);
}

}  // namespace kvscout::cuda
