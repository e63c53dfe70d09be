// Score on SM90 (Hopper): mma.sync for short queries, wgmma for long ones.
#include "cuda/launch.cuh"
#include "cuda/sm90/atom.cuh"
#include "cuda/sm90/score_stream.cuh"
#include "cuda/sm90/warpgroup_entry.h"

namespace kvscout::sm90 {
namespace {

constexpr cuda::ScoreTuning kTuning{.has_warpgroup = true, .overlaps = true};
// NVFP4 keys and up to 16 query rows have a streaming schedule of their own.
constexpr cuda::ScoreTuning kFp4Tuning{.blocks_per_sm_8 = 1,
                                       .blocks_per_sm_16 = 1,
                                       .stream_threads = kStreamThreads,
                                       .has_warpgroup = true,
                                       .overlaps = true};

cuda::ScorePlan plan_of(const ScoreProblem& p, const Launch& launch) {
  return cuda::plan_score(p, p.k.type == Element::e2m1 ? kFp4Tuning : kTuning,
                          cuda::device_info(launch.device.index));
}

template <class Ops>
cuda::ScoreEntry stream_entry(const cuda::ScoreKernel& k) {
  if constexpr (Ops::kKeyScales)
    return {k.tile.rows == 8 ? score_stream<Ops, 1> : score_stream<Ops, 2>};
  else
    return {};
}

}  // namespace

void score_tokens(const ScoreProblem& p, const Launch& launch, TokenRange range) {
  cuda::launch_score(
      p, plan_of(p, launch), launch, range, [](const ScoreProblem& x, const cuda::ScoreKernel& k) {
        if (k.schedule == cuda::Schedule::warpgroup) return warpgroup_entry(x, k);
        if (k.schedule == cuda::Schedule::stream && k.tile.rows <= 16 && x.k.type == Element::e2m1)
          return cuda::for_types<Atom>(x, [&]<class Ops>() { return stream_entry<Ops>(k); });
        return cuda::for_types<Atom>(
            x, [&]<class Ops>() { return cuda::register_entry<Ops, !Ops::kKeyScales>(k); });
      });
}

std::string explain(const ScoreProblem& p, const Launch& launch) {
  return to_string(plan_of(p, launch));
}

}  // namespace kvscout::sm90
