// Score of one token a request against NVFP4 keys in dense pages, few blocks: what a decode step
// over a short context asks for. Result and grid are those of score_cells, a block of threads for
// each (column, key head, request); its warps take `Each` groups of 16 keys.
//
// Bound: latency, of that three trips to memory. Lengths and queries are asked for together; the
// page id follows, since a page table is not read beyond a request's length (asking for it at once
// would be 0.05 us faster, 8 x 32k 0.8), then keys and scales, one multiplication after it is
// there; meanwhile the queries are unpacked. All else is added up before the wait for the kernel
// before. Written for this case alone, so that a warp has some 500 instructions in one line: 2.2
// instead of 3.5 us for 64 blocks on an H200, of which an empty kernel takes 0.6.
#pragma once

#include "cuda/single_token.cuh"

namespace kvscout::cuda {

template <class Ops, int Each>
__global__ void __launch_bounds__(kThreads / Each, 4 * Each)
    score_single(const __grid_constant__ ScoreParams p) {
  static_assert(Ops::kKeyScales);
  constexpr int kOfBlock = kGroups / Each;    // warps
  constexpr int kAtOnce = Each == 1 ? 1 : 2;  // groups whose products go side by side
  __shared__ float rows_of_warp[kOfBlock][8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
  const int column = blockIdx.x, key_head = blockIdx.y, b = blockIdx.z;
  const int block = block_of(p, column), first_key = block * kBlock;
  const bool is_cell = column < p.columns;              // else these threads only fill, at the end
  const int first_row = row_of_group(warp * Each) + r;  // of this lane in the block
  const int heads = p.tile.heads, first_head = key_head * heads;

  // Addresses, as far as they are known without memory. Rows beyond the heads repeat the last one;
  // nobody looks at them.
  const std::int32_t* page_at =
      p.page_table + b * p.table_row_stride + block * p.table_column_stride;
  const std::int32_t *cu_q = p.lengths.cu_q + b, *used_k = p.lengths.used_k + b;
  const std::int32_t* offset_at = p.lengths.offsets ? p.lengths.offsets + b : nullptr;
  const std::uint8_t* lane_keys =
      p.k + key_head * p.k_head_stride + first_row * 64 + Ops::key_offset(0, c);
  const std::uint8_t* lane_scales = p.k_scale + key_head * scale_layout::kPageBytes +
                                    first_row % 32 * 16 + first_row / 32 * 4 +
                                    c / 2 * scale_layout::kSecondHalf;
  const int lane_head = first_head + least(r, heads - 1);
  const int guess = least(b, p.lengths.q_tokens - 1);  // most often request b's token is b
  auto query = TokenQuery<Ops>::of(p, guess, lane_head, c);
  float* out = p.out + (first_head + lane) * p.out_head_stride + column * p.out_column_stride;
  // Without pages where the page table ends before the column.
  const unsigned pages = is_cell && first_key < p.lengths.k_room ? p.pages : 0;
  const auto page_stride = static_cast<unsigned>(p.k_page_stride),
             scale_page_stride = static_cast<unsigned>(p.scale_page_stride);
  Ready ready;
  ready.add(page_at), ready.add(cu_q), ready.add(used_k), ready.add(offset_at);
  ready.add(lane_keys), ready.add(lane_scales);
  ready.add(query.row), ready.add(query.scales), ready.add(out);
  ready.add(pages), ready.add(page_stride), ready.add(scale_page_stride);
  ready.wait_for_previous();

  const int used = load_behind(used_k);
  const int q_ends[2] = {load_behind(cu_q), load_behind(cu_q + 1)};
  typename Ops::RawQuery raw_query = query.fetch();
  const int offset = offset_at ? load_behind(offset_at) : 0;
  release_next();

  // Keys, as soon as the page is known.
  const int page = pages && first_key < used ? load_behind(page_at) : -1;
  const bool exists = static_cast<unsigned>(page) < pages;
  typename Ops::Raw raw[Each][2];
  std::uint32_t word[Each][2];
  if (exists) {
    const std::uint8_t *keys = at_page(lane_keys, page, page_stride),
                       *scales = at_page(lane_scales, page, scale_page_stride);
#pragma unroll
    for (int j = 0; j < Each; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const std::uint8_t* row = keys + (row_of_group(j) + h * 8) * 64;
        raw[j][h].v[0] = __ldg(reinterpret_cast<const uint4*>(row));
        word[j][h] = load_word<true>(scales + j * 4 + h * 8 * 16);
      }
  }
  const float q_global = p.q_global ? load_behind(p.q_global) : p.q_value,
              k_global = p.k_global ? load_behind(p.k_global) : p.k_value;

  const Rows rows = rows_alone(p, b, q_ends, used, offset);
  const int token = rows.q_begin, visible = rows.limit(0, p.lengths.causal) - first_key;
  const bool answers = is_cell && rows.tokens > 0 && token >= p.range_begin && token < p.range_end;
  if (__builtin_expect(answers && token != guess, 0)) {
    query = TokenQuery<Ops>::of(p, token, lane_head, c);
    raw_query = query.fetch();
  }
  QueryFragments<1> q;
  Ops::unpack_query(raw_query, c, q[0]);
#pragma unroll
  for (std::uint32_t& x : q[0]) asm volatile("" : "+r"(x));  // here, not where keys are awaited

  float result = -INFINITY;
  if (exists && answers && visible > 0) {
    Maxima<1> m;
    clear<1>(m);
#pragma unroll
    for (int j = 0; j < Each; j += kAtOnce) {
      typename Ops::Scale scale[kAtOnce][2] = {};
      float d[kAtOnce][1][4];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) Ops::scales(word[j + i], c, scale[i]);
      multiply<Ops, 1, kAtOnce>(&raw[j], scale, q, d);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = first_row + row_of_group(j + i);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (row >= visible) d[i][0][e] = -INFINITY;
          if (row + 8 >= visible) d[i][0][2 + e] = -INFINITY;
        }
        raise<1>(m, d[i]);
      }
    }
    result = reduce_keys<1>(m, lane);
  }
  if (is_speaker<1>(lane)) rows_of_warp[warp][row_of_lane<1>(lane)] = result;
  __syncthreads();
  if (warp == 0 && lane < heads && answers) {
    result = rows_of_warp[0][lane];
#pragma unroll
    for (int w = 1; w < kOfBlock; ++w) result = fmaxf(result, rows_of_warp[w][lane]);
    out[(token - p.range_begin) * p.out_token_stride] = finish<Ops>(result, q_global * k_global);
  }
  if (!is_cell)
    fill_beyond_cells(p);
  else if (p.fills && warp == kOfBlock - 1)
    fill_unowned(p, rows, first_head, heads, column, lane);
}

}  // namespace kvscout::cuda
