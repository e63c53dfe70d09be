// NVFP4 score of many query rows (prefill). Bound: the block-scaled instruction. A block of threads
// has eight parts of 64 query rows, one a warp, in registers, and streams pages of keys past all of
// them: raw bytes go by asynchronous copies into a ring in shared memory and by ldmatrix into the
// instruction; nobody dequantises. A page costs a warp 128 instructions of 16 cycles beside 16
// ldmatrix, and a block one barrier in some 4000 cycles; the second block of the multiprocessor
// works meanwhile.
#pragma once

#include "cuda/sm120/parts.cuh"

namespace kvscout::sm120 {

// Pages under way, and the one at work: 37 KB, of which two blocks fit.
inline constexpr int kPages = 4;

struct PageRing {
  // Row r's 16-byte chunk c lies at place c ^ (r/2 % 4), so that eight rows of a chunk are eight
  // different sets of banks.
  std::uint8_t codes[kPages][kBlock * 64];
  std::uint8_t scales[kPages][scale_layout::kPageBytes];  // 128x4, for flat keys too
  int exists[kPages];
};

// Starts the copies of a page, by one warp.
__device__ __forceinline__ void fetch_page(const ScoreParams& p, const Segment& s, int key_head,
                                           int column, PageRing& ring, int slot, int lane) {
  const int block = cuda::block_of(p, column);
  const KeyBlock k = cuda::key_block(p, s.rows, block, cuda::page_id(p, s.rows.b, block), key_head);
  if (lane == 0) ring.exists[slot] = k.exists;
  if (!k.exists) return;
  const int r = lane / 4, c = lane % 4;
  std::uint8_t* const codes = &ring.codes[slot][r * 64 + ((c ^ (r / 2 % 4)) * 16)];
#pragma unroll 4
  for (int i = 0; i < kBlock; i += 8)
    cuda::copy_async<16>(codes + i * 64, k.rows + min(i + r, k.last) * p.k_token_stride + 16 * c);
  std::uint8_t* const scales = ring.scales[slot];
  if (p.paged) {
#pragma unroll
    for (int i = 16 * lane; i < scale_layout::kPageBytes; i += 16 * 32)
      cuda::copy_async<16>(scales + i, k.scales + i);
  } else {
#pragma unroll 1
    for (int i = lane; i < kBlock; i += 32) {
      const std::uint8_t* const row =
          k.scales + scale_layout::row_128x4(k.scale_row + min(i, k.last) * p.k_heads);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        cuda::copy_async<4>(scales + scale_layout::row_128x4(i) + half * scale_layout::kSecondHalf,
                            row + half * scale_layout::kSecondHalf);
    }
  }
}

// 16 rows of 32 bytes as operand A.
__device__ __forceinline__ void load_matrices(std::uint32_t (&a)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}

template <bool Masked, int Tiles, class VisibleKeys>
__device__ __forceinline__ void score_page(const PageRing& ring, int slot, const Queries<Tiles>& q,
                                           VisibleKeys visible, Maxima<Tiles>& m) {
  const int lane = thread_again() % 32;
  // Lanes 0-7 point at rows 0-7, 8-15 at rows 8-15 of the first 16 bytes; the others at the second.
  const int row = lane % 16, chunk = lane / 16 ^ (row / 2 % 4);
  const auto codes = static_cast<std::uint32_t>(
      __cvta_generic_to_shared(&ring.codes[slot][row * 64 + chunk * 16]));
  const std::uint8_t* const scales =
      &ring.scales[slot][map::scale_a_row(lane) * 16 + map::scale_a_half(lane) * 512];
#pragma unroll 2
  for (int g = 0; g < kGroups; ++g) {
    KeyOperand keys[1];
    const std::uint32_t at = codes + map::key_row(g, 0) * 64;
    load_matrices(keys[0].code[0], at);
    load_matrices(keys[0].code[1], at ^ 32);  // the other half row: chunks 2 and 3
    keys[0].scale = slots_of<map::Order::natural>(
        *reinterpret_cast<const std::uint32_t*>(scales + g / 4 * 256 + g % 4 * 4));
    score_groups<Masked, 2>(keys, g, lane, q, visible, m);
  }
}

template <int Tiles>
__global__ void __launch_bounds__(cuda::kThreads, 2)
    score_pages(const __grid_constant__ ScoreParams p) {
  cuda::wait_for_previous();
  cuda::release_next();
  __shared__ __align__(128) PageRing ring;
  __shared__ std::int64_t sums[cuda::WorkList<false>::kSlots];
  __shared__ float rows_of_warp[cuda::kWarps][kPartRows];
  __shared__ __align__(alignof(State)) unsigned char states[cuda::kWarps][sizeof(State)];
  __shared__ __align__(16) Targets targets_of_warp[cuda::kWarps];
  __shared__ int limits_of_warp[cuda::kWarps][kPartRows];  // keys that a row sees
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  cuda::WorkList<false> list(p, sums);
  list.add_up();
  TileShape tile = p.tile;  // of a part
  tile.tokens = p.tile.tokens / cuda::kWarps;
  State& state = *reinterpret_cast<State*>(states[warp]);
  Segment& s = state.segment;
  HeadChunk& heads = state.heads;
  if (lane == 0) state.run = cuda::run_of(list.total(), blockIdx.x, gridDim.x);
  __syncwarp();
  while (state.run.begin < state.run.end) {
    take_part(p, list, tile, warp, lane, state, limits_of_warp[warp]);
#pragma unroll 1
    for (int pass = 0; pass < p.tile.passes; ++pass) {
      __syncwarp();
      if (lane == 0) heads = cuda::head_chunk(p, s.unit, pass);
      __syncwarp();
      find_targets(p, tile, s, heads, lane, targets_of_warp[warp]);
      Queries<Tiles> q;
      load_queries<map::Order::natural, true>(p, tile, s, heads, lane, q);
      __syncthreads();  // nobody reads pages any more
#pragma unroll 1
      for (int i = 0; i < kPages - 1; ++i) {
        if (i == warp && s.column + i < s.column_end)
          fetch_page(p, s, heads.key_head, s.column + i, ring, i, lane);
        cuda::copy_async_commit();
      }
      int slot = 0;
#pragma unroll 1
      for (int column = s.column; column < s.column_end; ++column) {
        cuda::copy_async_wait<kPages - 2>();
        __syncthreads();  // the page is there, and the one before it is done with
        const int next = column + kPages - 1;
        if (next < s.column_end && next % cuda::kWarps == thread_again() / 32)
          fetch_page(p, s, heads.key_head, next, ring, slot == 0 ? kPages - 1 : slot - 1,
                     thread_again() % 32);
        cuda::copy_async_commit();
        const int used = slot;
        slot = slot + 1 == kPages ? 0 : slot + 1;
        if (column >= state.own_end) continue;
        const int block = cuda::block_of(p, column), again = thread_again();
        const int* const limits = limits_of_warp[again / 32];
        Maxima<Tiles> m;
        cuda::clear<Tiles>(m);
        if (ring.exists[used]) {
          if (block < limits[0] / kBlock)  // all rows see it
            score_page<false>(ring, used, q, nullptr, m);
          else
            score_page<true>(
                ring, used, q, [&](int n) { return limits[n] - block * kBlock; }, m);
        }
        cuda::reduce_keys<Tiles>(m, again % 32);
        write_part(p, tile, s, heads, pass, column, targets_of_warp[again / 32],
                   rows_of_warp[again / 32], again % 32, m[0]);
      }
    }
  }
  cuda::fill_tails(p);
}

}  // namespace kvscout::sm120
