// Where keys, their scales and queries lie, and how they are loaded.
//
// A block of 128 keys is taken in 8 groups of 16 rows: group g holds rows (g%4)*32 + (g/4)*16 +
// {0..15}, so that four groups share one 16-byte load of 128x4 scales. In a group, lane (r, c) =
// (lane/4, lane%4) reads a quarter of rows r and r + 8.
#pragma once

#include "cuda/copy_async.cuh"
#include "cuda/dequant.cuh"
#include "cuda/segment.cuh"
#include "cuda/tails.cuh"

namespace kvscout::cuda {

inline constexpr int kGroups = 8;
__device__ constexpr int row_of_group(int g) { return (g % 4) * 32 + (g / 4) * 16; }

// Read once, so not worth a place in L1. `Halves`: the next load takes the other halves of the same
// lines, so memory is to give both at once (64 x 131k bf16 keys 523 to 476 us, e4m3 300 to 243).
template <bool Halves = false>
__device__ __forceinline__ uint4 load_streaming(const std::uint8_t* address) {
  uint4 v;
  if constexpr (Halves)
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
  else
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
  return v;
}

// The same where `wanted`, without a branch. (One through the other leaves 8 bytes on the stack of
// a kernel of sm120.)
template <bool Halves>
__device__ __forceinline__ void load_streaming_if(bool wanted, const std::uint8_t* address,
                                                  uint4& v) {
  if constexpr (Halves)
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0;"
        " @p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(address), "r"(static_cast<unsigned>(wanted)));
  else
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0;"
        " @p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(address), "r"(static_cast<unsigned>(wanted)));
}

template <bool Aligned>
__device__ __forceinline__ std::uint32_t load_word(const std::uint8_t* a) {
  if constexpr (Aligned)
    return __ldg(reinterpret_cast<const std::uint32_t*>(a));
  else
    return __ldg(a) | __ldg(a + 1) << 8 | __ldg(a + 2) << 16 |
           static_cast<std::uint32_t>(__ldg(a + 3)) << 24;
}

template <bool Aligned, bool Halves = false>
__device__ __forceinline__ uint4 load_row_part(const std::uint8_t* a) {
  if constexpr (Aligned)
    return load_streaming<Halves>(a);
  else
    return make_uint4(load_word<false>(a), load_word<false>(a + 4), load_word<false>(a + 8),
                      load_word<false>(a + 12));
}

// The keys of one block and key head.
struct KeyBlock {
  const std::uint8_t* rows = nullptr;    // row 0
  const std::uint8_t* scales = nullptr;  // paged: the page's first scale byte; flat: of all keys
  std::int64_t scale_row = 0;            // flat: scale row of row 0
  int last = kBlock - 1;                 // flat: the last row that may be read
  bool exists = true;                    // false: the page id lies outside the pool
};

__device__ __forceinline__ std::int32_t page_id(const ScoreParams& p, int b, int block) {
  return p.paged ? __ldg(p.page_table + b * p.table_row_stride + block * p.table_column_stride) : 0;
}

__device__ __forceinline__ KeyBlock key_block(const ScoreParams& p, const Rows& rows, int block,
                                              std::int32_t page, int key_head) {
  KeyBlock k;
  k.rows = p.k + key_head * p.k_head_stride;
  k.scales = p.k_scale;
  if (p.paged) {
    k.exists = static_cast<unsigned>(page) < static_cast<unsigned>(p.pages);
    k.rows += page * p.k_page_stride;
    k.scales += page * p.scale_page_stride + key_head * scale_layout::kPageBytes;
  } else {
    const std::int64_t first = rows.k_begin + static_cast<std::int64_t>(block) * kBlock;
    k.rows += first * p.k_token_stride;
    k.scale_row = first * p.k_heads + key_head;
    k.last = min(rows.k_count - block * kBlock, kBlock) - 1;
  }
  return k;
}

// A lane's quarter of rows r and r + 8 of the 16 rows from `first`. Rows past the last are read as
// the last.
template <class Ops, bool Aligned>
__device__ __forceinline__ void load_group(const ScoreParams& p, const KeyBlock& k, int first,
                                           int lane, typename Ops::Raw (&raw)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int row = first + h * 8 + lane / 4;
    if (row > k.last) row = k.last;
    const std::uint8_t* a =
        Aligned ? k.rows + row * static_cast<std::int64_t>(static_cast<int>(p.k_token_stride))
                : k.rows + row * p.k_token_stride;
#pragma unroll
    for (int i = 0; i < Ops::kKeyLoads; ++i)
      raw[h].v[i] = load_row_part<Aligned, Ops::kHalfLines>(a + Ops::key_offset(i, lane % 4));
  }
}

// The scale words of the same rows.
template <class Ops, bool Aligned>
__device__ __forceinline__ void load_scale_words(const ScoreParams& p, const KeyBlock& k, int first,
                                                 int lane, std::uint32_t (&word)[2]) {
  if constexpr (Ops::kKeyScales) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int row = first + h * 8 + lane / 4;
      if (row > k.last) row = k.last;
      const std::int64_t at = p.paged ? row % 32 * 16 + row / 32 * 4
                                      : scale_layout::row_128x4(k.scale_row + row * p.k_heads);
      word[h] = load_word<Aligned>(k.scales + at + lane % 4 / 2 * scale_layout::kSecondHalf);
    }
  }
}

// Of a page's scales, from a lane's first word on: its four words of rows r + 8h of half a block,
// 32 rows apart.
__device__ __forceinline__ const std::uint8_t* words_of(const std::uint8_t* first, int half,
                                                        int h) {
  return first + half * 256 + h * 128;
}

// Which query heads a (unit, pass) of a tile means.
struct HeadChunk {
  int key_head, first_head, heads;
};
__device__ __forceinline__ HeadChunk head_chunk(const ScoreParams& p, int unit, int pass) {
  const int v = unit * p.tile.passes + pass;
  const int key_head = p.tile.chunks == 1 ? v : v / p.tile.chunks;
  const int chunk = v - key_head * p.tile.chunks;
  const int group = p.tile.group, first = chunk * p.tile.heads;
  const int rest = group - first;
  return {key_head, key_head * group + first, rest < p.tile.heads ? rest : p.tile.heads};
}

// Row n of a tile: head n / tokens, token n % tokens.
struct RowPlace {
  int head, token;
};
__device__ __forceinline__ RowPlace place_of_row(const TileShape& t, int n) {
  const int head = t.tokens == 1 ? n : n / t.tokens;
  return {head, n - head * t.tokens};
}

// A lane's part of the query row at a place; zeros for rows that hold nothing.
template <class Ops, bool Aligned>
__device__ __forceinline__ typename Ops::RawQuery fetch_query(const ScoreParams& p,
                                                              const Segment& s,
                                                              const HeadChunk& heads, RowPlace at,
                                                              int c) {
  if (at.head >= heads.heads || at.token >= s.tokens) return {};
  const std::int64_t token = static_cast<std::int64_t>(s.rows.q_begin) + s.first + at.token;
  const std::int64_t head = heads.first_head + at.head;
  const std::uint8_t* row = p.q + token * p.q_token_stride + head * p.q_head_stride;
  const std::int64_t n = token * p.q_heads + head;  // fits into 32 bits where is_aligned says so
  const std::uint8_t* scales =
      Ops::kQueryScales
          ? p.q_scale + scale_layout::row_128x4(Aligned ? static_cast<std::uint32_t>(n) : n)
          : nullptr;
  return Ops::fetch_query(row, scales, c, [](const std::uint8_t* a) {
    if constexpr (Aligned)
      return __ldg(reinterpret_cast<const uint4*>(a));
    else
      return load_row_part<false>(a);
  });
}
template <class Ops, bool Aligned>
__device__ __forceinline__ void load_query(const ScoreParams& p, const Segment& s,
                                           const HeadChunk& heads, int n, int c,
                                           std::uint32_t (&h)[16]) {
  Ops::unpack_query(fetch_query<Ops, Aligned>(p, s, heads, place_of_row(p.tile, n), c), c, h);
}

// Where the row at a place is written; null: nowhere.
__device__ __forceinline__ float* row_target(const ScoreParams& p, const Segment& s,
                                             const HeadChunk& heads, RowPlace at) {
  if (at.head >= heads.heads || at.token >= s.tokens) return nullptr;
  const std::int64_t head = heads.first_head + at.head;
  const std::int64_t t = s.rows.q_begin + s.first + at.token - p.range_begin;
  return p.out + head * p.out_head_stride + t * p.out_token_stride;
}
// The same for row n of a tile; with heads reduced, for token n.
__device__ __forceinline__ float* row_target(const ScoreParams& p, const Segment& s,
                                             const HeadChunk& heads, int n) {
  RowPlace at{0, n};
  HeadChunk of{0, s.unit, 1};
  if (!p.folds) at = place_of_row(p.tile, n), of = heads;
  return row_target(p, s, of, at);
}

// Largest of the heads of one token; `rows` holds a tile's row maxima.
__device__ __forceinline__ float fold_heads(const TileShape& t, const float* rows, int heads,
                                            int token) {
  float m = -INFINITY;
  for (int h = 0; h < heads; ++h) m = fmaxf(m, rows[h * t.tokens + token]);
  return m;
}

// The maxima that warps have of a tile's rows, as one; by one warp. Lane n gets row n, or, with
// heads reduced, token n. Overwrites the first of `rows`.
template <int Rows>
__device__ __forceinline__ float join_warps(const ScoreParams& p, float (*rows)[Rows], int warps,
                                            int heads, int lane) {
  float m = -INFINITY;
  if (lane < Rows)
    for (int w = 0; w < warps; ++w) m = fmaxf(m, rows[w][lane]);
  if (!p.folds) return m;
  __syncwarp();
  if (lane < Rows) rows[0][lane] = m;
  __syncwarp();
  return lane < p.tile.tokens ? fold_heads(p.tile, rows[0], heads, lane) : -INFINITY;
}

__device__ __forceinline__ float global_scale(const ScoreParams& p) {
  return (p.q_global ? __ldg(p.q_global) : p.q_value) *
         (p.k_global ? __ldg(p.k_global) : p.k_value);
}

// A block's maximum as the result shows it.
template <class Ops>
__device__ __forceinline__ float finish(float m, float scale) {
  return m == -INFINITY ? m : scale * (m * Ops::kRepair);
}

}  // namespace kvscout::cuda
