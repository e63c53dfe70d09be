// What nobody should send and somebody will: sizes and strides at the end of 64 bits, views that
// repeat memory, lengths that make no sense.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>

#include "cases/build.h"
#include "cases/check.h"
#include "host_backends.h"

namespace kvscout::cases {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

template <class A>
void expect_refused(Problem p, const std::function<void(A&)>& edit,
                    std::vector<std::string> parts) {
  edit(std::get<A>(p.args));
  parts.push_back(operation_of(p.args));
  try {
    run(p.args);
    ADD_FAILURE() << "accepted: " << testing::PrintToString(parts);
  } catch (const Error& e) {
    EXPECT_EQ(wrong_message(e.what(), parts), "");
  }
}

// ---- sizes and strides -------------------------------------------------------------------------

TEST(Hostile, SizesThatOverflow) {
  using S = ScoreFp4Args;
  const auto score = [](const std::function<void(S&)>& edit, const std::string& name) {
    expect_refused<S>(build_score({}), edit, {name, "2^48"});
  };
  // 2^61 tokens of 8 heads: a product that wraps to 0 would need no scales.
  score([](S& a) { a.q_fp4.shape = {std::int64_t{1} << 61, 8, 64}; }, "q_fp4");
  score([](S& a) { a.k_fp4.shape[0] = kHuge; }, "k_fp4");
  score([](S& a) { a.k_fp4.shape[0] = 2, a.k_fp4.stride[0] = kHuge; }, "k_fp4");
  score([](S& a) { a.k_fp4.stride[2] = std::numeric_limits<std::int64_t>::min(); }, "k_fp4");
  score([](S& a) { a.page_table.shape[1] = kHuge; }, "page_table");
  score([](S& a) { a.output.shape[1] = kHuge; }, "output");
  score([](S& a) { a.output.stride[0] = kHuge / 2; }, "output");
  expect_refused<S>(build_score({}), [](S& a) { a.q_fp4.rank = 5; },
                    {"q_fp4", "5 dim", "at most 4"});
  expect_refused<S>(build_score({}), [](S& a) { a.q_scale.rank = -1; }, {"q_scale", "-1"});
  using Q = QuantizeArgs;
  expect_refused<Q>(build_quantize({}), [](Q& a) { a.a.shape[0] = kHuge; }, {"a:", "2^48"});
  expect_refused<Q>(build_quantize({}), [](Q& a) { a.a.shape[0] = -128; }, {"a:", "at least 0"});
  expect_refused<Q>(build_quantize({}),
                    [](Q& a) {
                      a.a = Tensor(a.a.data, a.a.dtype, {2, 2, 2, 16, 128});
                    },
                    {"a: got 5 dimensions", "at most 4"});
  using T = SelectArgs;
  expect_refused<T>(build_select({}), [](T& a) { a.max_score.shape[1] = kHuge; },
                    {"max_score", "2^48"});
}

// ---- memory that repeats -----------------------------------------------------------------------

// (3, 4, 16) over three rows of 16: the leading dimensions are no rows of one stride.
TEST(Hostile, BroadcastRowsAreNotFlattened) {
  using Q = QuantizeArgs;
  QuantizeSpec s;
  s.rows = 12, s.columns = 16;
  const auto broadcast = [](Q& a) {
    a.a = Tensor(a.a.data, a.a.dtype, {3, 4, 16}).strided({16, 0, 1});
  };
  expect_refused<Q>(build_quantize(s), broadcast, {"a:", "(16, 0, 1)", "rows of one stride"});

  // One row everywhere is a legal view.
  Problem p = build_quantize(s);
  auto& a = std::get<Q>(p.args);
  a.a = Tensor(a.a.data, a.a.dtype, {3, 4, 16}).strided({0, 0, 1});
  run_with_workspace(p.args);
  for (std::int64_t row = 1; row < 12; ++row)
    EXPECT_TRUE(std::equal(at(a.codes), at(a.codes) + 8, at(a.codes) + 8 * row)) << row;
}

TEST(Hostile, PagesOfScalesThatOverlap) {
  using A = AppendArgs;
  AppendSpec s;
  s.strides = Strides::interleaved;
  for (std::int64_t stride : {0, 1, 1023}) {
    expect_refused<A>(build_append(s), [=](A& a) { a.k_cache_scale.stride[0] = stride; },
                      {"k_cache_scale", "one address"});
  }
  expect_refused<A>(build_append(s), [](A& a) { a.k_cache_scale.shape[1] = 2048; },
                    {"k_cache_scale", "(4, 2048)", "(4, 1024)", "page stride"});
}

// An output is refused exactly if two of its elements share an address.
TEST(Hostile, OverlapIsExact) {
  Random random(11);
  int refused = 0, accepted = 0;
  std::vector<std::int32_t> memory(512);
  for (int round = 0; round < 4000; ++round) {
    const std::int64_t sizes[] = {random.between(1, 4), random.between(1, 4), random.between(1, 4)};
    const std::int64_t steps[] = {random.between(-20, 20), random.between(-20, 20),
                                  random.between(-20, 20)};
    std::set<std::int64_t> addresses;
    for (std::int64_t i = 0; i < sizes[0]; ++i)
      for (std::int64_t j = 0; j < sizes[1]; ++j)
        for (std::int64_t k = 0; k < sizes[2]; ++k)
          addresses.insert(i * steps[0] + j * steps[1] + k * steps[2]);
    const bool distinct =
        addresses.size() == static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2]);
    SelectArgs a;
    const float score = 0;
    a.max_score = Tensor(&score, DType::f32, {sizes[1], 1, sizes[0]}).strided({0, 0, 0});
    a.topk = static_cast<int>(sizes[2]);
    a.output = Tensor(&memory[256], DType::i32, {sizes[0], sizes[1], sizes[2]})
                   .strided({steps[0], steps[1], steps[2]});
    try {
      msa_topk_select(a);
      EXPECT_TRUE(distinct) << testing::PrintToString(a.output.shape) << " "
                            << testing::PrintToString(a.output.stride);
      ++accepted;
    } catch (const Error& e) {
      EXPECT_FALSE(distinct) << e.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(accepted, 500);
}

// ---- lengths -----------------------------------------------------------------------------------

// Requests that overlap make more tiles than there are rows; a request behind them is answered.
TEST(Hostile, RowsBehindOverlappingRequestsAreAnswered) {
  for (const Options& options : host_backends()) {
    SCOPED_TRACE(options.backend);
    IndexSpec s;
    s.score.q_lengths = {1, 1};
    s.score.k_lengths = {300, 200};
    s.score.max_k_tiles = 200;  // wide enough to be split
    Problem sane = build_index(s), p = build_index(s);
    auto& score = std::get<IndexArgs>(p.args).score;
    const std::int64_t width = score.page_table.size(1);
    std::vector<std::int32_t> table;
    for (int b : {0, 0, 0, 0, 0, 1})
      for (std::int64_t c = 0; c < width; ++c)
        table.push_back(element<std::int32_t>(score.page_table, b, c));
    score.page_table = Tensor(p.add_i32(table).data, DType::i32, {6, width});
    score.seqused_k = p.add_i32({300, 300, 300, 300, 300, 200});
    score.cu_seqlens_q = p.add_i32({0, 1, 0, 1, 0, 1, 2});
    run_with_workspace(sane.args, options);
    run_with_workspace(p.args, options);
    EXPECT_EQ(written_words(p), written_words(sane));
  }
}

}  // namespace
}  // namespace kvscout::cases
