// A covering list: rows of parameter values in which every pair of values of two parameters occurs
// at least once. A few hundred rows stand for the many millions of combinations.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "build.h"

namespace kvscout::cases {

enum Parameter : int {
  kHeads,
  kQueryLength,
  kKeyLength,
  kTypes,
  kBatch,
  kPaged,
  kCausal,
  kOffset,
  kReduce,
  kStrides,
  kOutput,
  kTiles,
  kSubset,
  kPages,
  kMisaligned,
  kScalePointers,
  kValues,
  kParameters
};
// Number of values of each parameter.
extern const std::array<int, kParameters> kLevels;

using Row = std::array<std::uint8_t, kParameters>;

// Deterministic; no row costs more than `limit` row products. Computed once.
const std::vector<Row>& covering_rows();

ScoreSpec spec_of(const Row&, std::uint64_t seed);
// For example "hq6_hkv2_q33_k1000_f16_fp4".
std::string name_of(const Row&);

}  // namespace kvscout::cases
