// Score of long queries with wgmma, by three or four warpgroups.
//
// Two multiply: a tile's queries are the A operand and stay in registers for a whole run of blocks,
// M times 64 rows a warpgroup. So the maximum over keys lies in a thread's own accumulators, and
// two exchanges in a quad of lanes finish it. The others prepare keys: they copy a block of 128
// ahead of time, unpack it and write it into shared memory as the B operand, a ring of kOperands of
// them. One keeps up with M = 2; with M = 1 a block is multiplied in half the time, and two take
// turns (30 requests of 8 tokens, 64/4 heads, on an H200: 460 us instead of 522 with one).
//
// Bound: the matrix units, and the power that the GPU may draw. A warpgroup has two sets of
// accumulators: one is multiplied while the maxima of the other are found. With M = 2 a set is one
// half of its rows, with M = 1 every other block. The two warpgroups meet nowhere, so one's pauses
// are filled by the other. (One barrier a block and all 256 threads unpacking: 594 TFLOP/s. Keys as
// A, unpacked by those who multiply: 660.) A preparer is one warp on each quarter of the
// multiprocessor, so it pays for every latency; what it loops over must leave its registers room to
// unpack several words at a time, which is why its state lies in shared memory.
//
// A block of threads is resident on each SM and takes an equal run of the line of work
// (work_list.cuh), which may begin and end inside a tile.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/keys.cuh"
#include "cuda/sm90/mbarrier.cuh"
#include "cuda/sm90/wgmma.cuh"

namespace kvscout::sm90 {

using cuda::HeadChunk;
using cuda::ScoreParams;
using cuda::Segment;

inline constexpr int kWarpgroup = 128;
// Operands ready or in use. Beside two preparers of 16-bit keys there is room for two.
template <class Ops, int M>
inline constexpr int kOperands = M == 1 && Ops::kKeyLoads == 4 ? 2 : 4;
template <int M>
inline constexpr int kPreparers = M == 1 ? 2 : 1;
template <int M>
inline constexpr int kBlockThreads = cuda::warpgroup_threads(128 * M);
static_assert(kBlockThreads<1> == (2 + kPreparers<1>)*kWarpgroup);
static_assert(kBlockThreads<2> == (2 + kPreparers<2>)*kWarpgroup);
// Registers a thread. At the launch each gets 128 (M = 1) or 168.
template <int M>
inline constexpr int kRegistersToPrepare = M == 1 ? 64 : 56;
template <int M>
inline constexpr int kRegistersToMultiply = M == 1 ? 192 : 224;

using WorkList = cuda::WorkList<false>;

// Blocks on their way to a preparer. Three are no faster.
inline constexpr int kSlots = 2;

// A thread takes up to four rows of keys, or of a tile's queries: the i-th lies so many after its
// first.
KVSCOUT_HD constexpr int more_rows(int i) { return i / 2 * 64 + i % 2 * 8; }

// What a thread copies of a block: of rows 16*warp + lane/4 + more_rows(i), its quarter.
template <class Ops>
struct KeySlot {
  uint4 keys[4][Ops::kKeyLoads][kWarpgroup];
  std::uint32_t scales[4][Ops::kKeyScales ? kWarpgroup : 1];
};

// What a thread that copies remembers for itself.
struct KeySource {
  const std::uint8_t *keys,
      *scales;  // its part of page 0, row and quarter; flat: of key 0, quarter
  const std::int32_t* table;
  int k_count;
  std::uint32_t scale_row;  // flat: of key 0
  std::int64_t at;          // of the line of work
};

// What a thread that multiplies remembers for itself.
struct Own {
  float* target;        // where its row, or with heads reduced its token, is written; null: nowhere
  std::int64_t at;      // of the line of work
  int pass, turn, row;  // row: its first
  int limit[4];         // keys that its rows see
  cuda::RowPlace place[4];  // of its rows

  template <int M>
  __device__ void begin(const cuda::TileShape& tile) {
    pass = turn = 0;
    row = threadIdx.x / kWarpgroup * (64 * M) + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll 1
    for (int i = 0; i < 2 * M; ++i) place[i] = cuda::place_of_row(tile, row + more_rows(i));
  }
};

template <class Ops, int M>
struct WarpgroupShared {
  std::uint8_t operand[kOperands<Ops, M>][2]
                      [kBlock * 128];  // k 0..63 and 64..127; 1024-byte aligned
  KeySlot<Ops> slot[kPreparers<M>][kSlots];
  float rows[2][128 * M];  // with heads reduced: maxima of a block, in turn
  KeySource source[kPreparers<M> * kWarpgroup];
  Own own[2 * kWarpgroup];
  std::int64_t sums[WorkList::kSlots];
  Barrier written[kOperands<Ops, M>], multiplied[kOperands<Ops, M>];
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
  constexpr int kStep = kPreparers<M>;
  const int preparer = kStep == 1 ? 0 : threadIdx.x / kWarpgroup - 2;
  KeySource& source = shared.source[threadIdx.x - 2 * kWarpgroup];
  // Where this lane's row of 8 values lies in an operand: matrix lane/8, row lane%8.
  const std::uint32_t written_at = (thread / 32 * 16 + lane % 8) * 128 + (lane / 8 ^ lane % 8) * 16;
  constexpr int kAhead = kSlots;
  // Blocks of the whole run go to the preparers in turn. The first round finds every operand free.
  int operand = preparer, parity = 1, before_mine = preparer;

  source.at = Walk(list).at;
#pragma unroll 1
  for (;;) {
    Walk walk(list);
    walk.at = source.at;
    if (walk.at >= walk.stop) break;
    const Segment s = list.seek(walk.at);
    const int end = s.end_of(walk.stop - walk.at);
    source.at = walk.after(s);
#pragma unroll 1
    for (int pass = 0; pass < p.tile.passes; ++pass) {
      const int key_head = cuda::head_chunk(p, s.unit, pass).key_head;
      const auto stride = static_cast<int>(p.k_token_stride);
      source.keys = p.k + key_head * p.k_head_stride + 16 * c +
                    (p.paged ? row : s.rows.k_begin) * p.k_token_stride;
      source.scales = p.k_scale + c / 2 * scale_layout::kSecondHalf +
                      (p.paged ? key_head * scale_layout::kPageBytes + row * 16 : 0);
      source.table = p.page_table + s.rows.b * p.table_row_stride;
      source.k_count = s.rows.k_count;
      source.scale_row = static_cast<std::uint32_t>(s.rows.k_begin) * p.k_heads + key_head;
      if (p.paged && row >= 32) source.scales += 4 - 32 * 16;
      const auto page_of = [&](int column) {
        return p.paged && column < end
                   ? __ldg(source.table + cuda::block_of(p, column) * p.table_column_stride)
                   : 0;
      };
      const auto copy = [&](int column, std::int32_t page) {
        if (column >= end) return;
        KeySlot<Ops>& to = shared.slot[preparer][column / kStep % kAhead];
        // Products of 32 bits, which is_aligned (plan.cpp) vouches for.
        if (!p.paged) {
          const int begin = cuda::block_of(p, column) * kBlock;
          const int last = source.k_count - 1;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = min(begin + row + more_rows(i), last);
#pragma unroll
            for (int j = 0; j < Ops::kKeyLoads; ++j)
              cuda::copy_async<16>(&to.keys[i][j][thread],
                                   source.keys + static_cast<std::int64_t>(key) * stride + 64 * j);
            if constexpr (Ops::kKeyScales)
              cuda::copy_async<4>(&to.scales[i][thread],
                                  source.scales + scale_layout::row_128x4(
                                                      source.scale_row +
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
      };
      const int first = s.column + before_mine;
      if constexpr (kStep == 2) before_mine ^= (end - s.column) & 1;
      std::int32_t next = page_of(first), after_next = page_of(first + kStep);
      const auto copy_next = [&](int column) {
        copy(column, next);
        cuda::copy_async_commit();
        next = after_next, after_next = page_of(column + 2 * kStep);
      };
#pragma unroll 1
      for (int i = 0; i < kAhead; ++i) copy_next(first + i * kStep);
#pragma unroll 1
      for (int column = first; column < end; column += kStep) {
        cuda::copy_async_wait<kAhead - 1>();
        const KeySlot<Ops>& from = shared.slot[preparer][column / kStep % kAhead];
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
            Ops::template quarter<Ops::kBf16>(raw[u], scales[u % 2], i, x + 4 * i);
#pragma unroll
          for (int i = 0; i < 4; ++i)  // registers 4i.., k = 32i..
            store_matrices((i % 2 ? at ^ 64 : at) + i / 2 * (kBlock * 128) + more_rows(u) * 128,
                           x + 4 * i);
        };
        // A row ahead where the registers have room for it; then the slot is free two rows early.
        constexpr int kEarly = Ops::kKeyLoads < 4;
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          if (u + kEarly > 0 && u + kEarly < 4) load(u + kEarly);
          if (u == 2) load_scales(1);
          if (u == 2 && kEarly) copy_next(column + kAhead * kStep);
          unpack(u);
        }
        if (!kEarly) copy_next(column + kAhead * kStep);
        operand_written();
        barrier_arrive(shared.written[operand]);
        operand += kStep;
        if (operand >= kOperands<Ops, M>) operand -= kOperands<Ops, M>, parity ^= 1;
      }
    }
  }
}

// ---- products ----------------------------------------------------------------------------------

template <class Ops, int M>
__device__ __forceinline__ void multiply_keys(const ScoreParams& p, const WorkList& list,
                                              WarpgroupShared<Ops, M>& shared) {
  const int thread = threadIdx.x, lane = thread % 32, c = lane % 4;
  Own& own = shared.own[thread];
  const float scale = cuda::global_scale(p);

  float d[2][64];
  std::uint32_t a[M][2][16];
  float held = 0;  // M = 2: the first set's result, until the second's
  int first = 0, end = 0, seen_by_all = 0, operand = 0, parity = 0;

  const auto multiply = [&](int set) {
    const std::uint32_t keys = operand_descriptor(shared.operand[operand]);
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
    if (c / 2 < M) rows[own.row + more_rows(c)] = v;
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

  own.at = Walk(list).at;
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
      typename Ops::RawQuery raw[2 * M];
#pragma unroll
      for (int i = 0; i < 2 * M; ++i)
        raw[i] = cuda::fetch_query<Ops, true>(p, s, heads, own.place[i], c);
#pragma unroll
      for (int i = 0; i < 2 * M; ++i)
        own.limit[i] = s.rows.limit(s.first + own.place[i].token, p.lengths.causal);
      own.target = p.folds     ? cuda::row_target(p, s, heads, thread)
                   : c / 2 < M ? cuda::row_target(p, s, heads, own.place[c])
                               : nullptr;
#pragma unroll
      for (int i = 0; i < 2 * M; ++i) Ops::unpack_query(raw[i], c, a[i / 2][i % 2]);

      // At both ends of the loop one set is in flight, and one waits for its maxima. (Where the
      // assembler cannot tell which, it multiplies one instruction at a time and says so: it needs
      // the branch after the loop for that.)
      const auto next_operand = [&] {
        if (++operand == kOperands<Ops, M>) operand = 0, parity ^= 1;
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
__global__ void __launch_bounds__(kBlockThreads<M>, 1)
    score_warpgroup(const __grid_constant__ ScoreParams p) {
  static_assert(sizeof(WarpgroupShared<Ops, M>) <= 227 * 1024);
  // First what needs no memory: the kernel before may still be at work.
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WarpgroupShared<Ops, M>*>(memory);
  if (threadIdx.x < 2 * kWarpgroup) shared.own[threadIdx.x].begin<M>(p.tile);
  if (threadIdx.x == 0)
    for (int i = 0; i < kOperands<Ops, M>; ++i) {
      barrier_init(shared.written[i], kWarpgroup);
      barrier_init(shared.multiplied[i], 2 * kWarpgroup / 32);
    }
  cuda::wait_for_previous();
  cuda::release_next();
  const WorkList list(p, shared.sums);
  __syncthreads();
  if (threadIdx.x >= 2 * kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegistersToPrepare<M>));
    prepare_keys<Ops, M>(p, list, shared);
    // Meanwhile the last blocks are multiplied.
    cuda::fill_tails(p, threadIdx.x / 32 - 8, kPreparers<M> * kWarpgroup / 32);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegistersToMultiply<M>));
    multiply_keys<Ops, M>(p, list, shared);
  }
}

}  // namespace kvscout::sm90
