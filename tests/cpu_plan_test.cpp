// How the back end `cpu` cuts work up (cpu/plan.h, cpu/tile_list.h): every result belongs to
// exactly one task, limits hold, and a few plans as they are. And how an instruction set is forced.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cases/build.h"
#include "cpu/kernels.h"
#include "cpu/plan.h"
#include "cpu/tile_list.h"

namespace kvscout::cpu {
namespace {

ScoreProblem shape(std::int64_t tokens, std::int64_t heads, std::int64_t key_heads,
                   std::int64_t columns, Element q = Element::e2m1) {
  ScoreProblem p;
  p.q.type = q;
  p.q.tokens = tokens, p.q.heads = heads;
  p.k.heads = key_heads;
  p.requests.batch = 1, p.requests.max_seqlen_q = tokens;
  p.max_k_tiles = columns;
  return p;
}

TEST(CpuPlan, EveryResultBelongsToOneTask) {
  std::mt19937 random(1);
  const auto between = [&](int a, int b) { return a + static_cast<int>(random() % (b - a + 1u)); };
  for (int trial = 0; trial < 300; ++trial) {
    const int batch = between(1, 4), key_heads = between(1, 3);
    const int group = between(0, 9) ? between(1, 9) : 700;
    std::vector<std::int32_t> cu_q{0}, used;
    for (int b = 0; b < batch; ++b) {
      cu_q.push_back(cu_q.back() + between(0, between(0, 3) ? 20 : 1300));
      used.push_back(between(0, 5000));
    }
    ScoreProblem p = shape(cu_q.back(), group * key_heads, key_heads, between(0, 60),
                           between(0, 1) ? Element::e2m1 : Element::bf16);
    p.reduce = static_cast<Reduce>(between(0, 2));
    p.requests.batch = batch, p.requests.cu_q = cu_q.data(), p.requests.used_k = used.data();
    p.requests.table_width = 64, p.k.paged = true;
    const int threads = between(1, 9);
    const ScorePlan plan = plan_score(p, threads);
    ASSERT_LE(plan.rows(), kMaxRows);
    ASSERT_GE(plan.workers, 1);
    ASSERT_LE(plan.workers, threads);

    std::vector<std::int64_t> memory(static_cast<std::size_t>(batch) + 1);
    const TileList tiles(p, plan.queries, memory.data());
    // (head, token) pairs, and columns, that tasks visit; runs of columns are alike for all tiles.
    std::vector<int> visits(static_cast<std::size_t>(p.q.heads * p.q.tokens));
    for (std::int64_t n = 0; n < tiles.count(); ++n)
      for (std::int64_t task = 0; task < plan.head_tasks; ++task)
        for (int pass = 0; pass < plan.passes; ++pass) {
          Span span;
          Tile t = tiles.tile(n, &span);
          set_heads(p, plan, task, pass, &t);
          ASSERT_GE(t.heads, 1);
          ASSERT_LE(t.rows(), plan.rows());
          ASSERT_EQ(t.head / group, t.kv);
          ASSERT_EQ((t.head + t.heads - 1) / group, t.kv);
          if (p.reduce != Reduce::none) {  // one task a result
            ASSERT_EQ(p.reduce == Reduce::all ? 0 : t.kv, task);
          }
          for (int h = 0; h < t.heads; ++h)
            for (int i = 0; i < t.count; ++i)
              ++visits[static_cast<std::size_t>((t.head + h) * p.q.tokens + span.q_begin + t.first +
                                                i)];
        }
    for (int count : visits) ASSERT_EQ(count, 1);
    ASSERT_GE(plan.runs * plan.columns, p.max_k_tiles);
    ASSERT_TRUE(plan.runs == 0 || (plan.runs - 1) * plan.columns < p.max_k_tiles);
  }
}

std::string printed(const ScorePlan& p) {
  return std::to_string(p.queries) + "x" + std::to_string(p.heads) + ", " +
         std::to_string(p.passes) + " passes, " + std::to_string(p.head_tasks) + " head tasks, " +
         std::to_string(p.runs) + " runs of " + std::to_string(p.columns) + ", " +
         std::to_string(p.workers) + " workers";
}

TEST(CpuPlan, Examples) {
  EXPECT_EQ(printed(plan_score(shape(512, 4, 1, 64), 1)),
            "128x4, 1 passes, 1 head tasks, 2 runs of 32, 1 workers");
  EXPECT_EQ(printed(plan_score(shape(1, 4, 1, 8192), 1)),
            "1x4, 1 passes, 1 head tasks, 64 runs of 128, 1 workers");
  // Short runs keep sixteen threads busy.
  EXPECT_EQ(printed(plan_score(shape(1, 4, 1, 1024), 16)),
            "1x4, 1 passes, 1 head tasks, 64 runs of 16, 16 workers");
  EXPECT_EQ(printed(plan_score(shape(512, 8, 2, 64, Element::bf16), 2)),
            "128x4, 1 passes, 2 head tasks, 2 runs of 32, 2 workers");
  // More heads than rows of a tile, reduced: passes of one task.
  ScoreProblem wide = shape(1, 1200, 1, 8);
  wide.reduce = Reduce::all;
  EXPECT_EQ(printed(plan_score(wide, 1)), "1x512, 3 passes, 1 head tasks, 1 runs of 32, 1 workers");
}

// A plan is a function of bounds, never of lengths: pointers are not followed.
TEST(CpuPlan, IgnoresLengths) {
  ScoreProblem p = shape(300, 8, 2, 100);
  p.requests.batch = 7;
  ASSERT_EQ(p.requests.cu_q, nullptr);
  EXPECT_GE(plan_score(p, 4).workers, 1);
}

TEST(CpuTarget, AnUnknownNameIsOneError) {
  const char* before = std::getenv("KVSCOUT_CPU_TARGET");
  const std::string kept = before ? before : "";
  Options options;
  options.backend = "cpu";
  cases::Problem p = cases::build_score(cases::ScoreSpec());
  setenv("KVSCOUT_CPU_TARGET", "mmx", 1);
  EXPECT_EQ(find_kernels(), nullptr);
  try {
    cases::run_with_workspace(p.args, options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Error::unsupported);
    const std::string text = e.what();
    EXPECT_EQ(text.rfind("msa_proxy_score: KVSCOUT_CPU_TARGET: got 'mmx', expected one of: ", 0),
              0u)
        << text;
  }
  setenv("KVSCOUT_CPU_TARGET", available_kernels().back()->name, 1);
  EXPECT_EQ(find_kernels(), available_kernels().back());
  cases::run_with_workspace(p.args, options);
  if (before)
    setenv("KVSCOUT_CPU_TARGET", kept.c_str(), 1);
  else
    unsetenv("KVSCOUT_CPU_TARGET");
}

}  // namespace
}  // namespace kvscout::cpu
