// The differential fuzzer as a function, for libFuzzer and for the replay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace kvscout::cases {

struct Outcomes {
  long answered = 0, refused = 0;
};
std::map<std::string, Outcomes>& outcomes();  // by operation, so far

}  // namespace kvscout::cases

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
