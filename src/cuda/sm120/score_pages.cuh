// NVFP4 score of many query rows (prefill). Bound: the block-scaled instruction. A warp keeps a
// part of 64 query rows in registers; a block of threads has up to eight parts, one after the other
// along the tokens, and streams pages of keys past all of them: raw bytes go by asynchronous copies
// into a ring in shared memory and by ldmatrix into the instruction; nobody dequantises. A page
// costs a warp 128 instructions of 16 cycles beside 16 ldmatrix, and a block one barrier in some
// 4000 cycles; the second block of the multiprocessor works meanwhile. Where a call has fewer parts
// than a block has warps, several warps share a part, and the groups of keys of a page: there
// memory is the bound, up to some 300 rows.
#pragma once

#include "cuda/sm120/score_rows.cuh"

namespace kvscout::sm120 {

inline constexpr int kPartRows = 64;

// Pages under way, and the one at work: 37 KB, of which two blocks fit.
inline constexpr int kPages = 4;

struct PageRing {
  // Row r's 16-byte chunk c lies at place c ^ (r/2 % 4), so that eight rows of a chunk are eight
  // different sets of banks.
  std::uint8_t codes[kPages][kBlock * 64];
  std::uint8_t scales[kPages][scale_layout::kPageBytes];  // 128x4, for flat keys too
  int exists[kPages];
};

// Starts the copies of a page, by the whole block of threads.
__device__ __forceinline__ void fetch_page(const ScoreParams& p, const Segment& s, int key_head,
                                           int column, PageRing& ring, int slot) {
  const int thread = thread_again(), block = cuda::block_of(p, column);
  const KeyBlock k = cuda::key_block(p, s.rows, block, cuda::page_id(p, s.rows.b, block), key_head);
  if (thread == 0) ring.exists[slot] = k.exists;
  if (!k.exists) return;
#pragma unroll
  for (int i = 0; i < kBlock * 4 / cuda::kThreads; ++i) {
    const int r = i * (cuda::kThreads / 4) + thread / 4, c = thread % 4;
    cuda::copy_async<16>(&ring.codes[slot][r * 64 + ((c ^ (r / 2 % 4)) * 16)],
                         k.rows + min(r, k.last) * p.k_token_stride + 16 * c);
  }
  if (p.paged) {
    if (thread < scale_layout::kPageBytes / 16)
      cuda::copy_async<16>(&ring.scales[slot][thread * 16], k.scales + thread * 16);
  } else {
    static_assert(cuda::kThreads == 2 * kBlock);
    const int r = thread % kBlock, half = thread / kBlock;
    cuda::copy_async<4>(
        &ring.scales[slot][scale_layout::row_128x4(r) + half * scale_layout::kSecondHalf],
        k.scales + scale_layout::row_128x4(k.scale_row + min(r, k.last) * p.k_heads) +
            half * scale_layout::kSecondHalf);
  }
}

// 16 rows of 32 bytes as operand A.
__device__ __forceinline__ void load_matrices(std::uint32_t (&a)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}

// Groups [first, last) of a page.
template <bool Masked, int Tiles, class VisibleKeys>
__device__ __forceinline__ void score_page(const PageRing& ring, int slot, int first, int last,
                                           const Queries<Tiles>& q, VisibleKeys visible,
                                           Maxima<Tiles>& m) {
  const int lane = thread_again() % 32;
  // Lanes 0-7 point at rows 0-7, 8-15 at rows 8-15 of the first 16 bytes; the others at the second.
  const int row = lane % 16, chunk = lane / 16 ^ (row / 2 % 4);
  const auto codes = static_cast<std::uint32_t>(
      __cvta_generic_to_shared(&ring.codes[slot][row * 64 + chunk * 16]));
  const std::uint8_t* const scales =
      &ring.scales[slot][map::scale_a_row(lane) * 16 + map::scale_a_half(lane) * 512];
#pragma unroll 2
  for (int g = first; g < last; ++g) {
    KeyOperand keys[1];
    const std::uint32_t at = codes + map::key_row(g, 0) * 64;
    load_matrices(keys[0].code[0], at);
    load_matrices(keys[0].code[1], at ^ 32);  // the other half row: chunks 2 and 3
    keys[0].scale = slots_of<map::Order::natural>(
        *reinterpret_cast<const std::uint32_t*>(scales + g / 4 * 256 + g % 4 * 4));
    score_groups<Masked, 2>(keys, g, lane, q, visible, m);
  }
}

// Where row n of a part (with heads reduced: token n) is written.
__device__ __forceinline__ float* target(const ScoreParams& p, const TileShape& tile,
                                         const Segment& s, const HeadChunk& heads, int n) {
  const cuda::RowPlace at = p.folds ? cuda::RowPlace{0, n} : cuda::place_of_row(tile, n);
  if (at.token >= s.tokens || at.head >= heads.heads) return nullptr;
  const std::int64_t head = p.folds ? s.unit : heads.first_head + at.head;
  return p.out + head * p.out_head_stride +
         (s.rows.q_begin + s.first + at.token - p.range_begin) * p.out_token_stride;
}

// The first of the two neighbouring rows that reduce_keys leaves a lane.
__device__ __forceinline__ int row_of_part(int lane) {
  return (lane & 4 ? 32 : 0) + (lane & 8 ? 16 : 0) + (lane & 16 ? 8 : 0) + lane % 4 * 2;
}

// Two rows' maxima in one column. With heads reduced in several passes, raw maxima gather in the
// output itself (the same lane reads what it wrote) until the last pass.
__device__ __forceinline__ void write_part(const ScoreParams& p, const TileShape& tile,
                                           const Segment& s, const HeadChunk& heads, int pass,
                                           int column, float* rows, int lane,
                                           const float (&two)[2]) {
  const int row = row_of_part(lane);
  const std::int64_t at = column * p.out_column_stride;
  const float scale = cuda::global_scale(p);
  if (!p.folds) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (float* out = target(p, tile, s, heads, row + i)) out[at] = finish(two[i], scale);
    return;
  }
  __syncwarp();
  rows[row] = two[0], rows[row + 1] = two[1];
  __syncwarp();
  for (int n = lane; n < s.tokens; n += 32) {
    float* out = target(p, tile, s, heads, n) + at;
    float value = cuda::fold_heads(tile, rows, heads.heads, n);
    if (pass > 0) value = fmaxf(value, *out);
    *out = pass + 1 == p.tile.passes ? finish(value, scale) : value;
  }
}

template <int Tiles>
__global__ void __launch_bounds__(cuda::kThreads, 2)
    score_pages(const __grid_constant__ ScoreParams p) {
  cuda::wait_for_previous();
  cuda::release_next();
  __shared__ __align__(128) PageRing ring;
  __shared__ std::int64_t sums[cuda::kThreads];
  __shared__ float rows_of_warp[cuda::kWarps][kPartRows];
  __shared__ __align__(alignof(State)) unsigned char states[cuda::kWarps][sizeof(State)];
  __shared__ int limits_of_warp[cuda::kWarps][kPartRows];  // keys that a row sees
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const cuda::WorkList<false> list(p, sums);
  TileShape tile = p.tile;  // of a part
  const int parts = p.tile.rows / kPartRows;
  tile.tokens = p.tile.tokens / parts;
  int* const limits = limits_of_warp[warp];
  State& state = *reinterpret_cast<State*>(states[warp]);
  Segment& s = state.segment;
  HeadChunk& heads = state.heads;
  if (lane == 0) state.run = cuda::run_of(list.total(), blockIdx.x, gridDim.x);
  __syncwarp();
  while (state.run.begin < state.run.end) {
    {
      Segment found = list.seek(state.run.begin);
      const std::int64_t left = state.run.end - state.run.begin;
      const int skipped = warp % parts * tile.tokens, end = found.end_of(left);
      found.first += skipped, found.tokens = min(found.tokens - skipped, tile.tokens);
      __syncwarp();
      if (lane == 0) {
        s = found;
        s.column_end = end;
        const int last = s.rows.limit(s.first + s.tokens - 1, p.lengths.causal);
        state.own_end = s.tokens > 0 ? min(end, cuda::columns_below(p, last)) : 0;
        state.run.begin += min(found.left, left);
      }
      __syncwarp();
    }
    for (int n = lane; n < kPartRows; n += 32)
      limits_of_warp[warp][n] =
          s.rows.limit(s.first + cuda::place_of_row(tile, n).token, p.lengths.causal);
#pragma unroll 1
    for (int pass = 0; pass < p.tile.passes; ++pass) {
      __syncwarp();
      if (lane == 0) heads = cuda::head_chunk(p, s.unit, pass);
      __syncwarp();
      Queries<Tiles> q;
      load_queries<map::Order::natural, true>(p, tile, s, heads, lane, q);
      __syncthreads();  // nobody reads pages any more
#pragma unroll 1
      for (int i = 0; i < kPages - 1; ++i) {
        if (s.column + i < s.column_end) fetch_page(p, s, heads.key_head, s.column + i, ring, i);
        cuda::copy_async_commit();
      }
      int slot = 0;
#pragma unroll 1
      for (int column = s.column; column < s.column_end; ++column) {
        cuda::copy_async_wait<kPages - 2>();
        __syncthreads();  // the page is there, and the one before it is done with
        const int next = column + kPages - 1;
        if (next < s.column_end)
          fetch_page(p, s, heads.key_head, next, ring, slot == 0 ? kPages - 1 : slot - 1);
        cuda::copy_async_commit();
        const int block = cuda::block_of(p, column), first = thread_again() / 32 / parts * parts;
        const bool sees = column < state.own_end;
        Maxima<Tiles> m;
        cuda::clear<Tiles>(m);
        if (sees && ring.exists[slot]) {
          if (block < limits[0] / kBlock)  // all rows see it
            score_page<false>(ring, slot, first, first + parts, q, nullptr, m);
          else
            score_page<true>(
                ring, slot, first, first + parts, q,
                [&](int n) { return limits[n] - block * kBlock; }, m);
        }
        const int again = thread_again() % 32, mine = thread_again() / 32;
        cuda::reduce_keys<Tiles>(m, again);
        if (parts < cuda::kWarps) {  // the first of a part's warps speaks for all
          const int row = row_of_part(again);
          float* const rows = rows_of_warp[mine];
          rows[row] = m[0][0], rows[row + 1] = m[0][1];
          __syncthreads();
          for (int w = mine + parts; w < cuda::kWarps; w += parts)
            m[0][0] = fmaxf(m[0][0], rows_of_warp[w][row]),
            m[0][1] = fmaxf(m[0][1], rows_of_warp[w][row + 1]);
        }
        if (sees && mine < parts)
          write_part(p, tile, s, heads, pass, column, rows_of_warp[mine], again, m[0]);
        slot = slot + 1 == kPages ? 0 : slot + 1;
      }
    }
  }
  cuda::fill_tails(p);
}

}  // namespace kvscout::sm120
