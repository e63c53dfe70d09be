// What the answers are: float64, straight from the formulas of docs/operations.md and
// docs/format.md, sharing no line with the library (only the argument structs). Host memory only.
#pragma once

#include <vector>

#include "problem.h"

namespace kvscout::cases {

// The answer of one score, all outputs in row-major order (head, column, token).
struct ScoreAnswer {
  std::vector<double> exact;  // without the global scales; -inf where masked
  std::vector<double>
      magnitude;             // M: the largest sum of |products| among the visible keys of the block
  std::vector<bool> masked;  // no visible key with a logit: -inf to the bit
  float scale = 1;           // GS
};
ScoreAnswer score_answer(const ScoreFp4Args&);
ScoreAnswer score_answer(const ScoreArgs&);

// Compares output (of the same arguments) with the answer: equal -inf pattern, and
// |out - GS*exact| <= tolerance*|GS|*M + 2^-23*|out| + 2^-149. Empty, or the first difference.
// `worst`, if given, becomes the largest (error - 2^-23*|out|) / (|GS|*M).
std::string compare(const ScoreAnswer&, const Tensor& output, double tolerance,
                    double* worst = nullptr);

// Ids of every (token, head), topk each, -1 at the end.
std::vector<std::int32_t> select_answer(const SelectArgs&);

// Columns of the result in which each token sees at least one key: n of the fused index.
std::vector<std::int32_t> visible_columns(const ScoreFp4Args&);

// Codes and scale bytes of one row of K elements, K/2 and K/16 of them.
void quantize_row(Element type, const std::uint8_t* row, std::int64_t columns, float global_scale,
                  std::uint8_t* codes, std::uint8_t* scales);

// Codes and then scales, as written_words gives them. `before`: the buffers before the call.
std::vector<std::uint32_t> quantize_answer(const QuantizeArgs&);
// The cache as it must be: a problem of its own, whose buffers are changed in place.
void append_answer(const AppendArgs&);

Element element_of(DType);

}  // namespace kvscout::cases
