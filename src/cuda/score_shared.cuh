// Score of long queries with mma.sync, where there is no wgmma: 128 query rows a tile lie in shared
// memory, in the order in which lanes take them as N operands; a warp takes a block of keys, 32
// keys at a time, against all of them. Bound: the matrix instructions; the 16-byte reads of queries
// are shared by two of them.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/mma.cuh"
#include "cuda/work_list.cuh"

namespace kvscout::cuda {

inline constexpr int kSharedTiles = 16;  // x 8 rows

struct SharedQueries {
  uint4 fragment[kSharedTiles][4][32];
  int limits[kSharedTiles * 8];  // keys that a row sees
  float rows[kWarps][kSharedTiles * 8];
  std::int64_t sums[WorkList<false>::kSlots];
};

// A tile's queries into shared memory, by the whole block of threads.
template <class Ops>
__device__ __forceinline__ void stage_queries(const ScoreParams& p, const Segment& s,
                                              const HeadChunk& heads, SharedQueries& shared) {
#pragma unroll 1
  for (int i = threadIdx.x; i < kSharedTiles * 32; i += kThreads) {
    const int t = i / 32, lane = i % 32;
    std::uint32_t h[16];
    load_query<Ops, true>(p, s, heads, t * 8 + lane / 4, lane % 4, h);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      shared.fragment[t][j][lane] = make_uint4(h[4 * j], h[4 * j + 1], h[4 * j + 2], h[4 * j + 3]);
  }
  if (const int n = threadIdx.x; n < kSharedTiles * 8)
    shared.limits[n] = s.rows.limit(s.first + place_of_row(p.tile, n).token, p.lengths.causal);
}

// Writes a tile's row maxima for one column; with heads reduced over several passes, raw maxima
// gather in the output itself (the same lane reads what it wrote) until the last pass.
template <class Ops>
__device__ __forceinline__ void write_rows(const ScoreParams& p, const Segment& s,
                                           const HeadChunk& heads, int pass, int column,
                                           float scale, const float* rows, int first, int step) {
  const bool folds = p.folds;
  const int count = folds ? s.tokens : heads.heads * p.tile.tokens;
  for (int n = first; n < count; n += step) {
    float* out = row_target(p, s, heads, n);
    if (!out) continue;
    out += column * p.out_column_stride;
    float m = folds ? fold_heads(p.tile, rows, heads.heads, n) : rows[n];
    if (pass > 0) m = fmaxf(m, *out);
    *out = pass + 1 == p.tile.passes ? finish<Ops>(m, scale) : m;
  }
}

template <class Ops>
__global__ void __launch_bounds__(kThreads, 1) score_shared(const __grid_constant__ ScoreParams p) {
  wait_for_previous();
  release_next();
  extern __shared__ __align__(16) unsigned char memory[];
  SharedQueries& shared = *reinterpret_cast<SharedQueries*>(memory);
  constexpr int kStep = Ops::kKeyLoads == 4 ? 1 : 2;  // groups of 16 keys at a time
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  WorkList<false> list(p, shared.sums);
  list.add_up();
  const float scale = global_scale(p);
  float* const rows = shared.rows[warp];

  const Run run = run_of(list.total(), blockIdx.x, gridDim.x);
  for (std::int64_t at = run.begin; at < run.end;) {
    const Segment s = list.seek(at);
    const std::int64_t left = run.end - at;
    const int end = s.end_of(left);
    at += s.left < left ? s.left : left;
    const int seen_by_all = s.rows.limit(s.first, p.lengths.causal);
    for (int pass = 0; pass < p.tile.passes; ++pass) {
      const HeadChunk heads = head_chunk(p, s.unit, pass);
      __syncthreads();
      stage_queries<Ops>(p, s, heads, shared);
      __syncthreads();
#pragma unroll 1
      for (int column = s.column + warp; column < end; column += kWarps) {
        const int block = block_of(p, column);
        const KeyBlock k = key_block(p, s.rows, block, page_id(p, s.rows.b, block), heads.key_head);
        const bool masked = block * kBlock > seen_by_all - kBlock;
        Maxima<kSharedTiles> m;
        clear<kSharedTiles>(m);
        if (k.exists) {
          typename Ops::Raw raw[kStep][2];
          std::uint32_t word[kStep][2];
          const auto load = [&](int g) {
#pragma unroll
            for (int j = 0; j < kStep; ++j) {
              load_scale_words<Ops, true>(p, k, row_of_group(g + j), lane, word[j]);
              load_group<Ops, true>(p, k, row_of_group(g + j), lane, raw[j]);
            }
          };
          load(0);
#pragma unroll 1
          for (int g = 0; g < kGroups; g += kStep) {
            std::uint32_t a[kStep][2][16];
#pragma unroll
            for (int j = 0; j < kStep; ++j) {
              typename Ops::Scale s[2] = {};
              Ops::scales(word[j], lane % 4, s);
#pragma unroll
              for (int h = 0; h < 2; ++h) Ops::fragment(raw[j][h], s[h], a[j][h]);
            }
            if (g + kStep < kGroups) load(g + kStep);
#pragma unroll
            for (int t = 0; t < kSharedTiles; ++t) {
              float d[kStep][4] = {};
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const uint4 b = shared.fragment[t][i][lane];
#pragma unroll
                for (int j = 0; j < kStep; ++j) {
                  mma<Ops::kBf16>(d[j], a[j][0][4 * i], a[j][1][4 * i], a[j][0][4 * i + 1],
                                  a[j][1][4 * i + 1], b.x, b.y);
                  mma<Ops::kBf16>(d[j], a[j][0][4 * i + 2], a[j][1][4 * i + 2], a[j][0][4 * i + 3],
                                  a[j][1][4 * i + 3], b.z, b.w);
                }
              }
              if (masked) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                  const int visible = shared.limits[t * 8 + lane % 4 * 2 + e] - block * kBlock;
#pragma unroll
                  for (int j = 0; j < kStep; ++j) {
                    const int row = row_of_group(g + j) + lane / 4;
                    if (row >= visible) d[j][e] = -INFINITY;
                    if (row + 8 >= visible) d[j][2 + e] = -INFINITY;
                  }
                }
              }
#pragma unroll
              for (int j = 0; j < kStep; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) m[t][e] = fmaxf(m[t][e], fmaxf(d[j][e], d[j][2 + e]));
            }
          }
        }
        reduce_keys<kSharedTiles>(m, lane);  // leaves four rows a lane
        __syncwarp();
        int index = 0;
#pragma unroll
        for (int step = 0; step < 3; ++step)
          if (lane & (4 << step)) index += kSharedTiles >> step;
#pragma unroll
        for (int i = 0; i < kSharedTiles / 4; ++i) {
          const int v = index + i;
          rows[v / 2 * 8 + lane % 4 * 2 + v % 2] = (&m[0][0])[i];
        }
        __syncwarp();
        write_rows<Ops>(p, s, heads, pass, column, scale, rows, lane, 32);
      }
    }
  }
  fill_tails(p);
}

}  // namespace kvscout::cuda
