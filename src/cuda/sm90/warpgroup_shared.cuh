// What the warpgroups of a block of threads share: keys on their way, operands, and the parts of
// tiles that they take one after the other.
#pragma once

#include "cuda/keys.cuh"
#include "cuda/lone_line.cuh"
#include "cuda/sm90/mbarrier.cuh"
#include "cuda/sm90/wgmma.cuh"
#include "cuda/work_list.cuh"

namespace kvscout::sm90 {

using cuda::HeadChunk;
using cuda::ScoreParams;
using cuda::Segment;

inline constexpr int kWarpgroup = 128;
// Operands ready or in use. Beside two preparers of 16-bit keys there is room for two.
template <class Ops, int M>
inline constexpr int kOperands = M == 1 && Ops::kKeyLoads == 4 ? 2 : 4;
template <int M>
inline constexpr int kPreparers = M == 1 ? 2 : 1;
template <int M>
inline constexpr int kBlockThreads = cuda::warpgroup_threads(128 * M);
static_assert(kBlockThreads<1> == (2 + kPreparers<1>)*kWarpgroup);
static_assert(kBlockThreads<2> == (2 + kPreparers<2>)*kWarpgroup);
// Registers a thread. At the launch each gets 128 (M = 1) or 168.
template <int M>
inline constexpr int kRegistersToPrepare = M == 1 ? 64 : 56;
template <int M>
inline constexpr int kRegistersToMultiply = M == 1 ? 192 : 224;

// What taking up a tile costs in columns: most of it is hidden. Causal 8192 x 8192 on an H200: 60.6
// us with 2, 61.0 with 1. (When a tile took those who prepare 6000 cycles: 62.3 and 67.3, with 3
// 63.4.)
inline constexpr int kSetup = 2;
using WorkList = cuda::WorkList<false, kSetup>;
using LoneLine = cuda::LoneLine<kSetup>;

// Blocks on their way to a preparer. Three are no faster.
inline constexpr int kSlots = 2;

// A thread takes up to four rows of keys, or of a tile's queries: the i-th lies so many after its
// first.
KVSCOUT_HD constexpr int more_rows(int i) { return i / 2 * 64 + i % 2 * 8; }

// Of a thread that multiplies.
template <int M>
__device__ __forceinline__ int first_row(int thread) {
  return thread / kWarpgroup * (64 * M) + thread / 32 % 4 * 16 + thread % 32 / 4;
}

// What a thread copies of a block: of rows 16*warp + lane/4 + more_rows(i), its quarter.
template <class Ops>
struct KeySlot {
  uint4 keys[4][Ops::kKeyLoads][kWarpgroup];
  std::uint32_t scales[4][Ops::kKeyScales ? kWarpgroup : 1];
};

// Where a thread that copies finds its part of a block: of page 0, its row and quarter; flat: of
// key 0, its quarter. (16 bytes, so that threads beside each other do not meet in a bank of shared
// memory, which tiles of 128 rows keep busy.)
struct alignas(16) KeySource {
  const std::uint8_t *keys, *scales;
};

// How far a warp that prepares came on the block's run of the line.
struct Way {
  Segment segment;
  std::int64_t at, stop;  // of the line: behind the segment; the end of the run
  int end, pass, tiles;   // columns of the segment before `end`; announced
  // Of its keys:
  const std::int32_t* table;
  int k_count;
  std::uint32_t scale_row;  // flat: of key 0
};

// What a thread that multiplies remembers for itself.
struct Own {
  float* target;  // where its row, or with heads reduced its token, is written; null: nowhere
  int pass, turn, tiles;
  int limit[4];  // keys that its rows see
};

// Where a row of every tile lies, from the tile's first token and head on.
struct Place : cuda::RowPlace {
  std::uint32_t scale_row;
  std::int64_t query;
  __device__ Place(const ScoreParams& p, int row) : RowPlace(cuda::place_of_row(p.tile, row)) {
    scale_row = static_cast<std::uint32_t>(token * p.q_heads + head);
    query = token * p.q_token_stride + head * p.q_head_stride;
  }
};

// A part of a tile that the block of threads takes, announced by those who prepare its keys. So the
// search for a tile, and for NVFP4 the way of its queries from memory, hide behind the tile before.
// (Queries of other types are too many for that: 256 rows of 16 bits are 64 KB.)
template <class Ops, int M>
struct Tile {
  static constexpr bool kHasQueries = Ops::kQueryScales;
  static constexpr int kRows = kHasQueries ? 128 * M : 1;
  uint4 queries[kRows][4];  // as they lie in memory
  std::uint32_t scales[kRows][2];
  Segment segment;
  int end;  // column; the segment's first: the run is over
  int pass;
  Barrier announced, taken;
};
// Announced and not yet finished. Two preparers are up to three tiles ahead of the one whose
// products begin.
template <int M>
inline constexpr int kTiles = M == 1 ? 3 : 2;

// Of the -inf tails, parts that those who multiply write before they have something to multiply:
// one a warp, if they are short. (Causal 8192 x 8192: all at the end, they ended 3 us behind the
// last product.)
__device__ __forceinline__ unsigned early_parts(const ScoreParams& p) {
  return p.fill_columns * p.fill_lanes <= 4096
             ? min(p.fill_parts, gridDim.x * (2 * kWarpgroup / 32))
             : 0;
}

// Copies the NVFP4 query of a tile's row: by one thread, which so finds its place once. (By the
// four that will read it, a further tile took those who prepare some 6000 cycles instead of 3700.)
template <class Ops, int M>
__device__ __forceinline__ void copy_query(const ScoreParams& p, const Segment& s,
                                           const HeadChunk& heads, const Place& of, int row,
                                           Tile<Ops, M>& to) {
  uint4(&query)[4] = to.queries[row];
  std::uint32_t(&scale)[2] = to.scales[row];
  if (of.head < heads.heads && of.token < s.tokens) {
    const std::int64_t token = std::int64_t{s.rows.q_begin} + s.first;
    const std::uint8_t* from =
        p.q + token * p.q_token_stride + heads.first_head * p.q_head_stride + of.query;
    const auto scale_row =
        static_cast<std::uint32_t>(token * p.q_heads + heads.first_head) + of.scale_row;
    const std::uint8_t* scales = p.q_scale + scale_layout::row_128x4(scale_row);
#pragma unroll
    for (int i = 0; i < 4; ++i) cuda::copy_async<16>(&query[i], from + 16 * i);
    const bool words = reinterpret_cast<std::uintptr_t>(p.q_scale) % 4 == 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint8_t* word = scales + i * scale_layout::kSecondHalf;
      if (words)
        cuda::copy_async<4>(&scale[i], word);
      else
        scale[i] = cuda::load_word<false>(word);
    }
  } else {
#pragma unroll
    for (uint4& x : query) x = {};
    scale[0] = scale[1] = 0;
  }
}

template <class Ops, int M>
struct WarpgroupShared {
  std::uint8_t operand[kOperands<Ops, M>][2]
                      [kBlock * 128];  // k 0..63 and 64..127; 1024-byte aligned
  KeySlot<Ops> slot[kPreparers<M>][kSlots];
  float rows[2][128 * M];  // with heads reduced: maxima of a block, in turn
  KeySource source[kPreparers<M> * kWarpgroup];
  Way way[kPreparers<M> * kWarpgroup / 32];
  Own own[2 * kWarpgroup];
  Tile<Ops, M> tile[kTiles<M>];
  Place place[128 * M];  // of a tile's rows
  union {
    std::int64_t sums[WorkList::kSlots];
    unsigned lone_sums[kPreparers<M> * kWarpgroup / 32][LoneLine::kSlots];  // each warp's
  };
  Barrier written[kOperands<Ops, M>], multiplied[kOperands<Ops, M>];
};

}  // namespace kvscout::sm90
