// The warpgroups that prepare: they walk the run of the line that is this block's, announce tile
// after tile with its queries, and make operands of its keys. Copies run kSlots blocks ahead of
// what is unpacked, over the ends of tiles, so that a new tile is found and announced while
// operands of the one before still wait to be multiplied.
#pragma once

#include "cuda/sm90/warpgroup_shared.cuh"

namespace kvscout::sm90 {

// A thread's place among those that prepare. What depends on it is found again where it is used:
// over the loop there is no register to keep it in.
struct Preparer {
  int thread, lane, c, row;  // row: its first, of a block
  __device__ __forceinline__ Preparer() : thread(threadIdx.x % kWarpgroup) {
    asm volatile("" : "+r"(thread));
    lane = thread % 32, c = lane % 4, row = thread / 32 * 16 + lane / 4;
  }
};

// Copies a block of keys, for the thread itself to unpack.
template <class Ops>
__device__ __forceinline__ void copy_keys(const ScoreParams& p, const Way& way,
                                          const KeySource& from, int column, std::int32_t page,
                                          KeySlot<Ops>& to) {
  const auto [thread, lane, c, row] = Preparer();
  const auto stride = static_cast<int>(p.k_token_stride);
  const KeySource source = from;
  // Products of 32 bits, which is_aligned (plan.cpp) vouches for.
  if (!p.paged) {
    const int begin = cuda::block_of(p, column) * kBlock;
    const int last = way.k_count - 1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = min(begin + row + more_rows(i), last);
#pragma unroll
      for (int j = 0; j < Ops::kKeyLoads; ++j)
        cuda::copy_async<16>(&to.keys[i][j][thread],
                             source.keys + static_cast<std::int64_t>(key) * stride + 64 * j);
      if constexpr (Ops::kKeyScales)
        cuda::copy_async<4>(
            &to.scales[i][thread],
            source.scales + scale_layout::row_128x4(way.scale_row +
                                                    static_cast<std::uint32_t>(key) * p.k_heads));
    }
  } else if (static_cast<unsigned>(page) < static_cast<unsigned>(p.pages)) {
    const auto of_page = [&](const std::uint8_t* first, std::int64_t page_stride) {
      return first + std::uint64_t{static_cast<std::uint32_t>(page)} *
                         static_cast<std::uint32_t>(page_stride);
    };
    const std::uint8_t* keys = of_page(source.keys, p.k_page_stride);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < Ops::kKeyLoads; ++j)
        cuda::copy_async<16>(&to.keys[i][j][thread], keys + more_rows(i) * stride + 64 * j);
    if constexpr (Ops::kKeyScales) {
      const std::uint8_t* scales = of_page(source.scales, p.scale_page_stride);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        cuda::copy_async<4>(&to.scales[i][thread], scales + i / 2 * 8 + i % 2 * 128);
    }
  } else {  // NaN, which no maximum takes
    constexpr std::uint32_t kNan = 0xFFFFFFFFu;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if constexpr (Ops::kKeyScales)
        to.scales[i][thread] = kNan;
      else
#pragma unroll
        for (int j = 0; j < Ops::kKeyLoads; ++j)
          to.keys[i][j][thread] = make_uint4(kNan, kNan, kNan, kNan);
  }
}

template <class Ops, int M>
__device__ __forceinline__ void prepare_keys(const ScoreParams& p, const WorkList& list,
                                             LoneLine& lone, WarpgroupShared<Ops, M>& shared) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, c = lane % 4;
  constexpr int kStep = kPreparers<M>;
  const int preparer = kStep == 1 ? 0 : threadIdx.x / kWarpgroup - 2;
  KeySource& source = shared.source[threadIdx.x - 2 * kWarpgroup];
  const auto warp = [] { return threadIdx.x / 32 - 2 * kWarpgroup / 32; };
  Way& way = shared.way[warp()];
  // Where this lane's row of 8 values lies in an operand: matrix lane/8, row lane%8.
  const std::uint32_t written_at = (thread / 32 * 16 + lane % 8) * 128 + (lane / 8 ^ lane % 8) * 16;
  constexpr int kAhead = kSlots;
  // Blocks of the whole run go to the preparers in turn. The first round finds every operand free.
  int operand = preparer, parity = 1, before_mine = preparer;
  int column = 0, end = 0;           // to be copied next, of the tile
  std::int32_t next = 0, after = 0;  // the pages of `column` and of the one that follows it

  const auto page_of = [&](int column) {
    return p.paged && column < end
               ? __ldg(way.table + cuda::block_of(p, column) * p.table_column_stride)
               : 0;
  };
  // Pages and keys of the part of a tile that `way` is at; announces it. The first tile's queries
  // are copied by those who will multiply them.
  const auto begin_part = [&]<bool First>(const Segment& s, std::bool_constant<First>) {
    const auto [thread, lane, c, row] = Preparer();
    const int n = First ? 0 : way.tiles, pass = First ? 0 : way.pass;
    const HeadChunk heads = cuda::head_chunk(p, s.unit, pass);
    if (lane == 0) {
      way.table = p.page_table + s.rows.b * p.table_row_stride;
      way.k_count = s.rows.k_count;
      way.scale_row = static_cast<std::uint32_t>(s.rows.k_begin) * p.k_heads + heads.key_head;
    }
    __syncwarp();
    end = way.end;
    column = s.column + before_mine;
    if constexpr (kStep == 2) before_mine ^= (end - s.column) & 1;
    next = page_of(column), after = page_of(column + kStep);
    Tile<Ops, M>& tile = shared.tile[n % kTiles<M>];
    if constexpr (!First) {
      barrier_wait(tile.taken, n / kTiles<M> % 2 ^ 1);
      if constexpr (Tile<Ops, M>::kHasQueries) {
        if (n > 0 && end > s.column) {
#pragma unroll 1
          for (int at = preparer * kWarpgroup + thread; at < 128 * M; at += kStep * kWarpgroup)
            copy_query<Ops, M>(p, s, heads, shared.place[at], at, tile);
        }
      }
    }
    if (threadIdx.x == 2 * kWarpgroup) tile.segment = s, tile.end = end, tile.pass = pass;
    barrier_arrive_copied(tile.announced);
    barrier_arrive(tile.announced);
    if (lane == 0) way.tiles = n + 1;
    source.keys = p.k + heads.key_head * p.k_head_stride + 16 * c +
                  (p.paged ? row : s.rows.k_begin) * p.k_token_stride;
    source.scales = p.k_scale + c / 2 * scale_layout::kSecondHalf +
                    (p.paged ? heads.key_head * scale_layout::kPageBytes + row * 16 : 0);
    if (p.paged && row >= 32) source.scales += 4 - 32 * 16;
  };
  // By one lane: to a segment at `at`, of which `left` are this block's.
  const auto go_to = [&](const Segment& s, std::int64_t at, std::int64_t left) {
    way.end = left > 0 ? s.end_of(left) : s.column;
    way.at = s.left < left ? at + s.left : way.stop;
    way.segment = s;
  };
  // The next part of a tile, or pass over it; false: the run is over.
  const auto take_tile = [&] {
    const int lane = Preparer().lane;
    __syncwarp();
    int pass = way.pass + 1;
    if (pass == p.tile.passes) {
      pass = 0;
      const std::int64_t at = way.at, left = way.stop - at;
      Segment s = way.segment;
      if (left > 0 && (way.tiles == 0 || !list.step(s)))
        s = p.lone ? LoneLine::seek(p, shared.lone_sums[warp()], static_cast<unsigned>(at))
                   : list.seek(at);
      __syncwarp();
      if (lane == 0) go_to(s, at, left);
    }
    __syncwarp();
    if (lane == 0) way.pass = pass;
    __syncwarp();
    begin_part(way.segment, std::false_type{});
    return end > way.segment.column;  // else the run ended, maybe within the set-up of a tile
  };

  if (p.lone) {
    lone.add_up();
    const cuda::Run run = lone.run(blockIdx.x);
    Segment s;
    if (run.begin < run.end) s = lone.first(static_cast<unsigned>(run.begin));
    if (lane == 0) way.stop = run.end, way.pass = 0, go_to(s, run.begin, run.end - run.begin);
    begin_part(s, std::true_type{});
  } else if (lane == 0) {
    const cuda::Run run = cuda::run_of(list.total(), blockIdx.x, gridDim.x);
    way.at = run.begin, way.stop = run.end;
    way.pass = p.tile.passes - 1, way.tiles = 0;
    way.segment = {};
  }
  const auto copy_next = [&](int slot) {
    copy_keys<Ops>(p, way, source, column, next, shared.slot[preparer][slot]);
    column += kStep;
    next = after, after = page_of(column + kStep);
  };
  // Where blocks are multiplied in half the time, a slot is filled again as soon as it is read.
  constexpr bool kCopiesEarly = M == 1;
  constexpr int kUnknown = 0x7FFFFFFF;
  int blocks = kUnknown;  // of this preparer's
#pragma unroll 1
  for (int n = -kAhead; n < blocks; ++n) {
    const int slot = (n + kAhead) % kAhead;
    bool copied = false;
    if (n >= 0) {
      cuda::copy_async_wait<kAhead - 1>();
      const KeySlot<Ops>& from = shared.slot[preparer][slot];
      typename Ops::Raw raw[4];
      typename Ops::Scale scales[2] = {};
      const auto load = [&](int i) {
#pragma unroll
        for (int j = 0; j < Ops::kKeyLoads; ++j) raw[i].v[j] = from.keys[i][j][thread];
      };
      const auto load_scales = [&](int t) {
        if constexpr (Ops::kKeyScales) {
          const std::uint32_t words[2] = {from.scales[2 * t][thread],
                                          from.scales[2 * t + 1][thread]};
          Ops::scales(words, c, scales);
        }
      };
      load(0), load_scales(0);
      barrier_wait(shared.multiplied[operand], parity);
      const std::uint32_t at = address_of(shared.operand[operand]) + written_at;
      const auto unpack = [&](int u) {
        std::uint32_t x[16];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          Ops::quarter(cuda::ByArithmetic<Ops::kBf16>{}, raw[u], scales[u % 2], i, x + 4 * i);
#pragma unroll
        for (int i = 0; i < 4; ++i)  // registers 4i.., k = 32i..
          store_matrices((i % 2 ? at ^ 64 : at) + i / 2 * (kBlock * 128) + more_rows(u) * 128,
                         x + 4 * i);
      };
      // A row ahead where the registers have room for it.
      constexpr int kEarly = Ops::kKeyLoads < 4;
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        if (u + kEarly > 0 && u + kEarly < 4) load(u + kEarly);
        if (u == 2) load_scales(1);
        if (u == 2 && kEarly && kCopiesEarly && column < end) copy_next(slot), copied = true;
        unpack(u);
      }
      operand_written();
      barrier_arrive(shared.written[operand]);
      operand += kStep;
      if (operand >= kOperands<Ops, M>) operand -= kOperands<Ops, M>, parity ^= 1;
    }
    if (!copied) {
#pragma unroll 1
      while (column >= end && blocks == kUnknown)
        if (!take_tile()) blocks = n + kAhead;
      if (blocks == kUnknown) copy_next(slot);
    }
    cuda::copy_async_commit();
  }
}

}  // namespace kvscout::sm90
