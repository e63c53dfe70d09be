// Deterministic test data: a small generator, rows of every element type, poison for what nobody
// may read.
//
// Poison comes in two kinds, row by row: NaN (0xFF codes, 0x7F scales), which a wrong maximum lets
// through, and the largest magnitudes with random signs, which a maximum that reads it cannot miss.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kvscout/problem.h"

namespace kvscout::cases {

// splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567u) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
  }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Mean 0, variance 1, bounded: the sum of four uniforms.
  double normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0) * 1.7320508; }

 private:
  std::uint64_t state_;
};

// Place of scale byte `group` (0..7) of `row` in a 128x4 buffer of rows of 128 elements.
inline std::int64_t scale_place(std::int64_t row, std::int64_t group) {
  const std::int64_t tile = row / 128 * 2 + group / 4;
  const std::int64_t r = row % 128;
  return tile * 512 + r % 32 * 16 + r / 32 * 4 + group % 4;
}
// Bytes of such a buffer.
inline std::int64_t scale_bytes(std::int64_t rows) { return (rows + 127) / 128 * 1024; }

enum class Values : std::uint8_t {
  plain,  // what a quantiser writes for normal data; floats of order 1
  raw,    // any code, any scale byte (bit 7 and NaN included); floats over many orders, some NaN
  poison
};

// One row of 128 elements at `data`; for e2m1 also its 8 scale bytes, at
// scales[scale_place(scale_row, g)].
void fill_row(Random&, Values, Element, std::uint8_t* data, std::uint8_t* scales,
              std::int64_t scale_row);

// Nearest bf16/f16 pattern of a float64, for test data only (ties need not be exact).
std::uint16_t half_bits(Element type, double x);
// The exact value of an element's bit pattern, spelled out once more: e4m3 signed, f16, bf16, f32.
double value_of(Element type, std::uint32_t bits);
// The exact value of a code and of a scale byte (bit 7 ignored).
double code_value(unsigned code);
double scale_value(unsigned byte);

}  // namespace kvscout::cases
