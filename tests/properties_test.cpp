// Laws that hold for any input, on random problems (RapidCheck), for every host back end:
// permuting requests or pages, poisoned pads and a larger bound change no bit; a request alone
// equals its rows in a batch; more keys never lower a score; a selection is ascending, distinct and
// exact.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "cases/build.h"
#include "cases/oracle.h"
#include "registry.h"

namespace kvscout::cases {
namespace {

// A back end of this machine, by chance.
Options any_backend() {
  std::vector<const char*> names;
  for (const Backend* b : all_backends()) {
    std::string why;
    if (b->device == Device::cpu && b->runs_on(0, &why)) names.push_back(b->name);
  }
  Options options;
  options.backend = *rc::gen::elementOf(names);
  return options;
}

ScoreSpec any_spec(std::int64_t max_requests = 4) {
  ScoreSpec s;
  const auto requests = *rc::gen::inRange<std::int64_t>(1, max_requests + 1);
  s.q_lengths.clear(), s.k_lengths.clear();
  for (std::int64_t b = 0; b < requests; ++b) {
    s.q_lengths.push_back(*rc::gen::inRange(0, 6));
    s.k_lengths.push_back(*rc::gen::inRange(0, 500));
  }
  s.k_heads = *rc::gen::inRange<std::int64_t>(1, 3);
  s.q_heads = s.k_heads * *rc::gen::inRange<std::int64_t>(1, 5);
  s.types = static_cast<Types>(*rc::gen::inRange(0, 3));
  s.causal = *rc::gen::arbitrary<bool>();
  s.reduce = static_cast<Reduce>(*rc::gen::inRange(0, 3));
  s.values = *rc::gen::arbitrary<bool>() ? Values::raw : Values::plain;
  s.seed = *rc::gen::inRange<std::uint64_t>(1, 1000000);
  s.max_k_tiles = 5;
  return s;
}

ScoreFp4Args& fp4(Problem& p) { return std::get<ScoreFp4Args>(p.args); }

std::vector<std::uint32_t> scores(Problem& p, const Options& options) {
  run_with_workspace(p.args, options);
  return written_words(p);
}

std::uint32_t bits(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}

RC_GTEST_PROP(Properties, PagesInAnyOrder, ()) {
  const Options options = any_backend();
  Problem p = build_score(any_spec());
  const auto before = scores(p, options);
  // Swap pages i and j of the pool, and their ids in the table.
  ScoreFp4Args& a = fp4(p);
  const std::int64_t pages = a.k_fp4.size(0), codes = a.k_fp4.stride[0],
                     scale = a.k_scale.stride[0];
  for (int n = 0; n < 4; ++n) {
    const auto i = *rc::gen::inRange<std::int64_t>(0, pages),
               j = *rc::gen::inRange<std::int64_t>(0, pages);
    if (i == j) continue;
    std::swap_ranges(at(a.k_fp4, i), at(a.k_fp4, i) + codes, at(a.k_fp4, j));
    std::swap_ranges(at(a.k_scale, i), at(a.k_scale, i) + scale, at(a.k_scale, j));
    for (std::int64_t b = 0; b < a.page_table.size(0); ++b)
      for (std::int64_t c = 0; c < a.page_table.size(1); ++c) {
        auto& id = element<std::int32_t>(a.page_table, b, c);
        if (id == i || id == j) id = static_cast<std::int32_t>(i + j - id);
      }
  }
  RC_ASSERT(scores(p, options) == before);
}

// Requests read their own rows of the table; swapping two whole requests swaps their rows of the
// result.
RC_GTEST_PROP(Properties, RequestsInAnyOrder, ()) {
  const Options options = any_backend();
  ScoreSpec s = any_spec(2);
  s.q_lengths = {s.q_lengths[0], s.q_lengths[0]};  // equal, so that rows keep their places
  s.k_lengths = {s.k_lengths[0], *rc::gen::inRange(0, 500)};
  Problem p = build_score(s);
  scores(p, options);
  ScoreFp4Args& a = fp4(p);
  std::vector<float> first;
  const std::int64_t rows = s.q_lengths[0];
  const auto each = [&](const std::function<void(float&, std::int64_t)>& f) {
    for (std::int64_t h = 0; h < a.output.size(0); ++h)
      for (std::int64_t n = 0; n < a.output.size(1); ++n)
        for (std::int64_t t = 0; t < 2 * rows; ++t) f(element<float>(a.output, h, n, t), t);
  };
  each([&](float& x, std::int64_t) { first.push_back(x); });
  // The same queries and keys, the other way round.
  std::swap(element<std::int32_t>(a.seqused_k, 0), element<std::int32_t>(a.seqused_k, 1));
  for (std::int64_t c = 0; c < a.page_table.size(1); ++c) {
    std::swap(element<std::int32_t>(a.page_table, 0, c), element<std::int32_t>(a.page_table, 1, c));
  }
  const std::int64_t row_bytes_q = a.q_fp4.size(2) * bytes_of(a.q_fp4.dtype);
  for (std::int64_t t = 0; t < rows; ++t)
    for (std::int64_t h = 0; h < s.q_heads; ++h) {
      std::swap_ranges(at(a.q_fp4, t, h), at(a.q_fp4, t, h) + row_bytes_q,
                       at(a.q_fp4, t + rows, h));
      for (int g = 0; a.q_scale.defined && g < 8; ++g) {
        std::swap(*at(a.q_scale, scale_place(t * s.q_heads + h, g)),
                  *at(a.q_scale, scale_place((t + rows) * s.q_heads + h, g)));
      }
    }
  scores(p, options);
  std::size_t i = 0;
  each([&](float& x, std::int64_t t) {
    const std::size_t other =
        t < rows ? i + static_cast<std::size_t>(rows) : i - static_cast<std::size_t>(rows);
    RC_ASSERT(bits(x) == bits(first[other]));
    ++i;
  });
}

RC_GTEST_PROP(Properties, ARequestAloneEqualsItsRowsInABatch, ()) {
  const Options options = any_backend();
  Problem p = build_score(any_spec());
  ScoreFp4Args& a = fp4(p);
  scores(p, options);
  const std::int64_t batch = a.seqused_k.size(0);
  const auto b = *rc::gen::inRange<std::int64_t>(0, batch);
  ScoreFp4Args alone = a;
  alone.cu_seqlens_q.data = at(a.cu_seqlens_q, b);
  alone.cu_seqlens_q.shape[0] = 2;
  alone.seqused_k.data = at(a.seqused_k, b);
  alone.seqused_k.shape[0] = 1;
  alone.page_table.data = at(a.page_table, b);
  alone.page_table.shape[0] = 1;
  Problem q;
  alone.output = Tensor(q.add_output(4 * a.output.count()), DType::f32,
                        {a.output.size(0), a.output.size(1), a.output.size(2)});
  q.args = alone;
  scores(q, options);
  const std::int32_t first = element<std::int32_t>(alone.cu_seqlens_q, 0),
                     last = element<std::int32_t>(alone.cu_seqlens_q, 1);
  for (std::int64_t h = 0; h < a.output.size(0); ++h)
    for (std::int64_t n = 0; n < a.output.size(1); ++n)
      for (std::int32_t t = first; t < last; ++t) {
        RC_ASSERT(bits(element<float>(alone.output, h, n, t)) ==
                  bits(element<float>(a.output, h, n, t)));
      }
}

RC_GTEST_PROP(Properties, PadsAndBoundsChangeNothing, ()) {
  const Options options = any_backend();
  ScoreSpec s = any_spec();
  Problem p = build_score(s);  // pads hold poison
  const auto poisoned = scores(p, options);
  ScoreFp4Args& a = fp4(p);
  // Every slot that no request owns becomes zero: the same bits.
  std::vector<std::int64_t> used(static_cast<std::size_t>(a.k_fp4.size(0)), 0);
  for (std::int64_t b = 0; b < a.seqused_k.size(0); ++b)
    for (std::int64_t c = 0, n = element<std::int32_t>(a.seqused_k, b); n > 0; ++c, n -= 128) {
      used[static_cast<std::size_t>(element<std::int32_t>(a.page_table, b, c))] =
          std::min<std::int64_t>(n, 128);
    }
  for (std::int64_t page = 0; page < a.k_fp4.size(0); ++page)
    for (std::int64_t h = 0; h < s.k_heads; ++h)
      for (std::int64_t slot = used[static_cast<std::size_t>(page)]; slot < 128; ++slot) {
        std::memset(at(a.k_fp4, page, h, slot), 0, 64);
        for (int g = 0; g < 8; ++g) *at(a.k_scale, page, h * 1024 + scale_place(slot, g)) = 0;
      }
  a.max_seqlen_q += *rc::gen::inRange(0, 100);
  RC_ASSERT(scores(p, options) == poisoned);
}

RC_GTEST_PROP(Properties, MoreKeysNeverLowerAScore, ()) {
  const Options options = any_backend();
  ScoreSpec s = any_spec();
  s.paged = true, s.causal = false;
  for (auto& k : s.k_lengths) k = 400;
  Problem p = build_score(s);
  ScoreFp4Args& a = fp4(p);
  std::vector<std::int32_t> lengths;
  for (std::size_t b = 0; b < s.k_lengths.size(); ++b) lengths.push_back(*rc::gen::inRange(0, 400));
  std::copy(lengths.begin(), lengths.end(), static_cast<std::int32_t*>(a.seqused_k.data));
  const auto fewer = scores(p, options);
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    element<std::int32_t>(a.seqused_k, static_cast<std::int64_t>(b)) +=
        *rc::gen::inRange(0, 401 - lengths[b]);
  }
  const auto more = scores(p, options);
  for (std::size_t i = 0; i < fewer.size(); ++i) {
    float x, y;
    std::memcpy(&x, &fewer[i], 4);
    std::memcpy(&y, &more[i], 4);
    RC_ASSERT(y >= x);
  }
}

RC_GTEST_PROP(Properties, SelectionIsAscendingDistinctAndExact, ()) {
  const Options options = any_backend();
  SelectSpec s;
  s.heads = *rc::gen::inRange(1, 4);
  s.tiles = *rc::gen::inRange(0, 700);
  s.tokens = *rc::gen::inRange(1, 5);
  s.topk = *rc::gen::inRange(1, 65);
  s.force_begin = *rc::gen::inRange(0, s.topk + 1);
  s.force_end = *rc::gen::inRange(0, s.topk - s.force_begin + 1);
  s.skip_masked = *rc::gen::arbitrary<bool>();
  s.valid = static_cast<Offset>(*rc::gen::inRange(0, 3));
  s.valid_number = *rc::gen::inRange(-2, 800);
  s.scores = static_cast<SelectSpec::Scores>(*rc::gen::inRange(0, 6));
  s.seed = *rc::gen::inRange<std::uint64_t>(1, 1000000);
  Problem p = build_select(s);
  const auto words = scores(p, options);
  const auto& a = std::get<SelectArgs>(p.args);
  for (std::size_t row = 0; row < words.size(); row += static_cast<std::size_t>(s.topk)) {
    std::int32_t last = -1;
    bool ended = false;
    for (int r = 0; r < s.topk; ++r) {
      const auto id = static_cast<std::int32_t>(words[row + static_cast<std::size_t>(r)]);
      RC_ASSERT(id >= -1 && id < s.tiles);
      RC_ASSERT(id == -1 || (!ended && id > last));
      ended = id == -1;
      last = id;
    }
  }
  const auto exact = select_answer(a);
  RC_ASSERT(std::equal(
      exact.begin(), exact.end(), words.begin(), words.end(),
      [](std::int32_t x, std::uint32_t y) { return x == static_cast<std::int32_t>(y); }));
}

// The same row alone and in a batch of 65, a hundred runs: one rule, equal bits.
TEST(Properties, TiesDoNotDependOnTheBatch) {
  for (const Backend* b : all_backends()) {
    std::string why;
    if (b->device != Device::cpu || !b->runs_on(0, &why)) continue;
    SCOPED_TRACE(b->name);
    Options options;
    options.backend = b->name;
    SelectSpec s;
    s.tiles = 900, s.tokens = 65, s.scores = SelectSpec::ties;
    Problem p = build_select(s);
    auto& a = std::get<SelectArgs>(p.args);
    for (std::int64_t t = 1; t < 65; ++t)  // every token is token 0
      for (std::int64_t n = 0; n < 900; ++n)
        element<float>(a.max_score, 0, n, t) = element<float>(a.max_score, 0, n, 0);
    SelectArgs alone = a;
    alone.max_score.shape[2] = 1;
    std::vector<std::int32_t> one(16);
    alone.output = Tensor(one.data(), DType::i32, {1, 1, 16});
    msa_topk_select(alone, options);
    for (int run_number = 0; run_number < 100; ++run_number) {
      msa_topk_select(a, options);
      for (std::int64_t t = 0; t < 65; ++t) {
        ASSERT_TRUE(std::equal(one.begin(), one.end(), &element<std::int32_t>(a.output, t, 0)));
      }
    }
  }
}

}  // namespace
}  // namespace kvscout::cases
