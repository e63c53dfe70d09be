// Score of one token a request against NVFP4 keys in dense pages, more blocks than score_single
// takes: a warp scores a whole block of keys, half of it at a time, and goes on to the column that
// lies a grid further. All blocks of threads are resident at once. Neighbouring warps have the same
// column of all requests, so that each request, however long, is spread over all multiprocessors.
//
// Bound: half of it the start, which is as short as that of score_single: page id and keys follow
// the length at once, where a stream (score_stream) adds up all lengths first. The other half is
// arithmetic, some 1150 instructions a block of keys. So with two columns a warp it is faster than
// a stream (8 x 64k on an H200: 10.9 instead of 14.8 us), with more not, where lengths differ
// (plan.h).
#pragma once

#include <type_traits>

#include "cuda/single_token.cuh"

namespace kvscout::cuda {

template <class Ops, Call kCall = Call::any>
__global__ void __launch_bounds__(kThreads, kColumnsBlocksPerSm)
    score_columns(const __grid_constant__ ScoreParams given) {
  const ScoreParams& p = as_call<kCall>(given, Ops::kRowBytes);
  static_assert(Ops::kKeyScales && kColumnsOfWarp == 2, "one page is looked up ahead");
  using Unpack = std::conditional_t<Ops::kLooksUp, ByTable, ByArithmetic<true>>;
  constexpr int kHalf = kGroups / 2;  // groups of 16 keys that are under way
  // Whether both halves are in one line or a loop, what the assembler finds registers for.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  constexpr int kInLine = 2;
#else
  constexpr int kInLine = 1;
#endif
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
  const int place = blockIdx.x * kWarps + warp, warps = gridDim.x * kWarps;
  const int of_column = p.lengths.batch * p.tile.units, step = warps / of_column;
  int column = place / of_column;
  const int b = place % of_column / p.tile.units, key_head = place % of_column % p.tile.units;
  if (column >= step) column = p.columns;  // a warp too many
  const int heads = p.tile.heads, first_head = key_head * heads;

  // Addresses, as far as they are known without memory. Rows beyond the heads repeat the last one;
  // nobody looks at them.
  const auto page_at = [&](int n) {
    return p.page_table + b * p.table_row_stride + block_of(p, n) * p.table_column_stride;
  };
  const std::int32_t* const first_page_at = page_at(column);
  const std::int32_t *cu_q = p.lengths.cu_q + b, *used_k = p.lengths.used_k + b;
  const std::int32_t* offset_at = p.lengths.offsets ? p.lengths.offsets + b : nullptr;
  const std::uint8_t* lane_keys = p.k + key_head * p.k_head_stride + r * 64 + Ops::key_offset(0, c);
  const std::uint8_t* lane_scales =
      p.k_scale + key_head * scale_layout::kPageBytes + r * 16 + c / 2 * scale_layout::kSecondHalf;
  const int lane_head = first_head + least(r, heads - 1);
  const int guess = least(b, p.lengths.q_tokens - 1);  // most often request b's token is b
  auto query = TokenQuery<Ops>::of(p, guess, lane_head, c);
  const int row = row_of_lane<1>(lane);
  float* out = p.out + (first_head + row) * p.out_head_stride;
  const auto page_stride = static_cast<unsigned>(p.k_page_stride),
             scale_page_stride = static_cast<unsigned>(p.scale_page_stride);
  if constexpr (Ops::kLooksUp) {
    ByTable::fill<Ops::kBf16>();
    __syncthreads();
  }
  Ready ready;
  ready.add(first_page_at), ready.add(cu_q), ready.add(used_k), ready.add(offset_at);
  ready.add(lane_keys), ready.add(lane_scales);
  ready.add(query.row), ready.add(query.scales), ready.add(out);
  ready.add(page_stride), ready.add(scale_page_stride);
  ready.wait_for_previous();

  const int used = load_behind(used_k);
  const int q_ends[2] = {load_behind(cu_q), load_behind(cu_q + 1)};
  typename Ops::RawQuery raw_query = query.fetch();
  const int offset = offset_at ? load_behind(offset_at) : 0;
  release_next();

  // Keys, as soon as the page is known.
  const auto page_of = [&](int n, const std::int32_t* at, int end) {
    return n < p.columns && block_of(p, n) * kBlock < end ? load_behind(at) : -1;
  };
  const auto is_page = [&](int page) {
    return static_cast<unsigned>(page) < static_cast<unsigned>(p.pages);
  };
  typename Ops::Raw raw[kHalf][2];
  uint4 words[2];  // of scales: of rows r and r + 8, a word each of all groups
  const std::uint8_t *keys, *scales;
  const auto enter = [&](int page) {
    keys = at_page(lane_keys, page, page_stride);
    scales = at_page(lane_scales, page, scale_page_stride);
  };
  const auto load_words = [&](int half) {
#pragma unroll
    for (int h = 0; h < 2; ++h) words[h] = load_streaming(words_of(scales, half, h));
  };
  const auto load_two = [&](int half, int group) {
#pragma unroll
    for (int g = group; g < group + 2; ++g)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        raw[g][h].v[0] = load_streaming(keys + (half * 16 + g * 32 + h * 8) * 64);
  };
  const auto begin = [&](int page) { enter(page), load_words(0), load_two(0, 0), load_two(0, 2); };
  int page = page_of(column, first_page_at, least(used, p.lengths.k_room));
  const float q_global = p.q_global ? load_behind(p.q_global) : p.q_value,
              k_global = p.k_global ? load_behind(p.k_global) : p.k_value;

  const Rows rows = rows_alone(p, b, q_ends, used, offset);
  const int token = rows.q_begin, limit = rows.limit(0, p.lengths.causal);
  int next_page = page_of(column + step, page_at(column + step), limit);
  const bool answers = rows.tokens > 0 && token >= p.range_begin && token < p.range_end;
  if (__builtin_expect(answers && token != guess, 0)) {
    query = TokenQuery<Ops>::of(p, token, lane_head, c);
    raw_query = query.fetch();
  }
  // Queries while the page id comes: the loads of a multiprocessor's keys take 1300 cycles to be
  // accepted, and what is behind them in a warp waits for that (8 x 32k 6.66 us, so 6.27).
  const Unpack by;
  QueryFragments<1> q;
  Ops::unpack_query(raw_query, c, q[0], by);
#pragma unroll
  for (std::uint32_t& x : q[0]) asm volatile("" : "+r"(x));
  if (is_page(page)) begin(page);
  out += (token - p.range_begin) * p.out_token_stride + column * p.out_column_stride;
  const float scale_of_all = q_global * k_global;

  // Here, so that what is known of the request is not kept over the loop.
  if (p.fills && (has_unowned(p, rows) || p.columns < p.all_columns)) {
#pragma unroll 1
    for (int n = column; n < p.columns; n += step)
      fill_unowned(p, rows, first_head, heads, n, lane);
    if (p.columns < p.all_columns)
      fill_parts(p, place, warps, p.fill_parts, [&](std::int64_t) { return p.columns; });
  }

#pragma unroll 1
  for (; answers && column < p.columns; column += step) {
    float result = -INFINITY;
    const int visible = limit - block_of(p, column) * kBlock;
    const bool goes_on = is_page(next_page);
    if (is_page(page) && visible > 0) {
      Maxima<1> m;
      clear<1>(m);
#pragma unroll kInLine
      for (int half = 0; half < 2; ++half) {
        typename Ops::Scale scale[kHalf][2];
#pragma unroll
        for (int g = 0; g < kHalf; ++g) {
          const std::uint32_t two[2] = {word_of(words[0], g), word_of(words[1], g)};
          Ops::scales(two, c, scale[g]);
        }
        const bool loads = half == 0 || goes_on;
        if (half == 1 && goes_on) enter(next_page);
        if (loads) load_words(1 - half);
#pragma unroll
        for (int group = 0; group < kHalf; group += 2) {
          float d[2][1][4];
          multiply<Ops, 1, 2>(&raw[group], &scale[group], q, d, by);
          if (visible < kBlock)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const int key = threadIdx.x % 32 / 4 + half * 16 + (group + i) * 32;
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                if (key >= visible) d[i][0][e] = -INFINITY;
                if (key + 8 >= visible) d[i][0][2 + e] = -INFINITY;
              }
            }
#pragma unroll
          for (int i = 0; i < 2; ++i) raise<1>(m, d[i]);
          if (loads) load_two(1 - half, group);
        }
      }
      result = reduce_keys<1>(m, lane);
    } else if (goes_on) {
      begin(next_page);
    }
    if (const int of = threadIdx.x % 32; is_speaker<1>(of) && row_of_lane<1>(of) < p.tile.heads)
      *out = finish<Ops>(result, scale_of_all);
    out += step * p.out_column_stride;
    page = next_page;
    next_page = -1;
  }
}

}  // namespace kvscout::cuda
