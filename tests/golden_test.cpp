// Results that were made without any code of this project (tests/golden), on every host back end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cases/oracle.h"
#include "registry.h"
#include "safetensors.h"

namespace kvscout {
namespace {

using safetensors::File;

constexpr float kInf = std::numeric_limits<float>::infinity();

// A golden file: tensors copied to aligned memory, numbers of the metadata.
class Golden {
 public:
  explicit Golden(const std::string& name) : file_(KVSCOUT_GOLDEN "/" + name) {}

  bool has(const std::string& name) const { return file_.contents().tensors.count(name) > 0; }
  Tensor tensor(const std::string& name) {
    Tensor t;
    if (!has(name)) return t;
    const auto& view = file_.contents().tensors.at(name);
    std::uint8_t* data = problem_.add_input(static_cast<std::int64_t>(view.bytes));
    std::copy(view.data, view.data + view.bytes, data);
    const DType type = view.dtype == "F32"   ? DType::f32
                       : view.dtype == "I32" ? DType::i32
                                             : DType::u8;
    const auto& s = view.shape;
    if (s.size() == 1) return Tensor(data, type, {s[0]});
    if (s.size() == 2) return Tensor(data, type, {s[0], s[1]});
    if (s.size() == 3) return Tensor(data, type, {s[0], s[1], s[2]});
    return Tensor(data, type, {s[0], s[1], s[2], s[3]});
  }
  std::string text(const std::string& key) const {
    const auto& m = file_.contents().metadata;
    return m.count(key) ? m.at(key) : "";
  }
  double number(const std::string& key) const { return std::strtod(text(key).c_str(), nullptr); }
  Tensor output(DType type, std::initializer_list<std::int64_t> shape) {
    std::int64_t count = 1;
    for (std::int64_t n : shape) count *= n;
    return Tensor(problem_.add_output(count * bytes_of(type)), type, shape);
  }

  ScoreFp4Args score_args() {
    ScoreFp4Args a;
    a.q_fp4 = tensor("q_fp4");
    a.k_fp4 = tensor("k_fp4");
    a.q_scale = tensor("q_scale");
    a.k_scale = tensor("k_scale");
    a.q_global_scale.value = static_cast<float>(number("q_global_scale"));
    a.k_global_scale.value = static_cast<float>(number("k_global_scale"));
    a.cu_seqlens_q = tensor("cu_seqlens_q");
    a.cu_seqlens_k = tensor("cu_seqlens_k");
    a.page_table = tensor("page_table");
    a.seqused_k = tensor("seqused_k");
    a.causal = text("causal") == "1";
    const std::string reduce = text("reduce_heads");
    a.reduce_heads = reduce == "all"        ? Reduce::all
                     : reduce == "kv_group" ? Reduce::kv_group
                                            : Reduce::none;
    a.q_offsets = tensor("q_offset");
    a.has_q_offset = !text("q_offset").empty();
    a.q_offset = static_cast<std::int64_t>(number("q_offset"));
    const Bounds bounds = bounds_of(a);
    a.max_seqlen_q = bounds.max_seqlen_q;
    a.max_k_tiles = bounds.max_k_tiles;
    return a;
  }

 private:
  File file_;
  cases::Problem problem_;
};

std::vector<std::string> files(const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(KVSCOUT_GOLDEN)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix) && name.ends_with(".safetensors")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<Options> host_backends() {
  std::vector<Options> list;
  for (const Backend* b : all_backends()) {
    std::string why;
    if (b->device != Device::cpu || !b->runs_on(0, &why)) continue;
    list.emplace_back();
    list.back().backend = b->name;
  }
  return list;
}

// Scores of one file: the pattern of -inf to the bit, values within `tolerance` of the magnitude.
void check_scores(const std::string& name, double tolerance) {
  Golden golden(name);
  ScoreFp4Args a = golden.score_args();
  const Tensor expected = golden.tensor("expected");
  ASSERT_EQ(expected.size(1), a.max_k_tiles);
  a.output = golden.output(DType::f32, {expected.size(0), expected.size(1), expected.size(2)});
  const cases::ScoreAnswer answer = cases::score_answer(a);
  const std::int64_t count = expected.count();
  // The oracle itself agrees with data it has never seen.
  ASSERT_EQ(cases::compare(answer, expected, tolerance), "");
  for (const Options& options : host_backends()) {
    SCOPED_TRACE(options.backend);
    cases::run_with_workspace(a, options);
    for (std::int64_t i = 0; i < count; ++i) {
      const float want = static_cast<const float*>(expected.data)[i],
                  got = static_cast<const float*>(a.output.data)[i];
      if (want == -kInf || got == -kInf) {
        ASSERT_EQ(got, want) << "element " << i;
        continue;
      }
      const double magnitude =
          static_cast<double>(answer.scale) * answer.magnitude[static_cast<std::size_t>(i)];
      ASSERT_NEAR(got, want, tolerance * magnitude + 0x1p-23 * std::abs(want)) << "element " << i;
    }
  }
}

TEST(Golden, ScoresOfThePeer) {
  const auto flat = files("flat_"), decode = files("decode_"), paged = files("paged_");
  ASSERT_EQ(flat.size() + decode.size() + paged.size(), 10u);
  for (const auto& list : {flat, decode, paged})
    for (const std::string& name : list) {
      SCOPED_TRACE(name);
      check_scores(name, 9e-7);  // 5e-7 of ours and 4e-7 of theirs
    }
}

TEST(Golden, ScoresAndSelectionInFloat64) {
  const auto list = files("index_");
  ASSERT_EQ(list.size(), 5u);
  for (const std::string& name : list) {
    SCOPED_TRACE(name);
    check_scores(name, 5e-7);
    Golden golden(name);
    IndexArgs index;
    index.score = golden.score_args();
    index.topk = static_cast<int>(golden.number("topk"));
    index.force_begin_blocks = static_cast<int>(golden.number("force_begin_blocks"));
    index.force_end_blocks = static_cast<int>(golden.number("force_end_blocks"));
    const Tensor expected = golden.tensor("expected_ids"), scores = golden.tensor("expected");
    index.output =
        golden.output(DType::i32, {expected.size(0), expected.size(1), expected.size(2)});
    SelectArgs select;
    select.max_score = scores;
    select.topk = index.topk;
    select.force_begin_blocks = index.force_begin_blocks;
    select.force_end_blocks = index.force_end_blocks;
    select.num_valid_pages_tensor = golden.tensor("num_valid_pages");
    select.output =
        golden.output(DType::i32, {expected.size(0), expected.size(1), expected.size(2)});
    const auto* want = static_cast<const std::int32_t*>(expected.data);
    for (const Options& options : host_backends()) {
      SCOPED_TRACE(options.backend);
      msa_topk_select(select, options);
      cases::run_with_workspace(index, options);
      for (std::int64_t i = 0; i < expected.count(); ++i) {
        ASSERT_EQ(static_cast<const std::int32_t*>(select.output.data)[i], want[i])
            << "selected id " << i;
        ASSERT_EQ(static_cast<const std::int32_t*>(index.output.data)[i], want[i])
            << "index id " << i;
      }
    }
  }
}

TEST(Golden, QuantiserOfThePeer) {
  const auto list = files("quantize_");
  ASSERT_EQ(list.size(), 2u);
  for (const std::string& name : list) {
    Golden golden(name);
    QuantizeArgs a;
    a.a = golden.tensor("x");  // raw patterns
    a.a = Tensor(a.a.data, golden.text("dtype") == "bf16" ? DType::bf16 : DType::f16, {130, 128});
    a.a_global_sf.value = static_cast<float>(golden.number("global_scale"));
    const Tensor packed = golden.tensor("packed");
    a.codes = golden.output(DType::u8, {130, 64});
    for (const auto& [layout, field] : {std::pair{SfLayout::layout_128x4, "scale_128x4"},
                                        std::pair{SfLayout::layout_linear, "scale_linear"}}) {
      const Tensor scales = golden.tensor(field);
      a.layout = layout;
      a.scales = golden.output(DType::u8, {scales.count()});
      for (const Options& options : host_backends()) {
        SCOPED_TRACE(name + std::string(" ") + options.backend);
        nvfp4_quantize(a, options);
        const auto* got = static_cast<const std::uint8_t*>(a.codes.data);
        const auto* want = static_cast<const std::uint8_t*>(packed.data);
        int kept_signs = 0;
        for (int i = 0; i < 130 * 64; ++i) {
          const std::uint16_t odd = cases::element<std::uint16_t>(a.a, i / 64, i % 64 * 2 + 1);
          if (odd == 0x8000 && got[i] == (want[i] | 0x80)) {  // -0.0 keeps its sign
            ++kept_signs;
            continue;
          }
          ASSERT_EQ(got[i], want[i]) << "byte " << i;
        }
        EXPECT_GE(kept_signs, 1) << "row 9, element 9 is -0.0";
        EXPECT_TRUE(std::equal(static_cast<const std::uint8_t*>(scales.data),
                               static_cast<const std::uint8_t*>(scales.data) + scales.count(),
                               static_cast<const std::uint8_t*>(a.scales.data)));
      }
    }
  }
}

}  // namespace
}  // namespace kvscout
