// Which keys a query sees: docs/operations.md, "limit". Written once for every fast back end.
//
// Lengths may come from device memory that nobody checked, so all of it is clamped: a span never
// leaves the queries, the keys or the page table. 64-bit arithmetic throughout.
#pragma once

#include "kvscout/problem.h"

namespace kvscout {

struct Span {
  std::int64_t q_begin = 0;  // first query token
  std::int64_t q_count = 0;  // queries that are answered, at most max_seqlen_q
  std::int64_t k_begin = 0;  // first key token (flat); 0 when paged
  std::int64_t k_count = 0;  // keys that may be read (len_k')
  std::int64_t offset = 0;   // query i sees keys below i + offset + 1

  // Keys that query i sees.
  KVSCOUT_HD std::int64_t limit(std::int64_t i, bool causal) const {
    if (!causal) return k_count;
    const std::int64_t end = i + offset + 1;
    return end < 0 ? 0 : end < k_count ? end : k_count;
  }
};

KVSCOUT_HD std::int64_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// Blocks of `tokens` keys.
KVSCOUT_HD constexpr std::int64_t blocks_of(std::int64_t tokens) {
  return (tokens + kBlock - 1) / kBlock;
}

// Columns of a result (at most `tiles`) whose block begins below `limit`.
KVSCOUT_HD std::int64_t columns_below(std::int64_t limit, std::int64_t start, std::int64_t step,
                                      std::int64_t tiles) {
  const std::int64_t blocks = blocks_of(limit) - start;
  return blocks <= 0 ? 0 : clamp((blocks + step - 1) / step, 0, tiles);
}

// Request b. `q_tokens` and `k_count` are the sizes of the data: Queries::tokens and Keys::count.
KVSCOUT_HD Span span_of(const Requests& r, std::int64_t q_tokens, bool paged, std::int64_t k_tokens,
                        std::int64_t b) {
  Span s;
  const std::int64_t q0 = clamp(r.cu_q[b], 0, q_tokens), q1 = clamp(r.cu_q[b + 1], 0, q_tokens);
  const std::int64_t q_length = q1 > q0 ? q1 - q0 : 0;
  s.q_begin = q0;
  s.q_count = q_length < r.max_seqlen_q ? q_length : r.max_seqlen_q;

  std::int64_t k_length =
      paged ? r.used_k[b] : static_cast<std::int64_t>(r.cu_k[b + 1]) - r.cu_k[b];
  if (k_length < 0) k_length = 0;
  s.k_begin = paged ? 0 : clamp(r.cu_k[b], 0, k_tokens);
  const std::int64_t room = paged ? r.table_width * kBlock : k_tokens - s.k_begin;
  s.k_count = k_length < room ? k_length : room;
  s.offset = r.offsets ? r.offsets[b] : r.has_offset ? r.offset : k_length - q_length;
  return s;
}

// Query rows [first, last) belong to requests; rows outside are -inf.
struct OwnedRows {
  std::int64_t first = 0, last = 0;
};
KVSCOUT_HD OwnedRows owned_rows(const Requests& r, std::int64_t q_tokens) {
  if (r.batch == 0) return {0, 0};
  return {clamp(r.cu_q[0], 0, q_tokens), clamp(r.cu_q[r.batch], 0, q_tokens)};
}

}  // namespace kvscout
