// The columns that a token sees, from the lengths alone: beyond them a score writes -inf, and the
// selection of an index looks no further. Most tokens are found without a search, in one trip to
// memory.
#pragma once

#include <cuda_runtime.h>

#include "cuda/line.h"

namespace kvscout::cuda {

// The request of a token where all are alike.
__device__ __forceinline__ int likely_request(const Lengths& r, int token) {
  if (r.batch == r.q_tokens) return token;
  return min(static_cast<int>(__fdividef(static_cast<float>(token) * r.batch, r.q_tokens)),
             r.batch - 1);
}
// The first request that ends beyond a token; the last where none does.
__device__ __forceinline__ int search_request(const Lengths& r, int token) {
  int b = 0, high = r.batch - 1;
#pragma unroll 1
  while (b < high) {
    const int middle = (b + high) / 2;
    if (r.cu_q[middle + 1] <= token)
      b = middle + 1;
    else
      high = middle;
  }
  return b;
}

__device__ __forceinline__ int visible_columns(const Lengths& r, const ColumnRange& columns,
                                               std::int64_t token) {
  if (r.batch == 0 || token >= r.q_tokens) return 0;
  const int t = static_cast<int>(token);
  // Whether it is there is asked for along with its lengths.
  Rows s = rows_of(r, likely_request(r, t));
  if (t < s.q_begin || t >= s.q_end) s = rows_of(r, search_request(r, t));
  const int i = t - s.q_begin;
  return i >= 0 && i < s.tokens ? columns.below(s.limit(i, r.causal)) : 0;
}

}  // namespace kvscout::cuda
