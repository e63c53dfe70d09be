// Score of short queries, many blocks: up to 32 query rows a tile stay in registers, and each warp
// streams keys past them. Bound: reading the keys once (9216 bytes a block of NVFP4 keys).
//
// A block of threads takes an equal run of blocks of keys, and its warps take equal numbers of
// parts of those (32 keys), wherever they begin and end: warps differ by one part, not by one
// block. A block of keys that several warps share is put together at the end of the run.
//
// Keys come through two slots of 8 KB a warp in shared memory: the next block is asked for at once,
// then the one before is scored. On SM90 one lane asks the bulk copy engine for it; otherwise, and
// where rows are strided or scales do not begin with a tile, lanes copy 16 bytes each (cp.async),
// which on an H200 does not get beyond 3.7 TB/s. 12 warps a multiprocessor are what shared memory
// holds.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/stream_units.cuh"

namespace kvscout::cuda {

// What a warp is at. In shared memory, so that it takes no registers in the inner loop.
template <int Tiles>
struct Position {
  Segment segment;
  Run mine;  // parts, counted from the first block of the thread block
  float scale;
  int column;                // the last one
  std::uint64_t arrived[2];  // barriers of the slots
  // By row (by token where heads fold): keys that are seen; the warp's share of a block that an
  // earlier warp began, and of one that a later warp goes on with; rows on the way to a fold.
  int limits[Tiles * 8];
  float joined[Tiles * 8], begun[Tiles * 8], rows[Tiles * 8];
};

// As many as shared memory and registers allow: 168 or 255 a thread.
constexpr int blocks_per_sm(int tiles) { return tiles <= 2 ? 3 : 2; }

// Parts [first, first + parts) of the columns from s.column on, for one pass.
template <class Ops, int Tiles>
__device__ __forceinline__ void stream_parts(const ScoreParams& p, Position<Tiles>& here, int pass,
                                             int first, int parts, std::uint32_t slots, int lane,
                                             bool speaks, int row, bool& fills, unsigned& phases) {
  using U = Unit<Ops>;
  const Segment& s = here.segment;
  const HeadChunk heads = head_chunk(p, s.unit, pass);
  for (int n = lane; n < Tiles * 8; n += 32)
    here.limits[n] = s.rows.limit(s.first + place_of_row(p.tile, n).token, p.lengths.causal);
  const int begin = s.column, end = begin + (first + parts + kParts - 1) / kParts;
  const int rest = (first + parts) % kParts;  // parts of the last block, if not all

  const std::uint8_t* const all_keys = p.k + heads.key_head * p.k_head_stride;
  const std::uint8_t* const all_scales =
      p.k_scale + (p.paged ? heads.key_head * scale_layout::kPageBytes : 0);
  const std::int32_t* next_page = p.page_table;
  if (p.paged)
    next_page += s.rows.b * p.table_row_stride + block_of(p, begin) * p.table_column_stride;
  unsigned page = p.paged ? __ldg(next_page) : 0;

  // A page outside the pool has no parts, so its maximum stays -inf.
  const auto open = [&](int column) {
    OpenBlock b{all_keys, all_scales, (1u << kParts) - 1, p.k_token_stride != U::kRowBytes, false};
    if (p.paged) {
      b.keys += std::uint64_t{page} * static_cast<std::uint32_t>(p.k_page_stride);
      b.scales += std::uint64_t{page} * static_cast<std::uint32_t>(p.scale_page_stride);
      if (page >= static_cast<unsigned>(p.pages)) b.todo = 0;
      next_page += p.block_step * p.table_column_stride;
      if (column + 1 < end) page = __ldg(next_page);
    } else {
      const std::int64_t token = std::int64_t{block_of(p, column)} * kBlock + s.rows.k_begin;
      b.keys += token * p.k_token_stride;
      const bool whole = s.rows.k_count >= (block_of(p, column) + 1) * kBlock;
      b.any_rows = b.any_rows || !whole;
      if constexpr (Ops::kKeyScales) {
        const std::int64_t scale_row = token * p.k_heads + heads.key_head;
        b.scales += scale_row / kBlock * scale_layout::kPageBytes;
        b.any_scales = !whole || p.k_heads != 1 || scale_row % kBlock != 0;
      }
    }
    if (column == begin) b.todo &= 15u << first;
    if (column == end - 1 && rest) b.todo &= 15u >> (kParts - rest);
    return b;
  };

  int column = begin, slot = 0;
  unsigned bulk = 0;  // slots that the copy engine fills
  OpenBlock now = open(column);
  const auto load = [&](int unit, const OpenBlock& b, int at) {
    if (b.todo) {
      const std::uint32_t to = slots + slot * U::kBytes;
      const bool engine = U::kBulk && !b.any_rows;
      if constexpr (U::kBulk) {
        bulk = engine ? bulk | 1u << slot : bulk & ~(1u << slot);
        if (engine && lane == 0) load_bulk(b, to, shared_address(&here.arrived[slot]));
      }
      if (!engine || b.any_scales)
        load_unit<Ops>(p, s, heads.key_head, block_of(p, at), unit, b, !engine, lane, to);
    } else {
      bulk &= ~(1u << slot);
    }
    slot ^= 1;
    copy_async_commit();
  };
  load(0, now, column);

  QueryFragments<Tiles> q;
  load_queries<Ops, Tiles, true>(p, s, heads, lane, q);
  float* out = speaks ? row_target(p, s, heads, row) : nullptr;
  const bool writes = out != nullptr;
  if (writes) out += column * p.out_column_stride;
  if (fills) fill_tails(p), fills = false;  // while the first keys are on their way
  const int seen_by_all = s.rows.limit(s.first, p.lengths.causal);

  Maxima<Tiles> m;
#pragma unroll 1
  for (;;) {
    clear<Tiles>(m);
    const bool masked = (block_of(p, column) + 1) * kBlock > seen_by_all;
    OpenBlock next{};
#pragma unroll 1
    for (int unit = 0; unit < U::kOf; ++unit) {
      if (unit + 1 < U::kOf) {
        load(unit + 1, now, column);
      } else {
        if (column + 1 < end) next = open(column + 1);
        load(0, next, column + 1);
      }
      if constexpr (U::kBulk)
        if (bulk >> slot & 1) {
          wait_for_barrier(shared_address(&here.arrived[slot]), phases >> slot & 1);
          phases ^= 1u << slot;
        }
      copy_async_wait<1>();
      __syncwarp();
      const std::uint32_t from = slots + slot * U::kBytes;  // the other one
#pragma unroll
      for (int part = 0; part < U::kPartsOf; ++part) {
        if (!(now.todo >> (unit * U::kPartsOf + part) & 1)) continue;
        typename Ops::Raw raw[2][2];
        typename Ops::Scale scale[2][2] = {};
        if constexpr (Ops::kKeyScales) {
          const std::uint32_t at = from + U::kKeyBytes + lane % 4 / 2 * scale_layout::kSecondHalf +
                                   lane / 4 * 16 + part * 4;
          const std::uint32_t pairs[2][2] = {
              {load_shared4(at), load_shared4(at + 8 * 16)},
              {load_shared4(at + 16 * 16), load_shared4(at + 24 * 16)}};
#pragma unroll
          for (int g = 0; g < 2; ++g) Ops::scales(pairs[g], lane % 4, scale[g]);
        }
#pragma unroll
        for (int n = 0; n < 4 * Ops::kKeyLoads; ++n)
          raw[n / Ops::kKeyLoads / 2][n / Ops::kKeyLoads % 2].v[n % Ops::kKeyLoads] =
              load_shared16(from + lane * 16 + (part * 4 * Ops::kKeyLoads + n) * 512);
        float d[2][Tiles][4];
        multiply<Ops, Tiles, 2>(raw, scale, q, d);
        if (masked) {
#pragma unroll
          for (int t = 0; t < Tiles; ++t)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int visible = here.limits[t * 8 + lane % 4 * 2 + e] - lane / 4 -
                                  block_of(p, column) * kBlock -
                                  (unit * U::kPartsOf + part) * kPartRows;
#pragma unroll
              for (int g = 0; g < 2; ++g) {
                if (g * 16 >= visible) d[g][t][e] = -INFINITY;
                if (g * 16 + 8 >= visible) d[g][t][2 + e] = -INFINITY;
              }
            }
        }
#pragma unroll
        for (int g = 0; g < 2; ++g) raise<Tiles>(m, d[g]);
      }
      __syncwarp();
    }

    float value = reduce_keys<Tiles>(m, lane);
    const bool joins = column == begin && first != 0, stays = column == end - 1 && rest != 0;
    if (p.folds || joins || stays) {
      if (p.folds) {
        __syncwarp();
        if (is_speaker<Tiles>(lane)) here.rows[row_of_lane<Tiles>(lane)] = value;
        __syncwarp();
        value = lane < s.tokens ? fold_heads(p.tile, here.rows, heads.heads, lane) : -INFINITY;
      }
      if (joins) {  // a block that an earlier warp began
        if (speaks) here.joined[row] = pass == 0 ? value : fmaxf(here.joined[row], value);
      } else if (stays) {  // a later warp goes on with it
        if (speaks) here.begun[row] = pass == 0 ? value : fmaxf(here.begun[row], value);
      } else if (writes) {
        if (pass > 0) value = fmaxf(value, *out);  // raw maxima gather in the output
        *out = pass + 1 == p.tile.passes ? finish<Ops>(value, here.scale) : value;
      }
    } else if (writes) {
      *out = finish<Ops>(value, here.scale);
    }
    if (++column >= end) break;
    now = next;
    out += p.out_column_stride;
  }
  copy_async_wait<0>();
  __syncwarp();
  if (lane == 0) here.column = column - 1;
}

template <class Ops, int Tiles>
__global__ void __launch_bounds__(kStreamThreads, blocks_per_sm(Tiles))
    score_stream(const __grid_constant__ ScoreParams p) {
  warm_constants(p);
  wait_for_previous();
  release_next();
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ std::int64_t sums[WorkList<true>::kSlots];
  __shared__ Position<Tiles> positions[kStreamWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Position<Tiles>& here = positions[warp];
  const Segment& s = here.segment;
  const WorkList<true> list(p, sums);
  // Rows, or tokens where heads fold, are spread over lanes; of the lanes that hold the same one,
  // one speaks.
  const bool speaks = p.folds ? lane < Tiles * 8 : is_speaker<Tiles>(lane);
  const int row = p.folds ? lane : row_of_lane<Tiles>(lane);

  const Run blocks = run_of(list.total(), blockIdx.x, gridDim.x);
  {
    const Run mine = run_of((blocks.end - blocks.begin) * kParts, warp, kStreamWarps);
    if (lane == 0) {
      here.mine = mine, here.scale = global_scale(p);
      if constexpr (Unit<Ops>::kBulk)
        for (auto& barrier : here.arrived) init_barrier(shared_address(&barrier));
    }
    __syncwarp();
  }
  bool fills = true;
  unsigned phases = 0;  // of the slots' barriers
#pragma unroll 1
  for (std::int64_t at = here.mine.begin; at < here.mine.end;) {
    const Segment found = list.seek(blocks.begin + at / kParts);
    __syncwarp();
    if (lane == 0) here.segment = found;
    __syncwarp();
    const int first = static_cast<int>(at % kParts);
    const int parts = static_cast<int>(
        min(std::int64_t{s.column_end - s.column} * kParts - first, here.mine.end - at));
#pragma unroll 1
    for (int pass = 0; pass < p.tile.passes; ++pass)
      stream_parts<Ops, Tiles>(p, here, pass, first, parts,
                               shared_address(memory) + warp * 2 * Unit<Ops>::kBytes, lane, speaks,
                               row, fills, phases);
    at += parts;
  }
  if (fills) fill_tails(p);

  // The last block, if this warp began it and later warps went on with it.
  __syncthreads();
  const Run mine = here.mine;
  const std::int64_t end = (mine.end / kParts + 1) * kParts;
  if (mine.end % kParts == 0 || mine.begin == mine.end || mine.begin > end - kParts) return;
  float* out = speaks ? row_target(p, s, head_chunk(p, s.unit, p.tile.passes - 1), row) : nullptr;
  if (!out) return;
  float value = here.begun[row];
  for (int w = warp + 1; w < kStreamWarps && positions[w].mine.begin < end; ++w)
    value = fmaxf(value, positions[w].joined[row]);
  out[here.column * p.out_column_stride] = finish<Ops>(value, here.scale);
}

// Shared memory of a block of threads: two slots a warp.
template <class Ops>
constexpr int stream_bytes() {
  return kStreamWarps * 2 * Unit<Ops>::kBytes;
}

}  // namespace kvscout::cuda
