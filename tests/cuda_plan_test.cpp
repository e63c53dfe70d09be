// Which schedule a short score call on an H200 gets, and that the one written for single tokens
// gets nothing else.
#include <gtest/gtest.h>

#include <functional>

#include "cuda/plan.h"

namespace kvscout {
namespace {

using cuda::Schedule;
using cuda::ScoreKernel;

const cuda::ScoreTuning kTuning{.has_warpgroup = true, .overlaps = true};

ScoreProblem decode(std::int64_t batch, std::int64_t keys) {
  ScoreProblem p;
  p.q.heads = 4, p.k.heads = 1;
  p.q.tokens = batch, p.requests.batch = batch, p.requests.max_seqlen_q = 1;
  p.q.head_stride = 64, p.q.token_stride = 256;
  p.k.paged = true, p.k.token_stride = 64, p.k.head_stride = 8192, p.k.page_stride = 8192;
  p.k.scale_page_stride = 1024, p.max_k_tiles = (keys + 127) / 128;
  p.k.count = batch * p.max_k_tiles, p.requests.table_width = p.max_k_tiles;
  p.out.token_stride = 1, p.out.tile_stride = batch, p.out.head_stride = batch * p.max_k_tiles;
  return p;
}

ScoreKernel plan(const ScoreProblem& p, const cuda::ScoreTuning& tuning = kTuning, int sms = 132) {
  cuda::DeviceInfo device;
  device.sms = sms;
  return cuda::plan_score(p, tuning, device).kernel[0];
}

TEST(CudaPlan, FewBlocksGetABlockOfThreadsEach) {
  ScoreProblem p = decode(8, 8192);
  p.requests.max_seqlen_q = 2, p.q.tokens = 16;
  const ScoreKernel k = plan(p);
  EXPECT_EQ(k.schedule, Schedule::cells);
  EXPECT_EQ(k.blocks, 64);
  EXPECT_EQ(k.cell_batch, 8);
  EXPECT_EQ(plan(decode(64, 131072)).schedule, Schedule::stream);
}

TEST(CudaPlan, SingleTokensOverFewBlocks) {
  const ScoreKernel few = plan(decode(1, 8192));
  EXPECT_EQ(few.schedule, Schedule::singles);
  EXPECT_EQ(few.blocks, 64);
  EXPECT_EQ(few.cell_batch, 1);
  EXPECT_EQ(few.threads, 256);
  EXPECT_EQ(plan(decode(8, 8192)).threads, 128);
  EXPECT_EQ(plan(decode(64, 131072)).schedule, Schedule::stream);
  ScoreProblem heads = decode(2, 8192);  // two key heads of eight query heads
  heads.q.heads = 16, heads.k.heads = 2;
  EXPECT_EQ(plan(heads).schedule, Schedule::singles);
  EXPECT_EQ(plan(heads).tile.units, 2);
  EXPECT_EQ(plan(heads).tile.heads, 8);
}

// A warp a column, or two of them: all blocks of threads are resident, two a multiprocessor.
TEST(CudaPlan, SingleTokensOverMoreBlocks) {
  const ScoreKernel one = plan(decode(8, 32768));
  EXPECT_EQ(one.schedule, Schedule::columns);
  EXPECT_EQ(one.columns, 256);
  EXPECT_EQ(one.blocks, 256);
  EXPECT_EQ(one.threads, 256);
  EXPECT_EQ(plan(decode(8, 65536)).schedule, Schedule::columns);
  EXPECT_EQ(plan(decode(8, 65536)).blocks, 256);
  EXPECT_EQ(plan(decode(33, 128 * 128)).blocks, 264);
  EXPECT_EQ(plan(decode(34, 128 * 128)).schedule, Schedule::stream);
  EXPECT_EQ(plan(decode(301, 128 * 7)).blocks, 264);  // 2107 cells, 8 a block of threads
  EXPECT_EQ(plan(decode(1, 128 * 4096)).blocks, 256);
  ScoreProblem long_result = decode(8, 32768);
  long_result.max_k_tiles = 8192;
  EXPECT_EQ(plan(long_result).columns, 256);
  EXPECT_EQ(plan(long_result).fill_blocks, 0);
}

// One block of threads a multiprocessor, as large as the registers that its rows need allow.
TEST(CudaPlan, StreamingTakesAllRegisters) {
  struct Size {
    int rows, blocks, threads;
    bool operator==(const Size&) const = default;
  };
  const auto size = [](std::int64_t tokens, Element keys) {
    ScoreProblem p = decode(64, 131072);
    p.requests.max_seqlen_q = tokens, p.q.tokens = 64 * tokens, p.k.type = keys;
    const ScoreKernel k = plan(p);
    EXPECT_EQ(k.schedule, Schedule::stream);
    return Size{k.tile.rows, k.blocks, k.threads};
  };
  for (const Element keys : {Element::e2m1, Element::e4m3, Element::bf16}) {
    EXPECT_EQ(size(1, keys), (Size{8, 132, 512}));
    EXPECT_EQ(size(8, keys), (Size{32, 132, 256}));
  }
  EXPECT_EQ(size(4, Element::e2m1), (Size{16, 132, 512}));
  EXPECT_EQ(size(4, Element::bf16), (Size{32, 132, 256}));
  cuda::ScoreTuning own = kTuning;
  own.stream_blocks_per_sm = 2, own.stream_threads = 256;
  EXPECT_EQ(plan(decode(64, 131072), own).blocks, 264);
  EXPECT_EQ(plan(decode(64, 131072), own).threads, 256);
}

// Everything that kernel takes for granted.
TEST(CudaPlan, WhatIsNoSingleTokenOverDensePages) {
  const auto schedule = [](const std::function<void(ScoreProblem&)>& change) {
    ScoreProblem p = decode(2, 4096);
    change(p);
    return plan(p).schedule;
  };
  EXPECT_EQ(schedule([](ScoreProblem&) {}), Schedule::singles);
  EXPECT_EQ(schedule([](ScoreProblem& p) { p.q.type = Element::bf16; }), Schedule::singles);
  EXPECT_EQ(schedule([](ScoreProblem& p) { p.requests.max_seqlen_q = 2, p.q.tokens = 4; }),
            Schedule::cells);
  EXPECT_EQ(schedule([](ScoreProblem& p) { p.k.paged = false; }), Schedule::cells);
  EXPECT_EQ(schedule([](ScoreProblem& p) { p.k.token_stride = 128; }), Schedule::cells);
  EXPECT_EQ(schedule([](ScoreProblem& p) { p.k.token_stride = -64; }), Schedule::cells);
  EXPECT_EQ(schedule([](ScoreProblem& p) { p.k.type = p.q.type = Element::e4m3; }),
            Schedule::cells);
  EXPECT_EQ(schedule([](ScoreProblem& p) { p.q.heads = 16; }), Schedule::cells);
  EXPECT_EQ(schedule([](ScoreProblem& p) { p.reduce = Reduce::kv_group; }), Schedule::cells);
  EXPECT_EQ(schedule([](ScoreProblem& p) { p.k.page_stride += 8; }), Schedule::unaligned);
  static std::uint8_t scales[2];
  EXPECT_EQ(schedule([](ScoreProblem& p) {
              p.q.scale = scales + 1 - reinterpret_cast<std::uintptr_t>(scales) % 2;
            }),
            Schedule::cells);
  cuda::ScoreTuning without = kTuning;
  without.has_singles = false;
  EXPECT_EQ(plan(decode(2, 4096), without).schedule, Schedule::cells);
}

// What no key of the call can reach is filled without a look at the lengths.
TEST(CudaPlan, ColumnsBeyondTheKeysAreOnlyFilled) {
  ScoreProblem p = decode(8, 2048);
  EXPECT_EQ(plan(p).fill_blocks, 0);
  p.max_k_tiles = 8192;
  EXPECT_EQ(plan(p).schedule, Schedule::singles);
  EXPECT_EQ(plan(p).blocks, 16);
  EXPECT_EQ(plan(p).fill_blocks, 8);  // for each of 8 requests; 512 warps with 16 stores each
  EXPECT_EQ(plan(p).fill_columns, 64);
  p.max_k_tiles = 17;
  EXPECT_EQ(plan(p).fill_blocks, 1);
  p.block_start = 3, p.block_step = 4, p.max_k_tiles = 9;  // 3, 7, 11, 15
  EXPECT_EQ(plan(p).blocks, 4);
  p.block_start = 16;
  EXPECT_EQ(plan(p).blocks, 1);
  ScoreProblem wide = decode(8, 2048);
  wide.max_k_tiles = wide.requests.table_width = 8192;
  EXPECT_EQ(plan(wide).schedule, Schedule::stream);
  ScoreProblem flat = decode(8, 2048);
  flat.k.paged = false, flat.k.count = 8 * 2048 - 1, flat.max_k_tiles = 8192;
  EXPECT_EQ(plan(flat).schedule, Schedule::cells);
  EXPECT_EQ(plan(flat).blocks, 128);
}

// A grid of cells has a part for every request, or there is none.
TEST(CudaPlan, CellsLeaveNoRequestOut) {
  const auto on_many = [](std::int64_t batch) { return plan(decode(batch, 128), kTuning, 1024); };
  EXPECT_EQ(on_many(4096).schedule, Schedule::singles);
  EXPECT_EQ(on_many(4096).cell_batch, 4096);
  EXPECT_EQ(on_many(4097).schedule, Schedule::stream);
}

// Single tokens among long requests have a kernel of their own, however loose the bound on tokens.
TEST(CudaPlan, RaggedBatchesTakeTwoKernels) {
  cuda::DeviceInfo device;
  device.sms = 132;
  ScoreProblem p = decode(2, 8192);
  p.q.tokens = 4097;
  const auto kernels = [&](std::int64_t max_seqlen_q) {
    p.requests.max_seqlen_q = max_seqlen_q;
    return cuda::plan_score(p, kTuning, device).kernels;
  };
  EXPECT_EQ(kernels(2048), 1);
  EXPECT_EQ(kernels(4096), 2);
  EXPECT_EQ(kernels(INT64_MAX), 2);
}

// Too small a bound on tokens leaves -inf, which somebody has to write.
TEST(CudaPlan, NoTokensStillGetAGrid) {
  ScoreProblem p = decode(2, 4096);
  p.requests.max_seqlen_q = 0;
  EXPECT_EQ(plan(p).cell_tiles, 1);
  EXPECT_EQ(plan(p).tile.tokens, 1);
}

// What the page table can address counts, not a loose max_k_tiles.
TEST(CudaPlan, LinesBeyond32BitsAreNotStreamed) {
  ScoreProblem p = decode(128, 131072);
  p.max_k_tiles = std::int64_t{1} << 24;
  EXPECT_EQ(plan(p).schedule, Schedule::stream);
  p.requests.table_width = std::int64_t{1} << 22;
  EXPECT_EQ(plan(p).schedule, Schedule::unaligned);
  p.requests.table_width -= 1;
  EXPECT_EQ(plan(p).schedule, Schedule::stream);
  // One request of 473 tokens beside single ones: of the latter's kernel one may have two tiles.
  p.requests.max_seqlen_q = 512, p.q.tokens = 600;
  cuda::DeviceInfo device;
  device.sms = 132;
  cuda::ScorePlan both = cuda::plan_score(p, kTuning, device);
  ASSERT_EQ(both.kernels, 2);
  EXPECT_EQ(both.kernel[1].schedule, Schedule::unaligned);
  p.requests.table_width = (std::int64_t{1} << 21) - 1;
  both = cuda::plan_score(p, kTuning, device);
  EXPECT_EQ(both.kernel[1].schedule, Schedule::stream);
}

// Cells take a block's first key as 32 bits.
TEST(CudaPlan, CellsReachNoBlockBeyond32Bits) {
  const auto schedule = [](std::int64_t start, std::int64_t step) {
    ScoreProblem p = decode(1, 8192);
    p.block_start = start, p.block_step = step;
    p.requests.table_width = std::int64_t{1} << 40;
    return plan(p).schedule;
  };
  constexpr std::int64_t reach = 1 << 24;
  EXPECT_EQ(schedule(reach - 65, 1), Schedule::singles);
  EXPECT_EQ(schedule(reach - 64, 1), Schedule::stream);
  EXPECT_EQ(schedule(0, reach / 64 - 1), Schedule::singles);
  EXPECT_EQ(schedule(0, reach / 64), Schedule::stream);
  EXPECT_EQ(schedule(INT64_MAX, 1), Schedule::stream);
  EXPECT_EQ(schedule(0, INT64_MAX), Schedule::stream);
}

}  // namespace
}  // namespace kvscout
