// msa_topk_select: 64 tokens of one head at a time are copied into a strip (columns that lie a page
// apart would fall into the same cache sets) and offered to topk.h.
//
// Bound: one streaming read of the scores.
#include <algorithm>
#include <cstring>
#include <limits>

#include "cpu/operations.h"
#include "cpu/threads.h"
#include "cpu/topk.h"
#include "span.h"

namespace kvscout::cpu {
namespace {

constexpr int kTokens = 64, kColumns = kMarkColumns;
constexpr int kAhead = 12;                      // columns to ask for ahead
constexpr int kOctet = kColumns * 8 + 16;       // not a multiple of the cache's period
constexpr std::size_t kStateBytes = 60 * 1024;  // RowTopk of 64 rows, topk 64

struct alignas(64) Scratch {
  float strip[kTokens / 8][kOctet];
  std::byte state[kStateBytes];
};

void select_tokens(const SelectProblem& p, std::int64_t head, std::int64_t first, int tokens,
                   const Kernels& kernels, Scratch& scratch) {
  RowTopk rows(kernels, p.rule, scratch.state, kTokens);
  std::int64_t most = 0;
  for (int i = 0; i < tokens; ++i) {
    const std::int64_t n = clamp(p.valids ? p.valids[first + i] : p.valid, 0, p.tiles);
    rows.ranges()[i] = row_range(p.rule, n);
    most = std::max(most, n);
  }
  rows.start(tokens);
  const int padded = (tokens + 7) / 8 * 8;
  for (std::int64_t c0 = 0; c0 < most; c0 += kColumns) {
    const int columns = static_cast<int>(std::min<std::int64_t>(kColumns, most - c0));
    for (int c = 0; c < columns; ++c) {
      const float* from =
          p.scores + head * p.head_stride + (c0 + c) * p.tile_stride + first * p.token_stride;
      if (p.token_stride == 1 && tokens == kTokens) {  // whole lines, a page apart: asked for ahead
        const char* ahead = reinterpret_cast<const char*>(
            from + (c + kAhead < columns ? kAhead : 0) * p.tile_stride);
        for (int line = 0; line < 4; ++line) __builtin_prefetch(ahead + 64 * line);
        for (int o = 0; o < kTokens / 8; ++o)
          std::memcpy(&scratch.strip[o][8 * c], from + 8 * o, 32);
      } else {
        for (int i = 0; i < tokens; ++i)
          scratch.strip[i / 8][8 * c + i % 8] = from[i * p.token_stride];
      }
      for (int i = tokens; i < padded; ++i) scratch.strip[i / 8][8 * c + i % 8] = 0;
    }
    rows.add(scratch.strip[0], kOctet, c0, columns);
  }
  for (int i = 0; i < tokens; ++i)
    rows.store(i, p.out.ids + (first + i) * p.out.token_stride + head * p.out.head_stride,
               p.out.rank_stride, nullptr, 0);
}

}  // namespace

void select(const SelectProblem& p, const Launch& l) {
  static_assert(sizeof(Scratch) < 256 * 1024, "lives on the stack of a worker");
  const Kernels& kernels = chosen_kernels();
  const std::int64_t runs = (p.tokens + kTokens - 1) / kTokens;
  for_each_task(thread_count(l.threads), runs * p.heads, [&](int, std::int64_t task) {
    Scratch scratch;
    const std::int64_t first = task % runs * kTokens;
    select_tokens(p, task / runs, first,
                  static_cast<int>(std::min<std::int64_t>(kTokens, p.tokens - first)), kernels,
                  scratch);
  });
}

}  // namespace kvscout::cpu
