// NVFP4 score of 33 to 256 query rows: long verifications, short prompts. Bound: streaming the
// keys, which takes a GB202 as long as the block-scaled instructions of some 300 rows. A warp keeps
// 64 rows in registers and streams keys past them as the short schedule does, without shared memory
// or barriers; warps with the same rows take turns with the columns, the others meet in the L1
// cache.
#pragma once

#include "cuda/sm120/parts.cuh"

namespace kvscout::sm120 {

template <int Tiles>
__global__ void __launch_bounds__(cuda::kThreads, 2)
    score_tiles(const __grid_constant__ ScoreParams p) {
  cuda::wait_for_previous();
  cuda::release_next();
  __shared__ std::int64_t sums[cuda::WorkList<false>::kSlots];
  __shared__ float rows_of_warp[cuda::kWarps][kPartRows];
  __shared__ __align__(alignof(State)) unsigned char states[cuda::kWarps][sizeof(State)];
  __shared__ __align__(16) Targets targets_of_warp[cuda::kWarps];
  __shared__ int limits_of_warp[cuda::kWarps][kPartRows];  // keys that a row sees
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  cuda::WorkList<false> list(p, sums);
  list.add_up();
  TileShape tile = p.tile;  // of a part
  const int parts = p.tile.rows / kPartRows;
  tile.tokens = p.tile.tokens / parts;
  State& state = *reinterpret_cast<State*>(states[warp]);
  Segment& s = state.segment;
  HeadChunk& heads = state.heads;
  if (lane == 0) state.run = cuda::run_of(list.total(), blockIdx.x, gridDim.x);
  __syncwarp();
  while (state.run.begin < state.run.end) {
    take_part(p, list, tile, warp % parts, lane, state, limits_of_warp[warp]);
#pragma unroll 1
    for (int pass = 0; pass < p.tile.passes; ++pass) {
      __syncwarp();
      if (lane == 0) heads = cuda::head_chunk(p, s.unit, pass);
      __syncwarp();
      find_targets(p, tile, s, heads, lane, targets_of_warp[warp]);
      Queries<Tiles> q;
      load_queries<map::Order::paired, true>(p, tile, s, heads, lane, q);
      __syncwarp();
#pragma unroll 1
      for (int column = s.column + thread_again() / 32 / parts; column < state.own_end;
           column += cuda::kWarps / parts) {
        const int block = cuda::block_of(p, column), again = thread_again() % 32,
                  mine = thread_again() / 32;
        const KeyBlock k =
            cuda::key_block(p, s.rows, block, cuda::page_id(p, s.rows.b, block), heads.key_head);
        const int* const limits = limits_of_warp[mine];
        Maxima<Tiles> m;
        cuda::clear<Tiles>(m);
        if (k.exists) {
          if (block < limits[0] / kBlock)  // all rows see it
            score_part<true, false>(p, k, 0, kGroups, again, q, nullptr, m);
          else
            score_part<true, true>(
                p, k, 0, kGroups, again, q, [&](int n) { return limits[n] - block * kBlock; }, m);
        }
        cuda::reduce_keys<Tiles>(m, again);
        write_part(p, tile, s, heads, pass, column, targets_of_warp[mine], rows_of_warp[mine],
                   again, m[0]);
      }
    }
  }
  cuda::fill_tails(p);
}

}  // namespace kvscout::sm120
