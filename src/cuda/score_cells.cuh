// Score of short queries, few blocks: a block of threads for each (column, unit and tile, request)
// that the bounds allow; its warps share the keys. It also writes -inf where nothing is visible.
//
// Bound: latency. The chain of loads is lengths, page id, keys, and a warp that is alone takes some
// five cycles an instruction. So there is no adding up of lengths; whatever does not depend on
// memory is computed before the wait for the kernel before; and queries and keys are under way
// together.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/mma.cuh"

namespace kvscout::cuda {

// Tokens that nobody owns, as ranges use(begin, end): before the first request, beyond
// max_seqlen_q, after the last request.
template <class Use>
__device__ __forceinline__ void for_unowned(const ScoreParams& p, const Rows& r, Use use) {
  if (r.b == 0) use(0, r.q_begin);
  if (r.q_begin + r.tokens < r.q_end) use(r.q_begin + r.tokens, r.q_end);
  if (r.b + 1 == p.lengths.batch && r.q_end < p.range_end) use(r.q_end, p.range_end);
}
__device__ __forceinline__ bool has_unowned(const ScoreParams& p, const Rows& r) {
  bool any = false;
  for_unowned(p, r, [&](std::int64_t begin, std::int64_t end) { any |= begin < end; });
  return any;
}

// -inf for them.
__device__ __forceinline__ void fill_unowned(const ScoreParams& p, const Rows& r, int first_output,
                                             int outputs, int column, int lane) {
  for_unowned(p, r, [&](std::int64_t begin, std::int64_t end) {
    begin = max(begin, p.range_begin), end = min(end, p.range_end);
#pragma unroll 1
    for (std::int64_t t = begin + lane; t < end; t += 32)
#pragma unroll 1
      for (int h = 0; h < outputs; ++h)
        p.out[(first_output + h) * p.out_head_stride + (t - p.range_begin) * p.out_token_stride +
              column * p.out_column_stride] = -INFINITY;
  });
}

template <class Ops, int Tiles>
__global__ void __launch_bounds__(kThreads, 2) score_cells(const __grid_constant__ ScoreParams p) {
  constexpr int kBatch = Ops::kKeyLoads == 4 ? 1 : 2;  // groups of 16 keys under way
  __shared__ float rows_of_warp[kWarps][Tiles * 8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane % 4, warps = blockDim.x / 32,
            column = blockIdx.x, b = blockIdx.z;
  const int tile = p.cell_tiles == 1 ? 0 : blockIdx.y % p.cell_tiles;
  const int unit = p.cell_tiles == 1 ? blockIdx.y : blockIdx.y / p.cell_tiles;
  const HeadChunk heads = head_chunk(p, unit, 0);
  const int block = block_of(p, column), first_key = block * kBlock;
  const bool is_cell = column < p.columns;  // else these threads only fill, at the end

  // What a lane asks for, as far as it is known without memory.
  RowPlace place[Tiles];  // of its query rows, the tile's first token being 0
  const std::uint8_t* query[Tiles];
#pragma unroll
  for (int t = 0; t < Tiles; ++t) {
    place[t] = place_of_row(p.tile, t * 8 + lane / 4);
    query[t] = p.q + (heads.first_head + place[t].head) * p.q_head_stride;
  }
  const RowPlace written = p.folds ? RowPlace{0, lane} : place_of_row(p.tile, lane);
  float* out = p.out + column * p.out_column_stride +
               (p.folds ? unit : heads.first_head + written.head) * p.out_head_stride;
  const std::int32_t* page_at =
      p.page_table + b * p.table_row_stride + block * p.table_column_stride;
  warm_constants(p);
  wait_for_previous();
  release_next();

  const Rows r = rows_of(p, b);
  const float scale = global_scale(p);
  const int first = r.begin + tile * p.tile.tokens, tokens = min(r.end - first, p.tile.tokens);
  float result = -INFINITY;
  if (is_cell && tokens > 0 && first_key < r.limit(first + tokens - 1, p.lengths.causal)) {
    const std::int32_t page = p.paged ? __ldg(page_at) : 0;
    typename Ops::RawQuery queries[Tiles];
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      queries[t] = {};
      if (place[t].head < heads.heads && place[t].token < tokens) {
        const int token = r.q_begin + first + place[t].token;
        const unsigned row =
            static_cast<unsigned>(token) * p.q_heads + heads.first_head + place[t].head;
        queries[t] = Ops::fetch_query(
            query[t] + token * p.q_token_stride, p.q_scale + scale_layout::row_128x4(row), c,
            [](const std::uint8_t* a) { return __ldg(reinterpret_cast<const uint4*>(a)); });
      }
    }
    const KeyBlock k = key_block(p, r, block, page, heads.key_head);
    if (k.exists) {
      const int each = kGroups / warps, last = (warp + 1) * each;
      struct Batch {
        typename Ops::Raw raw[kBatch][2];
        std::uint32_t word[kBatch][2];
      };
      const auto load = [&](int g, Batch& to) {
#pragma unroll
        for (int j = 0; j < kBatch; ++j)
          if (g + j < last) {
            load_group<Ops, true>(p, k, row_of_group(g + j), lane, to.raw[j]);
            load_scale_words<Ops, true>(p, k, row_of_group(g + j), lane, to.word[j]);
          }
      };
      Batch now, next;
      load(warp * each, now);
      QueryFragments<Tiles> q;
#pragma unroll
      for (int t = 0; t < Tiles; ++t) Ops::unpack_query(queries[t], c, q[t]);
      const bool masked = r.limit(first, p.lengths.causal) < first_key + kBlock;
      Maxima<Tiles> m;
      clear<Tiles>(m);
#pragma unroll 1
      for (int g = warp * each; g < last; g += kBatch) {
        load(g + kBatch, next);
#pragma unroll
        for (int j = 0; j < kBatch; ++j)
          if (g + j < last) {
            typename Ops::Scale scales[1][2] = {};
            float d[1][Tiles][4];
            Ops::scales(now.word[j], c, scales[0]);
            multiply<Ops, Tiles, 1>(&now.raw[j], scales, q, d);
            if (masked) mask<Tiles>(p, r, first, block, row_of_group(g + j) + lane / 4, lane, d[0]);
            raise<Tiles>(m, d[0]);
          }
        now = next;
      }
      result = reduce_keys<Tiles>(m, lane);
    }
  }
  if (warps > 1) {
    if (is_speaker<Tiles>(lane)) rows_of_warp[warp][row_of_lane<Tiles>(lane)] = result;
    __syncthreads();
  } else if (is_speaker<Tiles>(lane)) {
    rows_of_warp[0][row_of_lane<Tiles>(lane)] = result;
    __syncwarp();
  }
  if (is_cell && p.fills && tile == 0 && warp == warps - 1)
    fill_unowned(p, r, p.folds ? unit : heads.first_head, p.folds ? 1 : heads.heads, column, lane);
  if (is_cell && warp == 0) {
    result = join_warps(p, rows_of_warp, warps, heads.heads, lane);
    if (lane < Tiles * 8 && written.token < tokens && written.head < heads.heads)
      out[(r.q_begin + first + written.token - p.range_begin) * p.out_token_stride] =
          finish<Ops>(result, scale);
  }
  if (!is_cell) fill_beyond_cells(p);
}

}  // namespace kvscout::cuda
