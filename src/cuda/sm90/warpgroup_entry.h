// The wgmma kernels are a source file of their own: half of the compile time.
#pragma once

#include "cuda/launch.cuh"

namespace kvscout::sm90 {

cuda::ScoreEntry warpgroup_entry(const ScoreProblem&, const cuda::ScoreKernel&);

}  // namespace kvscout::sm90
