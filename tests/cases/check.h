// One case on one back end: build, run, compare with the oracle.
#pragma once

#include "cases.h"
#include "cases/oracle.h"

namespace kvscout::cases {

struct Verdict {
  std::string failure;  // empty: right
  std::string not_run;  // the back end does not offer the operation, or runs on no device here: its
                        // own words
  double worst = 0;     // of scores: the largest error, as a part of |GS|*M
  std::vector<std::uint32_t>
      words;  // everything that was written, for comparisons between back ends
  bool ok() const { return failure.empty() && not_run.empty(); }
};

// Holds one case and its answer, so that several back ends can be asked without computing either
// again.
class Checker {
 public:
  explicit Checker(const Case&);
  // `tolerance`: docs/operations.md, Numerics (5e-7 for the CPU, 1e-6 for fp16 tensor cores on this
  // list). `memory`: where the data lie during the call; null: host memory as it is. The workspace
  // that the call asks for is given, filled with junk.
  Verdict run(const Options&, double tolerance, Memory* memory = nullptr);
  // The same in checked mode: refused with the expected words, or the same answer.
  Verdict run_checked(Options, double tolerance, Memory* memory = nullptr);

 private:
  std::string call(const Options&, Memory*, Verdict*);
  std::string compare_with_answer(double tolerance, Verdict*);

  const Case& case_;
  Problem problem_;
  std::vector<Buffer> before_;
  bool has_answer_ = false;
  ScoreAnswer score_;
  std::vector<std::uint32_t> words_;  // quantize, append
  ScoreFp4Args scores_of_index_;      // the separate score call of an index case
};

// The two errors that a case can expect, and that tests of messages share: empty, or what is wrong
// with it.
std::string wrong_message(const std::string& message, const std::vector<std::string>& parts);

}  // namespace kvscout::cases
