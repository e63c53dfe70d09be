// Score of data that 16-byte loads do not fit, queries of any length, and of lines too long to be
// counted in 32 bits: byte by byte. A warp takes a run of blocks, up to 32 rows a tile; no
// pipeline.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/mma.cuh"
#include "cuda/work_list.cuh"

namespace kvscout::cuda {

template <class Ops>
__global__ void __launch_bounds__(kThreads, 1)
    score_unaligned(const __grid_constant__ ScoreParams p) {
  constexpr int kTiles = 4;
  wait_for_previous();
  release_next();
  __shared__ std::int64_t sums[WorkList<true>::kSlots];
  __shared__ float rows_of_warp[kWarps][kTiles * 8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const rows = rows_of_warp[warp];
  WorkList<true> list(p, sums);
  list.add_up();
  const float scale = global_scale(p);
  const Run run = run_of(list.total(), blockIdx.x * kWarps + warp, gridDim.x * kWarps);
#pragma unroll 1
  for (std::int64_t at = run.begin; at < run.end; ++at) {
    const Segment s = list.seek(at);
    const int block = block_of(p, s.column);
    const std::int32_t page = page_id(p, s.rows.b, block);
    float folded = -INFINITY;  // over passes; of token `lane`
#pragma unroll 1
    for (int pass = 0; pass < p.tile.passes; ++pass) {
      const HeadChunk heads = head_chunk(p, s.unit, pass);
      const KeyBlock k = key_block(p, s.rows, block, page, heads.key_head);
      QueryFragments<kTiles> q;
      load_queries<Ops, kTiles, false>(p, s, heads, lane, q);
      Maxima<kTiles> m;
      clear<kTiles>(m);
      if (k.exists) {
#pragma unroll 1
        for (int g = 0; g < kGroups; ++g) {
          typename Ops::Raw raw[1][2];
          std::uint32_t word[1][2];
          float d[1][kTiles][4];
          load_scale_words<Ops, false>(p, k, row_of_group(g), lane, word[0]);
          load_group<Ops, false>(p, k, row_of_group(g), lane, raw[0]);
          typename Ops::Scale scale[1][2] = {};
          Ops::scales(word[0], lane % 4, scale[0]);
          multiply<Ops, kTiles, 1>(raw, scale, q, d);
          mask<kTiles>(p, s.rows, s.first, block, row_of_group(g) + lane / 4, lane, d[0]);
          raise<kTiles>(m, d[0]);
        }
      }
      const float value = reduce_keys<kTiles>(m, lane);
      const int row = row_of_lane<kTiles>(lane);
      if (p.folds) {
        __syncwarp();
        rows[row] = value;
        __syncwarp();
        if (lane < s.tokens) folded = fmaxf(folded, fold_heads(p.tile, rows, heads.heads, lane));
        if (pass + 1 < p.tile.passes) continue;
      }
      if (float* out = row_target(p, s, heads, p.folds ? lane : row))
        out[s.column * p.out_column_stride] = finish<Ops>(p.folds ? folded : value, scale);
    }
  }
  fill_tails(p);
}

}  // namespace kvscout::cuda
