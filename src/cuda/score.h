// The score kernels, one entry point an architecture folder. Host code; compiled without nvcc.
//
// A call launches one or two kernels on launch.stream, on launch.device. It needs no
// workspace, allocates nothing, waits for nothing, and reads all lengths on the device.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "backend.h"

namespace kvscout {

// Query tokens that are scored; token `begin` is written where token 0 of the output would lie.
// Lets `index` go through long inputs in chunks with a small score buffer.
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();  // at most q.tokens counts
  bool fills = true;  // writes -inf beyond the columns that a token sees; false: leaves them
};

#define KVSCOUT_DECLARE_SCORE(folder)                                                   \
  namespace folder {                                                                    \
  void score_tokens(const ScoreProblem&, const Launch&, TokenRange);                    \
  inline void score(const ScoreProblem& p, const Launch& l) { score_tokens(p, l, {}); } \
  std::string explain(const ScoreProblem&, const Launch&);                              \
  }

KVSCOUT_DECLARE_SCORE(sm80)
KVSCOUT_DECLARE_SCORE(sm89)
KVSCOUT_DECLARE_SCORE(sm90)
KVSCOUT_DECLARE_SCORE(sm120)

#undef KVSCOUT_DECLARE_SCORE

}  // namespace kvscout
