// Score of long queries with wgmma, by three or four warpgroups.
//
// Two multiply: a tile's queries are the A operand and stay in registers for a whole run of blocks,
// M times 64 rows a warpgroup. So the maximum over keys lies in a thread's own accumulators, and
// two exchanges in a quad of lanes finish it. The others prepare keys: they copy a block of 128
// ahead of time, unpack it and write it into shared memory as the B operand, a ring of kOperands of
// them. One keeps up with M = 2; with M = 1 a block is multiplied in half the time, and two take
// turns (30 requests of 8 tokens, 64/4 heads, on an H200: 460 us instead of 522 with one).
//
// Bound: the matrix units, and the power that the GPU may draw. A warpgroup has two sets of
// accumulators: one is multiplied while the maxima of the other are found. With M = 2 a set is one
// half of its rows, with M = 1 every other block. The two warpgroups meet nowhere, so one's pauses
// are filled by the other. (One barrier a block and all 256 threads unpacking: 594 TFLOP/s. Keys as
// A, unpacked by those who multiply: 660.) A preparer is one warp on each quarter of the
// multiprocessor, so it pays for every latency; what it loops over must leave its registers room to
// unpack several words at a time, which is why its state lies in shared memory.
//
// A block of threads is resident on each SM and takes an equal run of the line of work
// (work_list.cuh, lone_line.cuh), which may begin and end inside a tile.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/sm90/multiply_keys.cuh"
#include "cuda/sm90/prepare_keys.cuh"

namespace kvscout::sm90 {

template <class Ops, int M>
__global__ void __launch_bounds__(kBlockThreads<M>, 1)
    score_warpgroup(const __grid_constant__ ScoreParams p) {
  static_assert(sizeof(WarpgroupShared<Ops, M>) <= 227 * 1024);
  // First what needs no memory: the kernel before may still be at work.
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WarpgroupShared<Ops, M>*>(memory);
  if (threadIdx.x < 128 * M) shared.place[threadIdx.x] = Place(p, static_cast<int>(threadIdx.x));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kOperands<Ops, M>; ++i) {
      barrier_init(shared.written[i], kWarpgroup);
      barrier_init(shared.multiplied[i], 2 * kWarpgroup / 32);
    }
    for (Tile<Ops, M>& tile : shared.tile) {
      barrier_init(tile.announced, 2 * kPreparers<M> * kWarpgroup);
      barrier_init(tile.taken, 2 * kWarpgroup);
    }
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32) - 2 * kWarpgroup / 32;  // that prepares
  cuda::Ready ready;
  LoneLine lone(p, shared.lone_sums[max(warp, 0)], ready);
  ready.wait_for_previous();
  cuda::release_next();
  WorkList list(p, shared.sums);
  if (!p.lone) list.add_up();
  if (threadIdx.x >= 2 * kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegistersToPrepare<M>));
    prepare_keys<Ops, M>(p, list, lone, shared);
    // Meanwhile the last blocks are multiplied.
    cuda::fill_tails(p, warp, kPreparers<M> * kWarpgroup / 32, early_parts(p), p.fill_parts);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegistersToMultiply<M>));
    multiply_keys<Ops, M>(p, shared);
  }
}

}  // namespace kvscout::sm90
