// What is to be done, after validation: the only description of work that crosses stages.
//
// Plain structs of fixed-width fields. Views hold an address and strides and own nothing. Lengths
// stay where the caller has them (host or device memory); `max_seqlen_q` and `max_k_tiles` are host
// bounds. Strides of data are in bytes, strides of outputs and of the page table in elements.
#pragma once

#include <cstdint>

#include "kvscout/types.h"

namespace kvscout {

// A host number, or one float that the kernels read where the data lie.
struct GlobalScale {
  float value = 1.0f;
  const float* pointer = nullptr;  // wins over `value`
};

// (tokens, heads, 128). The scale row of (token, head) is token*heads + head, 128x4, 8 groups.
struct Queries {
  const void* data = nullptr;
  const std::uint8_t* scale = nullptr;  // only for e2m1
  Element type = Element::e2m1;
  std::int64_t tokens = 0, heads = 0;
  std::int64_t token_stride = 0, head_stride = 0;
};

// Flat (tokens, heads, 128) or paged (pages, heads, 128 slots, 128).
// Flat scales: row token*heads + head, 128x4. Paged scales: 1024 contiguous bytes for a (page,
// head), at page*scale_page_stride + head*1024, rows = slots.
struct Keys {
  const void* data = nullptr;
  const std::uint8_t* scale = nullptr;  // only for e2m1
  Element type = Element::e2m1;
  bool paged = false;
  std::int64_t count = 0;  // pages or tokens
  std::int64_t heads = 0;
  std::int64_t page_stride = 0, head_stride = 0, token_stride = 0;
  std::int64_t scale_page_stride = 0;
};

// Who asks and how far each query sees; docs/operations.md has the formulas.
struct Requests {
  std::int64_t batch = 0;
  const std::int32_t* cu_q = nullptr;    // batch + 1
  const std::int32_t* cu_k = nullptr;    // batch + 1, flat keys
  const std::int32_t* used_k = nullptr;  // batch, paged keys
  const std::int32_t* page_table = nullptr;
  std::int64_t table_width = 0, table_row_stride = 0, table_column_stride = 0;
  bool causal = true;
  bool has_offset = false;  // q_offset given, as `offset` or `offsets`
  std::int64_t offset = 0;
  const std::int32_t* offsets = nullptr;  // batch; wins over `offset`
  std::int64_t max_seqlen_q = 0;          // queries of a request beyond it are -inf
};

// Score of (head, tile, token) lies at data[head*head_stride + tile*tile_stride +
// token*token_stride].
struct ScoreOutput {
  float* data = nullptr;
  std::int64_t head_stride = 0, tile_stride = 0, token_stride = 0;
};

// msa_proxy_score_fp4 and msa_proxy_score. Column n of the result is block block_start +
// n*block_step.
struct ScoreProblem {
  Queries q;
  Keys k;
  Requests requests;
  GlobalScale q_global, k_global;
  Reduce reduce = Reduce::none;
  std::int64_t max_k_tiles = 0;
  std::int64_t block_start = 0, block_step = 1;
  ScoreOutput out;

  // G, query heads a key head.
  std::int64_t group() const { return k.heads ? q.heads / k.heads : 0; }
  std::int64_t out_heads() const {
    return reduce == Reduce::none ? q.heads : reduce == Reduce::all ? 1 : k.heads;
  }
};

struct SelectRule {
  int topk = 16;
  int force_begin = 0, force_end = 0;
  bool skip_masked = false;
};

// ids (tokens, heads, topk) at ids[token*token_stride + head*head_stride + rank*rank_stride].
struct SelectOutput {
  std::int32_t* ids = nullptr;
  std::int64_t token_stride = 0, head_stride = 0, rank_stride = 0;
  float* scores = nullptr;  // index only, optional
  std::int64_t score_token_stride = 0, score_head_stride = 0, score_rank_stride = 0;
};

struct SelectProblem {
  const float* scores = nullptr;
  std::int64_t heads = 0, tiles = 0, tokens = 0;
  std::int64_t head_stride = 0, tile_stride = 0, token_stride = 0;
  std::int64_t valid = 0;                // n of every token, unless `valids`
  const std::int32_t* valids = nullptr;  // n of each token
  SelectRule rule;
  SelectOutput out;
};

struct IndexProblem {
  ScoreProblem score;  // score.out is unused
  SelectRule rule;
  SelectOutput out;
};

struct QuantizeProblem {
  const void* data = nullptr;
  Element type = Element::bf16;
  std::int64_t rows = 0, columns = 0;  // columns: a multiple of 16
  std::int64_t row_stride = 0;
  GlobalScale global;  // forward
  SfLayout layout = SfLayout::layout_128x4;
  std::uint8_t* codes = nullptr;   // rows * columns/2, dense
  std::uint8_t* scales = nullptr;  // scale_layout::bytes(layout, rows, columns/16)
};

// New keys (tokens, heads, 128) into a paged NVFP4 cache; slot = page*128 + position.
struct AppendProblem {
  const void* data = nullptr;
  Element type = Element::bf16;
  std::int64_t heads = 0;
  std::int64_t token_stride = 0, head_stride = 0;
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
  std::int64_t pages = 0;
  std::int64_t page_stride = 0, cache_head_stride = 0, slot_stride = 0, scale_page_stride = 0;
  const std::int64_t* slots = nullptr;
  std::int64_t count = 0;  // N: rows of `data` beyond it are ignored
  GlobalScale global;      // forward
};

}  // namespace kvscout
