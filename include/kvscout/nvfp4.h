// What the bits of NVFP4 mean. Every back end but `reference` reads its formats from here.
//
//   e2m1 code   4 bits: sign, 2 exponent bits, 1 mantissa bit -> +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}.
//               One byte holds two neighbours of a row: low nibble = even index, high = odd index.
//   e4m3 scale  one byte for 16 neighbours. Unsigned here: bit 7 is ignored, 0x7F is NaN, the
//               largest value is 448 (0x7E), the smallest 2^-9. Subnormals are used.
//   value       e2m1(code) * e4m3(scale) * global, where `global` is the inverse global scale. The
//               product of the first two has at most 6 significant bits and lies in [2^-10, 2688]
//               or is 0, so it is exact in fp16 and in bf16.
//
// Encoders follow docs/format.md section 3 step by step in IEEE fp32, round to nearest even,
// subnormals kept, so that every machine gives the same bytes (a thread that flushes subnormals
// gets others). All functions are usable on host and device.
#pragma once

#include <cstdint>

#include "kvscout/types.h"

namespace kvscout::nvfp4 {

inline constexpr int kGroup = 16;        // elements that share one scale byte
inline constexpr int kRowBytes = 64;     // codes of a row
inline constexpr int kRowScales = 8;     // scale bytes of a row
inline constexpr float kMaxCode = 6.0f;  // largest e2m1
inline constexpr float kMaxScale = 448.0f;
// 2688: forward scale = 2688 / amax.
inline constexpr float kAmaxOfUnitScale = kMaxCode * kMaxScale;
inline constexpr std::uint8_t kNanScale = 0x7F;

KVSCOUT_HD constexpr std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
KVSCOUT_HD constexpr float float_of(std::uint32_t u) { return __builtin_bit_cast(float, u); }
KVSCOUT_HD constexpr bool is_nan(float x) { return (bits_of(x) & 0x7FFFFFFFu) > 0x7F800000u; }

// Twice the value of a code: an integer in [-12, 12]. Products of two are exact in quarters.
KVSCOUT_HD constexpr int e2m1_doubled(unsigned code) {
  const int magnitude = static_cast<int>(code & 7u);
  const int twice = magnitude < 5 ? magnitude : (magnitude == 5 ? 6 : (magnitude == 6 ? 8 : 12));
  return code & 8u ? -twice : twice;
}

// The value of a code; -0.0 for 0x8.
KVSCOUT_HD constexpr float e2m1_to_float(unsigned code) {
  const float magnitude = 0.5f * static_cast<float>(e2m1_doubled(code & 7u));
  return code & 8u ? -magnitude : magnitude;
}

// The value of an unsigned e4m3 scale byte; NaN for 0x7F and 0xFF.
KVSCOUT_HD constexpr float e4m3_to_float(std::uint8_t byte) {
  const std::uint32_t magnitude = byte & 0x7Fu;
  if (magnitude == kNanScale) return float_of(0x7FC00000u);
  // Exponent and mantissa moved into place are 2^120 too small; the product is exact, subnormals
  // too.
  return float_of(magnitude << 20) * float_of(247u << 23);
}

// The value of a signed e4m3 element (rows of msa_proxy_score, where bit 7 is the sign).
KVSCOUT_HD constexpr float e4m3_element_to_float(std::uint8_t byte) {
  const float magnitude = e4m3_to_float(byte);
  return byte & 0x80u ? -magnitude : magnitude;
}

// Nearest e4m3, ties to even, of a value >= 0; saturates at 448 (0x7E); NaN gives 0x7F.
KVSCOUT_HD constexpr std::uint8_t float_to_e4m3(float x) {
  if (is_nan(x)) return kNanScale;
  if (!(x > 0.0f)) return 0;
  if (x >= kMaxScale) return 0x7E;
  const std::uint32_t u = bits_of(x);
  if (u < 0x3C800000u) {
    // Below 2^-6: subnormal, multiples of 2^-9; adding 2^14 leaves them in the low bits.
    return static_cast<std::uint8_t>(bits_of(x + 16384.0f) - bits_of(16384.0f));
  }
  const std::uint32_t rounded = u + 0x7FFFFu + ((u >> 20) & 1u);  // keep 3 mantissa bits
  const std::uint32_t byte = (rounded >> 20) - (120u << 3);
  return static_cast<std::uint8_t>(byte > 0x7Eu ? 0x7Eu : byte);
}

// Nearest e2m1, ties to the even code, saturating at 6; the sign is kept; NaN gives 0x7.
KVSCOUT_HD constexpr unsigned float_to_e2m1(float x) {
  const std::uint32_t u = bits_of(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return 0x7u;
  const float a = float_of(u & 0x7FFFFFFFu);
  // Even codes win ties: 0 | 1 at .25, 1 | 2 at .75, ... 6 | 7 at 5.
  const unsigned magnitude = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                             (a >= 3.5f) + (a > 5.0f);
  return ((u >> 28) & 8u) | magnitude;
}

// Steps 2 and 3: the scale byte of a group. `amax` is the largest magnitude, NaN ignored; NaN
// itself only where the whole group is NaN.
KVSCOUT_HD constexpr std::uint8_t scale_of(float amax, float global_scale) {
  const float sixth = float_of(0x3E2AAAABu) * amax;  // 1/6 rounded to fp32; the inner product first
  return float_to_e4m3(global_scale * sixth);
}

// Step 4: what elements are multiplied with before they are rounded to e2m1; `inverse` is
// 1 / global_scale. Where a tiny global scale would make it 0, it is the smallest float instead:
// finite elements still round to 0, and infinity stays infinity (step 5) where infinity times 0
// would not.
KVSCOUT_HD constexpr float multiplier_of_inverse(std::uint8_t scale, float amax, float inverse) {
  if (scale == 0 || amax == 0.0f) return 0.0f;
  const float denominator = e4m3_to_float(scale) * inverse;
  const float out = 1.0f / denominator;
  const float largest = float_of(0x7F7FFFFFu), smallest = float_of(1u);
  return out > largest ? largest : out < smallest ? smallest : out;
}
KVSCOUT_HD constexpr float multiplier_of(std::uint8_t scale, float amax, float global_scale) {
  return multiplier_of_inverse(scale, amax, 1.0f / global_scale);
}

// Step 8: a forward global scale that can be used. Anything else gives zero codes and zero scales.
KVSCOUT_HD constexpr bool is_legal_global(float global_scale) {
  return global_scale > 0.0f && global_scale <= float_of(0x7F7FFFFFu);
}

// The forward global scale of a tensor whose largest magnitude is `amax` (clamped at 1e-12).
KVSCOUT_HD constexpr float global_scale_of_amax(float amax) {
  return kAmaxOfUnitScale / (amax > 1e-12f ? amax : 1e-12f);
}

}  // namespace kvscout::nvfp4
