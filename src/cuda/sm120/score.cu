// Score on SM120: NVFP4 against NVFP4 by the block-scaled instruction (score_fp4.cu), every other
// pair of types by mma.sync with 16-bit operands, as on SM89.
#include "cuda/score_shared.cuh"
#include "cuda/sm120/atom.cuh"
#include "cuda/sm120/fp4_entry.h"
#include "cuda/sm120/plan.h"

namespace kvscout::sm120 {
namespace {

template <class Ops>
cuda::ScoreEntry entry_of(const cuda::ScoreKernel& k) {
  if constexpr (Ops::kQuery == Element::e2m1 && Ops::kKey == Element::e2m1)
    return fp4_entry(k, k.schedule != cuda::Schedule::unaligned);
  else if (k.schedule == cuda::Schedule::rows_in_shared)
    return {cuda::score_shared<Ops>, sizeof(cuda::SharedQueries)};
  else
    return cuda::register_entry<Ops>(k);
}

}  // namespace

void score_tokens(const ScoreProblem& p, const Launch& launch, TokenRange range) {
  const cuda::ScorePlan plan = plan_score(p, cuda::device_info(launch.device.index));
  cuda::launch_score(p, plan, launch, range, [](const ScoreProblem& x, const cuda::ScoreKernel& k) {
    return cuda::for_types<Atom>(x, [&]<class Ops>() { return entry_of<Ops>(k); });
  });
}

std::string explain(const ScoreProblem& p, const Launch& launch) {
  return (is_native(p) ? "block-scaled " : "") +
         to_string(plan_score(p, cuda::device_info(launch.device.index)));
}

}  // namespace kvscout::sm120
