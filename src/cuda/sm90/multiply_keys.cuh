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
  int first = 0, end = 0, seen_by_all = 0, operand = 0, parity = 0;

  // `beside(k)`: what is done behind instruction k of the eight.
  const auto multiply = [&](int set, auto beside) {
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
    beside(0);
#pragma unroll
    for (int k = 1; k < 8; ++k) {
      step(k, std::false_type{});
      if (k == 7) wgmma_commit();
      beside(k);
    }
  };
  const auto nothing = [](int) {};
  // Maxima over a block's keys: of a set, in parts of h = 0, 0, 1, 1; of both sets and h.
  float part[4], found[2][2];
  const auto mask = [&](int set, int column) {
    float(&x)[64] = d[set];
    wgmma_arrived(x);
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
  };
  // An eighth of a set's; fmaxf drops NaN.
  const auto add_part = [&](int set, int k) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float v = d[set][8 * k + i];
      part[i % 4] = k == 0 && i < 4 ? v : fmaxf(part[i % 4], v);
    }
  };
  const auto add_parts = [&](int set) {
#pragma unroll
    for (int k = 0; k < 8; ++k) add_part(set, k);
  };
  const auto keep_parts = [&](int set) {
    found[set][0] = fmaxf(part[0], part[1]), found[set][1] = fmaxf(part[2], part[3]);
  };
  // Lane c of a quad gets what all four found for h = c % 2 of set c / 2. (Each set for itself, so
  // that with M = 1 half of the lanes write: 30 x 67584 462 us instead of 443.)
  const auto exchange = [&] {
    float v[2];
#pragma unroll
    for (int set = 0; set < 2; ++set) {
      const auto& [even, odd] = found[set];
      const float kept = c % 2 ? odd : even, sent = c % 2 ? even : odd;
      v[set] = fmaxf(kept, __shfl_xor_sync(cuda::kAllLanes, sent, 1));
    }
    const float kept = c / 2 ? v[1] : v[0], sent = c / 2 ? v[0] : v[1];
    return fmaxf(kept, __shfl_xor_sync(cuda::kAllLanes, sent, 2));
  };
  // Maxima over the heads of a token, by one thread. What earlier passes found lies in the output.
  const auto fold = [&](int column, float v, bool is_mine) {
    float(&rows)[128 * M] = shared.rows[own.turn ^= 1];
    if (is_mine) rows[first_row<M>(thread) + more_rows(c % (2 * M))] = v;
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (!own.target) return;
    const HeadChunk heads = cuda::head_chunk(p, 0, own.pass);  // of any unit: how many
    float* out = own.target + column * p.out_column_stride;
    float m = cuda::fold_heads(p.tile, rows, heads.heads, thread);
    if (own.pass > 0) m = fmaxf(m, *out);
    *out = own.pass + 1 == p.tile.passes ? cuda::finish<Ops>(m, scale) : m;
  };
  // What both sets found. With M = 2 they are rows of one column, with M = 1 two columns, or one.
  const auto write = [&](int column, int columns) {
    float v = exchange();
    if (!(v > -INFINITY)) v = -INFINITY;  // NaN in every lane
    const int mine = M == 1 ? c / 2 : 0;
    if (p.folds) {
      for (int i = 0; i < columns; ++i) fold(column + i, v, i == mine);
    } else if (float* out = own.target) {
      if (M == 2 || mine < columns)
        out[(column + mine) * p.out_column_stride] = cuda::finish<Ops>(v, scale);
    }
  };
  // What lies behind the barrier is not needed any more.
  const auto release = [&](Barrier& barrier) {
    if (lane == 0) barrier_arrive(barrier);
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
    multiply(0, nothing);
    // What the first product does not need.
    if constexpr (M == 2) {
      Ops::unpack_query(raw[2], c, a[1][0]);
      Ops::unpack_query(raw[3], c, a[1][1]);
    }
    seen_by_all = s.rows.limit(s.first, p.lengths.causal);
#pragma unroll
    for (int i = 0; i < 2 * M; ++i)
      own.limit[i] = s.rows.limit(s.first + place[more_rows(i)].token, p.lengths.causal);
    own.target = p.folds ? cuda::row_target(p, s, heads, thread)
                         : cuda::row_target(p, s, heads, place[more_rows(c % (2 * M))]);
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
    constexpr int kPair = M == 1 ? 2 : 1;  // columns of both sets
    int column = first;
    const auto round = [&](int set) {
      const int before = operand, of_set = column + (M == 1 ? set : 0);
      if (M == 1 || set == 1) {
        next_operand();
        barrier_wait(shared.written[operand], parity);
      }
      // An instruction waits for the one before it. With M = 1, where the maxima of a block take
      // longer than its product, they are found meanwhile (30 x 67584 453 to 437 us); with M = 2
      // that is no faster.
      if constexpr (M == 1) {
        wgmma_wait<0>();
        release(shared.multiplied[before]);
        mask(set, of_set);
        multiply(1 - set, [&](int k) { add_part(set, k); });
      } else {
        multiply(1 - set, nothing);
        wgmma_wait<1>();
        if (set == 1) release(shared.multiplied[before]);
        mask(set, of_set);
        add_parts(set);
      }
      keep_parts(set);
    };
    const auto finish = [&](int set, int of_set) {
      wgmma_wait<0>();
      release(shared.multiplied[operand]);
      mask(set, of_set);
      add_parts(set);
      keep_parts(set);
    };
#pragma unroll 1
    while (column + kPair < end) {
      round(0);
      round(1);
      write(column, kPair);
      column += kPair;
    }
    if (column + (M == 1) < end) {
      round(0);
      finish(1, end - 1);
      write(column, kPair);
    } else {  // M = 1, an odd number of blocks
      finish(0, column);
      found[1][0] = found[1][1] = found[0][0];
      write(column, 1);
    }
    next_operand();
  }
}

}  // namespace kvscout::sm90
