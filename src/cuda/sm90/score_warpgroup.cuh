// Score of long queries with wgmma, by three warpgroups.
//
// One prepares keys: it copies a block of 128 ahead of time, unpacks it and writes it into shared
// memory as the B operand, a ring of kOperands of them. Two multiply: a tile's queries are the A
// operand and stay in registers for a whole run of blocks, M times 64 rows a warpgroup. So the
// maximum over keys lies in a thread's own accumulators, and two exchanges in a quad of lanes
// finish it.
//
// Bound: the matrix units. A warpgroup has two sets of accumulators: one is multiplied while the
// maxima of the other are found. With M = 2 a set is one half of its rows, with M = 1 every other
// block. The two warpgroups meet nowhere, so one's pauses are filled by the other. (One barrier a
// block and all 256 threads unpacking: 594 TFLOP/s. Keys as A, unpacked by those who multiply:
// 660.)
//
// A block of threads is resident on each SM and takes an equal run of the line of work
// (work_list.cuh), which may begin and end inside a tile. The accumulators and queries take most
// registers, so what a thread wants to remember from run to run lies in its own corner of shared
// memory.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/keys.cuh"
#include "cuda/sm90/mbarrier.cuh"
#include "cuda/sm90/wgmma.cuh"

namespace kvscout::sm90 {

using cuda::HeadChunk;
using cuda::ScoreParams;
using cuda::Segment;

inline constexpr int kOperands = 4;
inline constexpr int kWarpgroup = 128;
inline constexpr int kBlockThreads = cuda::kWarpgroupThreads;
static_assert(kBlockThreads == 3 * kWarpgroup);
// Registers a thread, of 168 that each gets at the launch.
inline constexpr int kRegistersToPrepare = 56, kRegistersToMultiply = 224;

using WorkList = cuda::WorkList<false>;

// Blocks on their way. With four of them and NVFP4 keys: 706 instead of 774 TFLOP/s.
inline constexpr int kSlots = 2;

// What a thread copies of a block: rows 64t + 16*warp + lane/4 and 8 more (h), its quarter.
template <class Ops>
struct KeySlot {
  uint4 keys[2][2][Ops::kKeyLoads][kWarpgroup];
  std::uint32_t scales[2][2][Ops::kKeyScales ? kWarpgroup : 1];
};

// What a thread that copies remembers for itself.
struct KeySource {
  const std::uint8_t *keys,
      *scales;  // its part of page 0, row and quarter; flat: of key 0, quarter
  int k_begin, k_count, key_head;
};

// What a thread that multiplies remembers for itself.
struct Own {
  float* fold;               // with heads reduced: where its token is written
  std::int64_t at;           // of the line of work
  int pass, turn, limit[4];  // keys that its rows see
};

template <class Ops, int M>
struct WarpgroupShared {
  std::uint8_t operand[kOperands][2][kBlock * 128];  // k 0..63 and 64..127; 1024-byte aligned
  KeySlot<Ops> slot[kSlots];
  float rows[2][128 * M];  // with heads reduced: maxima of a block, in turn
  KeySource source[kWarpgroup];
  Own own[2 * kWarpgroup];
  std::int64_t sums[WorkList::kSlots];
  Barrier written[kOperands], multiplied[kOperands];
};

// A block of threads' run of the line, tile after tile.
struct Walk {
  std::int64_t at, stop;
  __device__ explicit Walk(const WorkList& list) {
    const cuda::Run run = cuda::run_of(list.total(), blockIdx.x, gridDim.x);
    at = run.begin, stop = run.end;
  }
  __device__ std::int64_t after(const Segment& s) const {
    return s.left < stop - at ? at + s.left : stop;
  }
};

// ---- keys --------------------------------------------------------------------------------------

template <class Ops, int M>
__device__ __forceinline__ void prepare_keys(const ScoreParams& p, const WorkList& list,
                                             WarpgroupShared<Ops, M>& shared) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, c = lane % 4;
  const int row = thread / 32 * 16 + lane / 4;
  KeySource& source = shared.source[thread];
  // Where this lane's row of 8 values lies in an operand: matrix lane/8, row lane%8.
  const std::uint32_t written_at = (thread / 32 * 16 + lane % 8) * 128 + (lane / 8 ^ lane % 8) * 16;
  constexpr int kAhead = kSlots;
  int operand = 0, parity = 1;  // the first round finds every operand free

  Walk walk(list);
#pragma unroll 1
  for (; walk.at < walk.stop;) {
    const Segment s = list.seek(walk.at);
    const int end = s.end_of(walk.stop - walk.at);
    walk.at = walk.after(s);
#pragma unroll 1
    for (int pass = 0; pass < p.tile.passes; ++pass) {
      const int key_head = cuda::head_chunk(p, s.unit, pass).key_head;
      const std::int32_t* table = p.page_table + s.rows.b * p.table_row_stride;
      const std::int64_t stride = static_cast<int>(p.k_token_stride);
      source = {p.k + key_head * p.k_head_stride + 16 * c +
                    (p.paged ? row : s.rows.k_begin) * p.k_token_stride,
                p.k_scale + c / 2 * scale_layout::kSecondHalf +
                    (p.paged ? key_head * scale_layout::kPageBytes + row * 16 : 0),
                s.rows.k_begin, s.rows.k_count, key_head};
      if (p.paged && row >= 32) source.scales += 4 - 32 * 16;
      const auto page_of = [&](int column) {
        return p.paged && column < end
                   ? __ldg(table + cuda::block_of(p, column) * p.table_column_stride)
                   : 0;
      };
      const auto copy = [&](int column, std::int32_t page) {
        if (column >= end) return;
        KeySlot<Ops>& to = shared.slot[column % kAhead];
        if (!p.paged) {
          const int begin = cuda::block_of(p, column) * kBlock;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const std::int64_t key =
                begin + min(row + i / 2 * 64 + i % 2 * 8, source.k_count - begin - 1);
#pragma unroll
            for (int j = 0; j < Ops::kKeyLoads; ++j)
              cuda::copy_async<16>(&to.keys[i / 2][i % 2][j][thread],
                                   source.keys + key * stride + 64 * j);
            if constexpr (Ops::kKeyScales)
              cuda::copy_async<4>(
                  &to.scales[i / 2][i % 2][thread],
                  source.scales + scale_layout::row_128x4((source.k_begin + key) * p.k_heads +
                                                          source.key_head));
          }
        } else if (page >= 0 && page < p.pages) {
          const std::uint8_t* keys = source.keys + page * p.k_page_stride;
#pragma unroll
          for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < Ops::kKeyLoads; ++j)
              cuda::copy_async<16>(&to.keys[i / 2][i % 2][j][thread],
                                   keys + (i / 2 * 64 + i % 2 * 8) * stride + 64 * j);
          if constexpr (Ops::kKeyScales) {
            const std::uint8_t* scales = source.scales + page * p.scale_page_stride;
#pragma unroll
            for (int i = 0; i < 4; ++i)
              cuda::copy_async<4>(&to.scales[i / 2][i % 2][thread],
                                  scales + i / 2 * 8 + i % 2 * 128);
          }
        } else {  // NaN, which no maximum takes
          constexpr std::uint32_t kNan = 0xFFFFFFFFu;
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if constexpr (Ops::kKeyScales)
              to.scales[i / 2][i % 2][thread] = kNan;
            else
#pragma unroll
              for (int j = 0; j < Ops::kKeyLoads; ++j)
                to.keys[i / 2][i % 2][j][thread] = make_uint4(kNan, kNan, kNan, kNan);
        }
      };
      std::int32_t next = page_of(s.column), after_next = page_of(s.column + 1);
#pragma unroll 1
      for (int i = 0; i < kAhead; ++i) {
        copy(s.column + i, next);
        cuda::copy_async_commit();
        next = after_next, after_next = page_of(s.column + i + 2);
      }
#pragma unroll 1
      for (int column = s.column; column < end; ++column) {
        cuda::copy_async_wait<kAhead - 1>();
        const KeySlot<Ops>& from = shared.slot[column % kAhead];
        barrier_wait(shared.multiplied[operand], parity);
        const std::uint32_t at = address_of(shared.operand[operand]) + written_at;
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          typename Ops::Scale scales[2] = {};
          if constexpr (Ops::kKeyScales) {
            const std::uint32_t words[2] = {from.scales[t][0][thread], from.scales[t][1][thread]};
            Ops::scales(words, c, scales);
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            typename Ops::Raw raw;
            std::uint32_t x[16];
#pragma unroll
            for (int i = 0; i < Ops::kKeyLoads; ++i) raw.v[i] = from.keys[t][h][i][thread];
#pragma unroll
            for (int i = 0; i < 4; ++i)
              Ops::template quarter<Ops::kBf16>(raw, scales[h], i, x + 4 * i);
#pragma unroll
            for (int i = 0; i < 4; ++i)  // registers 4i.., k = 32i..
              store_matrices(
                  (i % 2 ? at ^ 64 : at) + i / 2 * (kBlock * 128) + (64 * t + 8 * h) * 128,
                  x + 4 * i);
          }
        }
        operand_written();
        barrier_arrive(shared.written[operand]);
        if (++operand == kOperands) operand = 0, parity ^= 1;
        copy(column + kAhead, next);
        cuda::copy_async_commit();
        next = after_next, after_next = page_of(column + kAhead + 2);
      }
    }
  }
}

// ---- products ----------------------------------------------------------------------------------

template <class Ops, int M>
__device__ __forceinline__ void multiply_keys(const ScoreParams& p, const WorkList& list,
                                              WarpgroupShared<Ops, M>& shared) {
  const int thread = threadIdx.x, lane = thread % 32, c = lane % 4;
  // Query rows: 64 more for the second set, 8 more for h = 1. Of the results a lane keeps h = c
  // % 2.
  const int row = thread / kWarpgroup * (64 * M) + thread / 32 % 4 * 16 + lane / 4;
  const int result_row = row + 64 * (c / 2) + 8 * (c % 2);
  Own& own = shared.own[thread];
  const float scale = cuda::global_scale(p);

  float d[2][64];
  std::uint32_t a[M][2][16];
  float* target = nullptr;  // column 0 of the row that this lane writes; null: none
  float held = 0;           // M = 2: the first set's result, until the second's
  int first = 0, end = 0, seen_by_all = 0, operand = 0, parity = 0;

  const auto multiply = [&](int set) {
    const std::uint64_t keys = operand_descriptor(shared.operand[operand]);
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
    if (key + kBlock > seen_by_all) {
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
    if (c / 2 < M) rows[result_row] = v;
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (!own.fold) return;
    const HeadChunk heads = cuda::head_chunk(p, 0, own.pass);  // of any unit: how many
    float* out = own.fold + column * p.out_column_stride;
    float m = cuda::fold_heads(p.tile, rows, heads.heads, thread);
    if (own.pass > 0) m = fmaxf(m, *out);
    *out = own.pass + 1 == p.tile.passes ? cuda::finish<Ops>(m, scale) : m;
  };
  const auto write = [&](float v, int column) {
    if (!(v > -INFINITY)) v = -INFINITY;  // NaN in every lane
    if (p.folds)
      fold(column, v);
    else if (target)
      target[column * p.out_column_stride] = cuda::finish<Ops>(v, scale);
  };
  // The operand is not needed any more.
  const auto release = [&](int which) {
    if (lane == 0) barrier_arrive(shared.multiplied[which]);
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

  own.at = Walk(list).at, own.pass = 0, own.turn = 0;
#pragma unroll 1
  for (;;) {
    Walk walk(list);
    walk.at = own.at;
    if (walk.at >= walk.stop) break;
    const Segment s = list.seek(walk.at);
    first = s.column, end = s.end_of(walk.stop - walk.at);
    if (first < end) {
      const HeadChunk heads = cuda::head_chunk(p, s.unit, own.pass);
      seen_by_all = s.rows.limit(s.first, p.lengths.causal);
      own.fold = p.folds && thread < s.tokens ? cuda::row_target(p, s, heads, thread) : nullptr;
#pragma unroll
      for (int i = 0; i < 2 * M; ++i) {
        const int n = row + 64 * (i / 2) + 8 * (i % 2);
        own.limit[i] =
            s.rows.limit(s.first + cuda::place_of_row(p.tile, n).token, p.lengths.causal);
        cuda::load_query<Ops, true>(p, s, heads, n, c, a[i / 2][i % 2]);
      }
      target = !p.folds && c / 2 < M ? cuda::row_target(p, s, heads, result_row) : nullptr;

      // At both ends of the loop one set is in flight, and one waits for its maxima. (Where the
      // assembler cannot tell which, it multiplies one instruction at a time and says so: it needs
      // the branch after the loop for that.)
      const auto next_operand = [&] {
        if (++operand == kOperands) operand = 0, parity ^= 1;
      };
      int column = first;
      barrier_wait(shared.written[operand], parity);
      multiply(0);
      const auto round = [&](int set) {
        const int before = operand;
        if (M == 1 || set == 1) {
          next_operand();
          barrier_wait(shared.written[operand], parity);
        }
        multiply(1 - set);
        wgmma_wait<1>();
        if (M == 1 || set == 1) release(before);
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
        release(operand);
        finish_set(1, column);
      } else {  // M = 1, an odd number of blocks
        wgmma_wait<0>();
        release(operand);
        finish_set(0, column);
      }
      next_operand();
    }
    const int next = own.pass + 1;
    own.pass = next == p.tile.passes ? 0 : next;
    if (next == p.tile.passes) own.at = walk.after(s);
  }
}

template <class Ops, int M>
__global__ void __launch_bounds__(kBlockThreads, 1)
    score_warpgroup(const __grid_constant__ ScoreParams p) {
  cuda::wait_for_previous();
  cuda::release_next();
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WarpgroupShared<Ops, M>*>(memory);
  if (threadIdx.x == 0)
    for (int i = 0; i < kOperands; ++i) {
      barrier_init(shared.written[i], kWarpgroup);
      barrier_init(shared.multiplied[i], 2 * kWarpgroup / 32);
    }
  const WorkList list(p, shared.sums);
  __syncthreads();
  if (threadIdx.x >= 2 * kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegistersToPrepare));
    prepare_keys<Ops, M>(p, list, shared);
    // Meanwhile the last blocks are multiplied.
    cuda::fill_tails(p, threadIdx.x / 32 - 8, 4);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegistersToMultiply));
    multiply_keys<Ops, M>(p, list, shared);
  }
}

}  // namespace kvscout::sm90
