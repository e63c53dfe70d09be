// Score on SM89 (Ada): mma.sync for short and long queries.
#include "cuda/launch.cuh"
#include "cuda/score_shared.cuh"
#include "cuda/sm89/atom.cuh"

namespace kvscout::sm89 {
namespace {

constexpr cuda::ScoreTuning kTuning{};

}  // namespace

void score_tokens(const ScoreProblem& p, const Launch& launch, TokenRange range) {
  const cuda::ScorePlan plan = cuda::plan_score(p, kTuning, cuda::device_info(launch.device.index));
  cuda::launch_score(p, plan, launch, range, [](const ScoreProblem& x, const cuda::ScoreKernel& k) {
    return cuda::for_types<Atom>(x, [&]<class Ops>() -> cuda::ScoreEntry {
      if (k.schedule == cuda::Schedule::rows_in_shared)
        return {cuda::score_shared<Ops>, sizeof(cuda::SharedQueries)};
      return cuda::register_entry<Ops>(k);
    });
  });
}

std::string explain(const ScoreProblem& p, const Launch& launch) {
  return to_string(cuda::plan_score(p, kTuning, cuda::device_info(launch.device.index)));
}

}  // namespace kvscout::sm89
