// "Is it a legal question": argument structs in, problems out. The only place that raises user
// errors.
#pragma once

#include "backend.h"

namespace kvscout {

// What the arguments are called in messages, and where the data live.
struct Accepted {
  const char* operation;
  Device device;
};

Accepted validate(const QuantizeArgs&, QuantizeProblem&);
Accepted validate(const ScoreFp4Args&, ScoreProblem&);
Accepted validate(const ScoreArgs&, ScoreProblem&);
Accepted validate(const SelectArgs&, SelectProblem&);
Accepted validate(const IndexArgs&, IndexProblem&);
Accepted validate(const AppendArgs&, AppendProblem&);

// For workspace sizes and explain: everything but the output.
Accepted validate_inputs(const ScoreFp4Args&, ScoreProblem&);
Accepted validate_inputs(const ScoreArgs&, ScoreProblem&);
Accepted validate_inputs(const IndexArgs&, IndexProblem&);

// Checked mode: the values of lengths, page ids, slots. Reads through `backend`.
void check_values(const char* operation, const ScoreProblem&, const Backend&, const Launch&);
void check_values(const char* operation, const AppendProblem&, const Backend&, const Launch&);

}  // namespace kvscout
