// THE case list: named problems that conformance tests, benchmarks, fuzz seeds and `kvscout check`
// share.
//
//   for (const Case& c : cases::all()) {
//     Problem p = c.build();              // owns its memory on the host; deterministic
//     cases::run(p.args);                 // or: Placed there(p, gpu_memory); run(there.args);
//     there.download();
//   }
//
// `check_case` (cases/check.h) does the whole of it for one back end: builds, runs, compares with
// the float64 oracle, looks at guards and inputs. Nothing here needs a test framework.
//
//   cases/data.h      values: rows of every type, poison
//   cases/problem.h   buffers and views of one call, other memories
//   cases/build.h     problems from short descriptions
//   cases/cover.h     the covering list: every pair of parameter values together at least once
//   cases/oracle.h    what the answer is, in float64, from the formulas
//   cases/check.h     one case on one back end
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cases/build.h"

namespace kvscout::cases {

struct Case {
  std::string name;  // unique, "operation/what_it_is_about"
  std::function<Problem()> build;
  // Small enough for sanitizers and for a first look: well under 0.1 s of plain loops.
  bool small = true;
  // Not a legal question: the call must throw Error(invalid_argument), and its message holds every
  // part.
  bool legal = true;
  std::vector<std::string> error;
  // Legal, but checked mode refuses it with these parts in the message. Empty: checked mode
  // accepts.
  std::vector<std::string> checked_error;
  // The answer is not specified value by value (overlapping requests): only memory safety is.
  bool unspecified = false;
};

// In a fixed order. Built once; building a problem is the case's own business.
const std::vector<Case>& all();

// Parts of the list, in the order of all().
void add_score_cases(std::vector<Case>&);
void add_index_cases(std::vector<Case>&);
void add_select_cases(std::vector<Case>&);
void add_storage_cases(std::vector<Case>&);  // quantize and append
void add_covering_cases(std::vector<Case>&);
void add_illegal_cases(std::vector<Case>&);

}  // namespace kvscout::cases
