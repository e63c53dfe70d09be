// fp16 and bf16 bit patterns as float, exactly, subnormals, infinities and NaN included.
#pragma once

#include "kvscout/nvfp4.h"

namespace kvscout {

KVSCOUT_HD constexpr float bf16_to_float(std::uint16_t bits) {
  return nvfp4::float_of(static_cast<std::uint32_t>(bits) << 16);
}

KVSCOUT_HD constexpr float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return nvfp4::float_of(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // Moved into place the value is 2^112 too small; the product is exact, subnormals too.
  const float scaled = nvfp4::float_of(magnitude << 13) * nvfp4::float_of(239u << 23);
  return nvfp4::float_of(sign | nvfp4::bits_of(scaled));
}

// Nearest bf16 and fp16, ties to even (for examples, tests and the tool; no operation rounds to
// them).
KVSCOUT_HD constexpr std::uint16_t float_to_bf16(float x) {
  const std::uint32_t u = nvfp4::bits_of(x);
  if (nvfp4::is_nan(x)) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

KVSCOUT_HD constexpr std::uint16_t float_to_f16(float x) {
  const std::uint32_t u = nvfp4::bits_of(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {
    // Subnormal: multiples of 2^-24; adding 2^-1 leaves them in the low bits.
    const float shifted = nvfp4::float_of(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (nvfp4::bits_of(shifted) - nvfp4::bits_of(0.5f)));
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

}  // namespace kvscout
