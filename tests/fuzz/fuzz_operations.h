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

// Aborts at a difference. Problems of more work are left out.
void ask(const std::uint8_t* data, std::size_t size, std::int64_t most_work);

// An answer of plain loops takes about 10 ms under sanitizers that also watch branches.
inline constexpr std::int64_t kWorkUnderSanitizers = 4000;

}  // namespace kvscout::cases
