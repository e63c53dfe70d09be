// The instances of the wgmma schedule.
#include "cuda/sm90/atom.cuh"
#include "cuda/sm90/score_warpgroup.cuh"
#include "cuda/sm90/warpgroup_entry.h"

namespace kvscout::sm90 {

cuda::ScoreEntry warpgroup_entry(const ScoreProblem& problem, const cuda::ScoreKernel& k) {
  return cuda::for_types<Atom>(problem, [&]<class Ops>() -> cuda::ScoreEntry {
    if (k.tile.rows == 256) return {score_warpgroup<Ops, 2>, sizeof(WarpgroupShared<Ops, 2>)};
    return {score_warpgroup<Ops, 1>, sizeof(WarpgroupShared<Ops, 1>)};
  });
}

}  // namespace kvscout::sm90
