// The operations of the back end `cpu`, one file each.
#pragma once

#include "backend.h"

namespace kvscout::cpu {

void score(const ScoreProblem&, const Launch&);
std::size_t score_workspace(const ScoreProblem&, const Launch&);
std::string explain_score(const ScoreProblem&, const Launch&);

void index(const IndexProblem&, const Launch&);
std::size_t index_workspace(const IndexProblem&, const Launch&);

void select(const SelectProblem&, const Launch&);
void quantize(const QuantizeProblem&, const Launch&);
void append(const AppendProblem&, const Launch&);

inline float value_of(const GlobalScale& s) { return s.pointer ? *s.pointer : s.value; }

}  // namespace kvscout::cpu
