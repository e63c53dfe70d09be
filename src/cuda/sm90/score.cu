// Score on SM90 (Hopper): mma.sync for short queries, wgmma for long ones.
#include "cuda/launch.cuh"
#include "cuda/sm90/atom.cuh"
#include "cuda/sm90/warpgroup_entry.h"

namespace kvscout::sm90 {
namespace {

constexpr cuda::ScoreTuning kTuning{.has_warpgroup = true, .overlaps = true};

cuda::ScorePlan plan_of(const ScoreProblem& p, const Launch& launch) {
  return cuda::plan_score(p, kTuning, cuda::device_info(launch.device.index));
}

}  // namespace

void score_tokens(const ScoreProblem& p, const Launch& launch, TokenRange range) {
  cuda::launch_score(
      p, plan_of(p, launch), launch, range, [](const ScoreProblem& x, const cuda::ScoreKernel& k) {
        if (k.schedule == cuda::Schedule::warpgroup) return warpgroup_entry(x, k);
        return cuda::for_types<Atom>(x, [&]<class Ops>() { return cuda::register_entry<Ops>(k); });
      });
}

std::string explain(const ScoreProblem& p, const Launch& launch) {
  return to_string(plan_of(p, launch));
}

}  // namespace kvscout::sm90
