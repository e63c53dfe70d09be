#include "validate.h"

#include <fmt/format.h>

#include <cmath>

#include "checks.h"
#include "kvscout/nvfp4.h"
#include "kvscout/scale_layout.h"
#include "span.h"

namespace kvscout {
namespace {

using namespace checks;  // NOLINT: the vocabulary of this file

Element element_of(DType t) {
  switch (t) {
    case DType::e4m3: return Element::e4m3;
    case DType::f16: return Element::f16;
    case DType::bf16: return Element::bf16;
    case DType::f32: return Element::f32;
    default: return Element::e2m1;
  }
}

const std::uint8_t* bytes(const Tensor& t) { return static_cast<const std::uint8_t*>(t.data); }
const std::int32_t* ints(const Tensor& t) { return static_cast<const std::int32_t*>(t.data); }

std::int64_t stride_bytes(const Tensor& t, int dimension) {
  return t.stride[dimension] * bytes_of(t.dtype);
}

void require_forward_scale(Argument a, const GlobalScale& scale) {
  if (!scale.pointer && !nvfp4::is_legal_global(scale.value))
    fail(a, fmt::format("{}", scale.value), "a finite number above 0");
}

// Data rows of 128 elements: the shape, and strides that keep each row in one piece.
void require_rows(Argument a, const Tensor& t, int rank, const char* shape, std::int64_t last) {
  require_rank(a, t, rank, shape);
  require_size(a, t, rank - 1, last, "one row of 128 elements");
  require_dense_rows(a, t);
  require_address(a, t);
}

// ---- queries and keys ----------------------------------------------------------------------------

void read_queries(Argument a, const Tensor& t, Queries& q) {
  q.data = t.data;
  q.type = element_of(t.dtype);
  q.tokens = t.shape[0];
  q.heads = t.shape[1];
  q.token_stride = stride_bytes(t, 0);
  q.head_stride = stride_bytes(t, 1);
  require_at_least(a, q.heads, 1);
}

void read_keys(Argument a, const Tensor& t, bool paged, std::int64_t last, Keys& k) {
  k.paged = paged;
  if (paged) {
    require_rank(a, t, 4, "(pages, key heads, 128, row) beside a page_table");
    if (t.shape[2] != kBlock)
      fail(a, fmt::format("{}: pages of {} tokens", describe(t), t.shape[2]), "pages of 128 tokens");
  }
  require_rows(a, t, paged ? 4 : 3, "(tokens, key heads, row) without a page_table", last);
  k.data = t.data;
  k.type = element_of(t.dtype);
  k.count = t.shape[0];
  k.heads = t.shape[1];
  require_at_least(a, k.heads, 1);
  k.page_stride = paged ? stride_bytes(t, 0) : 0;
  k.head_stride = stride_bytes(t, 1);
  k.token_stride = stride_bytes(t, paged ? 2 : 0);
}

// Bytes between the scales of consecutive pages: dense bytes of any shape, or pages with a stride, each
// holding its heads' 1024 bytes side by side.
std::int64_t page_scales(Argument a, const Tensor& t, std::int64_t pages, std::int64_t heads,
                         Device device) {
  const std::int64_t page_bytes = heads * scale_layout::kPageBytes;
  Tensor inner = t;  // one page
  for (int i = 1; i < t.rank; ++i) {
    inner.shape[i - 1] = t.shape[i];
    inner.stride[i - 1] = t.stride[i];
  }
  inner.rank = t.rank - 1;
  if (t.is_dense() || t.rank < 2 || t.shape[0] != pages || !inner.is_dense() ||
      inner.count() < page_bytes) {
    require_scales(a, t, pages * page_bytes, device);
    return page_bytes;
  }
  require_dtype(a, t, {DType::u8, DType::e4m3});
  require_device(a, t, device);
  require_address(a, t);
  return t.stride[0];
}

// ---- who asks ------------------------------------------------------------------------------------

// The arguments that both score operations share.
template <class Args>
void read_requests(const char* op, const Args& args, Device device, ScoreProblem& p) {
  Requests& r = p.requests;
  const Argument cu_q{op, "cu_seqlens_q"};
  require_given(cu_q, args.cu_seqlens_q, "i32 (requests + 1)");
  require_rank(cu_q, args.cu_seqlens_q, 1, "one dimension");
  if (args.cu_seqlens_q.shape[0] < 1) fail(cu_q, describe(args.cu_seqlens_q), "requests + 1 numbers");
  r.batch = args.cu_seqlens_q.shape[0] - 1;
  require_lengths(cu_q, args.cu_seqlens_q, r.batch + 1, "requests + 1", device);
  r.cu_q = ints(args.cu_seqlens_q);

  if (p.k.paged) {
    const Argument table{op, "page_table"};
    require_dtype(table, args.page_table, {DType::i32});
    require_rank(table, args.page_table, 2, "(requests, width)");
    require_size(table, args.page_table, 0, r.batch, "requests, from cu_seqlens_q");
    require_device(table, args.page_table, device);
    require_address(table, args.page_table);
    r.page_table = ints(args.page_table);
    r.table_width = args.page_table.shape[1];
    r.table_row_stride = args.page_table.stride[0];
    r.table_column_stride = args.page_table.stride[1];
    require_given({op, "seqused_k"}, args.seqused_k, "i32 (requests) beside a page_table");
    require_lengths({op, "seqused_k"}, args.seqused_k, r.batch, "requests, from cu_seqlens_q", device);
    r.used_k = ints(args.seqused_k);
  } else {
    require_given({op, "cu_seqlens_k"}, args.cu_seqlens_k,
                  "i32 (requests + 1) for flat keys, or a page_table for paged ones");
    require_lengths({op, "cu_seqlens_k"}, args.cu_seqlens_k, r.batch + 1,
                    "requests + 1, from cu_seqlens_q", device);
    r.cu_k = ints(args.cu_seqlens_k);
  }

  r.causal = args.causal;
  if (args.q_offsets.defined) {
    if (args.has_q_offset) fail({op, "q_offset"}, "a number and a tensor", "one of the two");
    require_lengths({op, "q_offset"}, args.q_offsets, r.batch, "requests, from cu_seqlens_q", device);
    r.offsets = ints(args.q_offsets);
  } else if (args.has_q_offset) {
    r.has_offset = true;
    constexpr std::int64_t kFar = std::int64_t{1} << 48;  // beyond every length; i + offset + 1 cannot overflow
    r.offset = clamp(args.q_offset, -kFar, kFar);
  }

  require_at_least({op, "max_seqlen_q"}, args.max_seqlen_q, 0);
  require_at_least({op, "max_k_tiles"}, args.max_k_tiles, 0);
  require_at_least({op, "kv_block_start"}, args.kv_block_start, 0);
  require_at_least({op, "kv_block_step"}, args.kv_block_step, 1);
  r.max_seqlen_q = args.max_seqlen_q;
  p.max_k_tiles = args.max_k_tiles;
  p.block_start = args.kv_block_start;
  p.block_step = args.kv_block_step;
  p.reduce = args.reduce_heads;
  if (device.type == Device::cpu)
    for (std::int64_t b = 0; b < r.batch; ++b) {
      Requests whole = r;
      whole.max_seqlen_q = p.q.tokens;
      const Span s = span_of(whole, p.q.tokens, p.k.paged, p.k.count, b);
      if (s.q_count > r.max_seqlen_q)
        fail({op, "max_seqlen_q"}, fmt::format("{}", r.max_seqlen_q),
             fmt::format("at least {}, the queries of request {}", s.q_count, b));
    }
}

void require_head_groups(const char* op, const char* q_name, const ScoreProblem& p) {
  if (p.q.heads % p.k.heads != 0)
    fail({op, q_name}, fmt::format("{} query heads", p.q.heads),
         fmt::format("a multiple of the {} key heads", p.k.heads));
}

void read_output(const char* op, const Tensor& t, Device device, ScoreProblem& p) {
  const Argument a{op, "output"};
  require_given(a, t, "f32 (heads, max_k_tiles, query tokens)");
  require_dtype(a, t, {DType::f32});
  require_rank(a, t, 3, "(heads, max_k_tiles, query tokens)");
  require_size(a, t, 0, p.out_heads(), "heads of the result");
  require_size(a, t, 1, p.max_k_tiles, "max_k_tiles");
  require_size(a, t, 2, p.q.tokens, "query tokens");
  require_device(a, t, device);
  require_no_overlap(a, t);
  require_address(a, t);
  p.out = {static_cast<float*>(t.data), t.stride[0], t.stride[1], t.stride[2]};
}

// ---- selection -----------------------------------------------------------------------------------

void read_rule(const char* op, int topk, int begin, int end, bool skip_masked, SelectRule& rule) {
  if (topk < 1 || topk > kMaxTopk)
    fail({op, "topk"}, fmt::format("{}", topk), fmt::format("1 to {}", kMaxTopk));
  require_at_least({op, "force_begin_blocks"}, begin, 0);
  require_at_least({op, "force_end_blocks"}, end, 0);
  if (begin > topk - end)
    fail({op, "force_begin_blocks + force_end_blocks"}, fmt::format("{} + {}", begin, end),
         fmt::format("at most topk = {}", topk));
  rule = {topk, begin, end, skip_masked};
}

void require_selected(Argument a, const Tensor& t, DType type, std::int64_t tokens, std::int64_t heads,
                      int topk, Device device) {
  require_given(a, t, "(query tokens, heads, topk)");
  require_dtype(a, t, {type});
  require_rank(a, t, 3, "(query tokens, heads, topk)");
  require_size(a, t, 0, tokens, "query tokens");
  require_size(a, t, 1, heads, "heads");
  require_size(a, t, 2, topk, "topk");
  require_device(a, t, device);
  require_no_overlap(a, t);
  require_address(a, t);
}

Accepted read_fp4(const char* op, const ScoreFp4Args& args, ScoreProblem& p) {
  const Argument q{op, "q_fp4"}, k{op, "k_fp4"}, q_scale{op, "q_scale"}, k_scale{op, "k_scale"};
  require_given(q, args.q_fp4, "(query tokens, query heads, 64) codes");
  require_given(k, args.k_fp4, "(key tokens, key heads, 64) or (pages, key heads, 128, 64) codes");
  const Device device = args.q_fp4.device;
  const bool wide = args.q_fp4.dtype == DType::bf16 || args.q_fp4.dtype == DType::f16;
  if (!wide) require_dtype(q, args.q_fp4, {DType::u8, DType::e2m1x2, DType::bf16, DType::f16});
  require_rows(q, args.q_fp4, 3, "(query tokens, query heads, row)", wide ? 128 : 64);
  read_queries(q, args.q_fp4, p.q);
  require_dtype(k, args.k_fp4, {DType::u8, DType::e2m1x2});
  require_device(k, args.k_fp4, device);
  read_keys(k, args.k_fp4, args.page_table.defined, 64, p.k);
  require_head_groups(op, "q_fp4", p);

  if (wide) {
    if (args.q_scale.defined) fail(q_scale, describe(args.q_scale), "nothing beside unquantised queries");
    if (args.q_global_scale.pointer || args.q_global_scale.value != 1.0f)
      fail({op, "q_global_scale"}, args.q_global_scale.pointer ? "a tensor" : fmt::format("{}", args.q_global_scale.value),
           "1 beside unquantised queries");
  } else {
    require_given(q_scale, args.q_scale, "e4m3 bytes beside packed queries");
    require_scales(q_scale, args.q_scale,
                   scale_layout::bytes(SfLayout::layout_128x4, p.q.tokens * p.q.heads, 8), device);
    p.q.scale = bytes(args.q_scale);
  }
  require_given(k_scale, args.k_scale, "e4m3 bytes");
  if (p.k.paged) {
    p.k.scale_page_stride = page_scales(k_scale, args.k_scale, p.k.count, p.k.heads, device);
  } else {
    require_scales(k_scale, args.k_scale,
                   scale_layout::bytes(SfLayout::layout_128x4, p.k.count * p.k.heads, 8), device);
  }
  p.k.scale = bytes(args.k_scale);

  p.q_global = args.q_global_scale;
  p.k_global = args.k_global_scale;
  if (!p.q_global.pointer && !p.k_global.pointer) {
    const float product = p.q_global.value * p.k_global.value;
    if (!(product > 0.0f) || !std::isfinite(product))
      fail({op, "q_global_scale * k_global_scale"},
           fmt::format("{} * {} = {} in float32", p.q_global.value, p.k_global.value, product),
           "a finite product above 0 (it can also underflow)");
  }
  read_requests(op, args, device, p);
  return {op, device};
}

constexpr const char* kScoreFp4 = "msa_proxy_score_fp4";
constexpr const char* kScore = "msa_proxy_score";
constexpr const char* kIndex = "msa_index_select_fp4";

}  // namespace

Accepted validate_inputs(const ScoreFp4Args& args, ScoreProblem& p) { return read_fp4(kScoreFp4, args, p); }

Accepted validate(const ScoreFp4Args& args, ScoreProblem& p) {
  const Accepted a = validate_inputs(args, p);
  read_output(a.operation, args.output, a.device, p);
  return a;
}

Accepted validate_inputs(const ScoreArgs& args, ScoreProblem& p) {
  const Argument q{kScore, "q"}, k{kScore, "k"};
  require_given(q, args.q, "(query tokens, query heads, 128)");
  require_given(k, args.k, "(key tokens, key heads, 128) or (pages, key heads, 128, 128)");
  require_dtype(q, args.q, {DType::bf16, DType::f16, DType::e4m3});
  if (args.q.dtype == DType::e4m3) require_dtype(k, args.k, {DType::e4m3});
  else require_dtype(k, args.k, {args.q.dtype, DType::e4m3});
  require_rows(q, args.q, 3, "(query tokens, query heads, 128)", 128);
  read_queries(q, args.q, p.q);
  require_device(k, args.k, args.q.device);
  read_keys(k, args.k, args.page_table.defined, 128, p.k);
  require_head_groups(kScore, "q", p);
  read_requests(kScore, args, args.q.device, p);
  return {kScore, args.q.device};
}

Accepted validate(const ScoreArgs& args, ScoreProblem& p) {
  const Accepted a = validate_inputs(args, p);
  read_output(a.operation, args.output, a.device, p);
  return a;
}

Accepted validate_inputs(const IndexArgs& args, IndexProblem& p) {
  const Accepted a = read_fp4(kIndex, args.score, p.score);
  read_rule(a.operation, args.topk, args.force_begin_blocks, args.force_end_blocks, false, p.rule);
  return a;
}

Accepted validate(const IndexArgs& args, IndexProblem& p) {
  const Accepted a = validate_inputs(args, p);
  const std::int64_t tokens = p.score.q.tokens, heads = p.score.out_heads();
  require_selected({a.operation, "output"}, args.output, DType::i32, tokens, heads, args.topk, a.device);
  const Tensor& ids = args.output;
  p.out = {static_cast<std::int32_t*>(ids.data), ids.stride[0], ids.stride[1], ids.stride[2],
           nullptr, 0, 0, 0};
  if (args.scores.defined) {
    const Tensor& s = args.scores;
    require_selected({a.operation, "scores"}, s, DType::f32, tokens, heads, args.topk, a.device);
    p.out.scores = static_cast<float*>(s.data);
    p.out.score_token_stride = s.stride[0];
    p.out.score_head_stride = s.stride[1];
    p.out.score_rank_stride = s.stride[2];
  }
  return a;
}

Accepted validate(const SelectArgs& args, SelectProblem& p) {
  const char* op = "msa_topk_select";
  const Argument a{op, "max_score"};
  const Tensor& s = args.max_score;
  require_given(a, s, "f32 (heads, blocks, query tokens)");
  require_dtype(a, s, {DType::f32});
  require_rank(a, s, 3, "(heads, blocks, query tokens)");
  require_address(a, s);
  p.scores = static_cast<const float*>(s.data);
  p.heads = s.shape[0];
  p.tiles = s.shape[1];
  p.tokens = s.shape[2];
  p.head_stride = s.stride[0];
  p.tile_stride = s.stride[1];
  p.token_stride = s.stride[2];
  read_rule(op, args.topk, args.force_begin_blocks, args.force_end_blocks, args.skip_masked, p.rule);

  p.valid = args.has_num_valid_pages ? clamp(args.num_valid_pages, 0, p.tiles) : p.tiles;
  if (args.num_valid_pages_tensor.defined) {
    const Argument n{op, "num_valid_pages"};
    if (args.has_num_valid_pages) fail(n, "a number and a tensor", "one of the two");
    require_lengths(n, args.num_valid_pages_tensor, p.tokens, "query tokens", s.device);
    p.valids = ints(args.num_valid_pages_tensor);
  }
  const Tensor& ids = args.output;
  require_selected({op, "output"}, ids, DType::i32, p.tokens, p.heads, args.topk, s.device);
  p.out = {static_cast<std::int32_t*>(ids.data), ids.stride[0], ids.stride[1], ids.stride[2],
           nullptr, 0, 0, 0};
  return {op, s.device};
}

Accepted validate(const QuantizeArgs& args, QuantizeProblem& p) {
  const char* op = "nvfp4_quantize";
  const Argument a{op, "a"}, codes{op, "codes"}, scales{op, "scales"};
  const Tensor& t = args.a;
  require_given(a, t, "f32, f16 or bf16 (..., K)");
  require_dtype(a, t, {DType::f32, DType::f16, DType::bf16});
  if (t.rank < 1 || t.size(-1) < 16 || t.size(-1) % 16 != 0)
    fail(a, describe(t), "a last dimension that is a multiple of 16");
  require_dense_rows(a, t);
  require_address(a, t);
  p.data = t.data;
  p.type = element_of(t.dtype);
  p.columns = t.size(-1);
  p.rows = 1;
  std::int64_t row_stride = t.size(-1), reach = 0;  // of the leading dimensions, flattened
  for (int i = t.rank - 2; i >= 0; --i) {
    p.rows *= t.shape[i];
    if (t.shape[i] <= 1) continue;
    if (reach == 0) row_stride = t.stride[i];
    else if (t.stride[i] != reach)
      fail(a, describe(t), "leading dimensions that flatten to rows of one stride");
    reach = t.stride[i] * t.shape[i];
  }
  p.row_stride = row_stride * bytes_of(t.dtype);

  require_forward_scale({op, "a_global_sf"}, args.a_global_sf);
  p.global = args.a_global_sf;
  p.layout = args.layout;
  require_given(codes, args.codes, "u8 (..., K/2)");
  require_dtype(codes, args.codes, {DType::u8, DType::e2m1x2});
  require_device(codes, args.codes, t.device);
  require_dense(codes, args.codes);
  if (args.codes.count() != p.rows * p.columns / 2)
    fail(codes, describe(args.codes), fmt::format("{} bytes", p.rows * p.columns / 2));
  require_address(codes, args.codes);
  p.codes = static_cast<std::uint8_t*>(args.codes.data);
  require_given(scales, args.scales, "u8 scale bytes");
  require_dtype(scales, args.scales, {DType::u8, DType::e4m3});
  require_device(scales, args.scales, t.device);
  require_dense(scales, args.scales);
  const std::int64_t needed = scale_layout::bytes(p.layout, p.rows, p.columns / 16);
  if (args.scales.count() != needed)
    fail(scales, describe(args.scales), fmt::format("{} bytes, padding included", needed));
  require_address(scales, args.scales);
  p.scales = static_cast<std::uint8_t*>(args.scales.data);
  return {op, t.device};
}

Accepted validate(const AppendArgs& args, AppendProblem& p) {
  const char* op = "msa_index_append_fp4";
  const Argument k{op, "k"}, cache{op, "k_cache_fp4"}, scale{op, "k_cache_scale"}, slots{op, "slot_mapping"};
  require_given(k, args.k, "f32, f16 or bf16 (tokens, key heads, 128)");
  require_dtype(k, args.k, {DType::f32, DType::f16, DType::bf16});
  require_rows(k, args.k, 3, "(tokens, key heads, 128)", 128);
  const Device device = args.k.device;
  p.data = args.k.data;
  p.type = element_of(args.k.dtype);
  p.heads = args.k.shape[1];
  p.token_stride = stride_bytes(args.k, 0);
  p.head_stride = stride_bytes(args.k, 1);

  require_given(cache, args.k_cache_fp4, "u8 (pages, key heads, 128, 64)");
  require_dtype(cache, args.k_cache_fp4, {DType::u8, DType::e2m1x2});
  require_device(cache, args.k_cache_fp4, device);
  Keys keys;
  read_keys(cache, args.k_cache_fp4, true, 64, keys);
  require_size(cache, args.k_cache_fp4, 1, p.heads, "key heads, from k");
  require_no_overlap(cache, args.k_cache_fp4);
  p.codes = static_cast<std::uint8_t*>(args.k_cache_fp4.data);
  p.pages = keys.count;
  p.page_stride = keys.page_stride;
  p.cache_head_stride = keys.head_stride;
  p.slot_stride = keys.token_stride;
  require_given(scale, args.k_cache_scale, "e4m3 bytes");
  p.scale_page_stride = page_scales(scale, args.k_cache_scale, keys.count, keys.heads, device);
  p.scales = static_cast<std::uint8_t*>(args.k_cache_scale.data);

  require_given(slots, args.slot_mapping, "i64 (N)");
  require_dtype(slots, args.slot_mapping, {DType::i64});
  require_rank(slots, args.slot_mapping, 1, "one dimension");
  require_device(slots, args.slot_mapping, device);
  require_dense(slots, args.slot_mapping);
  require_address(slots, args.slot_mapping);
  p.count = args.slot_mapping.shape[0];
  if (p.count > args.k.shape[0])
    fail(slots, fmt::format("{} slots", p.count), fmt::format("at most the {} rows of k", args.k.shape[0]));
  p.slots = static_cast<const std::int64_t*>(args.slot_mapping.data);
  require_forward_scale({op, "global_scale"}, args.global_scale);
  p.global = args.global_scale;
  return {op, device};
}

}  // namespace kvscout
