// Bytes -> a problem. The first bytes choose operation and shape, or name a case of the case list;
// the rest overwrite lengths, page tables, codes, scales and numbers, so that what validation lets
// through has no meaning at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cases/build.h"

namespace kvscout::cases {

struct FuzzProblem {
  Problem problem;
  int threads = 1;
  bool check = false;
  bool legal = true;      // false: the call must refuse it; views need not lie in memory
  bool specified = true;  // false: requests share rows, whose values may be anything
  std::int64_t work = 0;  // of plain loops, about: products of two rows
};
FuzzProblem fuzz_problem(const std::uint8_t* data, std::size_t size);

// The input that is this case of the list, untouched.
std::string seed_of(const std::string& case_name);

}  // namespace kvscout::cases
