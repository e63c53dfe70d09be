// Score of short queries, many blocks: up to 32 query rows a tile stay in registers, and each warp
// streams keys past them. Bound: reading the keys once (9216 bytes a block of NVFP4 keys).
//
// A block of threads, one a multiprocessor, takes an equal run of blocks of keys, and its warps
// take equal numbers of those, or, where that evens them out, of their units (half a block of NVFP4
// keys, stream_units.cuh), wherever they begin and end. A block of keys that several warps share is
// put together at the end of the run.
//
// Keys go from memory straight into registers (stream_share.cuh). Instructions before the loop run
// once and wait to be fetched, so the calls that decoding makes have kernels without the code of
// others (Call). What warps begin and end with is asked of the L2 cache ahead (prefetch.cuh).
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/level_line.cuh"
#include "cuda/score_few.cuh"
#include "cuda/stream_share.cuh"

namespace kvscout::cuda {

template <class Ops, int Tiles, Call kCall = Call::any>
__global__ void __launch_bounds__(stream_threads(Tiles * 8), 1)
    score_stream(const __grid_constant__ ScoreParams given) {
  const ScoreParams& p = as_call<kCall>(given, Ops::kRowBytes);
  constexpr int kStreamWarps = stream_threads(Tiles * 8) / 32, kUnits = Unit<Ops, Tiles>::kOf;
  warm_constants(given);
  if constexpr (Ops::kLooksUp) ByTable::fill<Ops::kBf16>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __shared__ unsigned sums[kStreamWarps * LevelLine::kSlots], next_tail;
  if (threadIdx.x == 0) next_tail = blockIdx.x;
  Ready ready;
  LevelLine list(p, sums, ready);
  ready.wait_for_previous();
  // An early start of the next kernel deals thread blocks to multiprocessors anew. Where a call
  // takes half a millisecond that costs more than it gains: 64 x 131k bf16 keys 532 instead of 526
  // us.
  if constexpr (Ops::kKeyScales) release_next();
  // As bytes: what lies in shared memory is not constructed.
  __shared__ alignas(16) std::uint8_t of_positions[kStreamWarps * sizeof(Position<Tiles>)];
  auto* const positions = reinterpret_cast<Position<Tiles>*>(of_positions);
  static_assert(!Ops::kLooksUp ||
                sizeof of_positions + sizeof sums + sizeof(float[kStreamWarps][Tiles * 8]) + 1024 <=
                    ByTable::kAt);
  Position<Tiles>& here = positions[warp];
  list.add_up();
  const Run blocks = list.run(blockIdx.x);
  if (blocks.end - blocks.begin <= kFewBlocks<kStreamWarps> && p.tile.passes == 1) {
    score_few<Ops, Tiles, kStreamWarps>(p, list, blocks);
    fill_tails(p);
    return;
  }
  __syncthreads();
  const auto line = static_cast<unsigned>(blocks.begin);
  // Whole blocks where no share gets longer by that; then nothing has to be put together.
  const auto count = static_cast<unsigned>(blocks.end - blocks.begin);
  const auto longest = [](unsigned parts) { return (parts + kStreamWarps - 1) / kStreamWarps; };
  const bool whole = longest(count) * kUnits == longest(count * kUnits);
  const unsigned part = whole ? kUnits : 1, parts = whole ? count : count * kUnits;
  const unsigned each = parts / kStreamWarps, rest = parts % kStreamWarps, index = warp;
  const int begin = static_cast<int>((index * each + min(index, rest)) * part),
            end_of_warp = begin + static_cast<int>((each + (index < rest)) * part);
  if (lane == 0) here.begin = begin, here.end = end_of_warp, here.line = line;
  if (begin < end_of_warp) {
    const auto share_of = [&](const Segment& found, int at, int pass) {
      return Share::of<kUnits>(p, found, at, here.end, pass);
    };
    typename Ops::RawQuery queries[Tiles];
    const auto ask_queries = [&](const Segment& of, int pass) {
#pragma unroll
      for (int t = 0; t < Tiles; ++t)
        queries[t] = fetch_query<Ops, true>(p, of, head_chunk(p, of.unit, pass),
                                            place_of_row(p.tile, t * 8 + lane / 4), lane % 4);
    };
    // Of the first segment page and queries are asked for at once, keys when the page is known,
    // then all else is found.
    const Segment found = list.first(line + begin / kUnits);
    const int block = block_of(p, found.column);
    const std::int32_t page = page_id(p, found.rows.b, block);
    ask_queries(found, 0);
    prefetch_unit<Ops, Tiles>(
        p, key_block(p, found.rows, block, page, head_chunk(p, found.unit, 0).key_head),
        begin % kUnits, lane);
    __syncwarp();
    Share share = share_of(found, begin, 0);
#pragma unroll 1
    for (;;) {
      stream_units<Ops, kCall>(p, share, queries, here, lane);
      if (here.pass + 1 < p.tile.passes) {
        share = share_of(here.segment, here.at, here.pass + 1);
      } else {
        const int at = here.at + here.units;
        if (at >= here.end) break;
        share = share_of(list.seek(here.line + at / kUnits), at, 0);
      }
      __syncwarp();
      ask_queries(share.segment, share.pass);
    }
  }
  fill_tails(p, &next_tail);

  // The last block, if this warp began it and later warps went on with it.
  __syncthreads();
  const int end = (here.end / kUnits + 1) * kUnits;
  if (here.end % kUnits == 0 || here.begin == here.end || here.begin > end - kUnits) return;
  float* const out = here.targets[lane];
  if (!out) return;
  const Speaker<Tiles> of(p, lane);
  float value = here.begun[of.row];
  int w = found_again(threadIdx.x / 32);
  while (++w < kStreamWarps && positions[w].begin < end)
    value = fmaxf(value, positions[w].joined[of.row]);
  write_result(out, finish<Ops>(value, here.scale));
}

}  // namespace kvscout::cuda
