// Score of long queries with wgmma: keys are the A operand, dequantised straight into registers; up
// to 256 query rows are the B operand and stay in shared memory for a whole run of blocks. Two
// warpgroups take alternate blocks, so that one finds maxima and unpacks keys while the other
// multiplies. No producer warp and no barrier for keys: a lane copies its own part of the next
// block into shared memory and reads it back itself. Bound: the matrix units. The accumulators of
// one warpgroup take half of all registers, hence the care below.
//
// A block of threads is resident on each SM and takes an equal run of the line of work (tile.cuh),
// which may begin and end inside a tile.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/keys.cuh"
#include "cuda/sm90/wgmma.cuh"

namespace kvscout::sm90 {

using cuda::HeadChunk;
using cuda::kAllLanes;
using cuda::KeyBlock;
using cuda::kThreads;
using cuda::ScoreParams;
using cuda::Segment;

// A lane's part of a block: rows 64t + 16*warp + lane/4 and 8 more (h), t = 0, 1.
template <class Ops>
struct KeySlot {
  uint4 keys[2][2][Ops::kKeyLoads][kThreads];
  // 16 bytes of 128x4 scales hold rows 32 apart, so t = 0 and t = 1 together: words warp/2 and
  // warp/2 + 2.
  uint4 scales[2][Ops::kKeyScales ? kThreads : 1];
};

// Where a lane's part lies in page 0.
struct LanePart {
  const std::uint8_t *keys, *scales;
};

template <class Ops, int N>
struct WarpgroupShared {
  std::uint8_t queries[2][N * 128];  // k 0..63 and 64..127; 1024-byte aligned
  KeySlot<Ops> slot[2];
  std::int32_t page[2][kThreads];  // of the block after the next
  LanePart part[kThreads];
  float maxima[2][2][4][N];  // warpgroup, parity of its block, warp
  float* target[N];          // where a row (reduced heads: a token) is written, column 0
  int limit[N];              // keys that a row sees
  bool exists[2][4];         // warpgroup, its block modulo 4: the page lies in the pool
  std::int64_t sums[kThreads];
  // What a run of columns needs to know. Kept here because the accumulators take all registers.
  volatile int end, seen_by_all, key_head, request, k_begin, k_count, tokens, heads, pass;
  volatile std::int64_t at, next;
  float scale;
};

// A tile's queries as the B operand, by the whole block of threads.
template <class Ops, int N>
__device__ __forceinline__ void stage_queries(const ScoreParams& p, const Segment& s,
                                              const HeadChunk& heads,
                                              WarpgroupShared<Ops, N>& shared) {
#pragma unroll 2
  for (int i = threadIdx.x; i < N * 4; i += kThreads) {
    const int n = i / 4, c = i % 4;
    std::uint32_t h[16];
    cuda::load_query<Ops, true>(p, s, heads, n, c, h);
#pragma unroll
    for (int j = 0; j < 16; ++j)  // register j: k = 16(j/2) + 8(j%2) + 2c
      *reinterpret_cast<std::uint32_t*>(
          shared.queries[j / 8] + operand_offset(n, j / 2 % 4 * 16 + j % 2 * 8 + 2 * c)) = h[j];
  }
  for (int n = threadIdx.x; n < N; n += kThreads) {
    shared.target[n] = cuda::row_target(p, s, heads, n);
    shared.limit[n] = s.rows.limit(s.first + cuda::place_of_row(p.tile, n).token, p.lengths.causal);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void warpgroup_barrier(int warpgroup) {
  if (warpgroup == 0)
    asm volatile("bar.sync 1, 128;" ::: "memory");
  else
    asm volatile("bar.sync 2, 128;" ::: "memory");
}

// Row maxima of four warps to results: each thread finishes rows `thread` and, for N = 256, `thread
// + 128`.
template <class Ops, int N>
__device__ __forceinline__ void finish_column(const ScoreParams& p, WarpgroupShared<Ops, N>& shared,
                                              float (&maxima)[4][N], bool exists, int column,
                                              int warpgroup) {
  const int thread = threadIdx.x % 128;
  const std::int64_t offset = column * p.out_column_stride;
  const float scale = shared.scale;
  const bool folds = p.folds;
#pragma unroll
  for (int n = thread; n < N; n += 128) {
    float v = fmaxf(fmaxf(maxima[0][n], maxima[1][n]), fmaxf(maxima[2][n], maxima[3][n]));
    if (!(v > -INFINITY) || !exists)
      v = -INFINITY;  // NaN in every lane, or a page outside the pool
    if (folds)
      maxima[0][n] = v;
    else if (float* out = shared.target[n])
      out[offset] = cuda::finish<Ops>(v, scale);
  }
  if (!folds) return;
  warpgroup_barrier(warpgroup);
  for (int token = thread; token < shared.tokens; token += 128) {
    float* out = shared.target[token] + offset;
    float v = cuda::fold_heads(p.tile, maxima[0], shared.heads, token);
    if (shared.pass > 0) v = fmaxf(v, *out);  // raw maxima gather in the output, by the same thread
    *out = shared.pass + 1 == p.tile.passes ? cuda::finish<Ops>(v, scale) : v;
  }
}

template <class Ops, int N>
__global__ void __launch_bounds__(kThreads, 1)
    score_warpgroup(const __grid_constant__ ScoreParams p) {
  cuda::wait_for_previous();
  cuda::release_next();
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WarpgroupShared<Ops, N>*>(memory);
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32,
            c = lane % 4;
  const cuda::WorkList<false> list(p, shared.sums);
  const std::uint64_t queries = operand_descriptor(shared.queries);
  const auto slot_of = [&](int column, int slots) { return column / 2 % slots; };

  // Copies go on in groups: one holds a block's keys and the page id of the block after it.
  const auto load_page = [&](int column) {
    if (p.paged && column < shared.end)
      cuda::copy_async<4>(
          &shared.page[slot_of(column, 2)][threadIdx.x],
          reinterpret_cast<const std::uint8_t*>(p.page_table + shared.request * p.table_row_stride +
                                                cuda::block_of(p, column) * p.table_column_stride));
  };
  const auto load_keys = [&](int column) {
    if (column >= shared.end) return;
    KeySlot<Ops>& to = shared.slot[slot_of(column, 2)];
    const std::int64_t stride = static_cast<int>(p.k_token_stride);
    if (p.paged) {
      const std::int32_t page = shared.page[slot_of(column, 2)][threadIdx.x];
      const bool exists = page >= 0 && page < p.pages;
      if (threadIdx.x % 128 == 0) shared.exists[warpgroup][slot_of(column, 4)] = exists;
      if (!exists) return;
      const LanePart& part = shared.part[threadIdx.x];
      const std::uint8_t* a = part.keys + page * p.k_page_stride;
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int i = 0; i < Ops::kKeyLoads; ++i)
            cuda::copy_async<16>(&to.keys[t][h][i][threadIdx.x],
                                 a + (64 * t + 8 * h) * stride + 64 * i);
      if constexpr (Ops::kKeyScales) {
        const std::uint8_t* scales = part.scales + page * p.scale_page_stride;
        cuda::copy_async<16>(&to.scales[0][threadIdx.x], scales);
        cuda::copy_async<16>(&to.scales[1][threadIdx.x], scales + 8 * 16);
      }
    } else {
      cuda::Rows rows;
      rows.k_begin = shared.k_begin, rows.k_count = shared.k_count;
      const KeyBlock keys = cuda::key_block(p, rows, cuda::block_of(p, column), 0, shared.key_head);
      if (threadIdx.x % 128 == 0) shared.exists[warpgroup][slot_of(column, 4)] = true;
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = min(64 * t + 16 * warp + lane / 4 + 8 * h, keys.last);
          const std::uint8_t* a = keys.rows + row * stride + 16 * c;
#pragma unroll
          for (int i = 0; i < Ops::kKeyLoads; ++i)
            cuda::copy_async<16>(&to.keys[t][h][i][threadIdx.x], a + 64 * i);
          if constexpr (Ops::kKeyScales)
            cuda::copy_async<4>(
                reinterpret_cast<std::uint32_t*>(&to.scales[h][threadIdx.x]) + warp / 2 + 2 * t,
                keys.scales +
                    scale_layout::row_128x4(keys.scale_row + row * std::int64_t{p.k_heads}) +
                    c / 2 * scale_layout::kSecondHalf);
        }
    }
  };

  if (threadIdx.x == 0) {
    shared.at = cuda::run_of(list.total(), blockIdx.x, gridDim.x).begin, shared.pass = 0;
    shared.scale = cuda::global_scale(p);
  }
  __syncthreads();
#pragma unroll 1
  for (;;) {
    const std::int64_t at = shared.at, stop = cuda::run_of(list.total(), blockIdx.x, gridDim.x).end;
    if (at >= stop) break;
    const Segment s = list.seek(at);
    const int end = s.end_of(stop - at);
    const HeadChunk heads = cuda::head_chunk(p, s.unit, shared.pass);
    stage_queries<Ops, N>(p, s, heads, shared);
    if (threadIdx.x == 0) {
      shared.next = s.left < stop - at ? at + s.left : stop, shared.end = end;
      shared.seen_by_all = s.rows.limit(s.first, p.lengths.causal);
      shared.key_head = heads.key_head, shared.heads = heads.heads;
      shared.request = s.rows.b, shared.k_begin = s.rows.k_begin, shared.k_count = s.rows.k_count;
      shared.tokens = s.tokens;
    }
    shared.part[threadIdx.x] = {
        p.k + heads.key_head * p.k_head_stride + (16 * warp + lane / 4) * p.k_token_stride + 16 * c,
        p.k_scale + heads.key_head * scale_layout::kPageBytes + c / 2 * scale_layout::kSecondHalf +
            (warp % 2 * 16 + lane / 4) * 16};
    int column = s.column + warpgroup;
    __syncthreads();

    load_page(column);
    cuda::copy_async_commit();
    cuda::copy_async_wait<0>();
    load_keys(column);
    load_page(column + 2);
    cuda::copy_async_commit();
#pragma unroll 1
    for (; column < shared.end; column += 2) {
      cuda::copy_async_wait<0>();
      const KeySlot<Ops>& from = shared.slot[slot_of(column, 2)];
      float m[N / 4];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        float d[N / 2];
        std::uint32_t a[2][16];
        typename Ops::Scale scales[2] = {};
        if constexpr (Ops::kKeyScales) {
          std::uint32_t word[2];
#pragma unroll
          for (int h = 0; h < 2; ++h)
            word[h] = reinterpret_cast<const std::uint32_t*>(
                &from.scales[h][threadIdx.x])[warp / 2 + 2 * t];
          Ops::scales(word, c, scales);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          typename Ops::Raw raw;
#pragma unroll
          for (int i = 0; i < Ops::kKeyLoads; ++i) raw.v[i] = from.keys[t][h][i][threadIdx.x];
          Ops::fragment(raw, scales[h], a[h]);
        }
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 8; ++k)
          wgmma<N, Ops::kBf16>(d, a[0][2 * k], a[1][2 * k], a[0][2 * k + 1], a[1][2 * k + 1],
                               queries + (k / 4 * N * 128 + k % 4 * 32) / 16, k > 0);
        wgmma_commit();
        if (t == 0) {
          load_keys(column + 2);
          load_page(column + 4);
          cuda::copy_async_commit();
        }
        wgmma_wait();
        const int key = cuda::block_of(p, column) * kBlock;
        if (key + kBlock > shared.seen_by_all) {
          const int row = key + 64 * t + 16 * warp + lane / 4;
#pragma unroll
          for (int i = 0; i < N / 4; ++i) {  // column i/2*8 + 2c + i%2
            const int limit = shared.limit[i / 2 * 8 + 2 * c + i % 2];
            if (row >= limit) d[i / 2 * 4 + i % 2] = -INFINITY;
            if (row + 8 >= limit) d[i / 2 * 4 + 2 + i % 2] = -INFINITY;
          }
        }
#pragma unroll
        for (int i = 0; i < N / 4; ++i) {  // fmaxf drops NaN
          const float both = fmaxf(d[i / 2 * 4 + i % 2], d[i / 2 * 4 + 2 + i % 2]);
          m[i] = t == 0 ? both : fmaxf(m[i], both);
        }
      }
      // Maxima over the 8 lanes that share c; each keeps an eighth of the columns.
      int first = 0;
#pragma unroll
      for (int step = 0; step < 3; ++step) {
        const int width = N / 8 >> step;
        const bool high = lane & (4 << step);
        if (high) first += width;
#pragma unroll
        for (int i = 0; i < N / 8; ++i)
          if (i < width) {
            const float sent = high ? m[i] : m[i + width], kept = high ? m[i + width] : m[i];
            m[i] = fmaxf(kept, __shfl_xor_sync(kAllLanes, sent, 4 << step));
          }
      }
      auto& maxima = shared.maxima[warpgroup][slot_of(column, 2)];
#pragma unroll
      for (int i = 0; i < N / 32; i += 2)
        *reinterpret_cast<float2*>(&maxima[warp][(first + i) / 2 * 8 + 2 * c]) =
            make_float2(m[i], m[i + 1]);
      warpgroup_barrier(warpgroup);
      finish_column<Ops, N>(p, shared, maxima, shared.exists[warpgroup][slot_of(column, 4)], column,
                            warpgroup);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const int next = shared.pass + 1;
      shared.pass = next == p.tile.passes ? 0 : next;
      if (next == p.tile.passes) shared.at = shared.next;
    }
    __syncwarp();
    __syncthreads();
  }
  cuda::fill_tails(p);
}

}  // namespace kvscout::sm90
