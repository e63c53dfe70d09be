// A problem of a given shape, for plans and for timing: paged NVFP4 keys, causal, every request
// alike.
#pragma once

#include <cstdint>
#include <vector>

#include "command_line.h"
#include "kvscout/kvscout.h"

namespace kvscout::tool {

struct Shape {
  std::int64_t batch = 1, queries = 1, keys = 131072, q_heads = 4, k_heads = 1;

  void add_to(Verb& verb);
  std::int64_t tokens() const { return batch * queries; }
  std::int64_t blocks() const { return (keys + kBlock - 1) / kBlock; }
};

class ShapedProblem {
 public:
  explicit ShapedProblem(const Shape&);  // enough for a plan: data of this shape, without memory
  ShapedProblem(const ShapedProblem&) = delete;
  void fill();  // random codes, scales near 1, pages in any order

  ScoreFp4Args args;  // without output
  std::vector<std::uint8_t> q, k, q_scale, k_scale;

 private:
  std::vector<std::int32_t> cu_q_, used_, table_;
};

}  // namespace kvscout::tool
