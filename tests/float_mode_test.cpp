// A calling thread may flush subnormals or round another way: results stay the same, and so does
// its setting.
#include <gtest/gtest.h>

#include <functional>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "cases/build.h"
#include "host_backends.h"

namespace kvscout::cases {
namespace {

#if defined(__x86_64__)
TEST(FloatMode, FlushedSubnormalsChangeNothing) {
  std::vector<std::pair<std::string, std::function<Problem()>>> problems;
  for (Types types : {Types::fp4_fp4, Types::bf16_fp4, Types::bf16_e4m3, Types::f16_f16}) {
    ScoreSpec s;
    s.types = types, s.values = Values::raw;  // subnormal scale bytes among them
    s.q_lengths = {40, 1}, s.k_lengths = {3000, 300};
    problems.emplace_back("score " + std::to_string(static_cast<int>(types)),
                          [s] { return build_score(s); });
  }
  for (Element type : {Element::f32, Element::bf16, Element::f16}) {
    QuantizeSpec s;
    s.type = type, s.input = QuantizeSpec::patterns, s.global_scale = 3e38f, s.rows = 256;
    problems.emplace_back("quantize " + std::to_string(static_cast<int>(type)),
                          [s] { return build_quantize(s); });
  }
  SelectSpec select;
  select.scores = SelectSpec::ascending, select.tokens = 200;
  problems.emplace_back("select", [select] {
    Problem p = build_select(select);
    const Tensor& t = std::get<SelectArgs>(p.args).max_score;  // subnormals instead of numbers
    for (std::int64_t i = 0; i < t.count(); ++i) static_cast<float*>(t.data)[i] *= 0x1p-149f;
    return p;
  });

  const unsigned usual = _mm_getcsr(), flushing = usual | 0x8040 | 0x4000;  // FTZ, DAZ, round up
  for (const Options& options : host_backends())
    for (const auto& [name, build] : problems) {
      SCOPED_TRACE(std::string(options.backend) + ", " + name);
      Problem p = build(), same = build();
      run_with_workspace(p.args, options);
      _mm_setcsr(flushing);
      run_with_workspace(same.args, options);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(usual);
      EXPECT_EQ(after & 0xFFC0u, flushing & 0xFFC0u) << "the mode is the caller's again";
      EXPECT_EQ(written_words(p), written_words(same));
    }
}
#endif

}  // namespace
}  // namespace kvscout::cases
