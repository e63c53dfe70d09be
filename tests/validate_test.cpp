// Bad input gets one clear error before anything is written: operation, argument, what came, what
// was expected.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

#include "cases/build.h"
#include "cases/check.h"

namespace kvscout::cases {
namespace {

using Parts = std::vector<std::string>;

// More workspace than any of these calls asks for, so that none fails for the lack of it.
Options generous() {
  alignas(256) static std::uint8_t memory[1 << 22];
  Options options;
  options.workspace = memory;
  options.workspace_bytes = sizeof memory;
  return options;
}

// The call is refused with every part in a message of one line, and no byte has changed.
void expect_refused(Problem p, const Parts& parts, const Options& options = generous()) {
  const std::vector<Buffer> before = p.buffers;
  Parts all = parts;
  all.push_back(operation_of(p.args));
  try {
    run(p.args, options);
    ADD_FAILURE() << "accepted: " << testing::PrintToString(parts);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Error::invalid_argument) << e.what();
    EXPECT_EQ(wrong_message(e.what(), all), "");
  }
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(p.buffers[i].bytes, before[i].bytes) << "buffer " << i;
}

ScoreSpec small(bool paged) {
  ScoreSpec s;
  s.q_lengths = {2, 3};
  s.k_lengths = {200, 130};
  s.q_heads = 4, s.k_heads = 2;
  s.paged = paged;
  s.seed = 2;  // plain bytes
  return s;
}

template <class A>
void expect_score_refused(const ScoreSpec& s, const std::function<void(Problem&, A&)>& edit,
                          const Parts& parts, const Options& options = generous()) {
  Problem p = build_score(s);
  edit(p, std::get<A>(p.args));
  expect_refused(std::move(p), parts, options);
}
void paged(const std::function<void(Problem&, ScoreFp4Args&)>& edit, const Parts& parts,
           const Options& o = generous()) {
  expect_score_refused<ScoreFp4Args>(small(true), edit, parts, o);
}
void flat(const std::function<void(Problem&, ScoreFp4Args&)>& edit, const Parts& parts,
          const Options& o = generous()) {
  expect_score_refused<ScoreFp4Args>(small(false), edit, parts, o);
}

TEST(Validate, TheLegalOnesAreLegal) {
  for (bool is_paged : {false, true}) {
    Problem p = build_score(small(is_paged));
    EXPECT_NO_THROW(run_with_workspace(p.args));
  }
}

TEST(Validate, DataTensors) {
  using A = ScoreFp4Args;
  paged([](Problem&, A& a) { a.q_fp4 = {}; }, {"q_fp4: got nothing"});
  paged([](Problem&, A& a) { a.k_fp4 = {}; }, {"k_fp4: got nothing"});
  paged([](Problem&, A& a) { a.q_fp4.dtype = DType::f32; }, {"q_fp4", "f32", "u8"});
  paged([](Problem&, A& a) { a.k_fp4.dtype = DType::bf16; }, {"k_fp4", "bf16", "u8"});
  paged([](Problem&, A& a) { a.q_fp4.rank = 2; }, {"q_fp4", "(5, 4)", "query heads"});
  paged([](Problem&, A& a) { a.k_fp4.rank = 3; }, {"k_fp4", "pages"});
  flat([](Problem&, A& a) { a.k_fp4.rank = 4, a.k_fp4.shape[3] = 64; }, {"k_fp4", "page_table"});
  paged([](Problem&, A& a) { a.q_fp4.shape[2] = 63; }, {"q_fp4", "63", "64"});
  paged([](Problem&, A& a) { a.k_fp4.shape[3] = 128; }, {"k_fp4", "128", "64"});
  flat([](Problem&, A& a) { a.k_fp4.shape[2] = 32; }, {"k_fp4", "32", "64"});
  for (std::int64_t tokens : {1, 64, 127, 256}) {
    paged([=](Problem&, A& a) { a.k_fp4.shape[2] = tokens; },
          {"k_fp4", std::to_string(tokens), "128"});
  }
  paged([](Problem&, A& a) { a.q_fp4.shape[1] = 3; }, {"q_fp4", "3 query heads", "2 key heads"});
  paged([](Problem&, A& a) { a.q_fp4.shape[1] = 0; }, {"q_fp4", "0 query heads", "1"});
  paged([](Problem&, A& a) { a.k_fp4.shape[1] = 0; }, {"k_fp4", "0 key heads", "1"});
  paged([](Problem&, A& a) { a.q_fp4.stride[2] = 2; }, {"q_fp4", "stride"});
  flat([](Problem&, A& a) { a.k_fp4.stride[2] = 2; }, {"k_fp4", "stride"});
  paged([](Problem&, A& a) { a.q_fp4.data = nullptr; }, {"q_fp4", "null"});
  paged([](Problem&, A& a) { a.q_fp4.shape[0] = -1; }, {"q_fp4", "-1", "0"});
  paged(
      [](Problem&, A& a) {
        a.k_fp4.device = {Device::cuda, 0};
      },
      {"k_fp4", "CUDA device 0", "the host"});
}

TEST(Validate, Scales) {
  using A = ScoreFp4Args;
  paged([](Problem&, A& a) { a.q_scale = {}; }, {"q_scale: got nothing"});
  paged([](Problem&, A& a) { a.k_scale = {}; }, {"k_scale: got nothing"});
  paged([](Problem&, A& a) { a.q_scale.dtype = DType::f32; }, {"q_scale", "f32", "e4m3"});
  paged([](Problem&, A& a) { a.k_scale.dtype = DType::i32; }, {"k_scale", "i32", "e4m3"});
  paged([](Problem&, A& a) { a.q_scale.shape[0] = 1023; }, {"q_scale", "1023", "1024", "128x4"});
  flat([](Problem&, A& a) { a.k_scale.shape[0] = 330 * 2 * 8; },
       {"k_scale", "5280", "6144"});  // linear
  paged([](Problem&, A& a) { a.k_scale.shape[0] -= 1; }, {"k_scale", "10240", "12288"});
  paged([](Problem&, A& a) { a.k_scale.device = {Device::cuda, 1}; }, {"k_scale", "CUDA device 1"});
  flat([](Problem&, A& a) { a.k_scale.stride[0] = 2; }, {"k_scale", "stride"});
  ScoreSpec mixed = small(true);
  mixed.types = Types::bf16_fp4;
  expect_score_refused<A>(mixed, [](Problem&, A& a) { a.q_scale = a.k_scale; },
                          {"q_scale", "unquantised"});
  expect_score_refused<A>(mixed, [](Problem&, A& a) { a.q_global_scale.value = 2; },
                          {"q_global_scale", "2", "1"});
  expect_score_refused<A>(mixed, [](Problem&, A& a) { a.q_fp4.shape[2] = 64; },
                          {"q_fp4", "64", "128"});
  const float bad[] = {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN(), 1e-44f};
  for (float value : bad) {
    paged([=](Problem&, A& a) { a.k_global_scale.value = value; },
          {"q_global_scale * k_global_scale", "underflow"});
  }
}

TEST(Validate, Lengths) {
  using A = ScoreFp4Args;
  paged([](Problem&, A& a) { a.cu_seqlens_q = {}; }, {"cu_seqlens_q: got nothing"});
  paged([](Problem&, A& a) { a.seqused_k = {}; }, {"seqused_k: got nothing"});
  flat([](Problem&, A& a) { a.cu_seqlens_k = {}; }, {"cu_seqlens_k: got nothing", "page_table"});
  paged([](Problem&, A& a) { a.cu_seqlens_q.dtype = DType::i64; }, {"cu_seqlens_q", "i64", "i32"});
  paged([](Problem&, A& a) { a.seqused_k.dtype = DType::i64; }, {"seqused_k", "i64", "i32"});
  paged([](Problem&, A& a) { a.page_table.dtype = DType::i64; }, {"page_table", "i64", "i32"});
  flat([](Problem&, A& a) { a.cu_seqlens_k.dtype = DType::f32; }, {"cu_seqlens_k", "f32", "i32"});
  paged([](Problem&, A& a) { a.cu_seqlens_q.shape[0] = 0; }, {"cu_seqlens_q", "(0)"});
  paged([](Problem& p, A& a) { a.seqused_k = p.add_i32({1, 2, 3}); }, {"seqused_k", "3", "2"});
  flat([](Problem& p, A& a) { a.cu_seqlens_k = p.add_i32({0}); }, {"cu_seqlens_k", "1", "3"});
  paged([](Problem&, A& a) { a.page_table.shape[0] = 1; }, {"page_table", "1", "2"});
  paged([](Problem&, A& a) { a.page_table.rank = 1; }, {"page_table", "width"});
  paged([](Problem& p, A& a) { a.q_offsets = p.add_i32({1}); }, {"q_offset", "1", "2"});
  paged(
      [](Problem& p, A& a) {
        a.q_offsets = p.add_i32({1, 2}), a.has_q_offset = true;
      },
      {"q_offset", "a number and a tensor"});
  paged(
      [](Problem&, A& a) {
        a.seqused_k.device = {Device::cuda, 0};
      },
      {"seqused_k", "CUDA device 0"});
}

TEST(Validate, BoundsAndOutput) {
  using A = ScoreFp4Args;
  paged([](Problem&, A& a) { a.max_seqlen_q = -1; }, {"max_seqlen_q", "-1", "bounds_of"});
  paged([](Problem&, A& a) { a.max_seqlen_q = 2; }, {"max_seqlen_q", "2", "3", "request 1"});
  paged([](Problem&, A& a) { a.max_k_tiles = -1; }, {"max_k_tiles", "-1", "bounds_of"});
  paged([](Problem&, A& a) { a.kv_block_start = -1; }, {"kv_block_start", "-1"});
  paged([](Problem&, A& a) { a.kv_block_step = 0; }, {"kv_block_step", "0", "1"});
  paged([](Problem&, A& a) { a.output = {}; }, {"output: got nothing"});
  paged([](Problem&, A& a) { a.output.dtype = DType::bf16; }, {"output", "bf16", "f32"});
  paged([](Problem&, A& a) { a.output.rank = 2; }, {"output", "max_k_tiles"});
  paged([](Problem&, A& a) { a.output.shape[0] = 1; }, {"output", "(1, 2, 5)", "4", "heads"});
  paged([](Problem&, A& a) { a.output.shape[1] = 3; }, {"output", "(4, 3, 5)", "2", "max_k_tiles"});
  paged([](Problem&, A& a) { a.output.shape[2] = 4; },
        {"output", "(4, 2, 4)", "5", "query tokens"});
  paged([](Problem&, A& a) { a.reduce_heads = Reduce::kv_group; }, {"output", "(4, 2, 5)", "2"});
  paged([](Problem&, A& a) { a.output.stride = {10, 5, 0}; }, {"output", "one address"});
  paged([](Problem&, A& a) { a.output.stride = {5, 5, 1}; }, {"output", "one address"});
  paged([](Problem&, A& a) { a.output.stride = {3, 5, 1}; }, {"output", "one address"});
  paged([](Problem&, A& a) { a.output.data = nullptr; }, {"output", "null"});
  paged([](Problem&, A& a) { a.output.device = {Device::cuda, 0}; }, {"output", "CUDA device 0"});
}

TEST(Validate, TheHostHasNoNumber) {
  Problem p = build_score(small(true));
  int index = 0;
  const auto number = [&](const char*, Tensor& t, bool) { t.device.index = index++; };
  std::visit([&](auto& a) { for_each_view(a, number, [](const float*) {}); }, p.args);
  EXPECT_NO_THROW(run_with_workspace(p.args));
}

// Strides that do not nest and yet never meet are legal.
TEST(Validate, InterleavedOutputIsLegal) {
  Problem p = build_score(small(true));
  auto& a = std::get<ScoreFp4Args>(p.args);
  a.output = Tensor(p.add_output(4 * 40), DType::f32, {4, 2, 5}).strided({1, 20, 4});
  EXPECT_NO_THROW(run_with_workspace(p.args));
}

TEST(Validate, WideScores) {
  using A = ScoreArgs;
  const auto refused = [](Types types, const std::function<void(Problem&, A&)>& edit,
                          const Parts& parts) {
    ScoreSpec s = small(true);
    s.types = types;
    expect_score_refused<A>(s, edit, parts);
  };
  refused(Types::bf16_bf16, [](Problem&, A& a) { a.q = {}; }, {"q: got nothing"});
  refused(Types::bf16_bf16, [](Problem&, A& a) { a.k = {}; }, {"k: got nothing"});
  refused(Types::bf16_bf16, [](Problem&, A& a) { a.q.dtype = DType::f16; },
          {"k", "bf16", "f16 or e4m3"});
  refused(Types::f16_f16, [](Problem&, A& a) { a.q.dtype = DType::f32; }, {"q", "f32"});
  refused(Types::e4m3_e4m3, [](Problem&, A& a) { a.k.dtype = DType::u8; }, {"k", "u8", "e4m3"});
  refused(Types::bf16_bf16, [](Problem&, A& a) { a.q.shape[2] = 64; }, {"q", "64", "128"});
  refused(Types::bf16_e4m3, [](Problem&, A& a) { a.k.shape[2] = 64; }, {"k", "64", "128"});
  refused(Types::bf16_bf16, [](Problem&, A& a) { a.q.shape[1] = 5; }, {"q", "5", "2"});
  refused(Types::bf16_bf16, [](Problem&, A& a) { a.seqused_k = {}; }, {"seqused_k"});
}

TEST(Validate, Select) {
  const auto refused = [](const std::function<void(Problem&, SelectArgs&)>& edit,
                          const Parts& parts) {
    SelectSpec s;
    s.heads = 2;
    Problem p = build_select(s);
    edit(p, std::get<SelectArgs>(p.args));
    expect_refused(std::move(p), parts);
  };
  using A = SelectArgs;
  refused([](Problem&, A& a) { a.max_score = {}; }, {"max_score: got nothing"});
  refused([](Problem&, A& a) { a.max_score.dtype = DType::bf16; }, {"max_score", "bf16", "f32"});
  refused([](Problem&, A& a) { a.max_score.rank = 2; }, {"max_score", "blocks"});
  for (int topk : {-1, 0, 65, 1000}) {
    refused([=](Problem&, A& a) { a.topk = topk; }, {"topk", std::to_string(topk), "1 to 64"});
  }
  refused([](Problem&, A& a) { a.force_begin_blocks = -1; }, {"force_begin_blocks", "-1"});
  refused([](Problem&, A& a) { a.force_end_blocks = -2; }, {"force_end_blocks", "-2"});
  refused([](Problem&, A& a) { a.force_begin_blocks = 9, a.force_end_blocks = 8; },
          {"force", "9 + 8", "16"});
  refused([](Problem&, A& a) { a.force_begin_blocks = 1 << 30, a.force_end_blocks = 1 << 30; },
          {"force"});
  refused(
      [](Problem& p, A& a) {
        a.num_valid_pages_tensor = p.add_i32({1, 2});
      },
      {"num_valid_pages", "2", "4"});
  refused(
      [](Problem& p, A& a) {
        a.num_valid_pages_tensor = p.add_i32({1, 2, 3, 4}), a.has_num_valid_pages = true;
      },
      {"num_valid_pages", "a number and a tensor"});
  refused([](Problem&, A& a) { a.output = {}; }, {"output: got nothing"});
  refused([](Problem&, A& a) { a.output.dtype = DType::i64; }, {"output", "i64", "i32"});
  refused([](Problem&, A& a) { a.output.shape[0] = 3; }, {"output", "3", "4"});
  refused([](Problem&, A& a) { a.output.shape[1] = 1; }, {"output", "1", "2"});
  refused([](Problem&, A& a) { a.output.shape[2] = 15; }, {"output", "15", "16"});
  refused([](Problem&, A& a) { a.output.stride[1] = 8; }, {"output", "one address"});
}

TEST(Validate, Index) {
  const auto refused = [](const std::function<void(Problem&, IndexArgs&)>& edit,
                          const Parts& parts) {
    IndexSpec s;
    s.score = small(true);
    Problem p = build_index(s);
    edit(p, std::get<IndexArgs>(p.args));
    expect_refused(std::move(p), parts);
  };
  using A = IndexArgs;
  refused([](Problem&, A& a) { a.topk = 65; }, {"topk", "65"});
  refused([](Problem&, A& a) { a.force_end_blocks = 17; }, {"force", "17"});
  refused([](Problem&, A& a) { a.output = {}; }, {"output: got nothing"});
  refused([](Problem&, A& a) { a.output.shape[1] = 2; }, {"output", "2", "4"});
  refused([](Problem&, A& a) { a.scores.dtype = DType::i32; }, {"scores", "i32", "f32"});
  refused([](Problem&, A& a) { a.scores.shape[2] = 1; }, {"scores", "1", "16"});
  refused([](Problem&, A& a) { a.score.seqused_k = {}; }, {"seqused_k"});
  refused([](Problem&, A& a) { a.score.max_seqlen_q = 1; }, {"max_seqlen_q", "1", "2"});
}

TEST(Validate, QuantizeAndAppend) {
  const auto quantize = [](const std::function<void(QuantizeArgs&)>& edit, const Parts& parts) {
    Problem p = build_quantize({});
    edit(std::get<QuantizeArgs>(p.args));
    expect_refused(std::move(p), parts);
  };
  quantize([](QuantizeArgs& a) { a.a = {}; }, {"a: got nothing"});
  quantize([](QuantizeArgs& a) { a.a.dtype = DType::e4m3; }, {"a:", "e4m3", "bf16"});
  quantize([](QuantizeArgs& a) { a.a.shape[1] = 120; }, {"a:", "120", "16"});
  quantize([](QuantizeArgs& a) { a.a.shape[1] = 0; }, {"a:", "0", "16"});
  quantize([](QuantizeArgs& a) { a.a.stride[1] = 2; }, {"a:", "stride"});
  quantize([](QuantizeArgs& a) { a.codes = {}; }, {"codes: got nothing"});
  quantize([](QuantizeArgs& a) { a.codes.shape[0] = 127; }, {"codes", "127", "8192"});
  quantize([](QuantizeArgs& a) { a.scales.shape[0] = 127; }, {"scales", "127", "1024"});
  quantize([](QuantizeArgs& a) { a.scales.dtype = DType::f32; }, {"scales", "f32"});
  quantize([](QuantizeArgs& a) { a.codes.stride[0] = 65; }, {"codes", "contiguous"});
  for (float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()}) {
    quantize([=](QuantizeArgs& a) { a.a_global_sf.value = bad; },
             {"a_global_sf", "finite number above 0"});
  }
  const auto append = [](const std::function<void(AppendArgs&)>& edit, const Parts& parts) {
    Problem p = build_append({});
    edit(std::get<AppendArgs>(p.args));
    expect_refused(std::move(p), parts);
  };
  append([](AppendArgs& a) { a.k = {}; }, {"k: got nothing"});
  append([](AppendArgs& a) { a.k.dtype = DType::u8; }, {"k", "u8"});
  append([](AppendArgs& a) { a.k.shape[2] = 64; }, {"k", "64", "128"});
  append([](AppendArgs& a) { a.k.shape[0] = 8; }, {"slot_mapping", "9", "8"});
  append([](AppendArgs& a) { a.k_cache_fp4.shape[2] = 64; }, {"k_cache_fp4", "64", "128"});
  append([](AppendArgs& a) { a.k_cache_fp4.shape[1] = 2; }, {"k_cache_fp4", "2", "1"});
  append([](AppendArgs& a) { a.k_cache_fp4.stride[0] = 64; }, {"k_cache_fp4", "one address"});
  append([](AppendArgs& a) { a.k_cache_scale.shape[0] = 3; }, {"k_cache_scale", "3072", "4096"});
  append([](AppendArgs& a) { a.slot_mapping.dtype = DType::i32; }, {"slot_mapping", "i32", "i64"});
  append([](AppendArgs& a) { a.slot_mapping = {}; }, {"slot_mapping: got nothing"});
  append([](AppendArgs& a) { a.global_scale.value = -1; }, {"global_scale", "-1"});
}

// Checked mode: by the flag, and by KVSCOUT_CHECK.
TEST(Validate, CheckedModeReportsValues) {
  Options checked = generous();
  checked.check = true;
  using A = ScoreFp4Args;
  const auto page = [](Problem&, A& a) { element<std::int32_t>(a.page_table, 1, 0) = 6; };
  paged(page, {"page_table", "page 6", "request 1", "0 to 5"}, checked);
  paged([](Problem&, A& a) { element<std::int32_t>(a.seqused_k, 1) = 1000; },
        {"seqused_k", "1000", "request 1", "512"}, checked);
  flat([](Problem&, A& a) { element<std::int32_t>(a.cu_seqlens_k, 1) = 400; },
       {"cu_seqlens_k", "400"}, checked);
  flat([](Problem&, A& a) { element<std::int32_t>(a.cu_seqlens_q, 0) = 3; },
       {"cu_seqlens_q", "2", "3", "request 0"}, checked);
  // A block subset reads its own columns only: what other ranks' columns hold is none of its
  // business.
  Problem subset = build_score(small(true));
  A& of_subset = std::get<A>(subset.args);
  of_subset.kv_block_start = 1;
  page(subset, of_subset);
  EXPECT_NO_THROW(run(subset.args, checked));
  AppendSpec s;
  s.slots = {5, 9, 5};
  expect_refused(build_append(s), {"slot_mapping", "slot 5", "0", "2"}, checked);
  s.slots = {5, 512};
  expect_refused(build_append(s), {"slot_mapping", "slot 512", "row 1", "512"}, checked);

  ASSERT_EQ(setenv("KVSCOUT_CHECK", "1", 1), 0);
  paged(page, {"page_table", "page 6"});
  ASSERT_EQ(setenv("KVSCOUT_CHECK", "0", 1), 0);
  Problem p = build_score(small(true));
  page(p, std::get<A>(p.args));
  EXPECT_NO_THROW(run_with_workspace(p.args));
  ASSERT_EQ(unsetenv("KVSCOUT_CHECK"), 0);
}

TEST(Validate, Workspace) {
  Problem p = build_score(small(true));
  const std::size_t bytes = workspace_bytes(p.args);
  if (bytes == 0) GTEST_SKIP() << "not run: the first back end asks for no workspace";
  expect_refused(std::move(p), {"workspace", "0 bytes", std::to_string(bytes)}, {});
  Options short_one = generous();
  short_one.workspace_bytes = bytes - 1;
  expect_refused(build_score(small(true)),
                 {"workspace", std::to_string(bytes - 1), std::to_string(bytes)}, short_one);
  Options crooked = generous();
  crooked.workspace = static_cast<std::uint8_t*>(crooked.workspace) + 16;
  crooked.workspace_bytes -= 16;
  expect_refused(build_score(small(true)), {"workspace", "256"}, crooked);
}

TEST(Validate, BackEndsByName) {
  Problem p = build_score(small(true));
  Options options;
  options.backend = "no such thing";
  try {
    run(p.args, options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Error::unsupported);
    EXPECT_EQ(wrong_message(e.what(), {"msa_proxy_score_fp4", "no such thing", "reference"}), "");
  }
  ASSERT_EQ(setenv("KVSCOUT_BACKEND", "reference", 1), 0);
  EXPECT_NO_THROW(run_with_workspace(p.args));
  ASSERT_EQ(setenv("KVSCOUT_BACKEND", "nothing", 1), 0);
  EXPECT_THROW(run_with_workspace(p.args), Error);
  ASSERT_EQ(unsetenv("KVSCOUT_BACKEND"), 0);
}

TEST(Validate, NoDeviceForCudaTensors) {
  bool cuda = false;
  for (const BackendInfo& b : backends()) cuda = cuda || (b.available && b.name.starts_with("sm"));
  if (cuda) GTEST_SKIP() << "not run: this machine has a GPU that is served";
  Problem p = build_score(small(true));
  std::visit(
      [](auto& a) {
        for_each_view(
            a,
            [](const char*, Tensor& t, bool) {
              t.device = {Device::cuda, 0};
            },
            [](const float*) {});
      },
      p.args);
  try {
    run(p.args);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Error::unsupported);
    EXPECT_EQ(
        wrong_message(e.what(), {"msa_proxy_score_fp4", "CUDA device 0", "built", "reference"}),
        "");
  }
}

}  // namespace
}  // namespace kvscout::cases
