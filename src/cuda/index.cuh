// msa_index_select_fp4: the selection of scores that no caller sees.
//
// Tokens go through in chunks: their scores into the workspace, then the selection from there. The
// chunks are few, since each costs a start and an end, and bounded, since the workspace is the
// caller's. The selection reads live columns only, so the tails need no
// -inf and a generous max_k_tiles costs nothing. It may be started while the scores are still
// computed, and looks up its lengths meanwhile.
#pragma once

#include "cuda/score.h"
#include "cuda/select.cuh"
#include "cuda/visible.cuh"

namespace kvscout::cuda {

// What the selection is told of a token's columns.
struct VisibleColumns {
  static constexpr bool kBeforeScore = true;  // of the next chunk or step
  Lengths lengths;
  ColumnRange columns;
  std::int64_t first_token;  // of the chunk

  __device__ int before_wait(std::int64_t token) const {
    return visible_columns(lengths, columns, first_token + token);
  }
  __device__ int operator()(std::int64_t, int early) const { return early; }
};

// Scores of a chunk, at most: those of 8192 tokens, 4 heads and 512 blocks. On an H200 that call
// took 1.06 to 1.08 times its score with 64 MiB, 1.10 to 1.12 with 32 and 1.13 with 16.
inline constexpr std::int64_t kIndexChunkBytes = std::int64_t{64} << 20;

// How an index call is cut up: tokens of a chunk, and how their scores lie in the workspace.
struct IndexPlan {
  std::int64_t chunk = 0;
  bool tiles_inside = false;
  std::int64_t bytes = 0;

  explicit IndexPlan(const IndexProblem& p) {
    const ScoreProblem& s = p.score;
    const std::int64_t a_token =
        s.out_heads() * s.max_k_tiles * static_cast<std::int64_t>(sizeof(float));
    if (s.q.tokens == 0 || a_token == 0) return;
    const std::int64_t most = clamp(kIndexChunkBytes / a_token, 1, s.q.tokens);
    const std::int64_t chunks = (s.q.tokens - 1) / most + 1;
    const std::int64_t each = (s.q.tokens - 1) / chunks + 1;  // alike, in whole tiles of tokens
    chunk = clamp((each + 63) / 64 * 64, 1, most);
    tiles_inside =
        s.requests.max_seqlen_q < 32;  // few rows share a key block: scores come by columns
    bytes = chunk * a_token;
  }

  ScoreOutput output(const ScoreProblem& s, void* workspace) const {
    auto* scores = static_cast<float*>(workspace);
    if (tiles_inside) return {scores, chunk * s.max_k_tiles, 1, s.max_k_tiles};
    return {scores, chunk * s.max_k_tiles, chunk, 1};
  }
};

inline std::size_t index_workspace(const IndexProblem& p) {
  return static_cast<std::size_t>(IndexPlan(p).bytes);
}

template <class Arch>
void index(const IndexProblem& p, const Launch& to,
           void (*score_tokens)(const ScoreProblem&, const Launch&, TokenRange)) {
  const std::int64_t tokens = p.score.q.tokens, heads = p.score.out_heads();
  if (tokens == 0 || heads == 0) return;
  const DeviceGuard guard(to.device.index);
  const IndexPlan plan(p);
  const std::int64_t chunk = plan.chunk ? plan.chunk : tokens;
  ScoreProblem score = p.score;
  score.out = plan.output(p.score, to.workspace);
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t end = begin + chunk < tokens ? begin + chunk : tokens;
    if (plan.chunk) score_tokens(score, to, {begin, end, false});

    SelectProblem select;
    select.scores = score.out.data;
    select.heads = heads, select.tiles = p.score.max_k_tiles, select.tokens = end - begin;
    select.head_stride = score.out.head_stride, select.tile_stride = score.out.tile_stride;
    select.token_stride = score.out.token_stride;
    select.rule = p.rule;
    select.out = p.out;
    select.out.ids += begin * p.out.token_stride;
    if (p.out.scores) select.out.scores += begin * p.out.score_token_stride;
    const VisibleColumns columns{lengths_of(p.score), columns_of(p.score), begin};
    SelectLaunch<Arch, VisibleColumns>("msa_index_select_fp4", select, columns, to)();
  }
}

}  // namespace kvscout::cuda
