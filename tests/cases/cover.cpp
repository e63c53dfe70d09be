// Greedy, in the manner of AETG: a row starts with a pair nobody has had and takes, parameter by
// parameter, the value that brings the most new pairs.
#include "cover.h"

namespace kvscout::cases {

namespace {

constexpr std::int64_t kLimit =
    600000;  // row products of a row: about a third of a second of plain loops

struct Heads {
  std::uint8_t q, k;
};
constexpr Heads kHeadPairs[] = {{1, 1}, {2, 1},  {3, 1},  {4, 1}, {6, 2},
                                {8, 2}, {16, 1}, {32, 2}, {64, 4}};
constexpr std::int32_t kQueryLengths[] = {0, 1, 2, 3, 4, 7, 8, 9, 16, 33, 64, 127, 128, 130};
constexpr std::int32_t kKeyLengths[] = {0, 1, 127, 128, 129, 300, 1000, 4096};
constexpr const char* kTypeNames[] = {"fp4_fp4", "f16_fp4",   "bf16_fp4", "bf16_bf16",
                                      "f16_f16", "bf16_e4m3", "f16_e4m3", "e4m3_e4m3"};

// Row products with the values chosen so far; what is open counts as its smallest value but 0.
std::int64_t work(const std::array<int, kParameters>& row) {
  const std::int64_t heads = row[kHeads] < 0 ? 1 : kHeadPairs[row[kHeads]].q;
  const std::int64_t queries = row[kQueryLength] < 0 ? 1 : kQueryLengths[row[kQueryLength]];
  const std::int64_t keys = row[kKeyLength] < 0 ? 1 : kKeyLengths[row[kKeyLength]];
  return heads * queries * keys;
}

class Uncovered {
 public:
  Uncovered() {
    int offset = 0;
    for (int a = 0; a < kParameters; ++a)
      for (int b = a + 1; b < kParameters; ++b) {
        first_[a][b] = offset;
        offset += kLevels[a] * kLevels[b];
      }
    open_.assign(static_cast<std::size_t>(offset), true);
    left_ = offset;
  }
  bool left() const { return left_ > 0; }
  // Sets the two values of the first open pair.
  void first(std::array<int, kParameters>& row) const {
    for (int a = 0; a < kParameters; ++a)
      for (int b = a + 1; b < kParameters; ++b)
        for (int x = 0; x < kLevels[a]; ++x)
          for (int y = 0; y < kLevels[b]; ++y)
            if (open(a, x, b, y)) {
              row[a] = x, row[b] = y;
              return;
            }
  }
  bool open(int a, int x, int b, int y) const { return open_[place(a, x, b, y)]; }
  void close(int a, int x, int b, int y) {
    const std::size_t i = place(a, x, b, y);
    if (open_[i]) open_[i] = false, --left_;
  }

 private:
  std::size_t place(int a, int x, int b, int y) const {
    return a < b ? static_cast<std::size_t>(first_[a][b] + x * kLevels[b] + y)
                 : static_cast<std::size_t>(first_[b][a] + y * kLevels[a] + x);
  }
  int first_[kParameters][kParameters] = {};
  std::vector<bool> open_;
  int left_ = 0;
};

Row next_row(const Uncovered& uncovered, Random& random) {
  std::array<int, kParameters> row;
  row.fill(-1);
  uncovered.first(row);
  for (int a = 0; a < kParameters; ++a) {
    if (row[a] >= 0) continue;
    int best = -1, best_gain = -1;
    const int start = static_cast<int>(random.below(kLevels[a]));  // ties go round
    for (int i = 0; i < kLevels[a]; ++i) {
      const int x = (start + i) % kLevels[a];
      row[a] = x;
      if (work(row) > kLimit) continue;
      int gain = 0;
      for (int b = 0; b < kParameters; ++b)
        gain += b != a && row[b] >= 0 && uncovered.open(a, x, b, row[b]);
      if (gain > best_gain) best = x, best_gain = gain;
    }
    row[a] = best;
  }
  Row result;
  for (int a = 0; a < kParameters; ++a) result[a] = static_cast<std::uint8_t>(row[a]);
  return result;
}

}  // namespace

const std::array<int, kParameters> kLevels = {9, 14, 8, 8, 3, 2, 2, 3, 3, 2, 3, 3, 3, 3, 2, 2, 2};

const std::vector<Row>& covering_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> list;
    Uncovered uncovered;
    Random random(20);
    while (uncovered.left()) {
      const Row row = next_row(uncovered, random);
      list.push_back(row);
      for (int a = 0; a < kParameters; ++a)
        for (int b = a + 1; b < kParameters; ++b) uncovered.close(a, row[a], b, row[b]);
    }
    return list;
  }();
  return rows;
}

ScoreSpec spec_of(const Row& row, std::uint64_t seed) {
  ScoreSpec s;
  s.q_heads = kHeadPairs[row[kHeads]].q;
  s.k_heads = kHeadPairs[row[kHeads]].k;
  const std::int32_t q = kQueryLengths[row[kQueryLength]], k = kKeyLengths[row[kKeyLength]];
  // Alone; among requests without queries, without keys, without both; and with rows that nobody
  // owns.
  if (row[kBatch] == 0)
    s.q_lengths = {q}, s.k_lengths = {k};
  else
    s.q_lengths = {0, q, 3, 0, 1}, s.k_lengths = {257, k, 0, 0, 140};
  if (row[kBatch] == 2) s.rows_before = 2, s.rows_after = 3;
  s.types = static_cast<Types>(row[kTypes]);
  s.paged = row[kPaged];
  s.causal = row[kCausal];
  s.offset = static_cast<Offset>(row[kOffset]);
  s.reduce = static_cast<Reduce>(row[kReduce]);
  s.strides = static_cast<Strides>(row[kStrides]);
  s.output = static_cast<OutputStrides>(row[kOutput]);
  s.tiles = static_cast<Tiles>(row[kTiles]);
  s.block_start = row[kSubset] == 2 ? 1 : 0;
  s.block_step = row[kSubset] + 1;
  s.pages = static_cast<Pages>(row[kPages]);
  s.misaligned = row[kMisaligned];
  s.scale_pointers = row[kScalePointers];
  s.values = static_cast<Values>(row[kValues]);
  s.seed = seed;
  return s;
}

std::string name_of(const Row& row) {
  const Heads h = kHeadPairs[row[kHeads]];
  return "hq" + std::to_string(h.q) + "_hkv" + std::to_string(h.k) + "_q" +
         std::to_string(kQueryLengths[row[kQueryLength]]) + "_k" +
         std::to_string(kKeyLengths[row[kKeyLength]]) + "_" + kTypeNames[row[kTypes]];
}

}  // namespace kvscout::cases
