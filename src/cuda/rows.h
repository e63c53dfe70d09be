// Which tokens and keys a request has, in 32-bit arithmetic: what span.h says, for the lengths that
// 32-bit inputs can express. Short chains of instructions, since small calls wait for them. span.h
// stays the definition; tests compare the two.
#pragma once

#include <cstdint>

#include "kvscout/problem.h"

namespace kvscout::cuda {

KVSCOUT_HD int least(int a, int b) { return a < b ? a : b; }
KVSCOUT_HD int most(int a, int b) { return a > b ? a : b; }

struct Lengths {
  const std::int32_t* cu_q = nullptr;
  const std::int32_t* cu_k = nullptr;     // flat keys
  const std::int32_t* used_k = nullptr;   // paged keys
  const std::int32_t* offsets = nullptr;  // null: `offset`, or what the lengths say
  int batch = 0;
  int q_tokens = 0;
  int k_room = 0;  // flat: tokens; paged: what a row of the page table can address
  int max_tokens = 0;
  int offset = 0;
  int has_offset = false, causal = true;  // of a width that an instruction takes from constants
};

// To 32 bits, to which everything here is cut.
constexpr int cut(std::int64_t n) {
  return static_cast<int>(n < INT32_MIN ? INT32_MIN : n > INT32_MAX ? INT32_MAX : n);
}

inline Lengths lengths_of(const ScoreProblem& p) {
  const Requests& r = p.requests;
  // Of 32-bit lengths: what lies beyond 2^24 blocks is not reached.
  const std::int64_t width = r.table_width < 1 << 24 ? r.table_width : 1 << 24;
  return {.cu_q = r.cu_q,
          .cu_k = p.k.paged ? nullptr : r.cu_k,
          .used_k = p.k.paged ? r.used_k : nullptr,
          .offsets = r.offsets,
          .batch = cut(r.batch),
          .q_tokens = cut(p.q.tokens),
          .k_room = cut(p.k.paged ? width * kBlock : p.k.count),
          .max_tokens = cut(r.max_seqlen_q),
          .offset = cut(r.offset),
          .has_offset = r.has_offset,
          .causal = r.causal};
}

struct Rows {
  int b = 0;
  int q_begin = 0, q_end = 0;    // query tokens of the request
  int tokens = 0;                // of those, at most max_tokens
  int begin = 0, end = 0;        // those that the kernel at hand answers, local indices
  int k_begin = 0, k_count = 0;  // keys that may be read
  int visible = 0;               // keys that query 0 sees, before clamping

  KVSCOUT_HD int limit(int i, bool causal) const {
    if (!causal) return k_count;
    if (visible < 0) return most(0, least(i + visible, k_count));
    const unsigned end_of = static_cast<unsigned>(i) + static_cast<unsigned>(visible);
    return end_of < static_cast<unsigned>(k_count) ? static_cast<int>(end_of) : k_count;
  }
};

// What the lengths say of a request, as it lies in memory.
struct RawRows {
  int q0, q1;  // cu_q
  int k0, k1;  // cu_k; paged: used_k, twice
  int offset;  // where there are offsets
};

// load(address) gives what lies there.
template <class Load>
KVSCOUT_HD RawRows load_rows(const Lengths& r, int b, Load load) {
  const std::int32_t* k = (r.used_k ? r.used_k : r.cu_k) + b;
  RawRows raw;
  raw.q0 = load(r.cu_q + b), raw.q1 = load(r.cu_q + b + 1);
  raw.k0 = load(k), raw.k1 = r.used_k ? raw.k0 : load(k + 1);
  raw.offset = r.offsets ? load(r.offsets + b) : 0;
  return raw;
}

KVSCOUT_HD Rows rows_of(const Lengths& r, int b, const RawRows& raw) {
  Rows s;
  s.b = b;
  const int q0 = most(0, least(raw.q0, r.q_tokens)), q1 = most(0, least(raw.q1, r.q_tokens));
  const int q_length = most(q1 - q0, 0);
  s.q_begin = q0, s.q_end = q1;
  s.tokens = least(q_length, r.max_tokens);
  int k_length;
  if (r.used_k) {
    k_length = most(raw.k0, 0);
    s.k_count = least(k_length, r.k_room);
  } else {
    const int k0 = raw.k0, k1 = raw.k1;
    const unsigned difference = static_cast<unsigned>(k1) - static_cast<unsigned>(k0);
    k_length = k1 <= k0 ? 0 : difference > 0x7FFFFFFFu ? 0x7FFFFFFF : static_cast<int>(difference);
    s.k_begin = most(0, least(k0, r.k_room));
    s.k_count = least(k_length, r.k_room - s.k_begin);
  }
  const int offset = r.offsets ? raw.offset : r.has_offset ? r.offset : k_length - q_length;
  s.visible = offset < 0x7FFFFFFF ? offset + 1 : offset;
  return s;
}

KVSCOUT_HD Rows rows_of(const Lengths& r, int b) {
  return rows_of(r, b, load_rows(r, b, [](const std::int32_t* a) { return *a; }));
}

}  // namespace kvscout::cuda
