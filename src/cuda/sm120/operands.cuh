// Rows of NVFP4 as operands of the block-scaled instruction: no dequantisation, no shared memory.
// Keys are A, 16 of them at a time, query rows are B; both come as 16-byte loads and one exchange
// between neighbouring lanes (maps.h).
#pragma once

#include "cuda/mma.cuh"
#include "cuda/sm120/atom.cuh"

namespace kvscout::sm120 {

using cuda::HeadChunk;
using cuda::KeyBlock;
using cuda::Maxima;
using cuda::ScoreParams;
using cuda::Segment;
using cuda::TileShape;

inline constexpr int kGroups = cuda::kGroups;
static_assert(cuda::row_of_group(6) == map::key_row(6, 0));

// threadIdx.x, asked for anew: what follows from it is not kept in registers meanwhile.
__device__ __forceinline__ int thread_again() {
  unsigned t;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
  return static_cast<int>(t);
}

// The two half rows of a lane's chunk: registers [half][upper].
__device__ __forceinline__ void exchange(const uint4& v, bool odd, std::uint32_t (&r)[2][2]) {
  const std::uint32_t low = __shfl_xor_sync(cuda::kAllLanes, v.y, 1),
                      high = __shfl_xor_sync(cuda::kAllLanes, v.w, 1);
  r[0][0] = odd ? low : v.x, r[0][1] = odd ? high : v.z;
  r[1][0] = odd ? v.x : low, r[1][1] = odd ? v.z : high;
}

// Four scale bytes as the instruction takes them. The format is unsigned: bit 7 goes.
template <map::Order Order>
__device__ __forceinline__ std::uint32_t slots_of(std::uint32_t word) {
  if constexpr (Order == map::Order::paired) word = cuda::permute_bytes(word, 0, map::kSlotOrder);
  return word & 0x7F7F7F7Fu;
}

// Query rows of a tile: Tiles x 8 of them.
template <int Tiles>
struct Queries {
  std::uint32_t code[Tiles][2][2];
  std::uint32_t scale[(Tiles + 1) / 2];
};

// Rows that hold nothing are zeros.
template <map::Order Order, bool Aligned, int Tiles>
__device__ __forceinline__ void load_queries(const ScoreParams& p, const TileShape& tile,
                                             const Segment& s, const HeadChunk& heads, int lane,
                                             Queries<Tiles>& q) {
  const std::int64_t first_token = static_cast<std::int64_t>(s.rows.q_begin) + s.first;
  const auto exists = [&](const cuda::RowPlace& at) {
    return at.head < heads.heads && at.token < s.tokens;
  };
#pragma unroll
  for (int t = 0; t < Tiles; ++t) {
    const cuda::RowPlace at = cuda::place_of_row(tile, 8 * t + lane / 4);
    const std::uint8_t* row = p.q + (first_token + at.token) * p.q_token_stride +
                              (heads.first_head + at.head) * p.q_head_stride;
    if constexpr (Order == map::Order::paired) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (exists(at)) v = cuda::load_row_part<Aligned>(row + 16 * map::chunk_of_lane(lane % 4));
      exchange(v, lane & 1, q.code[t]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        q.code[t][i / 2][i % 2] =
            exists(at) ? cuda::load_word<Aligned>(row + 16 * i + 4 * (lane % 4)) : 0;
    }
  }
#pragma unroll
  for (int u = 0; u < (Tiles + 1) / 2; ++u) {
    const int n = map::scale_b_row(lane, u);
    const cuda::RowPlace at = cuda::place_of_row(tile, Tiles == 1 ? n % 8 : n);
    std::uint32_t word = 0;
    if (exists(at)) {
      const std::int64_t row = (first_token + at.token) * p.q_heads + heads.first_head + at.head;
      word = cuda::load_word<false>(p.q_scale + scale_layout::row_128x4(row) +
                                    map::scale_b_half(lane) * scale_layout::kSecondHalf);
    }
    q.scale[u] = slots_of<Order>(word);
  }
}

// What a lane holds of 16 keys: a quarter of rows r and r + 8, and a scale word.
struct KeyGroup {
  uint4 row[2];
  std::uint32_t scale;
};

// The same as operand A of the two instructions, one a half row.
struct KeyOperand {
  std::uint32_t code[2][4], scale;
};
__device__ __forceinline__ KeyOperand operand_of(const KeyGroup& keys, int lane) {
  KeyOperand a;
#pragma unroll
  for (int h = 0; h < 2; ++h) {  // rows r and r + 8
    std::uint32_t r[2][2];
    exchange(keys.row[h], lane & 1, r);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      a.code[half][h] = r[half][0], a.code[half][2 + h] = r[half][1];
  }
  a.scale = slots_of<map::Order::paired>(keys.scale);
  return a;
}

// `Count` groups against all query rows, `Together` tiles of them at a time: first every first
// half, then every second one, so that a sum is not waited for. fmaxf drops NaN. `visible(n)`: keys
// of the block that query row n sees, counted from its first; not asked for whole blocks.
template <bool Masked, int Together, int Count, int Tiles, class VisibleKeys>
__device__ __forceinline__ void score_groups(const KeyOperand (&keys)[Count], int group, int lane,
                                             const Queries<Tiles>& q, VisibleKeys visible,
                                             Maxima<Tiles>& m) {
  constexpr int kTogether = Together < Tiles ? Together : Tiles;
#pragma unroll
  for (int t0 = 0; t0 < Tiles; t0 += kTogether) {
    float d[Count][kTogether][4] = {};
    const auto add = [&](auto half_) {
      constexpr int kHalf = decltype(half_)::value, kA = map::scale_a_selector(kHalf);
#pragma unroll
      for (int j = 0; j < Count; ++j)
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int t = t0 + i;
          if (t % 2 == 0)
            mma_fp4<kA, map::scale_b_selector(kHalf, 0)>(
                d[j][i], keys[j].code[kHalf], q.code[t][kHalf], keys[j].scale, q.scale[t / 2]);
          else
            mma_fp4<kA, map::scale_b_selector(kHalf, 1)>(
                d[j][i], keys[j].code[kHalf], q.code[t][kHalf], keys[j].scale, q.scale[t / 2]);
        }
    };
    add(std::integral_constant<int, 0>{});
    add(std::integral_constant<int, 1>{});
#pragma unroll
    for (int j = 0; j < Count; ++j)
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float upper = d[j][i][e], lower = d[j][i][2 + e];
          if constexpr (Masked) {
            const int row = map::key_row(group + j, lane / 4),
                      end = visible(8 * (t0 + i) + lane % 4 * 2 + e);
            if (row >= end) upper = -INFINITY;
            if (row + 8 >= end) lower = -INFINITY;
          }
          m[t0 + i][e] = fmaxf(m[t0 + i][e], fmaxf(upper, lower));
        }
  }
}

// Halves [first, last) of a block of 128 keys that all rows see, `Count` groups at a time.
template <int Count, int Tiles>
__device__ __forceinline__ void score_whole(const ScoreParams& p, const KeyBlock& k, int first,
                                            int last, int lane, const Queries<Tiles>& q,
                                            Maxima<Tiles>& m) {
  const int stride = static_cast<int>(p.k_token_stride);
  const std::uint8_t* row =
      k.rows + (16 * first + lane / 4) * std::int64_t{stride} + 16 * map::chunk_of_lane(lane % 4);
#pragma unroll 1
  for (int h = first; h < last; ++h) {
    std::uint32_t word[4];
    if (p.paged) {
      const uint4 v = cuda::load_streaming(k.scales + (16 * h + map::scale_a_row(lane)) * 16 +
                                           map::scale_a_half(lane) * scale_layout::kSecondHalf);
      word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int of = map::key_row(4 * h + j, map::scale_a_row(lane));
        word[j] =
            cuda::load_word<true>(k.scales + scale_layout::row_128x4(k.scale_row + of * p.k_heads) +
                                  map::scale_a_half(lane) * scale_layout::kSecondHalf);
      }
    }
    // Loads of `kAhead` groups are under way before the first is used: 4.6 KB a warp with all four.
    constexpr int kAhead = Tiles == 1 ? 4 : 2;
#pragma unroll
    for (int j0 = 0; j0 < 4; j0 += kAhead) {
      KeyGroup keys[kAhead / Count][Count];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        KeyGroup& to = keys[j / Count][j % Count];
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          to.row[x] = cuda::load_row_part<true>(row);
          row += stride * (x == 0 ? 8 : j0 + j < 3 ? 24 : -88);
        }
        to.scale = word[j0 + j];
      }
#pragma unroll
      for (int j = 0; j < kAhead / Count; ++j) {
        KeyOperand operands[Count];
#pragma unroll
        for (int i = 0; i < Count; ++i) operands[i] = operand_of(keys[j][i], lane);
        score_groups<false, 2>(operands, 0, lane, q, nullptr, m);
      }
    }
  }
}

// A group of any block. Rows past the last are read as the last. `Shared`: other warps of the block
// of threads read it, too, so that it is worth a place in L1.
template <bool Aligned, bool Shared>
__device__ __forceinline__ void load_group(const ScoreParams& p, const KeyBlock& k, int group,
                                           int lane, KeyGroup& keys) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = min(map::key_row(group, lane / 4 + 8 * h), k.last);
    const std::uint8_t* at = k.rows + row * p.k_token_stride + 16 * map::chunk_of_lane(lane % 4);
    if constexpr (Aligned && Shared)
      keys.row[h] = __ldg(reinterpret_cast<const uint4*>(at));
    else
      keys.row[h] = cuda::load_row_part<Aligned>(at);
  }
  const int row = min(map::key_row(group, map::scale_a_row(lane)), k.last);
  const std::int64_t at = p.paged ? row % 32 * 16 + row / 32 * 4
                                  : scale_layout::row_128x4(k.scale_row + row * p.k_heads);
  keys.scale =
      cuda::load_word<Aligned>(k.scales + at + map::scale_a_half(lane) * scale_layout::kSecondHalf);
}

// Groups [first, last) of any block; with more rows, fewer loads ahead.
template <bool Aligned, bool Masked, int Tiles, class VisibleKeys>
__device__ __forceinline__ void score_part(const ScoreParams& p, const KeyBlock& k, int first,
                                           int last, int lane, const Queries<Tiles>& q,
                                           VisibleKeys visible, Maxima<Tiles>& m) {
  constexpr bool kMany = Tiles > 4;
  constexpr int kAhead = kMany ? 1 : 2;
#pragma unroll 1
  for (int base = first; base < last; base += kAhead) {
    KeyGroup keys[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (base + j < last) load_group<Aligned, kMany>(p, k, base + j, lane, keys[j]);
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (base + j < last) {
        const KeyOperand operand[1] = {operand_of(keys[j], lane)};
        score_groups<Masked, 2>(operand, base + j, lane, q, visible, m);
      }
  }
}

// A block's maximum as the result shows it.
__device__ __forceinline__ float finish(float m, float scale) {
  return m == -INFINITY ? m : scale * m;
}

}  // namespace kvscout::sm120
