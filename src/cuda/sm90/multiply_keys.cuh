// The warpgroups that multiply: queries in registers, operands of keys from shared memory, and the
// maxima of their products.
#pragma once

#include "cuda/sm90/warpgroup_shared.cuh"

namespace kvscout::sm90 {

template <class Ops, int M>
__device__ __forceinline__ void multiply_keys(const ScoreParams& p,
                                              WarpgroupShared<Ops, M>& shared) {
  const int thread = threadIdx.x, lane = thread % 32, c = lane % 4;
  Own& own = shared.own[thread];
  const float scale = cuda::global_scale(p);

  float d[2][64];
  std::uint32_t a[M][2][16];
  float held = 0;  // M = 2: the first set's result, until the second's
  int first = 0, end = 0, seen_by_all = 0, operand = 0, parity = 0;

  const auto multiply = [&](int set) {
    // All lanes have the same, which the assembler knows of what was reduced: so it counts the
    // addresses of instructions in uniform registers, instead of moving two there for each (30 x
    // 67584 in 4% less time).
    const std::uint32_t keys =
        __reduce_max_sync(cuda::kAllLanes, operand_descriptor(shared.operand[operand]));
    const auto step = [&]<bool First>(int k, std::bool_constant<First>) {
      wgmma<Ops::kBf16, First>(d[set], a[set % M][0][2 * k], a[set % M][1][2 * k],
                               a[set % M][0][2 * k + 1], a[set % M][1][2 * k + 1],
                               keys + (k / 4 * kBlock * 128 + k % 4 * 32) / 16);
    };
    wgmma_fence();
    step(0, std::true_type{});
#pragma unroll
    for (int k = 1; k < 8; ++k) step(k, std::false_type{});
    wgmma_commit();
  };
  // A set's maximum over the keys of a block, for the row whose h is c % 2.
  const auto maximum = [&](int set, int column) {
    float(&x)[64] = d[set];
    const int key = cuda::block_of(p, column) * kBlock;
    if (key > seen_by_all - kBlock) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int visible = own.limit[set % M * 2 + h] - key - 2 * c;
#pragma unroll
        for (int i = 0; i < 32; ++i)  // key 8(i/2) + 2c + i%2
          if (i / 2 * 8 + i % 2 >= visible) x[i / 2 * 4 + 2 * h + i % 2] = -INFINITY;
      }
    }
    float m[2];  // fmaxf drops NaN
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float part[4];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const float v = x[i / 2 * 4 + 2 * h + i % 2];
        part[i % 4] = i < 4 ? v : fmaxf(part[i % 4], v);
      }
      m[h] = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    }
    const float kept = c % 2 ? m[1] : m[0], sent = c % 2 ? m[0] : m[1];
    const float v = fmaxf(kept, __shfl_xor_sync(cuda::kAllLanes, sent, 1));
    return fmaxf(v, __shfl_xor_sync(cuda::kAllLanes, v, 2));
  };
  // Maxima over the heads of a token, by one thread. What earlier passes found lies in the output.
  const auto fold = [&](int column, float v) {
    float(&rows)[128 * M] = shared.rows[own.turn ^= 1];
    if (c / 2 < M) rows[first_row<M>(thread) + more_rows(c)] = v;
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (!own.target) return;
    const HeadChunk heads = cuda::head_chunk(p, 0, own.pass);  // of any unit: how many
    float* out = own.target + column * p.out_column_stride;
    float m = cuda::fold_heads(p.tile, rows, heads.heads, thread);
    if (own.pass > 0) m = fmaxf(m, *out);
    *out = own.pass + 1 == p.tile.passes ? cuda::finish<Ops>(m, scale) : m;
  };
  const auto write = [&](float v, int column) {
    if (!(v > -INFINITY)) v = -INFINITY;  // NaN in every lane
    if (p.folds)
      fold(column, v);
    else if (float* out = own.target)
      out[column * p.out_column_stride] = cuda::finish<Ops>(v, scale);
  };
  // What lies behind the barrier is not needed any more.
  const auto release = [&](Barrier& barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  const auto finish_set = [&](int set, int column) {
    wgmma_arrived(d[set]);
    const float v = maximum(set, column);
    if (M == 1)
      write(v, column);
    else if (set == 0)
      held = v;
    else
      write(c < 2 ? held : v, column);
  };

  own.turn = own.tiles = 0;
  // While the first tile is looked for.
  cuda::fill_tails(p, thread / 32, 2 * kWarpgroup / 32, 0, early_parts(p));
#pragma unroll 1
  for (;;) {
    const int n = own.tiles++;
    Tile<Ops, M>& tile = shared.tile[n % kTiles<M>];
    barrier_wait(tile.announced, n / kTiles<M> % 2);
    const Segment& s = tile.segment;
    first = s.column, end = tile.end;
    const HeadChunk heads = cuda::head_chunk(p, s.unit, tile.pass);
    const Place* place = shared.place + first_row<M>(thread);
    if constexpr (Tile<Ops, M>::kHasQueries)
      if (n == 0) {  // the first operand is on its way
        if (first < end && thread < 128 * M)
          copy_query<Ops, M>(p, s, heads, shared.place[thread], thread, tile);
        cuda::copy_async_commit();
        cuda::copy_async_wait<0>();
        asm volatile("bar.sync 1, 256;" ::: "memory");
      }
    if (first == end) break;
    const auto fetch = [&](int i) {
      if constexpr (Tile<Ops, M>::kHasQueries) {
        const int row = first_row<M>(thread) + more_rows(i);
        return
            typename Ops::RawQuery{{tile.queries[row][c]}, tile.scales[row][c / 2] >> c % 2 * 16};
      } else
        return cuda::fetch_query<Ops, true>(p, s, heads, place[more_rows(i)], c);
    };
    typename Ops::RawQuery raw[2 * M];
#pragma unroll
    for (int i = 0; i < 2 * M; ++i) raw[i] = fetch(i);
    Ops::unpack_query(raw[0], c, a[0][0]);
    Ops::unpack_query(raw[1], c, a[0][1]);
    barrier_wait(shared.written[operand], parity);
    multiply(0);
    // What the first product does not need.
    if constexpr (M == 2) {
      Ops::unpack_query(raw[2], c, a[1][0]);
      Ops::unpack_query(raw[3], c, a[1][1]);
    }
    seen_by_all = s.rows.limit(s.first, p.lengths.causal);
#pragma unroll
    for (int i = 0; i < 2 * M; ++i)
      own.limit[i] = s.rows.limit(s.first + place[more_rows(i)].token, p.lengths.causal);
    own.target = p.folds     ? cuda::row_target(p, s, heads, thread)
                 : c / 2 < M ? cuda::row_target(p, s, heads, place[more_rows(c)])
                             : nullptr;
    own.pass = tile.pass;
    // By every lane: one of a warp for all, behind a meeting that the assembler leaves out, orders
    // nothing that racecheck sees.
    barrier_arrive(tile.taken);

    // At both ends of the loop one set is in flight, and one waits for its maxima. (Where the
    // assembler cannot tell which, it multiplies one instruction at a time and says so: it needs
    // the branch after the loop for that.)
    const auto next_operand = [&] {
      if (++operand == kOperands<Ops, M>) operand = 0, parity ^= 1;
    };
    int column = first;
    const auto round = [&](int set) {
      const int before = operand;
      if (M == 1 || set == 1) {
        next_operand();
        barrier_wait(shared.written[operand], parity);
      }
      multiply(1 - set);
      wgmma_wait<1>();
      if (M == 1 || set == 1) release(shared.multiplied[before]);
      finish_set(set, column);
      if (M == 1 || set == 1) ++column;
    };
#pragma unroll 1
    while (column + (M == 1 ? 2 : 1) < end) {
      round(0);
      round(1);
    }
    if (column + (M == 1) < end) {
      round(0);
      wgmma_wait<0>();
      release(shared.multiplied[operand]);
      finish_set(1, column);
    } else {  // M = 1, an odd number of blocks
      wgmma_wait<0>();
      release(shared.multiplied[operand]);
      finish_set(0, column);
    }
    next_operand();
  }
}

}  // namespace kvscout::sm90
