// The selection of many rows at once, at most 16 blocks of each: a lane holds a row, the 8 warps of
// a thread block share its columns.
//
// Bound: reading the scores once. So what a row costs beside that must be small: networks that sort
// 16 numbers in registers, for 32 rows at a time by one warp, and merge such lists
// (lane_lists.cuh).
//   threshold   every warp's 64 columns are 8 groups; the 16th largest of 64 groups' maxima cannot
//               exceed the 16th largest score, and few scores reach it (18 of 512 on random data)
//   candidates  those, in shared memory in the order of their columns
//   choice      the wanted-th largest candidate decides; of equal scores the first
// Chunks of 512 columns follow each other; what was chosen meets the next chunk's candidates. Where
// more reach the threshold than there is room for (ties, bad luck), bisection over score and column
// raises it. NaN never is a candidate; rows that lack other scores take NaN blocks at the end.
#pragma once

#include <cmath>

#include "cuda/copy_async.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device.h"
#include "cuda/lane_lists.cuh"
#include "order.h"
#include "span.h"

namespace kvscout::cuda {

inline constexpr int kLanePitch =
    kLaneChunk + 4;  // of staged rows: 16-byte reads without conflicts

// 32 rows' columns from `base`, side by side in shared memory. Collective over the block.
__device__ __forceinline__ void stage_rows(const SelectProblem& p, const float* rows,
                                           std::int64_t token0, int base, int length,
                                           float* staged) {
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < 32 && token0 + row < p.tokens; row += kLaneWarps) {
    const float* from = rows + row * p.token_stride + base;
    float* to = staged + row * kLanePitch;
    const bool aligned = (reinterpret_cast<std::uintptr_t>(from) & 15) == 0;
    const int whole = aligned ? length / 4 * 4 : 0;
    for (int i = lane * 4; i < whole; i += 128) copy_async<16>(to + i, from + i);
    for (int i = whole + lane; i < length; i += 32) copy_async<4>(to + i, from + i);
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// ---- the kernel --------------------------------------------------------------------------------

// Scores above `score`, and those equal to it in columns of the chunk below `column`.
struct LaneLimit {
  float score;
  int column;
};

// Thread blocks a multiprocessor. With two (128 registers) ptxas keeps 240 bytes on the stack from
// SM100 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
inline constexpr int kLaneBlocks = 1;
#else
inline constexpr int kLaneBlocks = 2;
#endif

template <class Arch, bool TilesInside, class Columns>
__global__ void __launch_bounds__(kSelectThreads, kLaneBlocks)
    select_lanes(const __grid_constant__ SelectProblem p, const __grid_constant__ Columns columns) {
  extern __shared__ __align__(16) float staged[];  // TilesInside: 32 rows of kLanePitch
  __shared__ LaneShared s;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  {
    const std::int64_t token_tiles = (p.tokens + 31) / 32, head = blockIdx.x / token_tiles;
    const std::int64_t token0 = (blockIdx.x - head * token_tiles) * 32, token = token0 + lane;
    const bool exists = token < p.tokens;
    const std::int64_t early = exists ? columns.before_wait(token) : 0;
    wait_for_previous();
    release_next();
    // Forced blocks at both ends. Every warp knows all rows.
    const int n = exists ? static_cast<int>(clamp(columns(token, early), 0, p.tiles)) : 0;
    const int first = min(p.rule.force_begin, n), last = n - min(p.rule.force_end, n - first);
    const int longest = __reduce_max_sync(0xFFFFFFFFu, last);
    if (warp == 0) {
      s.first[lane] = first, s.last[lane] = last, s.columns[lane] = n;
      s.wanted[lane] = p.rule.topk - (first + n - last), s.kept[lane] = 0;
      if (lane == 0)
        s.token = token0, s.head = head, s.longest = longest, s.buffer = 0,
        s.rows = p.scores + head * p.head_stride + token0 * p.token_stride;
    }
  }
  __syncthreads();

#pragma unroll 1
  for (int base = 0; base < s.longest; base += kLaneChunk) {
    // Warp w takes `span` columns from w * span, so that a short chunk has as many groups.
    const int length = min(s.longest - base, kLaneChunk);
    const int span = (length + kLaneChunk / 8 - 1) / (kLaneChunk / 8) * 8;
    const int begin = warp * span;
    float x[kLaneColumns];
    if constexpr (TilesInside) {
      __syncthreads();
      stage_rows(p, s.rows, s.token, base, length, staged);
      __syncthreads();
    }
    // Of what can be chosen.
    const int below = s.first[lane] - base - begin, end = s.last[lane] - base - begin;
    const float* from = TilesInside
                            ? staged + lane * kLanePitch + begin
                            : s.rows + lane * p.token_stride + (base + begin) * p.tile_stride;
#pragma unroll
    for (int i0 = 0; i0 < kLaneColumns; i0 += 8) {
#pragma unroll
      for (int i = i0; i < i0 + 8; ++i) x[i] = NAN;
      if (i0 >= span) continue;
      __syncwarp();  // else the assembler computes all addresses first, and has no registers left
      if constexpr (TilesInside) {
        const auto* four = reinterpret_cast<const float4*>(from + i0);
        const float4 a = four[0], b = four[1];
        const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (i0 + i < end) x[i0 + i] = v[i];
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i, from += p.tile_stride)
          if (i0 + i < end) x[i0 + i] = __ldg(from);
      }
    }
    if (below > 0) {
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i)
        if (i < below) x[i] = NAN;
    }
    if (p.rule.skip_masked) {
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i)
        if (!(x[i] > -INFINITY)) x[i] = NAN;
    }

    LaneLimit limit{-INFINITY, kLaneChunk};
    if (length > kLaneRoom - kLaneTopk) {
#pragma unroll
      for (int g = 0; g < kLaneGroups; ++g) {
        float largest = -INFINITY;
#pragma unroll
        for (int i = g; i < kLaneColumns; i += kLaneGroups) largest = fmaxf(largest, x[i]);
        s.lists[warp * kLaneGroups + g][lane] = largest;
      }
      float v[16];
      largest_16<kLaneWarps * kLaneGroups / 16>(s, warp, lane, v);
      if (warp == 0) {
        float least = v[0];
#pragma unroll
        for (int i = 1; i < 16; ++i) least = fminf(least, v[i]);
        s.threshold[lane] = least;
      }
      __syncthreads();
      limit.score = s.threshold[lane];
    }
    const int wanted = s.wanted[lane], kept = s.kept[lane];
    if (base > 0 && kept == wanted && s.floor[lane] >= limit.score)
      limit.score = score_at(rank_of_number(s.floor[lane]) + 1);  // later columns lose ties
    if (wanted <= 0) limit = {INFINITY, 0};

    const auto passes = [&](int i, const LaneLimit& l) {
      return x[i] > l.score || (x[i] == l.score && begin + i < l.column);
    };
    // How many pass in the warps before this one, and in all. Where they are too many the limit is
    // raised: by ranks of scores first, then by columns: `lower` lets too many pass (columns: too
    // few), `upper` not. All warps find the same.
    int before = 0, total = 0;
    const int room = kLaneRoom - kept;
    bool searching = true, by_column = false, plain;
    std::uint32_t lower = 0, middle = 0, upper = 0;
    LaneLimit trial = limit;
#pragma unroll 1
    for (bool begins = true;; begins = false) {
      plain = __all_sync(0xFFFFFFFFu, trial.column == kLaneChunk);
      int mine = 0;
      if (plain) {
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) mine += x[i] >= trial.score;
      } else {
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) mine += passes(i, trial);
      }
      __syncthreads();
      s.count[warp][lane] = mine;
      __syncthreads();
      before = total = 0;
#pragma unroll
      for (int w = 0; w < kLaneWarps; ++w) {
        const int c = s.count[w][lane];
        if (w < warp) before += c;
        total += c;
      }
      if (searching) {
        if (total <= room && (begins || total >= wanted)) {
          limit = trial, searching = false;
        } else if (begins) {
          lower = rank_of_number(limit.score), upper = rank_of_number(INFINITY) + 1;
          middle = lower + 1;  // most often ties at the limit are the reason
        } else {
          ((total < wanted) == by_column ? lower : upper) = middle;
          if (!by_column && upper - lower == 1)  // the wanted-th is one of the ties at `lower`
            limit.score = score_at(lower), by_column = true, lower = 0, upper = kLaneChunk;
          middle = lower + (upper - lower) / 2;
        }
      }
      if (!__any_sync(0xFFFFFFFFu, searching)) break;
      trial = limit;
      if (searching && by_column) trial.column = static_cast<int>(middle);
      if (searching && !by_column) trial = {score_at(middle), kLaneChunk};
    }

    const std::int32_t id0 = base + begin;
    const int buffer = s.buffer;
    int place = (kept + before) * 32 + lane;
    const auto add = [&](int i) {
      (&s.score[buffer][0][0])[place] = x[i], (&s.id[buffer][0][0])[place] = id0 + i;
      place += 32;
    };
    if (plain) {
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i)
        if (x[i] >= limit.score) add(i);
    } else {
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i)
        if (passes(i, limit)) add(i);
    }
    __syncthreads();
    const int m = s.kept[lane] + total;
    const unsigned chosen = choose(s, buffer, warp, lane, m, s.wanted[lane]);
    const bool moves = __any_sync(0xFFFFFFFFu, __popc(chosen) < m);
    if (moves) {  // those that stay move together, 4 a warp
#pragma unroll
      for (int i = 0; i < kLaneRoom / kLaneWarps; ++i) {
        const int j = warp * (kLaneRoom / kLaneWarps) + i;
        const int to = __popc(chosen & ((1u << j) - 1));
        if (!(chosen >> j & 1)) continue;
        s.score[buffer ^ 1][to][lane] = s.score[buffer][j][lane];
        s.id[buffer ^ 1][to][lane] = s.id[buffer][j][lane];
      }
    }
    __syncthreads();
    if (warp == 0) s.kept[lane] = __popc(chosen);
    if (moves && threadIdx.x == 0) s.buffer = buffer ^ 1;
    __syncthreads();
  }

  if (warp == 0) {
    int kept = s.kept[lane];
    const int wanted = s.wanted[lane], last = s.last[lane], buffer = s.buffer;
    if (!p.rule.skip_masked && kept < wanted && kept < last - s.first[lane]) {
      // NaN blocks, lowest ids first, where nothing better is left; kept in the order of ids.
      const float* from = s.rows + lane * p.token_stride;
      for (int column = s.first[lane]; column < last && kept < wanted; ++column) {
        if (!nvfp4::is_nan(__ldg(from + column * p.tile_stride))) continue;
        int place = kept++;
        for (; place > 0 && s.id[buffer][place - 1][lane] > column; --place)
          s.id[buffer][place][lane] = s.id[buffer][place - 1][lane];
        s.id[buffer][place][lane] = column;
      }
    }
    s.found[lane] = kept;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * p.rule.topk; i += kSelectThreads) {
    const int row = i / p.rule.topk, place = i - row * p.rule.topk;
    if (s.token + row >= p.tokens) break;
    const int chosen = place - s.first[row], after = chosen - s.found[row];
    const int id = chosen < 0                             ? place
                   : after < 0                            ? s.id[s.buffer][chosen][row]
                   : after < s.columns[row] - s.last[row] ? s.last[row] + after
                                                          : -1;
    const std::int64_t t = s.token + row, head = s.head;
    p.out.ids[t * p.out.token_stride + head * p.out.head_stride + place * p.out.rank_stride] = id;
    if (p.out.scores)
      p.out.scores[t * p.out.score_token_stride + head * p.out.score_head_stride +
                   place * p.out.score_rank_stride] =
          id < 0 ? -INFINITY : __ldg(s.rows + row * p.token_stride + id * p.tile_stride);
  }
}

}  // namespace kvscout::cuda
