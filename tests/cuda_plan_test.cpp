// Which schedule a short score call on an H200 gets.
#include <gtest/gtest.h>

#include "cuda/plan.h"

namespace kvscout {
namespace {

using cuda::Schedule;

ScoreProblem decode(std::int64_t batch, std::int64_t keys) {
  ScoreProblem p;
  p.q.heads = 4, p.k.heads = 1;
  p.q.tokens = batch, p.requests.batch = batch, p.requests.max_seqlen_q = 1;
  p.q.head_stride = 64, p.q.token_stride = 256;
  p.k.paged = true, p.k.token_stride = 64, p.k.head_stride = 8192, p.k.page_stride = 8192;
  p.k.scale_page_stride = 1024, p.max_k_tiles = (keys + 127) / 128;
  p.k.count = batch * p.max_k_tiles;
  p.out.token_stride = 1, p.out.tile_stride = batch, p.out.head_stride = batch * p.max_k_tiles;
  return p;
}

cuda::ScoreKernel plan(const ScoreProblem& p) {
  cuda::DeviceInfo device;
  device.sms = 132;
  return cuda::plan_score(p, {.has_warpgroup = true, .overlaps = true}, device).kernel[0];
}

TEST(CudaPlan, FewBlocksGetABlockOfThreadsEach) {
  const cuda::ScoreKernel k = plan(decode(8, 8192));
  EXPECT_EQ(k.schedule, Schedule::cells);
  EXPECT_EQ(k.blocks, 64);
  EXPECT_EQ(k.cell_batch, 8);
  EXPECT_EQ(plan(decode(64, 131072)).schedule, Schedule::stream);
}

// Too small a bound on tokens leaves -inf, which somebody has to write.
TEST(CudaPlan, NoTokensStillGetAGrid) {
  ScoreProblem p = decode(2, 4096);
  p.requests.max_seqlen_q = 0;
  EXPECT_EQ(plan(p).cell_tiles, 1);
  EXPECT_EQ(plan(p).tile.tokens, 1);
}

// Cells take a block's first key as 32 bits.
TEST(CudaPlan, CellsReachNoBlockBeyond32Bits) {
  const auto schedule = [](std::int64_t start, std::int64_t step) {
    ScoreProblem p = decode(1, 8192);
    p.block_start = start, p.block_step = step;
    return plan(p).schedule;
  };
  constexpr std::int64_t reach = 1 << 24;
  EXPECT_EQ(schedule(reach - 65, 1), Schedule::cells);
  EXPECT_EQ(schedule(reach - 64, 1), Schedule::stream);
  EXPECT_EQ(schedule(0, reach / 64 - 1), Schedule::cells);
  EXPECT_EQ(schedule(0, reach / 64), Schedule::stream);
  EXPECT_EQ(schedule(INT64_MAX, 1), Schedule::stream);
  EXPECT_EQ(schedule(0, INT64_MAX), Schedule::stream);
}

}  // namespace
}  // namespace kvscout
