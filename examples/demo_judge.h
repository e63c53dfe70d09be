// How the demo judges a choice of blocks: hits, ranks, a random choice, exact products.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "demo_data.h"
#include "kvscout/float_types.h"

namespace demo {

inline constexpr int kTopk = 16;

// Chosen blocks of all questions: ids[question * kTopk + i], ascending.
using Choice = std::vector<std::int32_t>;

inline bool holds(const std::int32_t* row, int block) {
  return std::binary_search(row, row + kTopk, block);
}

// Is a block of the answer among the 16 of this question?
inline bool finds(const Question& question, const std::int32_t* row) {
  return std::any_of(question.blocks.begin(), question.blocks.end(),
                     [&](int n) { return holds(row, n); });
}

inline Choice random_choice(std::size_t questions, std::size_t blocks) {
  std::mt19937 random(2026);
  Choice ids;
  for (std::size_t q = 0; q < questions; ++q) {
    std::vector<std::int32_t> all(blocks);
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t i = 0; i < kTopk; ++i) std::swap(all[i], all[i + random() % (blocks - i)]);
    std::sort(all.begin(), all.begin() + kTopk);
    ids.insert(ids.end(), all.begin(), all.begin() + kTopk);
  }
  return ids;
}

// How likely a random choice finds the answer.
inline double random_chance(const Question& question, std::size_t blocks) {
  double missed = 1;
  for (std::size_t n = 0; n < question.blocks.size(); ++n)
    missed *= 1 - double{kTopk} / static_cast<double>(blocks - n);
  return 1 - missed;
}

// Blocks from best to worst; equal scores: the lower number first.
inline std::vector<int> ranking(const float* scores, std::size_t blocks) {
  std::vector<int> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  return order;
}

// The place of the answer's best block, 1 for the best of all.
inline int rank_of(const Question& question, const std::vector<int>& order) {
  const auto first = std::find_first_of(order.begin(), order.end(), question.blocks.begin(),
                                        question.blocks.end());
  return static_cast<int>(first - order.begin()) + 1;
}

// The key of a block with the largest product, by plain loops in double.
struct BestKey {
  double product = -std::numeric_limits<double>::infinity();
  double share = 0;  // where in the block, 0 to 1
};

inline BestKey best_key(const Data& data, std::size_t question, int block) {
  const auto* q = static_cast<const std::uint16_t*>(data.q.data) + question * kvscout::kHeadDim;
  const auto* k = static_cast<const std::uint16_t*>(data.k.data);
  const std::int64_t begin = std::int64_t{block} * kvscout::kBlock;
  const std::int64_t end = std::min(begin + kvscout::kBlock, data.k.size(0));
  BestKey best;
  for (std::int64_t j = begin; j < end; ++j) {
    double sum = 0;
    for (int d = 0; d < kvscout::kHeadDim; ++d)
      sum +=
          double{kvscout::f16_to_float(q[d])} * kvscout::f16_to_float(k[j * kvscout::kHeadDim + d]);
    if (sum > best.product)
      best = {sum, static_cast<double>(j - begin) / static_cast<double>(end - begin)};
  }
  return best;
}

}  // namespace demo
