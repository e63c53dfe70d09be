// Which keys a query sees (span.h) and the bounds of a call, against loops over single keys.
#include "span.h"

#include <gtest/gtest.h>

#include "cases/build.h"
#include "cases/oracle.h"

namespace kvscout {
namespace {

TEST(Span, SeesWhatTheFormulaSays) {
  for (std::int32_t q : {0, 1, 3, 130})
    for (std::int32_t k : {0, 1, 2, 127, 128, 129, 300})
      for (std::int64_t offset : {-200, -1, 0, 1, 127, 128, 400}) {
        const std::int32_t cu_q[] = {2, 2 + q}, cu_k[] = {5, 5 + k};
        Requests r;
        r.batch = 1, r.cu_q = cu_q, r.cu_k = cu_k;
        r.has_offset = true, r.offset = offset;
        r.max_seqlen_q = 1000;
        const Span s = span_of(r, 2 + q, false, 5 + k, 0);
        ASSERT_EQ(s.q_begin, 2);
        ASSERT_EQ(s.q_count, q);
        ASSERT_EQ(s.k_begin, 5);
        ASSERT_EQ(s.k_count, k);
        for (std::int64_t i = 0; i < q; ++i) {
          std::int64_t causal = 0;
          for (std::int64_t j = 0; j < k; ++j) causal += j <= i + offset;
          ASSERT_EQ(s.limit(i, true), causal);
          ASSERT_EQ(s.limit(i, false), k);
        }
      }
}

TEST(Span, DefaultOffsetComesFromTheLengthBeforeTheClamp) {
  const std::int32_t cu_q[] = {0, 4}, used[] = {1000}, table[4] = {};
  Requests r;
  r.batch = 1, r.cu_q = cu_q, r.used_k = used, r.page_table = table;
  r.table_width = 4, r.table_row_stride = 4, r.table_column_stride = 1;
  r.max_seqlen_q = 4;
  const Span s = span_of(r, 4, true, 0, 0);
  EXPECT_EQ(s.k_count, 512);
  EXPECT_EQ(s.offset, 996);
  EXPECT_EQ(s.limit(0, true), 512);
}

TEST(Span, NeverLeavesTheData) {
  cases::Random random(3);
  for (int round = 0; round < 20000; ++round) {
    std::int32_t cu_q[2], cu_k[2], used[1];
    for (std::int32_t* p : {&cu_q[0], &cu_q[1], &cu_k[0], &cu_k[1], &used[0]}) {
      *p = random.one_in(4) ? static_cast<std::int32_t>(random.next())
                            : static_cast<std::int32_t>(random.between(-20, 60));
    }
    Requests r;
    r.batch = 1, r.cu_q = cu_q, r.cu_k = cu_k, r.used_k = used, r.table_width = random.below(3);
    r.max_seqlen_q = random.below(20);
    const bool paged = random.one_in(2);
    const std::int64_t q_tokens = random.below(30), k_tokens = random.below(40);
    const Span s = span_of(r, q_tokens, paged, k_tokens, 0);
    ASSERT_GE(s.q_begin, 0);
    ASSERT_GE(s.q_count, 0);
    ASSERT_LE(s.q_begin + s.q_count, q_tokens);
    ASSERT_LE(s.q_count, r.max_seqlen_q);
    ASSERT_GE(s.k_begin, 0);
    ASSERT_GE(s.k_count, 0);
    ASSERT_LE(s.k_begin + s.k_count, paged ? r.table_width * 128 : k_tokens);
    for (std::int64_t i : {std::int64_t{0}, std::int64_t{7}}) {
      ASSERT_GE(s.limit(i, true), 0);
      ASSERT_LE(s.limit(i, true), s.k_count);
    }
  }
}

TEST(Span, ColumnsOfABlockSubset) {
  for (std::int64_t limit = 0; limit < 1300; limit += 13)
    for (std::int64_t start : {0, 1, 3, 20})
      for (std::int64_t step : {1, 2, 5})
        for (std::int64_t tiles : {0, 1, 4, 100}) {
          std::int64_t n = 0;
          while (n < tiles && 128 * (start + n * step) < limit) ++n;
          ASSERT_EQ(columns_below(limit, start, step, tiles), n);
        }
}

TEST(Bounds, AreWhatTheCasesNeed) {
  cases::ScoreSpec s;
  s.q_lengths = {2, 0, 130, 1};
  s.k_lengths = {128, 4000, 0, 129};
  for (bool paged : {false, true})
    for (std::int64_t step : {1, 2, 3}) {
      s.paged = paged, s.block_step = step, s.block_start = step - 1;
      cases::Problem p = cases::build_score(s);
      const auto& a = std::get<ScoreFp4Args>(p.args);
      const Bounds b = bounds_of(a);
      EXPECT_EQ(b.max_seqlen_q, 130);
      EXPECT_EQ(b.max_k_tiles, a.max_k_tiles);
    }
}

TEST(Explain, NamesTheBackEnd) {
  cases::Problem p = cases::build_score({});
  Options options;
  options.backend = "reference";
  const std::string text = explain(std::get<ScoreFp4Args>(p.args), options);
  EXPECT_EQ(text.find("reference: "), 0u) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace kvscout
