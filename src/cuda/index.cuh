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

namespace kvscout::cuda {

// The columns of a token: those of blocks that begin below its limit.
struct VisibleColumns {
  static constexpr bool kBeforeScore = true;  // of the next chunk or step
  Requests requests;
  std::int64_t tokens, keys, block_start, block_step, tiles;
  bool paged;
  std::int64_t first_token;  // of the chunk

  __device__ std::int64_t before_wait(std::int64_t token) const {
    token += first_token;
    if (requests.batch == 0) return 0;
    // The request that it is where all are alike; its lengths are asked for all at once.
    std::int64_t b = token;
    if (requests.batch != tokens)
      b = min(static_cast<std::int64_t>(__fdividef(static_cast<float>(token) * requests.batch,
                                                   static_cast<float>(tokens))),
              requests.batch - 1);
    Span span;
    std::int64_t i;
#pragma unroll 1
    for (bool sure = false;; sure = true) {
      span = span_of(requests, tokens, paged, keys, b);
      i = token - span.q_begin;
      if (i >= 0 && i < span.q_count) break;
      if (sure) return 0;
      std::int64_t high = requests.batch;  // the first request that ends beyond the token
      b = 0;
#pragma unroll 1
      while (b < high) {
        const std::int64_t middle = (b + high) / 2;
        if (__ldg(requests.cu_q + middle + 1) <= token)
          b = middle + 1;
        else
          high = middle;
      }
      if (b == requests.batch) return 0;
    }
    const std::int64_t limit = span.limit(i, requests.causal);
    return block_step == 1 ? columns_below(limit, block_start, 1, tiles)  // no division
                           : columns_below(limit, block_start, block_step, tiles);
  }
  __device__ std::int64_t operator()(std::int64_t, std::int64_t early) const { return early; }
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
    const VisibleColumns columns{p.score.requests,   tokens,
                                 p.score.k.count,    p.score.block_start,
                                 p.score.block_step, p.score.max_k_tiles,
                                 p.score.k.paged,    begin};
    SelectLaunch<Arch, VisibleColumns>("msa_index_select_fp4", select, columns, to)();
  }
}

}  // namespace kvscout::cuda
