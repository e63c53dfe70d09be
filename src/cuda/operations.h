// Everything but the score, one entry point an architecture folder. Host code; compiled without
// nvcc.
//
// Each call launches one kernel (index: a score and a selection a chunk of tokens) on launch.stream
// of launch.device. None allocates or waits, and all lengths are read on the device.
#pragma once

#include "backend.h"

#define KVSCOUT_DECLARE_OPERATIONS(folder)                         \
  namespace folder {                                               \
  void quantize(const QuantizeProblem&, const Launch&);            \
  void select(const SelectProblem&, const Launch&);                \
  void append(const AppendProblem&, const Launch&);                \
  void index(const IndexProblem&, const Launch&);                  \
  std::size_t index_workspace(const IndexProblem&, const Launch&); \
  }

namespace kvscout {
KVSCOUT_DECLARE_OPERATIONS(sm80)
KVSCOUT_DECLARE_OPERATIONS(sm89)
KVSCOUT_DECLARE_OPERATIONS(sm90)
KVSCOUT_DECLARE_OPERATIONS(sm120)
}  // namespace kvscout

#undef KVSCOUT_DECLARE_OPERATIONS
