// Layouts of packed queries and unpacked keys that the kernels share.
//
// Integer route. A code becomes twice its value, an integer in [-12, 12]; keys carry an offset of
// 12, so that the instructions for unsigned times signed bytes apply: 24*12*16 = 4608 fits 16 bits.
// The offset is taken back on the query side, once a call: correction = -12 * (sum of the group's
// query integers).
//   group sum = sum over 16 of (k + 12) * q + correction       exact
//   logit     = sum over g = 0..7, in float32, of group sum * qs/4 * ks
// Both products by scales are exact in float32 (12 + 4 + 4 bits), so each group rounds once.
//
// Sums may start at the bits of kBias, so that, read as a float, they are it plus the sum:
// exactly, and without a conversion. fma(that, scale, -kBias * scale) is the product with a scale.
//
// Order of a row's bytes: the four low nibbles of each dword of codes, then the four high ones, so
// that the four dwords of a group are neighbours; a sum of integers does not care.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvscout/types.h"

namespace kvscout::cpu {

inline constexpr float kBias = 0x1.8p23f;
inline constexpr std::int32_t kBiasBits = 0x4B400000;

template <int kLanes>
struct alignas(64) IntQueryVector {
  std::int8_t data[32][kLanes][4];     // dword by dword
  std::int32_t correction[8][kLanes];  // by group; and kBiasBits, if sums start there
  float scale[8][kLanes];              // a quarter of the scale
  float offset[8][kLanes];             // that, times -kBias
};

struct alignas(64) IntKeyBlock {
  std::uint8_t data[kBlock][kHeadDim];
  float scale[kBlock][8];
};

// Float route: rows as float32, scales multiplied in (exact).
template <int kLanes>
struct alignas(64) FloatQueryVector {
  float data[kHeadDim][kLanes];
};

struct alignas(64) FloatKeyBlock {
  float data[kBlock][kHeadDim];
};

// Nibble -> twice the value of its code, signed and with the keys' offset.
inline constexpr std::int8_t kDoubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                             0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr std::uint8_t kDoubledPlus12[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                    12, 11, 10, 9,  8,  6,  4,  0};

}  // namespace kvscout::cpu
