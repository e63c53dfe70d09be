// msa_topk_select: 64 tokens of one head at a time are copied into a strip (columns that lie a page
// apart would fall into the same cache sets) and offered to topk.h; meanwhile the next ones are
// copied into another. A column gives 256 bytes at a time: an Intel CPU reads those at 10 to 12
// GB/s, 128 bytes at 7 to 8, a whole stream at 8 to 10.
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
constexpr int kOctet = ColumnCopy::kOctet;
constexpr std::size_t kStateBytes = 32 * 1024;  // RowTopk of 32 rows, topk 64; of 64, topk 39
constexpr std::int64_t kMostStrips = 16;        // strips of a task

struct alignas(64) Scratch {
  float strip[2][kMostTokens / 8][kOctet];
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

  // Tokens [first, last), piece by piece; the next one is copied while this one is dealt with.
  void run(std::int64_t first, std::int64_t last) {
    Piece now = piece(first, last, 0);
    ColumnCopy copy = copy_of(now, 0);
    for (int i = 0; now.tokens > 0; i ^= 1) {
      kernels_.copy_columns(copy);
      copy_rest(now, i);
      const bool done = now.first_column + now.columns >= now.most;
      const Piece next =
          done ? piece(now.first + now.tokens, last, 0)
               : piece(now.first, now.first + now.tokens, now.first_column + now.columns);
      copy = copy_of(next, i ^ 1);
      if (now.first_column == 0) start(now);
      if (now.columns > 0)
        rows_.add(scratch_.strip[i][0], kOctet, now.first_column, now.columns, copy);
      if (done) store(now);
      now = next;
    }
  }

 private:
  struct Piece {
    std::int64_t first = 0;
    int tokens = 0;
    std::int64_t first_column = 0, most = 0;  // columns that one of the tokens may choose
    int columns = 0;
  };
  std::int64_t valid(std::int64_t token) const {
    return clamp(p_.valids ? p_.valids[token] : p_.valid, 0, p_.tiles);
  }
  Piece piece(std::int64_t first, std::int64_t last, std::int64_t first_column) const {
    Piece x;
    x.first = first;
    x.tokens = static_cast<int>(std::min<std::int64_t>(tokens_, last - first));
    x.first_column = first_column;
    for (int i = 0; i < x.tokens; ++i) x.most = std::max(x.most, valid(first + i));
    x.columns = static_cast<int>(std::min<std::int64_t>(kColumns, x.most - first_column));
    return x;
  }
  void start(const Piece& x) {
    for (int i = 0; i < x.tokens; ++i) rows_.ranges()[i] = row_range(p_.rule, valid(x.first + i));
    rows_.start(x.tokens);
    for (int i = 0; i < x.tokens; ++i)  // or `store` waits for one line after the other
      __builtin_prefetch(ids_ + (x.first + i) * p_.out.token_stride, 1);
  }
  void store(const Piece& x) {
    for (int i = 0; i < x.tokens; ++i)
      rows_.store(i, ids_ + (x.first + i) * p_.out.token_stride, p_.out.rank_stride, nullptr, 0);
  }

  const float* at(std::int64_t column, std::int64_t token) const {
    return scores_ + column * p_.tile_stride + token * p_.token_stride;
  }

  int octets_of(const Piece& x) const { return p_.token_stride == 1 ? x.tokens / 8 : 0; }
  ColumnCopy copy_of(const Piece& x, int i) {
    if (x.tokens <= 0) return {};
    return {at(x.first_column, x.first), p_.tile_stride, octets_of(x), x.columns,
            scratch_.strip[i][0]};
  }
  // What is no full octet of neighbours.
  void copy_rest(const Piece& x, int i) {
    const int done = 8 * octets_of(x);
    for (int c = 0; done < x.tokens && c < x.columns; ++c) {
      const float* from = at(x.first_column + c, x.first);
      for (int t = done; t < x.tokens; ++t)
        scratch_.strip[i][t / 8][8 * c + t % 8] = from[t * p_.token_stride];
      for (int t = x.tokens; t % 8; ++t) scratch_.strip[i][t / 8][8 * c + t % 8] = 0;
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
  static_assert(sizeof(Scratch) < 300 * 1024, "lives on the stack of a worker");
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
