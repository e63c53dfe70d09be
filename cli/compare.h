// Results against expected values, with the tolerance of docs/operations.md.
#pragma once

#include <string>

#include "kvscout/tensor.h"

namespace kvscout::tool {

struct Comparison {
  std::string ours, theirs;  // names of the tensors
  bool equal = false;
  std::int64_t values = 0, differing = 0;
  double worst = 0;    // scores: the largest error, in parts of the products' magnitude
  std::string detail;  // one line
};

// Bytes or integers, which must be equal.
Comparison compare_exact(const Tensor& ours, const Tensor& theirs);

// Scores: -inf in the same places, |a - b| <= tolerance * magnitude + 2^-23 |b| + 2^-149 elsewhere.
// `magnitudes` has the shape of `ours`: for each score the largest sum of |products| of its block.
Comparison compare_scores(const Tensor& ours, const Tensor& theirs, const float* magnitudes,
                          double tolerance);

std::string shape_text(const Tensor& t);

}  // namespace kvscout::tool
