// The memory behind the demo's tensors (kvscout owns none), and a stop watch.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "kvscout/float_types.h"
#include "kvscout/kvscout.h"
#include "kvscout/nvfp4.h"
#include "kvscout/scale_layout.h"

namespace demo {

using namespace kvscout;

// The fastest of several runs, in milliseconds.
template <typename Work>
double time_of(const Work& work) {
  using Clock = std::chrono::steady_clock;
  double best = std::numeric_limits<double>::max(), total = 0;
  for (int run = 0; run < 20 && (run < 2 || total < 300); ++run) {
    const auto start = Clock::now();
    work();
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    best = std::min(best, ms);
    total += ms;
  }
  return best;
}

// The memory that a call asked for.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : lines_(bytes / sizeof(Line) + 1) {}
  Options options() {
    return {.workspace = lines_.data(), .workspace_bytes = lines_.size() * sizeof(Line)};
  }

 private:
  struct alignas(256) Line {
    std::byte bytes[256];
  };
  std::vector<Line> lines_;
};

// fp16 rows as NVFP4: codes, scales in the 128x4 layout, and the inverse global scale.
struct Quantized {
  std::vector<std::uint8_t> code_bytes, scale_bytes;
  Tensor codes, scales;
  float inverse_global = 1.0f;
  double ms = 0;

  explicit Quantized(const Tensor& a) {
    const std::int64_t rows = a.size(0) * a.size(1);
    const std::int64_t padded =
        scale_layout::bytes(SfLayout::layout_128x4, rows, nvfp4::kRowScales);
    code_bytes.resize(static_cast<std::size_t>(rows * nvfp4::kRowBytes));
    scale_bytes.resize(static_cast<std::size_t>(padded));
    codes = Tensor(code_bytes.data(), DType::u8, {a.size(0), a.size(1), nvfp4::kRowBytes});
    scales = Tensor(scale_bytes.data(), DType::u8, {padded});

    float amax = 0;
    const auto* values = static_cast<const std::uint16_t*>(a.data);
    for (std::int64_t i = 0; i < a.count(); ++i)
      amax = std::max(amax, std::fabs(f16_to_float(values[i])));
    const float global = nvfp4::global_scale_of_amax(amax);
    inverse_global = 1.0f / global;
    ms = time_of([&] {
      nvfp4_quantize({.a = a, .a_global_sf = {global}, .codes = codes, .scales = scales});
    });
  }
};

// Scores of every block, the scores of one question side by side.
struct Scores {
  std::vector<float> values;
  Tensor view;  // (1, blocks, questions)

  Scores(std::int64_t questions, std::int64_t blocks)
      : values(static_cast<std::size_t>(questions * blocks)),
        view(Tensor(values.data(), DType::f32, {1, blocks, questions})
                 .strided({questions * blocks, 1, blocks})) {}
};

}  // namespace demo
