// The tiles of all requests as one list of numbers: tile n belongs to the request whose prefix
// holds it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/plan.h"
#include "cpu/tile_scorer.h"
#include "span.h"

namespace kvscout::cpu {

inline Span span_of(const ScoreProblem& p, std::int64_t b) {
  return kvscout::span_of(p.requests, p.q.tokens, p.k.paged, p.k.count, b);
}

class TileList {
 public:
  static std::size_t bytes(std::int64_t batch) { return (static_cast<std::size_t>(batch) + 1) * 8; }

  // `first_tile`: memory for batch + 1 numbers.
  TileList(const ScoreProblem& p, int queries, void* first_tile)
      : p_(p), queries_(queries), first_(static_cast<std::int64_t*>(first_tile)) {
    first_[0] = 0;
    for (std::int64_t b = 0; b < p.requests.batch; ++b)
      first_[b + 1] = first_[b] + (span_of(p, b).q_count + queries - 1) / queries;
  }

  std::int64_t count() const { return first_[p_.requests.batch]; }

  // Request and queries of tile n; heads are left to the caller.
  Tile tile(std::int64_t n, Span* span) const {
    const std::int64_t* next = std::upper_bound(first_, first_ + p_.requests.batch + 1, n);
    Tile t;
    t.request = next - first_ - 1;
    *span = span_of(p_, t.request);
    t.first = (n - first_[t.request]) * queries_;
    t.count = static_cast<int>(std::min<std::int64_t>(queries_, span->q_count - t.first));
    return t;
  }

 private:
  const ScoreProblem& p_;
  std::int64_t queries_;
  std::int64_t* first_;
};

// Heads of pass `pass` of a task over heads.
inline void set_heads(const ScoreProblem& p, const ScorePlan& plan, std::int64_t head_task,
                      int pass, Tile* t) {
  const std::int64_t n = head_task * plan.passes + pass;
  const std::int64_t begin = n % plan.passes_per_kv * plan.heads;
  t->kv = n / plan.passes_per_kv;
  t->head = t->kv * p.group() + begin;
  t->heads = static_cast<int>(std::min<std::int64_t>(plan.heads, p.group() - begin));
}

// Calls fill(first, last) for runs of query tokens that nobody answers.
template <class Fill>
void for_unanswered(const ScoreProblem& p, const Fill& fill) {
  const OwnedRows owned = owned_rows(p.requests, p.q.tokens);
  if (owned.first >= owned.last) {
    fill(std::int64_t{0}, p.q.tokens);
    return;
  }
  fill(std::int64_t{0}, owned.first);
  fill(owned.last, p.q.tokens);
  for (std::int64_t b = 0; b < p.requests.batch; ++b) {
    const std::int64_t end = clamp(p.requests.cu_q[b + 1], 0, p.q.tokens);
    const Span s = span_of(p, b);
    fill(s.q_begin + s.q_count, end);
  }
}

}  // namespace kvscout::cpu
