// Large and odd but legal: bounds without bounds, strides that are never used, little workspace for
// any shape, offsets beyond 31 bits.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <limits>

#include "cases/build.h"
#include "host_backends.h"

namespace kvscout::cases {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

// The stride of a dimension of one element is never used and may be anything.
TEST(Limits, StridesOfSingleElements) {
  for (const Options& options : host_backends()) {
    SCOPED_TRACE(options.backend);
    ScoreSpec s;
    s.q_heads = s.k_heads = 1;
    Problem p = build_score(s), same = build_score(s);
    auto& a = std::get<ScoreFp4Args>(p.args);
    a.q_fp4.stride[1] = a.k_fp4.stride[1] = a.output.stride[0] = kHuge;
    run_with_workspace(p.args, options);
    run_with_workspace(same.args, options);
    std::get<ScoreFp4Args>(p.args).output.stride[0] = 1;
    EXPECT_EQ(written_words(p), written_words(same));
  }
}

// Columns beyond every key cost nothing: any bound is a legal one.
TEST(Limits, ABoundWithoutBounds) {
  for (const Options& options : host_backends()) {
    SCOPED_TRACE(options.backend);
    IndexSpec s;
    s.score.q_lengths = {3, 1};
    s.score.k_lengths = {4000, 130};
    Problem p = build_index(s), unbounded = build_index(s);
    auto& score = std::get<IndexArgs>(unbounded.args).score;
    score.max_k_tiles = score.max_seqlen_q = kHuge;
    run_with_workspace(p.args, options);
    run_with_workspace(unbounded.args, options);
    EXPECT_EQ(written_words(p), written_words(unbounded));
    EXPECT_GT(msa_proxy_score_fp4_workspace(score, options) + 1, 0u);  // no overflow on the way
  }
}

// Extra memory of the fused call: at most 64 MB, whatever the shape.
TEST(Limits, TheWorkspaceOfIndexIsSmall) {
  std::vector<std::int32_t> cu_q, used(1000, 1 << 20);
  float anything = 0;  // sizes and addresses are looked at, nothing is read
  for (const Options& options : host_backends())
    for (std::int64_t batch : {1, 7, 1000})
      for (std::int64_t tokens : {1000, 1000000})
        for (std::int64_t heads : {1, 64})
          for (std::int64_t key_heads : {std::int64_t{1}, heads})
            for (Reduce reduce : {Reduce::none, Reduce::all, Reduce::kv_group}) {
              cu_q.clear();
              for (std::int64_t b = 0; b <= batch; ++b)
                cu_q.push_back(static_cast<std::int32_t>(tokens * b / batch));
              const auto bytes = [&](std::int64_t rows) { return (rows + 127) / 128 * 1024; };
              IndexArgs a;
              a.topk = 64;
              a.score.q_fp4 = Tensor(&anything, DType::u8, {tokens, heads, 64});
              a.score.q_scale = Tensor(&anything, DType::u8, {bytes(tokens * heads)});
              a.score.k_fp4 = Tensor(&anything, DType::u8, {100, key_heads, 128, 64});
              a.score.k_scale = Tensor(&anything, DType::u8, {100, key_heads * 1024});
              a.score.cu_seqlens_q = Tensor(cu_q.data(), DType::i32, {batch + 1});
              a.score.seqused_k = Tensor(used.data(), DType::i32, {batch});
              a.score.page_table = Tensor(&anything, DType::i32, {batch, 1 << 13});
              a.score.max_seqlen_q = tokens;
              a.score.max_k_tiles = 1 << 13;
              a.score.reduce_heads = reduce;
              EXPECT_LE(msa_index_select_fp4_workspace(a, options), std::size_t{64} << 20)
                  << batch << " " << tokens << " " << heads << " " << key_heads;
            }
}

// Columns of a page table may lie in different mappings: checked mode looks at nothing between
// them.
TEST(Limits, CheckedModeReadsOnlyThePageTable) {
  constexpr std::int64_t kHole = 1 << 16, kStride = 2 * kHole / 4;
  void* memory =
      mmap(nullptr, 3 * kHole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<std::uint8_t*>(memory) + kHole, kHole, PROT_NONE), 0);
  auto* ids = static_cast<std::int32_t*>(memory);
  ScoreSpec s;
  s.q_lengths = {1};
  s.k_lengths = {256};
  Problem p = build_score(s), same = build_score(s);
  auto& a = std::get<ScoreFp4Args>(p.args);
  for (std::int64_t c = 0; c < 2; ++c) ids[c * kStride] = element<std::int32_t>(a.page_table, 0, c);
  a.page_table = Tensor(ids, DType::i32, {1, 2}).strided({kStride, kStride});
  Options checked;
  checked.check = true;
  run_with_workspace(p.args, checked);
  run_with_workspace(same.args, checked);
  EXPECT_EQ(written_words(p), written_words(same));
  ids[kStride] = -1;
  EXPECT_THROW(run_with_workspace(p.args, checked), Error);
  munmap(memory, 3 * kHole);
}

// Address space without memory behind it until it is touched.
class Sparse {
 public:
  explicit Sparse(std::size_t bytes) : bytes_(bytes) {
    at_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
               -1, 0);
  }
  ~Sparse() {
    if (at_ != MAP_FAILED) munmap(at_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  std::uint8_t* get() const {
    return at_ == MAP_FAILED ? nullptr : static_cast<std::uint8_t*>(at_);
  }

 private:
  std::size_t bytes_;
  void* at_;
};

// Pages beyond 2^31 bytes, scores beyond 2^31 elements: append, score, select and index in a huge
// pool give what they give in a small one.
TEST(Limits, OffsetsBeyond31Bits) {
  constexpr std::int64_t kPages = 300000, kPage = 9216, kHeadStride = (std::int64_t{1} << 31) + 64;
  const Sparse pool(kPages * kPage), memory(static_cast<std::size_t>(kHeadStride + 4096) * 4);
  if (!pool.get() || !memory.get()) GTEST_SKIP() << "not run: no address space for 12 GB";

  Random random(5);
  std::vector<float> keys(200 * 128);
  for (float& x : keys) x = static_cast<float>(random.normal());
  std::vector<std::uint8_t> small(2 * kPage, 0xFF), q(4 * 64), q_scale(1024, 0x38);
  for (std::uint8_t& byte : q) byte = static_cast<std::uint8_t>(random.next());
  const std::int32_t cu_q[] = {0, 2}, used[] = {200}, far[] = {kPages - 1, kPages - 2},
                     near[] = {1, 0};

  for (const Options& options : host_backends()) {
    SCOPED_TRACE(options.backend);
    std::vector<std::vector<float>> scores;
    std::vector<std::vector<std::int32_t>> ids;
    for (const bool huge : {true, false}) {
      std::uint8_t* base = huge ? pool.get() : small.data();
      const std::int64_t pages = huge ? kPages : 2;
      const std::int32_t* table = huge ? far : near;
      std::vector<std::int64_t> slots;
      for (std::int64_t j = 0; j < 200; ++j)
        slots.push_back(table[j / 128] * std::int64_t{128} + j % 128);
      const Tensor codes =
          Tensor(base, DType::u8, {pages, 1, 128, 64}).strided({kPage, 8192, 64, 1});
      const Tensor scales = Tensor(base + 8192, DType::u8, {pages, 1024}).strided({kPage, 1});
      msa_index_append_fp4({.k = Tensor(keys.data(), DType::f32, {200, 1, 128}),
                            .k_cache_fp4 = codes,
                            .k_cache_scale = scales,
                            .slot_mapping = Tensor(slots.data(), DType::i64, {200}),
                            .global_scale = {448.0f}},
                           options);

      std::vector<float> compact(2 * 3 * 2, -1);
      ScoreFp4Args a;
      a.q_fp4 = Tensor(q.data(), DType::u8, {2, 2, 64});
      a.q_scale = Tensor(q_scale.data(), DType::u8, {1024});
      a.k_fp4 = codes, a.k_scale = scales;
      a.cu_seqlens_q = Tensor(cu_q, DType::i32, {2});
      a.seqused_k = Tensor(used, DType::i32, {1});
      a.page_table = Tensor(table, DType::i32, {1, 2});
      a.max_seqlen_q = 2, a.max_k_tiles = 3;
      a.output =
          Tensor(huge ? static_cast<void*>(memory.get()) : compact.data(), DType::f32, {2, 3, 2})
              .strided({huge ? kHeadStride : 6, 2, 1});
      run_with_workspace(a, options);
      std::vector<float> got;
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t n = 0; n < 3; ++n)
          for (std::int64_t t = 0; t < 2; ++t) got.push_back(element<float>(a.output, h, n, t));
      scores.push_back(got);

      std::vector<std::int32_t> chosen(2 * 2 * 2 * 2, -7);
      msa_topk_select({.max_score = a.output,
                       .topk = 2,
                       .output = Tensor(chosen.data(), DType::i32, {2, 2, 2})},
                      options);
      IndexArgs index;
      index.score = a, index.topk = 2;
      index.output = Tensor(&chosen[8], DType::i32, {2, 2, 2});
      run_with_workspace(index, options);
      ids.push_back(chosen);
    }
    EXPECT_GT(scores[1][0], 0.0f);
    EXPECT_EQ(scores[0], scores[1]);
    EXPECT_EQ(ids[0], ids[1]);
  }
}

}  // namespace
}  // namespace kvscout::cases
