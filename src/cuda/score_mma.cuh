// Score with mma.sync: keys are the M operand, query rows the N operand, and the order of k is
// free, so that 16 bytes of a key row are a lane's operand as they come: no shuffles, no shared
// layout, no barrier. Bound: streaming the keys once (9216 bytes a block of NVFP4 keys).
//
// For up to 32 rows a tile (decode, verification of a few tokens); queries stay in registers.
//   Many blocks: a warp takes a run of blocks. Its keys come through a small ring in shared memory
//   (cp.async): a lane reads back only what it loaded itself, so the ring needs no barrier; it
//   takes the place of registers for what is in flight. Few blocks (fewer than half the warps): 2,
//   4 or 8 warps share a block, so that a single short request still reaches all of the chip. The
//   device decides, since only it knows the lengths.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/keys.cuh"

namespace kvscout::cuda {

template <bool Bf16>
__device__ __forceinline__ void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                    std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                    std::uint32_t b1) {
  if constexpr (Bf16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Queries of a tile as the N operand: Tiles x 8 rows.
template <int Tiles>
using QueryFragments = std::uint32_t[Tiles][16];
// Running maxima: rows 8t + 2c and 8t + 2c + 1, over the keys that a lane has seen.
template <int Tiles>
using Maxima = float[Tiles][2];

template <int Tiles>
__device__ __forceinline__ void clear(Maxima<Tiles>& m) {
#pragma unroll
  for (int t = 0; t < Tiles; ++t) m[t][0] = m[t][1] = -INFINITY;
}

// One group of 16 keys against all rows. fmaxf drops NaN.
template <class Ops, int Tiles, bool Masked>
__device__ __forceinline__ void score_group(const typename Ops::Raw (&raw)[2],
                                            const std::uint32_t (&word)[2], int lane,
                                            const QueryFragments<Tiles>& q, int row,
                                            const int (*visible)[2], Maxima<Tiles>& m) {
  typename Ops::Scale scale[2] = {};
  Ops::scales(word, lane % 4, scale);
  float d[Tiles][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // two k-steps at a time, to save registers
    std::uint32_t x[4], y[4];
    Ops::quarter(raw[0], scale[0], i, x);
    Ops::quarter(raw[1], scale[1], i, y);
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int t = 0; t < Tiles; ++t)
        mma<Ops::kBf16>(d[t], x[2 * s], y[2 * s], x[2 * s + 1], y[2 * s + 1], q[t][4 * i + 2 * s],
                        q[t][4 * i + 2 * s + 1]);
  }
#pragma unroll
  for (int t = 0; t < Tiles; ++t)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float upper = d[t][e], lower = d[t][2 + e];
      if (Masked) {
        if (row >= visible[t][e]) upper = -INFINITY;
        if (row + 8 >= visible[t][e]) lower = -INFINITY;
      }
      m[t][e] = fmaxf(m[t][e], fmaxf(upper, lower));
    }
}

// Maxima over the 8 lanes that share c. Exchanges halves, so that each lane ends with one row:
// `row_of_lane`.
template <int Tiles>
__device__ __forceinline__ float reduce_keys(Maxima<Tiles>& m, int lane) {
  float* v = &m[0][0];
#pragma unroll
  for (int step = 0, width = Tiles; step < 3; ++step, width /= 2) {
    const int distance = 4 << step;
    if (width >= 1) {
      const bool high = lane & distance;
#pragma unroll
      for (int i = 0; i < Tiles; ++i)
        if (i < width) {
          const float sent = high ? v[i] : v[i + width], kept = high ? v[i + width] : v[i];
          v[i] = fmaxf(kept, __shfl_xor_sync(kAllLanes, sent, distance));
        }
    } else {
      v[0] = fmaxf(v[0], __shfl_xor_sync(kAllLanes, v[0], distance));
    }
  }
  return v[0];
}
template <int Tiles>
__device__ __forceinline__ int row_of_lane(int lane) {
  int index = 0;
  for (int step = 0, width = Tiles; step < 3 && width >= 1; ++step, width /= 2)
    if (lane & (4 << step)) index += width;
  return index / 2 * 8 + lane % 4 * 2 + index % 2;
}
// Of the lanes that hold the same row, one speaks.
template <int Tiles>
__device__ __forceinline__ bool is_speaker(int lane) {
  return Tiles == 4 || lane / 4 < 2 * Tiles;
}

template <class Ops, int Tiles, bool Aligned>
__device__ __forceinline__ void load_queries(const ScoreParams& p, const Segment& s,
                                             const HeadChunk& heads, int lane,
                                             QueryFragments<Tiles>& q) {
#pragma unroll
  for (int t = 0; t < Tiles; ++t)
    load_query<Ops, Aligned>(p, s, heads, t * 8 + lane / 4, lane % 4, q[t]);
}

// Groups [first, last) of one block, any block: masks, clamps rows of flat keys, does not pipeline.
template <class Ops, int Tiles, bool Aligned>
__device__ __forceinline__ void score_block(const ScoreParams& p, const Segment& s, int block,
                                            std::int32_t page, int key_head, int first, int last,
                                            int lane, const QueryFragments<Tiles>& q,
                                            Maxima<Tiles>& m) {
  constexpr int kBatch = Ops::kKeyLoads == 4 ? 1 : 2;
  clear<Tiles>(m);
  const KeyBlock k = key_block(p, s.rows, block, page, key_head);
  if (!k.exists) return;
  int visible[Tiles][2];
#pragma unroll
  for (int t = 0; t < Tiles; ++t)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = place_of_row(p.tile, t * 8 + lane % 4 * 2 + e).token;
      visible[t][e] = s.rows.limit(s.first + token, p.lengths.causal) - block * kBlock;
    }
#pragma unroll 1
  for (int base = first; base < last; base += kBatch) {
    typename Ops::Raw raw[kBatch][2];
    std::uint32_t word[kBatch][2];
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (base + j < last) {
        load_scale_words<Ops, Aligned>(p, k, row_of_group(base + j), lane, word[j]);
        load_group<Ops, Aligned>(p, k, row_of_group(base + j), lane, raw[j]);
      }
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (base + j < last)
        score_group<Ops, Tiles, true>(raw[j], word[j], lane, q, row_of_group(base + j) + lane / 4,
                                      visible, m);
  }
}

// Loads in flight: stages of 8 16-byte loads a lane (64 e2m1, 32 e4m3 or 16 16-bit keys).
template <class Ops>
struct Ring {
  static constexpr int kStages = Ops::kStages;
  static constexpr int kStageGroups = 4 / Ops::kKeyLoads;
  static constexpr int kPerBlock = kGroups / kStageGroups;

  struct Stage {
    uint4 keys[8][32];
    uint4 scales[Ops::kKeyScales ? 2 : 1]
                [Ops::kKeyScales ? 16 : 1];  // rows r and r + 8; lane (r, c/2)
  };
  Stage stage[kStages];
};

// Columns [column, end) of a segment, whole blocks that all rows see. write(value, column): a
// lane's row.
template <class Ops, int Tiles, class Write>
__device__ __forceinline__ void stream_blocks(const ScoreParams& p, const Segment& s, int key_head,
                                              int column, int end, int lane,
                                              const QueryFragments<Tiles>& q, Ring<Ops>& ring,
                                              Write write) {
  using R = Ring<Ops>;
  const int c = lane % 4;
  const auto page_of = [&](int n) { return page_id(p, s.rows.b, block_of(p, n)); };

  // The loading end of the ring: its block, the block's stage, and the next block's page.
  int loading = column;
  KeyBlock keys = key_block(p, s.rows, block_of(p, loading), page_of(loading), key_head);
  std::int32_t next_page = column + 1 < end ? page_of(column + 1) : 0;
  int part = 0, slot = 0;
  const auto load_stage = [&] {
    if (loading < end) {
      auto& to = ring.stage[slot];
      if (keys.exists) {
        // Group part*kStageGroups + j, half h: row_of_group(...) + 8h + lane/4.
        const std::int64_t stride = static_cast<int>(p.k_token_stride);
        const std::uint8_t* a =
            keys.rows + (row_of_group(part * R::kStageGroups) + lane / 4) * stride + 16 * c;
#pragma unroll
        for (int j = 0; j < R::kStageGroups; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int i = 0; i < Ops::kKeyLoads; ++i)
              copy_async<16>(&to.keys[(j * 2 + h) * Ops::kKeyLoads + i][lane],
                             a + (j * 32 + h * 8) * stride + 64 * i);
        if constexpr (Ops::kKeyScales) {
          if (p.paged) {
            const std::uint8_t* scales = keys.scales + (part * 16 + lane % 16 / 2) * 16 +
                                         lane % 2 * scale_layout::kSecondHalf;
            copy_async<16>(&to.scales[lane / 16][lane % 16], scales + lane / 16 * 128);
          } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const std::int64_t row = part * 16 + j * 32 + lane / 16 * 8 + lane % 16 / 2;
              copy_async<4>(reinterpret_cast<std::uint32_t*>(&to.scales[lane / 16][lane % 16]) + j,
                            keys.scales +
                                scale_layout::row_128x4(keys.scale_row + row * p.k_heads) +
                                lane % 2 * scale_layout::kSecondHalf);
            }
          }
        }
      }
      if (++part == R::kPerBlock) {
        part = 0;
        if (++loading < end) {
          keys = key_block(p, s.rows, block_of(p, loading), next_page, key_head);
          if (loading + 1 < end) next_page = page_of(loading + 1);
        }
      }
    }
    copy_async_commit();
    slot = slot + 1 == R::kStages ? 0 : slot + 1;
  };
  // Whether a column's page exists is needed again when it is used; a ring of bits remembers.
  unsigned exists = 0;
#pragma unroll
  for (int i = 0; i < R::kStages - 1; ++i) exists |= unsigned{keys.exists} << i, load_stage();
  int use = 0;
  for (; column < end; ++column) {
    Maxima<Tiles> m;
    clear<Tiles>(m);
    const bool live = exists & 1;
#pragma unroll 1
    for (int part_used = 0; part_used < R::kPerBlock; ++part_used) {
      copy_async_wait<R::kStages - 2>();
      __syncwarp();
      exists = exists >> 1 | unsigned{keys.exists} << (R::kStages - 2);
      load_stage();
      const auto& from = ring.stage[use];
      std::uint32_t word[2][4] = {};
      if constexpr (Ops::kKeyScales)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint4 v = from.scales[h][lane / 2];
          word[h][0] = v.x, word[h][1] = v.y, word[h][2] = v.z, word[h][3] = v.w;
        }
#pragma unroll
      for (int j = 0; j < R::kStageGroups; ++j) {
        const std::uint32_t words[2] = {word[0][j], word[1][j]};
        typename Ops::Raw raw[2];
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int i = 0; i < Ops::kKeyLoads; ++i)
            raw[h].v[i] = from.keys[(j * 2 + h) * Ops::kKeyLoads + i][lane];
        score_group<Ops, Tiles, false>(raw, words, lane, q, 0, nullptr, m);
      }
      use = use + 1 == R::kStages ? 0 : use + 1;
      __syncwarp();
    }
    const float value = reduce_keys<Tiles>(m, lane);
    write(live ? value : -INFINITY, column);
  }
  copy_async_wait<0>();
}

// Shared memory of a block of threads: the rings of its warps (none for unaligned keys).
template <class Ops, bool Aligned>
constexpr int shared_bytes() {
  return Aligned ? kWarps * static_cast<int>(sizeof(Ring<Ops>)) : 0;
}

// As many as registers allow.
constexpr int blocks_per_sm(int tiles) { return tiles == 4 ? 1 : 2; }

template <class Ops, int Tiles, bool Aligned>
__global__ void __launch_bounds__(kThreads, blocks_per_sm(Tiles))
    score_registers(const __grid_constant__ ScoreParams p) {
  wait_for_previous();
  release_next();
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ std::int64_t sums[kThreads];
  __shared__ float rows_of_warp[kWarps][Tiles * 8];
  // What a warp is at: read again when needed, so that it takes no registers in the inner loop.
  __shared__ Segment segments[kWarps];
  __shared__ HeadChunk chunks[kWarps];
  __shared__ Run runs[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const WorkList<true> list(p, sums);
  const std::int64_t total = list.total();
  const float scale = global_scale(p);
  float* const rows = rows_of_warp[warp];
  Segment& s = segments[warp];
  HeadChunk& heads = chunks[warp];
  Run& run = runs[warp];
  QueryFragments<Tiles> q;
  Maxima<Tiles> m;

  // Few blocks: `parts` warps share one, in a single round that all warps of a block of threads go
  // through.
  const int warps = gridDim.x * kWarps, few = static_cast<int>(min(total, std::int64_t{1} << 27));
  const int parts = few * 8 <= warps ? 8 : few * 4 <= warps ? 4 : few * 2 <= warps ? 2 : 1;
  std::int64_t at = (blockIdx.x * kWarps + warp) / parts;
  if (parts == 1) {
    const Run mine = run_of(total, at, warps);
    at = mine.begin;
    if (lane == 0) run = mine;
  } else {
    if (lane == 0) run = {at, at < total ? at + 1 : at};
    if (at >= total)  // the partners of working warps wait with them
      for (int pass = 0; pass < p.tile.passes; ++pass) __syncthreads(), __syncthreads();
  }
  __syncwarp();
  const int part = warp % parts, groups = kGroups / parts;

  while (at < run.end) {
    {
      const Segment found = list.seek(at);
      // With several passes, a column at a time: they fold into one value.
      const std::int64_t left = p.tile.passes > 1 ? 1 : run.end - at;
      __syncwarp();
      if (lane == 0) {
        s = found;
        s.column_end = found.end_of(left);
      }
      __syncwarp();
      at += s.column_end - s.column;
    }
    float folded = -INFINITY;
#pragma unroll 1
    for (int pass = 0; pass < p.tile.passes; ++pass) {
      __syncwarp();
      if (lane == 0) heads = head_chunk(p, s.unit, pass);
      __syncwarp();
      load_queries<Ops, Tiles, Aligned>(p, s, heads, lane, q);
      float* const out = row_target(p, s, heads, p.folds ? lane : row_of_lane<Tiles>(lane));
      const auto write = [&](float value, int column) {  // a lane's row
        bool speaks = is_speaker<Tiles>(lane);
        if (p.folds) {
          __syncwarp();
          if (speaks) rows[row_of_lane<Tiles>(lane)] = value;
          __syncwarp();
          speaks = lane < s.tokens;
          if (speaks) folded = fmaxf(folded, fold_heads(p.tile, rows, heads.heads, lane));
          value = folded;
        }
        if (pass + 1 < p.tile.passes) return;
        if (speaks && out) out[column * p.out_column_stride] = finish<Ops>(value, scale);
        folded = -INFINITY;
      };
      int column = s.column;
      if constexpr (Aligned) {
        if (parts == 1 && p.tile.passes == 1) {
          const int seen_by_all = s.rows.limit(s.first, p.lengths.causal) / kBlock * kBlock;
          const int stop = min(s.column_end, columns_below(p, seen_by_all));
          if (column < stop) {
            stream_blocks<Ops, Tiles>(p, s, heads.key_head, column, stop, lane, q,
                                      reinterpret_cast<Ring<Ops>*>(memory)[warp], write);
            column = stop;
          }
        }
      }
#pragma unroll 1
      for (; column < s.column_end; ++column) {
        score_block<Ops, Tiles, Aligned>(p, s, block_of(p, column),
                                         page_id(p, s.rows.b, block_of(p, column)), heads.key_head,
                                         part * groups, (part + 1) * groups, lane, q, m);
        float value = reduce_keys<Tiles>(m, lane);
        if (parts > 1) {
          if (is_speaker<Tiles>(lane)) rows[row_of_lane<Tiles>(lane)] = value;
          __syncthreads();
          if (part == 0)
            for (int w = 1; w < parts; ++w)
              value = fmaxf(value, rows_of_warp[warp + w][row_of_lane<Tiles>(lane)]);
          __syncthreads();
        }
        if (part == 0) write(value, column);
      }
    }
  }
  fill_tails(p);
}

// One block of threads for each (column, unit and tile, request) that the bounds allow, where they
// allow few: no adding up, the shortest way from the lengths to the result. Its warps share the
// keys; it also writes -inf where nothing is visible.
template <class Ops, int Tiles>
__global__ void __launch_bounds__(kThreads, Tiles == 4 ? 1 : 2)
    score_cells(const __grid_constant__ ScoreParams p) {
  wait_for_previous();
  release_next();
  __shared__ float rows_of_warp[kWarps][Tiles * 8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32,
            column = blockIdx.x;
  Segment s;
  s.rows = rows_of(p, blockIdx.z);
  const int tile = p.cell_tiles == 1 ? 0 : blockIdx.y % p.cell_tiles;
  s.unit = p.cell_tiles == 1 ? blockIdx.y : blockIdx.y / p.cell_tiles;
  s.first = s.rows.begin + tile * p.tile.tokens;
  s.tokens = min(s.rows.end - s.first, p.tile.tokens);
  const bool live = s.tokens > 0 && column < columns_of_tile(p, s.rows, tile);
  const int block = block_of(p, column);
  float result = -INFINITY;
  HeadChunk heads;
#pragma unroll 1
  for (int pass = 0; pass < p.tile.passes; ++pass) {
    heads = head_chunk(p, s.unit, pass);
    if (!live) continue;
    QueryFragments<Tiles> q;
    Maxima<Tiles> m;
    const std::int32_t page = page_id(p, s.rows.b, block);
    load_queries<Ops, Tiles, true>(p, s, heads, lane, q);
    const int each = kGroups / warps;
    score_block<Ops, Tiles, true>(p, s, block, page, heads.key_head, warp * each, (warp + 1) * each,
                                  lane, q, m);
    const float value = reduce_keys<Tiles>(m, lane);
    if (pass > 0) __syncthreads();
    if (is_speaker<Tiles>(lane)) rows_of_warp[warp][row_of_lane<Tiles>(lane)] = value;
    __syncthreads();
    if (warp == 0) {
      float* const rows = rows_of_warp[0];
      float v = -INFINITY;
      if (lane < Tiles * 8)
        for (int w = 0; w < warps; ++w) v = fmaxf(v, rows_of_warp[w][lane]);
      if (p.folds) {
        __syncwarp();
        if (lane < Tiles * 8) rows[lane] = v;
        __syncwarp();
        if (lane < s.tokens) result = fmaxf(result, fold_heads(p.tile, rows, heads.heads, lane));
      } else {
        result = v;
      }
    }
  }
  if (warp > 0) return;
  if (lane < Tiles * 8)
    if (float* out = row_target(p, s, heads, lane))
      out[column * p.out_column_stride] = finish<Ops>(result, global_scale(p));
  if (!p.fills || tile > 0) return;
  // Tokens that nobody owns: before the first request, after the last, beyond max_seqlen_q.
  const int outputs = p.folds ? 1 : heads.heads, first_head = p.folds ? s.unit : heads.first_head;
  const auto mask = [&](std::int64_t begin, std::int64_t end) {
    begin = max(begin, p.range_begin), end = min(end, p.range_end);
    for (std::int64_t t = begin + lane; t < end; t += 32)
      for (int h = 0; h < outputs; ++h)
        p.out[(first_head + h) * p.out_head_stride + (t - p.range_begin) * p.out_token_stride +
              column * p.out_column_stride] = -INFINITY;
  };
  const int b = s.rows.b;
  if (b == 0) mask(0, s.rows.q_begin);
  mask(static_cast<std::int64_t>(s.rows.q_begin) + s.rows.tokens,
       most(0, least(p.lengths.cu_q[b + 1], p.lengths.q_tokens)));
  if (b + 1 == p.lengths.batch) mask(most(0, p.lengths.cu_q[b + 1]), p.range_end);
}

}  // namespace kvscout::cuda
