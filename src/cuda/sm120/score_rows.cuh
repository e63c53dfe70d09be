// NVFP4 score of up to 32 query rows (decode, verification of a few tokens). Bound: streaming the
// keys once, 9216 bytes a block. A warp takes a run of blocks; keys go from memory through
// registers into the block-scaled instruction. No shared memory and no barrier on the way; 16 warps
// a multiprocessor keep 74 KB under way where an RTX PRO 6000 needs 6.5 (1.79 TB/s x 700 ns / 188).
//
// Few blocks (fewer than half the warps): 2, 4 or 8 warps share a block, each takes some of its
// eight groups of keys, so that a single short request still reaches all of the chip. The device
// decides, since only it knows the lengths.
#pragma once

#include "cuda/sm120/operands.cuh"
#include "cuda/work_list.cuh"

namespace kvscout::sm120 {

// Groups of 16 keys that are scored side by side: with few rows, more of them hide the latency of
// the instruction.
constexpr int groups_at_once(int tiles) { return tiles == 1 ? 2 : 1; }

// What a warp is at: in shared memory, not in registers, which the inner loop needs.
struct State {
  Segment segment;
  HeadChunk heads;
  cuda::Run run;
  int own_end;  // of the columns that this warp's rows see, where a block of threads shares a run
};

// Keys of a block that a query row of the tile sees.
struct VisibleIn {
  const ScoreParams& p;
  const Segment& s;
  int block;
  __device__ __forceinline__ int operator()(int n) const {
    const int token = cuda::place_of_row(p.tile, n).token;
    return s.rows.limit(s.first + token, p.lengths.causal) - block * kBlock;
  }
};

template <int Tiles, bool Aligned>
__global__ void __launch_bounds__(cuda::kThreads, 2)
    score_rows(const __grid_constant__ ScoreParams p) {
  cuda::wait_for_previous();
  cuda::release_next();
  __shared__ std::int64_t sums[cuda::WorkList<true>::kSlots];
  __shared__ float rows_of_warp[cuda::kWarps][Tiles * 8];
  __shared__ __align__(alignof(State)) unsigned char states[cuda::kWarps][sizeof(State)];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  cuda::WorkList<true> list(p, sums);
  list.add_up();
  const std::int64_t total = list.total();
  const float scale = cuda::global_scale(p);
  State& state = *reinterpret_cast<State*>(states[warp]);
  Segment& s = state.segment;
  HeadChunk& heads = state.heads;
  cuda::Run& run = state.run;
  Queries<Tiles> q;
  Maxima<Tiles> m;

  const int warps = gridDim.x * cuda::kWarps,
            few = static_cast<int>(min(total, std::int64_t{1} << 27));
  const int parts = few * 8 <= warps ? 8 : few * 4 <= warps ? 4 : few * 2 <= warps ? 2 : 1;
  const std::int64_t worker = (blockIdx.x * cuda::kWarps + warp) / parts;
  if (parts > 1 && worker >= total)  // the partners of working warps wait with them
    for (int pass = 0; pass < p.tile.passes; ++pass) __syncthreads(), __syncthreads();
  if (lane == 0)
    run = parts == 1 ? cuda::run_of(total, worker, warps)
                     : cuda::Run{worker, worker + (worker < total)};
  __syncwarp();
  const int part = warp % parts, groups = kGroups / parts;

  while (run.begin < run.end) {
    {
      const Segment found = list.seek(run.begin);
      // With several passes, a column at a time: they fold into one value.
      const std::int64_t left = p.tile.passes > 1 ? 1 : run.end - run.begin;
      const int end = found.end_of(left);
      __syncwarp();
      if (lane == 0) s = found, s.column_end = end, run.begin += end - found.column;
      __syncwarp();
    }
    float folded = -INFINITY;
#pragma unroll 1
    for (int pass = 0; pass < p.tile.passes; ++pass) {
      __syncwarp();
      if (lane == 0) heads = cuda::head_chunk(p, s.unit, pass);
      __syncwarp();
      load_queries<map::Order::paired, Aligned>(p, p.tile, s, heads, lane, q);
      const int owner = thread_again() % 32;
      float* const out =
          cuda::row_target(p, s, heads, p.folds ? owner : cuda::row_of_lane<Tiles>(owner));
      const int whole = s.rows.limit(s.first, p.lengths.causal) / kBlock;  // blocks all rows see
      std::int32_t page = cuda::page_id(p, s.rows.b, cuda::block_of(p, s.column));
#pragma unroll 1
      for (int column = s.column; column < s.column_end; ++column) {
        const int block = cuda::block_of(p, column);
        const KeyBlock k = cuda::key_block(p, s.rows, block, page, heads.key_head);
        if (column + 1 < s.column_end)
          page = cuda::page_id(p, s.rows.b, cuda::block_of(p, column + 1));
        const int again = thread_again() % 32;
        cuda::clear<Tiles>(m);
        if (k.exists) {
          if (Aligned && parts == 1 && block < whole)
            score_whole<groups_at_once(Tiles), Tiles>(p, k, 0, 2, again, q, m);
          else
            score_part<Aligned, true>(p, k, part * groups, (part + 1) * groups, again, q,
                                      VisibleIn{p, s, block}, m);
        }
        float value = cuda::reduce_keys<Tiles>(m, again);
        bool speaks = cuda::is_speaker<Tiles>(again);
        const int row = cuda::row_of_lane<Tiles>(again);
        if (parts > 1) {
          const int mine = thread_again() / 32;
          if (speaks) rows_of_warp[mine][row] = value;
          __syncthreads();
          if (part == 0)
            for (int w = 1; w < parts; ++w) value = fmaxf(value, rows_of_warp[mine + w][row]);
          __syncthreads();
          if (part > 0) continue;
        }
        if (p.folds) {
          float* const rows = rows_of_warp[thread_again() / 32];
          __syncwarp();
          if (speaks) rows[row] = value;
          __syncwarp();
          speaks = lane < s.tokens;
          if (speaks) folded = fmaxf(folded, cuda::fold_heads(p.tile, rows, heads.heads, lane));
          value = folded;
        }
        if (pass + 1 < p.tile.passes) continue;
        if (speaks && out) out[column * p.out_column_stride] = finish(value, scale);
        folded = -INFINITY;
      }
    }
  }
  cuda::fill_tails(p);
}

}  // namespace kvscout::sm120
