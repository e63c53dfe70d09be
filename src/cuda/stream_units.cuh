// What a warp of the streaming schedule has under way, and how it asks for it: 4 KB of NVFP4 keys
// in 32 registers, 8 KB of wider ones in 64, by plain 16-byte loads.
#pragma once

#include "cuda/mma.cuh"
#include "kvscout/nvfp4.h"

namespace kvscout::cuda {

// A unit: half a block of e2m1 and e4m3, a quarter of 16-bit keys. Its groups of 16 keys are
// multiplied `kStep` at a time, and what a step leaves free is loaded anew at once.
template <class Ops, int Tiles>
struct Unit {
  static constexpr int kGroupsOf = Ops::kKeyLoads == 4 ? 2 : 4, kOf = kGroups / kGroupsOf;
  static constexpr int kStep = Tiles == 1 && kGroupsOf == 4 ? 2 : 1;
  static constexpr int kSteps = kGroupsOf / kStep;
  static constexpr int kRowBytes = Ops::kRowBytes;

  // First row of group g of unit u.
  static __device__ __forceinline__ int row(int u, int g) {
    return row_of_group(u * kGroupsOf) + g * 32;
  }
};

// A warp's share of a segment, for one pass, and where its keys lie.
struct Share {
  Segment segment;
  int at;            // the first unit, counted from the first block of the thread block
  int first, units;  // counted from the block of the segment's first column
  int pass;
  HeadChunk heads;
  // The keys of a block lie at keys + index * key_stride: index is its page, or its number.
  const std::uint8_t *keys, *scales;
  std::int64_t key_stride;
  unsigned scale_stride, first_scale;  // first_scale: flat, the first row's place in its tile
  const std::int32_t* table;
  int seen_by_all;  // keys that every row of the tile sees

  // Of a segment that a warp at unit `at` of its `end` found.
  template <int kUnits>
  static __device__ __forceinline__ Share of(const ScoreParams& p, const Segment& found, int at,
                                             int end, int pass) {
    Share s;
    s.segment = found, s.at = at;
    s.first = at % kUnits;
    s.units = least((found.column_end - found.column) * kUnits - s.first, end - at);
    s.pass = pass, s.heads = head_chunk(p, found.unit, pass);
    s.keys = p.k + s.heads.key_head * p.k_head_stride;
    s.scales = p.k_scale;
    s.first_scale = 0, s.table = nullptr;
    if (p.paged) {
      s.scales += s.heads.key_head * scale_layout::kPageBytes;
      s.key_stride = p.k_page_stride;
      s.scale_stride = static_cast<unsigned>(p.scale_page_stride);
      s.table = p.page_table + found.rows.b * p.table_row_stride;
    } else {
      const std::int64_t begin = found.rows.k_begin;
      const std::int64_t scale_row = begin * p.k_heads + s.heads.key_head;
      s.keys += begin * p.k_token_stride;
      s.scales += scale_row / kBlock * scale_layout::kPageBytes;
      s.first_scale = static_cast<unsigned>(scale_row % kBlock);
      s.key_stride = p.k_token_stride * kBlock;
      s.scale_stride = p.k_heads * scale_layout::kPageBytes;
    }
    s.seen_by_all = found.rows.limit(found.first, p.lengths.causal);
    return s;
  }
};

// What decoding calls read in place of a page that does not exist: scales of NaN, so that no
// maximum takes what comes of them, and the same bytes as keys.
struct NoPage {
  std::uint32_t words[kBlock * 64 / 4];  // as long as a page's keys
  constexpr NoPage() : words{} {
    for (std::uint32_t& w : words) w = nvfp4::kNanScale * 0x01010101u;
  }
};
static __device__ constexpr NoPage kNoPage{};

// What a warp is at. In shared memory, so that it takes no registers in the inner loop.
template <int Tiles>
struct Position : Share {
  unsigned line;   // where the thread block's run of the line of work begins
  int begin, end;  // the warp's units, counted from the first block of the thread block
  float scale;
  unsigned straight;  // units, counted from the first column's block, that need no mask and whose
                      // next block is dense
  // Where a lane's part of a block begins whose index is 0: its row 0, and, paged, its first word
  // of scales. With `targets` three arrays of 8 bytes a lane, so that one address finds them all.
  const std::uint8_t *keys_of[32], *scales_of[32];
  // Where a lane puts the maximum of the row that it speaks for; null: nowhere. Moves with the
  // columns.
  float* targets[32];
  std::int64_t step;  // from a target to that of the next column
  // By row: keys that are seen. By row, or by token where heads fold: the warp's share of a block
  // that an earlier warp began, and of one that a later warp goes on with. Rows on the way to a
  // fold.
  int limits[Tiles * 8];
  float joined[Tiles * 8], begun[Tiles * 8], rows[Tiles * 8];
};

// The block that is being loaded, as a lane sees it.
struct Source {
  const std::uint8_t *keys, *scales;  // null: the page id lies outside the pool
  __device__ __forceinline__ bool exists() const { return keys != nullptr; }
};

// The last row of a block that may be read.
__device__ __forceinline__ int last_row(const ScoreParams& p, const Share& here, int block) {
  return p.paged ? kBlock - 1 : least(here.segment.rows.k_count - block * kBlock, kBlock) - 1;
}

// Whether a block is whole and its rows lie one after the other.
template <class Ops, int Tiles>
__device__ __forceinline__ bool is_dense(const ScoreParams& p, const Share& here, int block) {
  return p.k_token_stride == Unit<Ops, Tiles>::kRowBytes && last_row(p, here, block) == kBlock - 1;
}

// Position::straight of a share.
template <class Ops, int Tiles>
__device__ __forceinline__ unsigned straight_units(const ScoreParams& p, const Share& here) {
  if (p.k_token_stride != Unit<Ops, Tiles>::kRowBytes) return 0;
  const int seen = here.seen_by_all / kBlock,
            dense = p.paged ? seen : here.segment.rows.k_count / kBlock - p.block_step,
            columns = columns_of(p).below(most(least(seen, dense), 0) * kBlock);
  return static_cast<unsigned>(most(columns - here.segment.column, 0)) * Unit<Ops, Tiles>::kOf;
}

// The scales of a unit, by groups of 16 keys: a lane's words of rows r and r + 8.
template <class Ops, int Tiles>
__device__ __forceinline__ void load_words(const ScoreParams& p, const Share& here,
                                           const Source& from, int block, int u, int lane,
                                           std::uint32_t (&word)[4][2]) {
  if (__builtin_expect(p.paged, 1)) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 v = load_streaming(words_of(from.scales, u, h));
#pragma unroll
      for (int j = 0; j < 4; ++j) word[j][h] = word_of(v, j);
    }
    return;
  }
  const int last = last_row(p, here, block);
  // A group further is 32 rows further: one step within a tile of scales, another over its end.
  // With each address found anew, flat keys at odd starts take 164 instead of 156 us (64 x 131k).
  if (p.k_heads == 1 && last == kBlock - 1) {
    constexpr std::int64_t kWithin = scale_layout::row_128x4(32),
                           kBeyond = scale_layout::row_128x4(128) - scale_layout::row_128x4(96);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unsigned row = here.first_scale + Unit<Ops, Tiles>::row(u, 0) + lane / 4 + 8 * h;
      const std::uint8_t* at = from.scales + scale_layout::row_128x4(row);
#pragma unroll
      for (int j = 0; j < 4; ++j, row += 32) {
        word[j][h] = load_word<true>(at);
        at += row % kBlock < kBlock - 32 ? kWithin : kBeyond;
      }
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = least(Unit<Ops, Tiles>::row(u, j) + lane / 4 + 8 * h, last);
      const unsigned row = here.first_scale + static_cast<unsigned>(r) * p.k_heads;
      word[j][h] = load_word<true>(from.scales + scale_layout::row_128x4(row));
    }
}

// The same of a page, where `wanted`, without a branch.
__device__ __forceinline__ void load_words_if(bool wanted, const Source& from, int u,
                                              std::uint32_t (&word)[4][2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint4 v = make_uint4(word[0][h], word[1][h], word[2][h], word[3][h]);
    load_streaming_if<false>(wanted, words_of(from.scales, u, h), v);
#pragma unroll
    for (int j = 0; j < 4; ++j) word[j][h] = word_of(v, j);
  }
}

// Scales of a block that does not exist: NaN, so that no maximum takes what comes of it.
__device__ __forceinline__ void hide(std::uint32_t (&word)[4][2]) {
#pragma unroll
  for (auto& group : word) group[0] = group[1] = nvfp4::kNanScale * 0x01010101u;
}

// The 16-byte parts of a step's keys that a lane loads: load(part, its row, its first byte in
// that), rows being counted from the lane's first of the unit.
template <class Ops, int Tiles, class Load>
__device__ __forceinline__ void for_parts(int step, typename Ops::Raw (*raw)[2], Load load) {
  using U = Unit<Ops, Tiles>;
#pragma unroll
  for (int g = step * U::kStep; g < (step + 1) * U::kStep; ++g)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < Ops::kKeyLoads; ++i) load(raw[g][h].v[i], 32 * g + 8 * h, 64 * i);
}

// The keys of one step of a unit whose rows lie one after the other; nothing if not `wanted`.
template <class Ops, int Tiles>
__device__ __forceinline__ void load_dense(bool wanted, const std::uint8_t* rows, int step,
                                           typename Ops::Raw (*raw)[2]) {
  for_parts<Ops, Tiles>(step, raw, [&](uint4& v, int row, int byte) {
    load_streaming_if<Ops::kHalfLines>(wanted, rows + row * Unit<Ops, Tiles>::kRowBytes + byte, v);
  });
}

// The keys of one step of a unit of any block. Rows past the last are read as the last.
template <class Ops, int Tiles>
__device__ __forceinline__ void load_step(const ScoreParams& p, const Share& here,
                                          const Source& from, int block, bool dense, int u,
                                          int step, int lane, typename Ops::Raw (*raw)[2]) {
  using U = Unit<Ops, Tiles>;
  if (__builtin_expect(dense, 1)) {
    const std::uint8_t* rows = from.keys + U::row(u, 0) * U::kRowBytes;
    for_parts<Ops, Tiles>(step, raw, [&](uint4& v, int row, int byte) {
      v = load_streaming<Ops::kHalfLines>(rows + row * U::kRowBytes + byte);
    });
  } else {
    const int own = lane / 4, last = last_row(p, here, block) - own;
    const std::int64_t stride = static_cast<int>(p.k_token_stride);
    for_parts<Ops, Tiles>(step, raw, [&](uint4& v, int row, int byte) {
      v = load_streaming<Ops::kHalfLines>(from.keys + least(U::row(u, 0) + row, last) * stride +
                                          byte);
    });
  }
}

}  // namespace kvscout::cuda
