// Inside of build_score.cpp: the rows of a score, queries and keys with their scales and page
// table.
#pragma once

#include "build.h"

namespace kvscout::cases {

struct Lengths {
  std::vector<std::int32_t> cu_q, cu_k;
  std::int64_t q_tokens, k_tokens, batch;
  explicit Lengths(const ScoreSpec& s) {
    batch = static_cast<std::int64_t>(s.q_lengths.size());
    cu_q.assign(1, static_cast<std::int32_t>(s.rows_before));
    cu_k.assign(1, s.rows_before ? 3 : 0);  // flat keys too may have rows that nobody owns
    for (std::int64_t b = 0; b < batch; ++b) {
      cu_q.push_back(cu_q.back() + s.q_lengths[b]);
      cu_k.push_back(cu_k.back() + s.k_lengths[b]);
    }
    q_tokens = cu_q.back() + s.rows_after;
    k_tokens = cu_k.back() + (s.rows_after ? 5 : 0);
  }
};

struct Rows {  // a tensor of rows and, for e2m1, its scales
  Tensor data, scales;
};

Rows queries(Problem&, const ScoreSpec&, const Lengths&, Random&);
Rows flat_keys(Problem&, const ScoreSpec&, const Lengths&, Random&);
// Pages in the order of the requests, permuted as asked; the tail of each last page, pages of
// nobody and the gaps between strides hold poison. Table columns behind the live ones hold
// anything.
Rows paged_keys(Problem&, const ScoreSpec&, Tensor* table, Random&);

}  // namespace kvscout::cases
