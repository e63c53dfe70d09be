// NVFP4 score of up to 32 query rows where the bounds allow few results: one block of threads for
// each (column, unit and tile, request). No adding up of lengths, the shortest way from them to the
// result; its warps share the keys of the block. It also writes -inf where nothing is visible.
#pragma once

#include "cuda/score_cells.cuh"
#include "cuda/sm120/score_rows.cuh"

namespace kvscout::sm120 {

template <int Tiles>
__global__ void __launch_bounds__(cuda::kThreads, 1)
    score_cells(const __grid_constant__ ScoreParams p) {
  cuda::wait_for_previous();
  cuda::release_next();
  if (static_cast<int>(blockIdx.x) >= p.columns) return cuda::fill_beyond_cells(p);
  __shared__ float rows_of_warp[cuda::kWarps][Tiles * 8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32,
            column = blockIdx.x;
  Segment s;
  s.rows = cuda::rows_of(p, blockIdx.z);
  const int tile = p.cell_tiles == 1 ? 0 : blockIdx.y % p.cell_tiles;
  s.unit = p.cell_tiles == 1 ? blockIdx.y : blockIdx.y / p.cell_tiles;
  s.first = s.rows.begin + tile * p.tile.tokens;
  s.tokens = min(s.rows.end - s.first, p.tile.tokens);
  const bool live = s.tokens > 0 && column < cuda::columns_of_tile(p, s.rows, tile);
  const int block = cuda::block_of(p, column), groups = kGroups / warps;
  float result = -INFINITY;
  HeadChunk heads;
#pragma unroll 1
  for (int pass = 0; pass < p.tile.passes; ++pass) {
    heads = cuda::head_chunk(p, s.unit, pass);
    if (!live) continue;
    Queries<Tiles> q;
    Maxima<Tiles> m;
    const KeyBlock k =
        cuda::key_block(p, s.rows, block, cuda::page_id(p, s.rows.b, block), heads.key_head);
    load_queries<map::Order::paired, true>(p, p.tile, s, heads, lane, q);
    cuda::clear<Tiles>(m);
    if (k.exists) {
      if (groups >= 4 && block < s.rows.limit(s.first, p.lengths.causal) / kBlock)
        score_whole<groups_at_once(Tiles), Tiles>(p, k, warp * groups / 4, (warp + 1) * groups / 4,
                                                  lane, q, m);
      else
        score_part<true, true>(p, k, warp * groups, (warp + 1) * groups, lane, q,
                               VisibleIn{p, s, block}, m);
    }
    const float value = cuda::reduce_keys<Tiles>(m, lane);
    if (pass > 0) __syncthreads();
    if (cuda::is_speaker<Tiles>(lane)) rows_of_warp[warp][cuda::row_of_lane<Tiles>(lane)] = value;
    __syncthreads();
    if (warp > 0) continue;
    result = fmaxf(result, cuda::join_warps(p, rows_of_warp, warps, heads.heads, lane));
  }
  if (warp > 0) return;
  if (lane < Tiles * 8)
    if (float* out = cuda::row_target(p, s, heads, lane))
      out[column * p.out_column_stride] = finish(result, cuda::global_scale(p));
  if (p.fills && tile == 0)
    cuda::fill_unowned(p, s.rows, p.folds ? s.unit : heads.first_head, p.folds ? 1 : heads.heads,
                       column, lane);
}

}  // namespace kvscout::sm120
