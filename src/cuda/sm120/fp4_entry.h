// The native NVFP4 kernels of this folder, by what the plan says.
#pragma once

#include "cuda/launch.cuh"

namespace kvscout::sm120 {

cuda::ScoreEntry fp4_entry(const cuda::ScoreKernel&, bool aligned);

}  // namespace kvscout::sm120
