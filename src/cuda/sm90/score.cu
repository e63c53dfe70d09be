// Score on SM90 (Hopper): mma.sync for short queries, wgmma for long ones.
#include "cuda/launch.cuh"
#include "cuda/sm90/atom.cuh"
#include "cuda/sm90/score_warpgroup.cuh"

namespace kvscout::sm90 {
namespace {

constexpr cuda::ScoreTuning kTuning{.register_blocks_per_sm = 2, .has_warpgroup = true};

// 256 rows need all registers beside 4-bit keys; wider keys leave room for 128.
template <class Ops>
cuda::ScoreEntry warpgroup_entry(const cuda::ScoreKernel& k) {
  if constexpr (Ops::kKeyLoads == 1)
    if (k.tile.rows == 256) return {score_warpgroup<Ops, 256>, sizeof(WarpgroupShared<256>)};
  return {score_warpgroup<Ops, 128>, sizeof(WarpgroupShared<128>)};
}

}  // namespace

void score_tokens(const ScoreProblem& p, const Launch& launch, TokenRange range) {
  const cuda::ScorePlan plan = cuda::plan_score(p, kTuning, cuda::device_info(launch.device.index));
  cuda::launch_score(p, plan, launch, range, [](const ScoreProblem& x, const cuda::ScoreKernel& k, bool aligned) {
    return cuda::for_types<Atom>(x, [&]<class Ops>() -> cuda::ScoreEntry {
      if (k.schedule == cuda::Schedule::warpgroup) return warpgroup_entry<Ops>(k);
      return cuda::register_entry<Ops>(k, aligned);
    });
  });
}

std::string explain(const ScoreProblem& p, const Launch& launch) {
  return to_string(cuda::plan_score(p, kTuning, cuda::device_info(launch.device.index)));
}

}  // namespace kvscout::sm90
