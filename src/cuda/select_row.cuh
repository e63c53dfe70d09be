// The selection of few rows: a block of threads a row, a warp of it for every 256 columns.
//
// Bound: latency. This is what a decode step waits for once its scores are there: a trip to memory
// for them, another for the result, and as little between as can be (row_selection.cuh).
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/device.h"
#include "cuda/row_selection.cuh"

namespace kvscout::cuda {

// At least: 32 blocks of one warp all went to one multiprocessor and took 2 us longer.
inline constexpr int kRowThreads = 128;
// The kernel behind a selection may start at once if it is a score of so many cells, since that
// many blocks take long to be dealt out: 8 x 32k 9.3 instead of 10.5 us. A smaller one is slowed
// down by those that wait beside it: 1 x 8k 3.6 instead of 3.3. More are streamed, by one a
// multiprocessor.
__device__ __forceinline__ bool are_many_cells(std::int64_t cells) {
  return cells >= 1024 && cells <= 4096;
}

// Of a row of n columns: `wanted` of the `count` in [first, last) are chosen by score, the rest is
// forced.
struct RowEnds {
  int n, first, last, wanted, count;

  __device__ RowEnds(const SelectProblem& p, std::int64_t columns)
      : RowEnds(p, static_cast<int>(clamp(columns, 0, p.tiles))) {}
  // Of as many as are known to be there.
  __device__ RowEnds(const SelectProblem& p, int columns) : n(columns) {
    first = min(p.rule.force_begin, n), last = n - min(p.rule.force_end, n - first);
    wanted = p.rule.topk - (first + n - last);
    count = wanted > 0 ? last - first : 0;
  }
};

// Columns from `from` on, `rest` of them, a lane each 32nd one.
template <int Slots>
__device__ __forceinline__ void load_columns(const SelectProblem& p, const float* from, int rest,
                                             float (&x)[Slots]) {
  if (p.tile_stride == 1) {
#pragma unroll
    for (int i = 0; i < Slots; ++i) x[i] = i * 32 < rest ? load_behind(from + i * 32) : NAN;
  } else {
#pragma unroll
    for (int i = 0; i < Slots; ++i, from += 32 * p.tile_stride)
      x[i] = i * 32 < rest ? load_behind(from) : NAN;
  }
  if (p.rule.skip_masked) {
#pragma unroll
    for (int i = 0; i < Slots; ++i)
      if (!(x[i] > -INFINITY)) x[i] = NAN;
  }
}

template <class Arch, class Room, class Columns>
__global__ void __launch_bounds__(32 * Room::kWarps)
    select_row(const __grid_constant__ SelectProblem p, const __grid_constant__ Columns columns) {
  using Row = RowSelection<Room>;
  __shared__ typename Row::Shared shared;
  if (Columns::kBeforeScore && are_many_cells(gridDim.x * p.tiles)) release_next();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int most =
      static_cast<int>(min((p.tiles - 1) / kWarpColumns + 1, std::int64_t{blockDim.x / 32}));
  if (warp > 0 && warp >= most) return;
  if (warp == 0) {
    shared.maxima[lane] = 0;
    shared.sums[0][lane] = shared.sums[1][lane] = 0;
  }
  if (most > 1) asm volatile("bar.sync 1, %0;" ::"r"(most * 32) : "memory");
  const std::int64_t token = blockIdx.x, head = blockIdx.y;
  const auto early = columns.before_wait(token);
  const float* const scores = p.scores + head * p.head_stride + token * p.token_stride;
  std::int32_t* const ids = p.out.ids + token * p.out.token_stride + head * p.out.head_stride;
  RowEnds ends(p, early);
  const float* from = scores + (ends.first + warp * kWarpColumns + lane) * p.tile_stride;
  asm volatile("" : "+l"(from));  // else its parts are put together behind the wait
  Ready ready;
  ready.add(static_cast<unsigned>(ends.count)), ready.add(static_cast<unsigned>(ends.wanted));
  ready.add(ids), ready.add(from);
  // Constants that are not in the cache yet.
  ready.add(p.out.scores), ready.add(static_cast<unsigned>(p.out.rank_stride));
  ready.add(static_cast<unsigned>(p.tile_stride)), ready.add(p.rule.skip_masked);
  ready.wait_for_previous();
  release_next();

  const auto columns_now = columns(token, early);
  if (columns_now != early) {
    ends = RowEnds(p, columns_now);
    from = scores + (ends.first + warp * kWarpColumns + lane) * p.tile_stride;
  }
  const int warps = min(most, (ends.count - 1) / kWarpColumns + 1);
  if (warp > 0 && warp >= warps) return;
  const auto write = [&](int place, int id, float score) {
    ids[place * p.out.rank_stride] = id;
    if (p.out.scores)
      p.out.scores[token * p.out.score_token_stride + head * p.out.score_head_stride +
                   place * p.out.score_rank_stride] = score;
  };
  const auto write_chosen = [&](int place, int id, float score) {
    write(ends.first + place, id, score);
  };
  Row row(shared, warps, ends.wanted, ends.count, ends.first);
  bool lacks = false;
#pragma unroll 1
  for (unsigned base = 0; base < static_cast<unsigned>(ends.count); base += warps * kWarpColumns) {
    const int rest = ends.count - static_cast<int>(base) - row.column(0);
    if (ends.count <= kFewColumns) {
      float x[kFewSlots];
      load_columns(p, from, rest, x);
      row.take(x, 0);
    } else {
      float x[kManySlots];
      load_columns(p, from, rest, x);
      from += warps * kWarpColumns * p.tile_stride;
      row.take(x, base);
    }
    const bool last = base + warps * kWarpColumns >= static_cast<unsigned>(ends.count);
    lacks = last && row.lacks() && !p.rule.skip_masked;
    if (warp == 0) row.choose(last && !lacks, write_chosen);
    if (!last) row.template sync<kManySlots>();
  }
  if (warp > 0) return;
  const auto load = [&](int column) { return load_behind(scores + column * p.tile_stride); };
  if (__builtin_expect(lacks, 0))
    row.fill_up([&](int column) { return load(ends.first + column); }, write_chosen);
  if (ends.first > 0 || row.kept() < p.rule.topk) {
#pragma unroll 1
    for (int place = lane; place < p.rule.topk; place += 32) {
      const int after = place - ends.first - row.kept();
      if (place >= ends.first && after < 0) continue;
      const int id = place < ends.first           ? place
                     : after < ends.n - ends.last ? ends.last + after
                                                  : -1;
      write(place, id, p.out.scores && id >= 0 ? load(id) : -INFINITY);
    }
  }
}

}  // namespace kvscout::cuda
