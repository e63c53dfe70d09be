// Score of short queries where the lengths turn out to leave a block of threads next to nothing: a
// launch that is captured for long contexts and replayed with short ones. Four warps share a block
// of keys, 32 keys each, which takes half of the time that half a block does.
// Bound: latency, of three trips to memory: lengths, page id, keys.
#pragma once

#include "cuda/level_line.cuh"
#include "cuda/mma.cuh"

namespace kvscout::cuda {

inline constexpr int kFewGroups = 2, kFewShare = kGroups / kFewGroups;  // of a warp; warps a block
// Blocks of keys that so many warps take in this way.
template <int Warps>
inline constexpr int kFewBlocks = Warps / kFewShare;

// By a whole block of threads, whose run of the line of work is `run`. One pass.
template <class Ops, int Tiles, int Warps>
__device__ __forceinline__ void score_few(const ScoreParams& p, const LevelLine& list,
                                          const Run& run) {
  constexpr int kRows = Tiles * 8, kEach = kFewGroups, kShare = kFewShare;
  __shared__ float parts[Warps][kRows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % kShare;
  const auto at = static_cast<unsigned>(run.begin) + warp / kShare;
  Segment s;
  HeadChunk heads{};
  float scale = 1;
  if (at < run.end) {
    s = list.first(at);
    heads = head_chunk(p, s.unit, 0);
    const int block = block_of(p, s.column), first = row_of_group(part * kEach);
    const std::int32_t page = page_id(p, s.rows.b, block);
    typename Ops::RawQuery queries[Tiles];
#pragma unroll
    for (int t = 0; t < Tiles; ++t)
      queries[t] =
          fetch_query<Ops, true>(p, s, heads, place_of_row(p.tile, t * 8 + lane / 4), lane % 4);
    const KeyBlock k = key_block(p, s.rows, block, page, heads.key_head);
    typename Ops::Raw raw[kEach][2] = {};
    std::uint32_t word[kEach][2] = {};
    if (k.exists)
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        load_scale_words<Ops, true>(p, k, first + row_of_group(j), lane, word[j]);
        load_group<Ops, true>(p, k, first + row_of_group(j), lane, raw[j]);
      }
    scale = global_scale(p);
    QueryFragments<Tiles> q;
#pragma unroll
    for (int t = 0; t < Tiles; ++t) Ops::unpack_query(queries[t], lane % 4, q[t]);
    Maxima<Tiles> m;
    clear<Tiles>(m);
    typename Ops::Scale scales[kEach][2] = {};
#pragma unroll
    for (int j = 0; j < kEach; ++j) Ops::scales(word[j], lane % 4, scales[j]);
    float d[kEach][Tiles][4];
    multiply<Ops, Tiles, kEach>(raw, scales, q, d);
    const bool masked = s.rows.limit(s.first, p.lengths.causal) - kBlock < block * kBlock;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (masked)
        mask<Tiles>(p, s.rows, s.first, block, first + row_of_group(j) + lane / 4, lane, d[j]);
      raise<Tiles>(m, d[j]);
    }
    const float value = k.exists ? reduce_keys<Tiles>(m, lane) : -INFINITY;
    if (is_speaker<Tiles>(lane)) parts[warp][row_of_lane<Tiles>(lane)] = value;
  }
  __syncthreads();
  if (part != 0 || at >= run.end) return;
  const float value = join_warps(p, parts + warp, kShare, heads.heads, lane);
  float* out = lane < kRows ? row_target(p, s, heads, lane) : nullptr;
  if (out) out[s.column * p.out_column_stride] = finish<Ops>(value, scale);
}

}  // namespace kvscout::cuda
