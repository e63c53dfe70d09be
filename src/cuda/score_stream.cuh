// Score of short queries, many blocks: up to 32 query rows a tile stay in registers, and each warp
// streams keys past them. Bound: reading the keys once (9216 bytes a block of NVFP4 keys).
//
// A block of threads, one a multiprocessor, takes an equal run of blocks of keys, and its warps
// take equal numbers of units of those (half a block of NVFP4 keys, stream_units.cuh), wherever
// they begin and end. A block of keys that several warps share is put together at the end of the
// run.
//
// Keys go from memory straight into registers: the loads of the next unit are issued step by step,
// as the steps of the one before set registers free. What an H200 then waits for is arithmetic, so
// every instruction in the inner loop counts (docs/numbers.md).
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/score_few.cuh"
#include "cuda/stream_units.cuh"

namespace kvscout::cuda {

// Puts the rows' maxima of a block of keys where they belong: into the output, or, where an earlier
// warp began the block or a later one goes on with it, beside its share.
template <class Ops, int Tiles>
__device__ __forceinline__ void write_block(const ScoreParams& p, Position<Tiles>& here,
                                            float value, bool joins, bool stays, int lane,
                                            bool speaks, int row, float* target) {
  if (p.folds) {
    __syncwarp();
    if (is_speaker<Tiles>(lane)) here.rows[row_of_lane<Tiles>(lane)] = value;
    __syncwarp();
    value = lane < here.segment.tokens ? fold_heads(p.tile, here.rows, here.heads.heads, lane)
                                       : -INFINITY;
  }
  if (joins || stays) {
    float* const share = joins ? here.joined : here.begun;
    if (speaks) share[row] = here.pass == 0 ? value : fmaxf(share[row], value);
  } else if (target) {
    if (here.pass > 0) value = fmaxf(value, *target);  // raw maxima gather in the output
    *target = here.pass + 1 == p.tile.passes ? finish<Ops>(value, here.scale) : value;
  }
}

// The units of here's segment, for one pass. Unit n is part n % kOf of the block of column n / kOf.
template <class Ops, int Tiles>
__device__ __forceinline__ void stream_units(const ScoreParams& p, Position<Tiles>& here, int lane,
                                             bool speaks, int row) {
  using U = Unit<Ops, Tiles>;
  const Segment& s = here.segment;
  int at = here.first, column = s.column;
  const int end = at + here.units;
  unsigned next = 0;  // the index of the block after the one in `from`
  Source from;
  const auto look_up = [&](int c) {
    next = block_of(p, c);
    if (p.paged) next = __ldg(here.table + static_cast<int>(next) * p.table_column_stride);
  };
  const auto enter = [&](int c) {
    from.block = block_of(p, c);
    from.exists = !p.paged || next < static_cast<unsigned>(p.pages);
    from.dense = p.k_token_stride == U::kRowBytes && last_row(p, here, from.block) == kBlock - 1;
    from.keys = here.keys + next * here.key_stride + lane / 4 * p.k_token_stride + lane % 4 * 16;
    from.scales = here.scales + std::uint64_t{next} * here.scale_stride +
                  (lane % 4 / 2 * scale_layout::kSecondHalf + (p.paged ? lane / 4 * 16 : 0));
    if ((c + 1 - s.column) * U::kOf < end) look_up(c + 1);
  };

  typename Ops::Raw raw[U::kGroupsOf][2];
  std::uint32_t word[4][2];
  look_up(column);
  enter(column);
  if (from.exists) {
    if constexpr (Ops::kKeyScales) load_words<Ops>(p, here, from, at, lane, word);
#pragma unroll
    for (int i = 0; i < U::kSteps; ++i) load_step<Ops, Tiles>(p, here, from, at, i, lane, raw);
  } else {  // what is multiplied then does not count
#pragma unroll
    for (auto& group : raw)
      for (auto& half : group) half = {};
#pragma unroll
    for (auto& group : word) group[0] = group[1] = 0;
  }
  QueryFragments<Tiles> q;
  load_queries<Ops, Tiles, true>(p, s, here.heads, lane, q);
  for (int n = lane; n < Tiles * 8; n += 32)
    here.limits[n] = s.rows.limit(s.first + place_of_row(p.tile, n).token, p.lengths.causal);
  __syncwarp();
  if (speaks) here.targets[row] = row_target(p, s, here.heads, row);

  Maxima<Tiles> m;
  clear<Tiles>(m);
#pragma unroll 1
  for (;; ++at) {
    const bool exists = from.exists, more = at + 1 < end;
    const int u = at % U::kOf, next_u = (at + 1) % U::kOf, block = block_of(p, column);
    typename Ops::Scale scale[4][2] = {};
    if constexpr (Ops::kKeyScales)
#pragma unroll
      for (int g = 0; g < 4; ++g) Ops::scales(word[g], lane % 4, scale[g]);
    if (more && next_u == 0) enter(column + 1);
    const bool loads = more && from.exists;
    if constexpr (Ops::kKeyScales)
      if (loads) load_words<Ops>(p, here, from, next_u, lane, word);
    const bool masked = block * kBlock > here.seen_by_all - kBlock;
#pragma unroll
    for (int i = 0; i < U::kSteps; ++i) {
      float d[U::kStep][Tiles][4];
      multiply<Ops, Tiles, U::kStep>(raw + i * U::kStep, scale + i * U::kStep, q, d);
      if (__builtin_expect(masked, 0)) {
        const int first = U::row(u, i * U::kStep) + lane / 4 + block * kBlock;
#pragma unroll
        for (int t = 0; t < Tiles; ++t)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int visible = here.limits[t * 8 + lane % 4 * 2 + e] - first;
#pragma unroll
            for (int g = 0; g < U::kStep; ++g) {
              if (g * 32 >= visible) d[g][t][e] = -INFINITY;
              if (g * 32 + 8 >= visible) d[g][t][2 + e] = -INFINITY;
            }
          }
      }
#pragma unroll
      for (int g = 0; g < U::kStep; ++g) raise<Tiles>(m, d[g]);
      if (loads) load_step<Ops, Tiles>(p, here, from, next_u, i, lane, raw);
    }
    if (next_u != 0 && more) continue;

    // The warp is done with the block.
    const float value = exists ? reduce_keys<Tiles>(m, lane) : -INFINITY;
    const bool joins = column == s.column && here.first != 0, stays = next_u != 0;
    float* target = speaks ? here.targets[row] : nullptr;
    if (target) target += column * p.out_column_stride;
    write_block<Ops>(p, here, value, joins, stays, lane, speaks, row, target);
    if (!more) break;
    clear<Tiles>(m);
    ++column;
  }
}

// The segment that a warp goes on with, into its position; called by one lane.
template <class Ops, int Tiles>
__device__ __forceinline__ void take_segment(const ScoreParams& p, const Segment& found,
                                             Position<Tiles>& here) {
  constexpr int kUnits = Unit<Ops, Tiles>::kOf;
  here.segment = found;
  here.first = here.at % kUnits;
  here.units = least((found.column_end - found.column) * kUnits - here.first, here.end - here.at);
  here.seen_by_all = found.rows.limit(found.first, p.lengths.causal);
  if (p.paged) {
    here.key_stride = p.k_page_stride;
    here.scale_stride = static_cast<unsigned>(p.scale_page_stride);
    here.table = p.page_table + found.rows.b * p.table_row_stride;
  } else {
    here.key_stride = p.k_token_stride * kBlock;
    here.scale_stride = p.k_heads * scale_layout::kPageBytes;
  }
}
template <int Tiles>
__device__ __forceinline__ void take_pass(const ScoreParams& p, int pass, Position<Tiles>& here) {
  const HeadChunk heads = head_chunk(p, here.segment.unit, pass);
  here.heads = heads, here.pass = pass;
  here.keys = p.k + heads.key_head * p.k_head_stride;
  here.scales = p.k_scale;
  if (p.paged) {
    here.scales += heads.key_head * scale_layout::kPageBytes;
  } else {
    const std::int64_t begin = here.segment.rows.k_begin;
    const std::int64_t scale_row = begin * p.k_heads + heads.key_head;
    here.keys += begin * p.k_token_stride;
    here.scales += scale_row / kBlock * scale_layout::kPageBytes;
    here.first_scale = static_cast<unsigned>(scale_row % kBlock);
  }
}

template <class Ops, int Tiles>
__global__ void __launch_bounds__(stream_threads(Tiles * 8), 1)
    score_stream(const __grid_constant__ ScoreParams p) {
  constexpr int kStreamWarps = stream_threads(Tiles * 8) / 32, kUnits = Unit<Ops, Tiles>::kOf;
  warm_constants(p);
  wait_for_previous();
  // An early start of the next kernel deals thread blocks to multiprocessors anew. Where a call
  // takes half a millisecond that costs more than it gains: 64 x 131k bf16 keys 532 instead of 526
  // us.
  if constexpr (Ops::kKeyScales) release_next();
  __shared__ Position<Tiles> positions[kStreamWarps];
  __shared__ std::int64_t sums[kStreamWarps][WorkList<true, true>::kSlots];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Position<Tiles>& here = positions[warp];
  const Segment& s = here.segment;
  const float scale = global_scale(p);
  const WorkList<true, true> list(p, sums[warp]);
  const Run blocks = run_of(list.total(), blockIdx.x, gridDim.x);
  if (blocks.end - blocks.begin <= kFewBlocks<kStreamWarps> && p.tile.passes == 1) {
    score_few<Ops, Tiles, kStreamWarps>(p, list, blocks, scale);
    fill_tails(p);
    return;
  }
  // Rows, or tokens where heads fold, are spread over lanes; of the lanes that hold the same one,
  // one speaks.
  const bool speaks = p.folds ? lane < Tiles * 8 : is_speaker<Tiles>(lane);
  const int row = p.folds ? lane : row_of_lane<Tiles>(lane);
  if (lane == 0) {
    // Below 2^31: results alone would otherwise fill the memory.
    const auto units = static_cast<unsigned>(blocks.end - blocks.begin) * kUnits;
    const unsigned each = units / kStreamWarps, rest = units % kStreamWarps;
    here.begin = here.at = static_cast<int>(warp * each + min(static_cast<unsigned>(warp), rest));
    here.end = here.begin + static_cast<int>(each + (warp < rest));
    here.line = blocks.begin, here.scale = scale;
  }
  __syncwarp();
#pragma unroll 1
  while (here.at < here.end) {
    {
      const Segment found = list.seek(here.line + here.at / kUnits);
      __syncwarp();
      if (lane == 0) take_segment<Ops>(p, found, here), take_pass(p, 0, here);
      __syncwarp();
    }
#pragma unroll 1
    for (;;) {
      stream_units<Ops>(p, here, lane, speaks, row);
      if (here.pass + 1 >= p.tile.passes) break;
      __syncwarp();
      if (lane == 0) take_pass(p, here.pass + 1, here);
      __syncwarp();
    }
    __syncwarp();
    if (lane == 0) here.at += here.units;
    __syncwarp();
  }
  fill_tails(p);

  // The last block, if this warp began it and later warps went on with it.
  __syncthreads();
  const int end = (here.end / kUnits + 1) * kUnits;
  if (here.end % kUnits == 0 || here.begin == here.end || here.begin > end - kUnits) return;
  float* const out = speaks ? here.targets[row] : nullptr;
  if (!out) return;
  float value = here.begun[row];
  for (int w = warp + 1; w < kStreamWarps && positions[w].begin < end; ++w)
    value = fmaxf(value, positions[w].joined[row]);
  const int column = s.column + (here.first + here.units) / kUnits;
  out[column * p.out_column_stride] = finish<Ops>(value, here.scale);
}

}  // namespace kvscout::cuda
