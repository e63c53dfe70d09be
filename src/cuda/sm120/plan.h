// How this folder cuts up a score call: pure integers, functions of problem and device alone.
#pragma once

#include "cuda/plan.h"

namespace kvscout::sm120 {

// Codes against codes, which the block-scaled instruction takes as they are. Everything else goes
// the way of 16-bit operands.
inline bool is_native(const ScoreProblem& p) {
  return p.q.type == Element::e2m1 && p.k.type == Element::e2m1;
}

inline constexpr int kPartRows = 64;  // of a warp in Schedule::row_parts

// Blocks of 8 warps a multiprocessor for the native kernels with rows in registers.
int blocks_per_sm(const cuda::DeviceInfo&);

cuda::ScorePlan plan_score(const ScoreProblem&, const cuda::DeviceInfo&);

}  // namespace kvscout::sm120
