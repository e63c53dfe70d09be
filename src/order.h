// The order of the selection: larger score first; -0.0 equals +0.0; NaN ranks below -inf; equal
// scores go to the lower block id. Written once for every fast back end.
#pragma once

#include <cstdint>

#include "kvscout/nvfp4.h"

namespace kvscout {

// Grows with the rank of a score. NaN is 0, -inf 0x007FFFFF.
KVSCOUT_HD constexpr std::uint32_t rank_of_number(float score) {  // not NaN
  const std::uint32_t u = nvfp4::bits_of(score + 0.0f);           // -0.0 becomes +0.0
  return u ^ (0x80000000u | (0u - (u >> 31)));
}
KVSCOUT_HD constexpr std::uint32_t rank_of(float score) {
  return nvfp4::is_nan(score) ? 0 : rank_of_number(score);
}
// The score of a rank that is not NaN's.
KVSCOUT_HD constexpr float score_at(std::uint32_t rank) {
  return nvfp4::float_of(rank & 0x80000000u ? rank & 0x7FFFFFFFu : ~rank);
}
// skip_masked drops ranks at or below it.
inline constexpr std::uint32_t kRankOfMasked = 0x007FFFFFu;

// One integer that orders (score, id) pairs totally: larger wins.
KVSCOUT_HD constexpr std::uint64_t priority_of(float score, std::uint32_t id) {
  return static_cast<std::uint64_t>(rank_of(score)) << 32 | (0xFFFFFFFFu - id);
}

}  // namespace kvscout
