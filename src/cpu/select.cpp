// msa_topk_select: 64 tokens of one head at a time are copied into a strip (columns that lie a page
// apart would fall into the same cache sets) and offered to topk.h. A column then gives 256 bytes
// at a time: an Intel CPU reads those at 10 to 12 GB/s, 128 bytes at 7 to 8, a whole stream at 8
// to 10.
//
// Bound: one streaming read of the scores.
#include <algorithm>
#include <cstring>

#include "cpu/operations.h"
#include "cpu/threads.h"
#include "cpu/topk.h"
#include "span.h"

namespace kvscout::cpu {
namespace {

constexpr int kMostTokens = 64, kColumns = kMarkColumns;
constexpr int kOctet = kColumns * 8 + 16;       // not a multiple of the cache's period
constexpr std::size_t kStateBytes = 32 * 1024;  // RowTopk of 32 rows, topk 64; of 64, topk 39
constexpr std::int64_t kMostStrips = 16;        // strips of a task

struct alignas(64) Scratch {
  float strip[kMostTokens / 8][kOctet];
  std::byte state[kStateBytes];
};

class Selector {
 public:
  Selector(const SelectProblem& p, const Kernels& kernels, std::int64_t head, Scratch& scratch)
      : p_(p),
        kernels_(kernels),
        scratch_(scratch),
        scores_(p.scores + head * p.head_stride),
        ids_(p.out.ids + head * p.out.head_stride),
        tokens_(tokens_of_strip(p)),
        rows_(kernels, p.rule, scratch.state, tokens_) {}

  static int tokens_of_strip(const SelectProblem& p) {
    int tokens = kMostTokens;
    while (RowTopk::bytes(tokens, p.rule.topk) > kStateBytes) tokens /= 2;
    return tokens;
  }

  // Tokens [first, last), strip by strip.
  void run(std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; t += tokens_)
      strip(t, static_cast<int>(std::min<std::int64_t>(tokens_, last - t)));
  }

 private:
  void strip(std::int64_t first, int tokens) {
    std::int64_t most = 0;
    for (int i = 0; i < tokens; ++i) {
      const std::int64_t n = clamp(p_.valids ? p_.valids[first + i] : p_.valid, 0, p_.tiles);
      rows_.ranges()[i] = row_range(p_.rule, n);
      most = std::max(most, n);
    }
    rows_.start(tokens);
    for (std::int64_t c0 = 0; c0 < most; c0 += kColumns) {
      const int columns = static_cast<int>(std::min<std::int64_t>(kColumns, most - c0));
      copy(first, tokens, c0, columns);
      rows_.add(scratch_.strip[0], kOctet, c0, columns);
    }
    for (int i = 0; i < tokens; ++i)
      rows_.store(i, ids_ + (first + i) * p_.out.token_stride, p_.out.rank_stride, nullptr, 0);
  }

  const float* at(std::int64_t column, std::int64_t token) const {
    return scores_ + column * p_.tile_stride + token * p_.token_stride;
  }

  void copy(std::int64_t first, int tokens, std::int64_t c0, int columns) {
    const int octets = p_.token_stride == 1 ? tokens / 8 : 0;
    kernels_.copy_columns(at(c0, first), p_.tile_stride, octets, columns, scratch_.strip[0],
                          kOctet);
    for (int c = 0; c < columns; ++c) {
      const float* from = at(c0 + c, first);
      for (int i = 8 * octets; i < tokens; ++i)
        scratch_.strip[i / 8][8 * c + i % 8] = from[i * p_.token_stride];
      for (int i = tokens; i % 8; ++i) scratch_.strip[i / 8][8 * c + i % 8] = 0;
    }
  }

  const SelectProblem& p_;
  const Kernels& kernels_;
  Scratch& scratch_;
  const float* scores_;
  std::int32_t* ids_;
  int tokens_;
  RowTopk rows_;
};

}  // namespace

void select(const SelectProblem& p, const Launch& l) {
  static_assert(sizeof(Scratch) < 180 * 1024, "lives on the stack of a worker");
  const Kernels& kernels = chosen_kernels("msa_topk_select");
  const int threads = thread_count(l.threads);
  const int tokens = Selector::tokens_of_strip(p);
  const std::int64_t strips = (p.tokens + tokens - 1) / tokens;
  const std::int64_t together =
      std::clamp<std::int64_t>(strips * p.heads / (8 * threads), 1, kMostStrips);
  const std::int64_t runs = (strips + together - 1) / together, step = together * tokens;
  for_each_task(threads, runs * p.heads, [&](int, std::int64_t task) {
    Scratch scratch;
    const std::int64_t first = task % runs * step;
    Selector(p, kernels, task / runs, scratch).run(first, std::min(first + step, p.tokens));
  });
}

}  // namespace kvscout::cpu
