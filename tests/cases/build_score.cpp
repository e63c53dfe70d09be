// Scores and the fused index: lengths, bounds and outputs beside the rows.
#include <algorithm>

#include "build_rows.h"

namespace kvscout::cases {

namespace {

Tensor score_output(Problem& p, const ScoreSpec& s, std::int64_t tiles, std::int64_t tokens) {
  const std::int64_t heads = s.reduce == Reduce::none  ? s.q_heads
                             : s.reduce == Reduce::all ? 1
                                                       : s.k_heads;
  std::int64_t head = tiles * tokens, tile = tokens, token = 1;
  if (s.output == OutputStrides::tiles_innermost) head = tiles, tile = 1, token = heads * tiles;
  if (s.output == OutputStrides::padded) token = 2, tile = 2 * tokens + 3, head = tile * tiles + 1;
  const std::int64_t span = heads * head + tiles * tile + tokens * token + 1;
  std::uint8_t* data = p.add_output(4 * span, s.misaligned ? 4 : 0);
  return Tensor(data, DType::f32, {heads, tiles, tokens}).strided({head, tile, token});
}

std::int64_t tiles_of(const ScoreSpec& s) {
  if (s.max_k_tiles >= 0) return s.max_k_tiles;
  const std::int64_t blocks = std::max<std::int64_t>(max_blocks(s) - s.block_start, 0);
  const std::int64_t exact = (blocks + s.block_step - 1) / s.block_step;
  return s.tiles == Tiles::exact       ? exact
         : s.tiles == Tiles::too_large ? exact + 3
                                       : (exact + 1) / 2;
}

// Everything but the output, which score and index do not share.
template <class A>
void fill_requests(Problem& p, A& a, const ScoreSpec& s, const Lengths& n, Random& random) {
  a.cu_seqlens_q = p.add_i32(n.cu_q);
  a.causal = s.causal;
  a.reduce_heads = s.reduce;
  a.kv_block_start = s.block_start;
  a.kv_block_step = s.block_step;
  a.max_seqlen_q = 0;
  for (std::int32_t q : s.q_lengths) a.max_seqlen_q = std::max<std::int64_t>(a.max_seqlen_q, q);
  if (s.tiles == Tiles::too_large) a.max_seqlen_q += 9;
  a.max_k_tiles = tiles_of(s);
  if (s.offset == Offset::number) {
    a.has_q_offset = true;
    a.q_offset = s.k_lengths.empty() ? 5 : s.k_lengths[0] / 2 - 1;
  } else if (s.offset == Offset::tensor) {
    std::vector<std::int32_t> offsets;
    for (std::int32_t k : s.k_lengths)
      offsets.push_back(static_cast<std::int32_t>(random.between(-4, k + 4)));
    a.q_offsets = p.add_i32(offsets);
  }
}

ScoreFp4Args fp4_args(Problem& p, const ScoreSpec& s, const Lengths& n) {
  Random random(s.seed);
  ScoreFp4Args a;
  const Rows q = queries(p, s, n, random);
  a.q_fp4 = q.data;
  a.q_scale = q.scales;
  const Rows k = s.paged ? paged_keys(p, s, &a.page_table, random) : flat_keys(p, s, n, random);
  a.k_fp4 = k.data;
  a.k_scale = k.scales;
  if (s.paged)
    a.seqused_k = p.add_i32(s.k_lengths);
  else
    a.cu_seqlens_k = p.add_i32(n.cu_k);
  a.q_global_scale.value = q.scales.defined ? 0.0032087055f : 1.0f;
  a.k_global_scale.value = 0.0625f + static_cast<float>(s.seed % 7) * 0.013f;
  if (s.scale_pointers) {
    a.k_global_scale.pointer = p.add_float(a.k_global_scale.value);
    a.k_global_scale.value = -1.0f;  // must not be looked at
    if (q.scales.defined) {          // unquantised queries have no scale of their own
      a.q_global_scale.pointer = p.add_float(a.q_global_scale.value);
      a.q_global_scale.value = -1.0f;
    }
  }
  fill_requests(p, a, s, n, random);
  return a;
}

}  // namespace

std::int64_t max_blocks(const ScoreSpec& s) {
  std::int64_t blocks = 0;
  for (std::int32_t n : s.k_lengths) blocks = std::max<std::int64_t>(blocks, (n + 127) / 128);
  return blocks;
}

bool has_column(const ScoreSpec& s, std::int64_t block) {
  const std::int64_t distance = block - s.block_start;
  return distance >= 0 && distance % s.block_step == 0 && distance / s.block_step < tiles_of(s);
}

std::int64_t pages_read(const ScoreSpec& s) {
  std::int64_t pages = 0;
  for (std::int32_t n : s.k_lengths)
    for (std::int64_t block = 0; block < (n + 127) / 128; ++block) pages += has_column(s, block);
  return pages;
}

std::int64_t row_products(const ScoreSpec& s) {
  std::int64_t n = 0;
  for (std::size_t b = 0; b < s.q_lengths.size(); ++b)
    n += std::int64_t{s.q_lengths[b]} * s.k_lengths[b];
  return n * s.q_heads;
}

Problem build_score(const ScoreSpec& s) {
  Problem p;
  const Lengths n(s);
  if (is_fp4(s.types)) {
    ScoreFp4Args a = fp4_args(p, s, n);
    a.output = score_output(p, s, a.max_k_tiles, n.q_tokens);
    p.args = a;
    return p;
  }
  Random random(s.seed);
  ScoreArgs a;
  a.q = queries(p, s, n, random).data;
  a.k = s.paged ? paged_keys(p, s, &a.page_table, random).data : flat_keys(p, s, n, random).data;
  if (s.paged)
    a.seqused_k = p.add_i32(s.k_lengths);
  else
    a.cu_seqlens_k = p.add_i32(n.cu_k);
  fill_requests(p, a, s, n, random);
  a.output = score_output(p, s, a.max_k_tiles, n.q_tokens);
  p.args = a;
  return p;
}

Problem build_index(const IndexSpec& s) {
  Problem p;
  const Lengths n(s.score);
  IndexArgs a;
  a.score = fp4_args(p, s.score, n);
  a.topk = s.topk;
  a.force_begin_blocks = s.force_begin;
  a.force_end_blocks = s.force_end;
  const std::int64_t heads = s.score.reduce == Reduce::none  ? s.score.q_heads
                             : s.score.reduce == Reduce::all ? 1
                                                             : s.score.k_heads;
  // Dense, or head-major with gaps.
  const std::int64_t rank = s.strided_output ? 2 : 1;
  const std::int64_t token = s.strided_output ? rank * s.topk + 1 : heads * s.topk;
  const std::int64_t head = s.strided_output ? token * n.q_tokens + 5 : s.topk;
  const std::int64_t span = n.q_tokens * token + heads * head + s.topk * rank;
  const auto output = [&](DType type) {
    return Tensor(p.add_output(4 * span), type, {n.q_tokens, heads, s.topk})
        .strided({token, head, rank});
  };
  a.output = output(DType::i32);
  if (s.with_scores) a.scores = output(DType::f32);
  p.args = a;
  return p;
}

}  // namespace kvscout::cases
