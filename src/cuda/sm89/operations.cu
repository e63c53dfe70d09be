// SM89: the instances of everything but the score.
#include "cuda/append.cuh"
#include "cuda/index.cuh"
#include "cuda/operations.h"
#include "cuda/quantize.cuh"
#include "cuda/select.cuh"

namespace kvscout::sm89 {
namespace {

// Keeps the kernels of the folders apart.
struct Arch {
  static constexpr bool kOverlaps = false;  // programmatic dependent launch
};

}  // namespace

void quantize(const QuantizeProblem& p, const Launch& to) { cuda::quantize<Arch>(p, to); }
void select(const SelectProblem& p, const Launch& to) { cuda::select<Arch>(p, to); }
void append(const AppendProblem& p, const Launch& to) { cuda::append<Arch>(p, to); }
void index(const IndexProblem& p, const Launch& to) { cuda::index<Arch>(p, to, score_tokens); }
std::size_t index_workspace(const IndexProblem& p, const Launch&) {
  return cuda::index_workspace(p);
}

}  // namespace kvscout::sm89
