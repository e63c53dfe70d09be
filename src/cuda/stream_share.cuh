// A warp's share of a stream (score_stream.cuh): unit after unit is multiplied, step by step, and
// the registers of a step are then loaded anew, with the same step of the next unit.
//
// Bound: arithmetic, shared memory and memory are all but equal here, so every instruction counts
// (docs/numbers.md).
#pragma once

#include <type_traits>

#include "cuda/prefetch.cuh"
#include "cuda/stream_maxima.cuh"

namespace kvscout::cuda {

// The units of a share. Unit n is part n % kOf of the block of column n / kOf. Queries are on their
// way and are unpacked; then the keys are asked for, and what else there is to know is put down
// meanwhile.
template <class Ops, Call kCall, int Tiles>
__device__ __forceinline__ void stream_units(const ScoreParams& p, const Share& share,
                                             const typename Ops::RawQuery (&queries)[Tiles],
                                             Position<Tiles>& here, int lane) {
  using U = Unit<Ops, Tiles>;
  using Table = std::conditional_t<Tiles == 1 && !Ops::kBf16, ByBoth, ByTable>;
  using Unpack = std::conditional_t<Ops::kLooksUp, Table, ByArithmetic<true>>;
  constexpr bool kDecodes = kCall != Call::any;
  // Unsigned, so that a remainder is a mask.
  unsigned at = share.first;
  const unsigned end = at + share.units;
  unsigned next = 0;  // the index of the block after the one in `from`
  Source from;
  const auto look_up = [&](const Share& s, int c) {
    next = block_of(p, c);
    if (p.paged) next = __ldg(s.table + static_cast<std::uint64_t>(next) * p.table_column_stride);
  };
  const auto column_of = [&](unsigned unit) {
    return here.segment.column + static_cast<int>(unit / U::kOf);
  };
  // Decoding calls have something to read whatever the page id.
  const auto readable = [&] { return kDecodes || from.exists(); };
  // The block that unit `first` begins.
  const auto enter = [&](unsigned first) {
    const bool exists = next < static_cast<unsigned>(p.pages);
    from.keys = here.keys_of[lane] + next * here.key_stride;
    from.scales = here.scales_of[lane] + std::uint64_t{next} * here.scale_stride;
    if (kDecodes && !exists)
      from.keys = from.scales = reinterpret_cast<const std::uint8_t*>(kNoPage.words);
    if (!kDecodes && !exists) from.keys = nullptr;
    if (end - first <= kLastBlocks<U::kRowBytes> * U::kOf && readable() &&
        is_dense<Ops, Tiles>(p, here, block_of(p, column_of(first))))
      prefetch_block<Ops, Tiles>(from, p.paged, lane);
    if (first + U::kOf < end) look_up(here, column_of(first) + 1);
  };

  look_up(share, share.segment.column);
  if (lane == 0) {
    static_cast<Share&>(here) = share;
    here.straight = straight_units<Ops, Tiles>(p, share);
  }
  here.keys_of[lane] = share.keys + lane / 4 * p.k_token_stride + lane % 4 * 16;
  here.scales_of[lane] =
      share.scales + (lane % 4 / 2 * scale_layout::kSecondHalf + (p.paged ? lane / 4 * 16 : 0));
  __syncwarp();
  const Segment& s = here.segment;
  // Before the loads: what is behind them in a warp waits until all are accepted (8 x 131k 21.9 us,
  // so 21.6).
  const Unpack by;
  QueryFragments<Tiles> q;
#pragma unroll
  for (int t = 0; t < Tiles; ++t) Ops::unpack_query(queries[t], lane % 4, q[t], by);
  // As loaded, 16-bit queries lie in fours of registers, and the assembler would copy them into
  // pairs for each product (48 of 650 instructions a unit). A shuffle hides where they come from.
  if constexpr (Ops::kLooksUp && !Ops::kQueryScales)
#pragma unroll
    for (auto& fragment : q)
#pragma unroll
      for (std::uint32_t& x : fragment) x = __shfl_sync(kAllLanes, x, lane);
  typename Ops::Raw raw[U::kGroupsOf][2];
  std::uint32_t word[4][2];
  enter(at - at % U::kOf);
  if (readable()) {
    const int block = block_of(p, share.segment.column);
    if constexpr (Ops::kKeyScales)
      load_words<Ops, Tiles>(p, here, from, block, at % U::kOf, lane, word);
#pragma unroll
    for (int i = 0; i < U::kSteps; ++i)
      load_step<Ops, Tiles>(p, here, from, block, is_dense<Ops, Tiles>(p, here, block), at % U::kOf,
                            i, lane, raw);
  } else {  // what is multiplied then does not count
#pragma unroll
    for (auto& group : raw)
      for (auto& half : group) half = {};
    hide(word);
  }
  if (lane == 0) here.scale = global_scale(p), here.step = p.out_column_stride;
  if (const int n = found_again(lane); n < Tiles * 8)
    here.limits[n] = s.rows.limit(s.first + place_of_row(p.tile, n).token, p.lengths.causal);
  __syncwarp();
  const Speaker<Tiles> speaker(p, lane);
  float* const first_target = speaker.speaks ? row_target(p, s, here.heads, speaker.row) : nullptr;
  here.targets[lane] = first_target ? first_target + s.column * p.out_column_stride : nullptr;

  Maxima<Tiles> m;
  clear<Tiles>(m);
  [[maybe_unused]] bool exists = from.exists();
  const auto scales = [&](typename Ops::Scale(&scale)[4][2]) {
    if constexpr (Ops::kKeyScales)
#pragma unroll
      for (int g = 0; g < 4; ++g) Ops::scales(word[g], lane % 4, scale[g]);
  };
  const auto step = [&](int i, const auto& scale, auto mask, auto load) {
    float d[U::kStep][Tiles][4];
    multiply<Ops, Tiles, U::kStep>(raw + i * U::kStep, scale + i * U::kStep, q, d, by);
    mask(i, d);
#pragma unroll
    for (int g = 0; g < U::kStep; ++g) raise<Tiles>(m, d[g]);
    load(i);
  };
  constexpr auto no_mask = [](auto&&...) {};
#pragma unroll 1
  for (;; ++at) {
    // Whole blocks that need no mask, in one line: what else is asked between their units makes 16
    // rows 1175 instead of 1095 instructions a block (64 x 131k with 4 tokens 150 instead of 146
    // us).
    if constexpr (kDecodes) {
      static_assert(Ops::kStraight && U::kOf == 2);
      const unsigned stop = least(here.straight, end);
#pragma unroll 1
      while (at % U::kOf == 0 && at + U::kOf <= stop) {
        const auto unit = [&](auto u, bool loads) {
          constexpr int next_u = (u + 1) % U::kOf;
          typename Ops::Scale scale[4][2] = {};
          scales(scale);
          if (u + 1 == U::kOf && loads) enter(at + U::kOf);
          const std::uint8_t* rows = from.keys + U::row(next_u, 0) * U::kRowBytes;
#pragma unroll
          for (int i = 0; i < U::kSteps; ++i) {
            step(i, scale, no_mask, [&](int j) { load_dense<Ops, Tiles>(loads, rows, j, raw); });
            if (i == 0) load_words_if(loads, from, next_u, word);
            if (i + 1 == U::kSteps / 2 && found_again(end) == 0) return true;  // as below
          }
          return false;
        };
        if (unit(std::integral_constant<int, 0>{}, true)) return;
        const bool more = at + U::kOf < end;
        if (unit(std::integral_constant<int, 1>{}, more)) return;
        const float value = reduce_keys<Tiles>(m, lane);
        float*& target = here.targets[lane];
        float* const now = target;
        write_block<Ops, Tiles>(p, here, value, false, false, now, lane);
        if (now) target = now + here.step;
        if (!more) return;
        clear<Tiles>(m);
        at += U::kOf;
      }
    }
    const bool more = at + 1 < end;
    const int u = static_cast<int>(at % U::kOf), next_u = static_cast<int>((at + 1) % U::kOf);
    typename Ops::Scale scale[4][2] = {};
    scales(scale);
    if (more && next_u == 0) enter(at + 1);
    const bool loads = more && readable();
    const auto next_block = [&] { return block_of(p, column_of(at + 1)); };
    if constexpr (Ops::kKeyScales) {
      if (loads)
        load_words<Ops, Tiles>(p, here, from, next_block(), next_u, lane, word);
      else
        hide(word);
    }
    const bool straight = at < here.straight;
    if (Ops::kStraight && __builtin_expect(straight, 1)) {
      const std::uint8_t* rows = from.keys + U::row(next_u, 0) * U::kRowBytes;
#pragma unroll
      for (int i = 0; i < U::kSteps; ++i) {
        step(i, scale, no_mask, [&](int j) { load_dense<Ops, Tiles>(loads, rows, j, raw); });
        // Never so: in one line, the assembler would put all loads at the end, where the next unit
        // has to wait for them (64 x 131k with 4 tokens 159 instead of 155 us).
        if (i + 1 == U::kSteps / 2 && __builtin_expect(at >= end, 0)) return;
      }
    } else {
      const int block = block_of(p, column_of(at));
      const bool masked =
          !straight && (Ops::kStraight || block * kBlock > here.seen_by_all - kBlock);
#pragma unroll
      for (int i = 0; i < U::kSteps; ++i)
        step(
            i, scale,
            [&](int j, float(&d)[U::kStep][Tiles][4]) {
              if (masked)
                mask_step<Ops, Tiles>(here.limits,
                                      U::row(u, j * U::kStep) + lane / 4 + block * kBlock, lane, d);
            },
            [&](int j) {
              if (!loads) return;
              const int from_block = next_block();
              const bool dense = straight || is_dense<Ops, Tiles>(p, here, from_block);
              load_step<Ops, Tiles>(p, here, from, from_block, dense, next_u, j, lane, raw);
            });
    }
    if (next_u != 0 && more) continue;

    // The warp is done with the block.
    float value = reduce_keys<Tiles>(m, lane);
    if (!Ops::kKeyScales && !exists) value = -INFINITY;
    float*& target = here.targets[found_again(lane)];
    float* const now = target;
    write_block<Ops, Tiles>(p, here, value, at < U::kOf && here.first != 0, next_u != 0, now, lane);
    if (!more) break;
    if (now) target = now + here.step;
    clear<Tiles>(m);
    exists = from.exists();
  }
}

}  // namespace kvscout::cuda
