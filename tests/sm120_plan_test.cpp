// The plans of the back end sm120, whose GPUs are not at hand: RTX PRO 6000 (188 SMs), RTX 5090
// (170), RTX 5080 (84) and GB10 (48).
#include <gtest/gtest.h>

#include "cuda/sm120/plan.h"

namespace kvscout {
namespace {

using cuda::DeviceInfo;
using cuda::Schedule;
using cuda::ScoreKernel;
using cuda::ScorePlan;
using cuda::TileShape;

DeviceInfo device(int sms, std::int64_t memory_bytes_per_us) {
  DeviceInfo d;
  d.major = 12, d.sms = sms, d.memory_bytes_per_us = memory_bytes_per_us;
  return d;
}

const DeviceInfo kPro6000 = device(188, 1792000), kRtx5090 = device(170, 1792000),
                 kRtx5080 = device(84, 960000), kGb10 = device(48, 273000);
const DeviceInfo kAll[] = {kPro6000, kRtx5090, kRtx5080, kGb10};

ScoreProblem problem(std::int64_t batch, std::int64_t tokens, std::int64_t group, std::int64_t keys,
                     std::int64_t k_heads = 1) {
  ScoreProblem p;
  p.q.heads = group * k_heads, p.k.heads = k_heads;
  p.q.tokens = batch * tokens, p.requests.batch = batch, p.requests.max_seqlen_q = tokens;
  p.q.head_stride = 64, p.q.token_stride = 64 * p.q.heads;
  p.k.paged = true, p.k.token_stride = 64, p.k.head_stride = 8192;
  p.k.page_stride = 8192 * k_heads, p.k.scale_page_stride = 1024 * k_heads;
  p.k.count = p.requests.batch * ((keys + 127) / 128);
  p.max_k_tiles = p.requests.table_width = (keys + 127) / 128;
  p.out.token_stride = 1, p.out.tile_stride = p.q.tokens;
  p.out.head_stride = p.q.tokens * p.max_k_tiles;
  return p;
}

TEST(Sm120Plan, KeepsEnoughBytesUnderWay) {
  EXPECT_EQ(sm120::blocks_per_sm(kPro6000), 2);
  EXPECT_EQ(sm120::blocks_per_sm(kRtx5090), 2);
  EXPECT_EQ(sm120::blocks_per_sm(kRtx5080), 2);
  EXPECT_EQ(sm120::blocks_per_sm(kGb10), 1);
  EXPECT_EQ(sm120::blocks_per_sm(device(188, 0)), 2);  // the driver does not say
  for (const DeviceInfo& d : kAll) {
    const ScorePlan plan = sm120::plan_score(problem(64, 1, 8, 131072), d);
    ASSERT_EQ(plan.kernels, 1);
    const ScoreKernel& k = plan.kernel[0];
    EXPECT_EQ(k.schedule, Schedule::stream);
    EXPECT_EQ(k.tile.rows, 8);
    EXPECT_EQ(k.blocks, d.sms * sm120::blocks_per_sm(d));
    // 9 loads of 512 bytes a warp against 700 ns of the whole bandwidth, with room.
    EXPECT_GE(std::int64_t{k.blocks} * (k.threads / 32) * 9 * 512,
              4 * d.memory_bytes_per_us * 7 / 10);
  }
}

TEST(Sm120Plan, ShortCallsGetABlockOfThreadsAResult) {
  for (const DeviceInfo& d : kAll) {
    const ScoreKernel k = sm120::plan_score(problem(1, 1, 4, 8192), d).kernel[0];
    EXPECT_EQ(k.schedule, Schedule::cells);
    EXPECT_EQ(k.blocks, 64);
    EXPECT_EQ(k.threads, 64 <= d.sms * 2 ? 256 : 128);
    EXPECT_EQ(sm120::plan_score(problem(64, 1, 4, 131072), d).kernel[0].schedule, Schedule::stream);
  }
}

// Decode is bound by keys: a tile holds all heads of a key head and no more than 8, 16 or 32 rows.
TEST(Sm120Plan, RowsAreNotPadded) {
  const auto rows = [](std::int64_t tokens, std::int64_t group) {
    return sm120::plan_score(problem(64, tokens, group, 131072), kRtx5090).kernel[0].tile.rows;
  };
  EXPECT_EQ(rows(1, 1), 8);
  EXPECT_EQ(rows(1, 8), 8);
  EXPECT_EQ(rows(2, 4), 8);
  EXPECT_EQ(rows(4, 4), 16);
  EXPECT_EQ(rows(8, 4), 32);
  EXPECT_EQ(rows(1, 9), 16);
  EXPECT_EQ(rows(1, 32), 32);
  EXPECT_EQ(rows(1, 33), 64);
  EXPECT_EQ(rows(16, 4), 64);
  EXPECT_EQ(rows(17, 4), 128);
  EXPECT_EQ(rows(4096, 4), 512);
}

TEST(Sm120Plan, EveryRowHasOnePlace) {
  for (const DeviceInfo& d : kAll)
    for (const std::int64_t group : {1, 2, 3, 4, 5, 8, 12, 16, 31, 33, 48, 64, 65, 100, 130})
      for (const std::int64_t tokens : {1, 2, 5, 8, 9, 16, 33, 100, 513, 5000})
        for (const std::int64_t k_heads : {1, 3})
          for (const Reduce reduce : {Reduce::none, Reduce::kv_group, Reduce::all}) {
            ScoreProblem p = problem(3, tokens, group, 70000, k_heads);
            p.reduce = reduce;
            const ScorePlan plan = sm120::plan_score(p, d);
            ASSERT_GE(plan.kernels, 1);
            for (int i = 0; i < plan.kernels; ++i) {
              const ScoreKernel& k = plan.kernel[i];
              const TileShape& t = k.tile;
              const bool parts = k.schedule == Schedule::row_parts;
              ASSERT_NE(k.schedule, Schedule::rows_in_shared);
              ASSERT_NE(k.schedule, Schedule::warpgroup);
              ASSERT_GE(t.heads * t.chunks, group);
              ASSERT_LT(t.heads * (t.chunks - 1), group);
              ASSERT_EQ(t.units * t.passes, k_heads * t.chunks);
              if (parts) {  // whole parts of 64 rows, one, two, four or eight
                const int n = t.rows / 64;
                ASSERT_TRUE(n == 1 || n == 2 || n == 4 || n == 8) << t.rows;
                ASSERT_EQ(t.tokens % n, 0);
                ASSERT_LE(t.tokens / n * t.heads, 64);
                if (n > 1) {
                  ASSERT_LT(t.tokens / 2, tokens);
                }
              } else {
                ASSERT_LE(t.rows, 32);
                ASSERT_LE(t.tokens * t.heads, t.rows);
              }
            }
          }
}

TEST(Sm120Plan, OtherTypesGoTheWayOf16Bits) {
  ScoreProblem p = problem(64, 1, 4, 131072);
  p.q.type = Element::bf16;
  EXPECT_FALSE(sm120::is_native(p));
  p.requests.max_seqlen_q = 1000, p.q.tokens = 64000;
  EXPECT_EQ(sm120::plan_score(p, kRtx5090).kernel[0].schedule, Schedule::rows_in_shared);
}

// Bytes that no 16-byte load can take: the schedule that loads bytes, for any number of rows.
TEST(Sm120Plan, UnalignedRowsAreLoadedByBytes) {
  ScoreProblem p = problem(2, 1000, 4, 131072);
  p.k.token_stride = 72;
  const ScorePlan plan = sm120::plan_score(p, kRtx5090);
  EXPECT_FALSE(plan.aligned);
  EXPECT_EQ(plan.kernel[0].schedule, Schedule::unaligned);
  EXPECT_EQ(plan.kernel[0].tile.rows, 32);
}

}  // namespace
}  // namespace kvscout
