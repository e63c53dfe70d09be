// Legal questions about scores: msa_proxy_score_fp4, msa_proxy_score and msa_index_select_fp4.

#include <algorithm>
#include <cmath>

#include "kvscout/scale_layout.h"
#include "message.h"
#include "read.h"
#include "span.h"
#include "validate.h"

namespace kvscout {
namespace {

using namespace checks;  // NOLINT: the vocabulary of this file

constexpr const char* kScoreFp4 = "msa_proxy_score_fp4";
constexpr const char* kScore = "msa_proxy_score";
constexpr const char* kIndex = "msa_index_select_fp4";

// Beyond every length, and small enough that sums and products with lengths do not overflow.
constexpr std::int64_t kFar = std::int64_t{1} << 48;
// Lengths are differences of int32: no key lies in a block beyond these.
constexpr std::int64_t kMostBlocks = std::int64_t{1} << 25;

void require_bound(Argument a, std::int64_t bound) {
  if (bound < 0)
    fail(a, message("{}", bound), "a bound of at least 0 (bounds_of finds one for host lengths)");
}

// The arguments that both score operations share.
template <class Args>
void read_requests(const char* op, const Args& args, Device device, ScoreProblem& p) {
  Requests& r = p.requests;
  const Argument cu_q{op, "cu_seqlens_q"};
  require_given(cu_q, args.cu_seqlens_q, "i32 (requests + 1)");
  require_rank(cu_q, args.cu_seqlens_q, 1, "one dimension");
  if (args.cu_seqlens_q.shape[0] < 1)
    fail(cu_q, describe(args.cu_seqlens_q), "requests + 1 numbers");
  r.batch = args.cu_seqlens_q.shape[0] - 1;
  require_lengths(cu_q, args.cu_seqlens_q, r.batch + 1, "requests + 1", device);
  r.cu_q = read::ints(args.cu_seqlens_q);

  if (p.k.paged) {
    const Argument table{op, "page_table"};
    require_given(table, args.page_table, "i32 (requests, width)");
    require_dtype(table, args.page_table, {DType::i32});
    require_rank(table, args.page_table, 2, "(requests, width)");
    require_size(table, args.page_table, 0, r.batch, "requests, from cu_seqlens_q");
    require_device(table, args.page_table, device);
    require_address(table, args.page_table);
    r.page_table = read::ints(args.page_table);
    r.table_width = args.page_table.shape[1];
    r.table_row_stride = args.page_table.stride[0];
    r.table_column_stride = args.page_table.stride[1];
    require_given({op, "seqused_k"}, args.seqused_k, "i32 (requests) beside a page_table");
    require_lengths({op, "seqused_k"}, args.seqused_k, r.batch, "requests, from cu_seqlens_q",
                    device);
    r.used_k = read::ints(args.seqused_k);
  } else {
    require_given({op, "cu_seqlens_k"}, args.cu_seqlens_k,
                  "i32 (requests + 1) for flat keys, or a page_table for paged ones");
    require_lengths({op, "cu_seqlens_k"}, args.cu_seqlens_k, r.batch + 1,
                    "requests + 1, from cu_seqlens_q", device);
    r.cu_k = read::ints(args.cu_seqlens_k);
  }

  r.causal = args.causal;
  if (args.q_offsets.defined) {
    if (args.has_q_offset) fail({op, "q_offset"}, "a number and a tensor", "one of the two");
    require_lengths({op, "q_offset"}, args.q_offsets, r.batch, "requests, from cu_seqlens_q",
                    device);
    r.offsets = read::ints(args.q_offsets);
  } else if (args.has_q_offset) {
    r.has_offset = true;
    r.offset = clamp(args.q_offset, -kFar, kFar);
  }

  require_bound({op, "max_seqlen_q"}, args.max_seqlen_q);
  require_bound({op, "max_k_tiles"}, args.max_k_tiles);
  require_at_least({op, "kv_block_start"}, args.kv_block_start, 0);
  require_at_least({op, "kv_block_step"}, args.kv_block_step, 1);
  r.max_seqlen_q = args.max_seqlen_q;
  p.max_k_tiles = std::min(args.max_k_tiles, kMostBlocks);
  p.block_start = clamp(args.kv_block_start, 0, kFar);
  p.block_step = clamp(args.kv_block_step, 1, kFar);
  p.reduce = args.reduce_heads;
  if (device.type == Device::cpu)
    for (std::int64_t b = 0; b < r.batch; ++b) {
      Requests whole = r;
      whole.max_seqlen_q = p.q.tokens;
      const Span s = span_of(whole, p.q.tokens, p.k.paged, p.k.count, b);
      if (s.q_count > r.max_seqlen_q)
        fail({op, "max_seqlen_q"}, message("{}", r.max_seqlen_q),
             message("at least {}, the queries of request {}", s.q_count, b));
    }
}

void require_head_groups(const char* op, const char* q_name, const ScoreProblem& p) {
  if (p.q.heads % p.k.heads != 0)
    fail({op, q_name}, message("{} query heads", p.q.heads),
         message("a multiple of the {} key heads", p.k.heads));
}

void read_output(const char* op, const Tensor& t, std::int64_t tiles, Device device,
                 ScoreProblem& p) {
  const Argument a{op, "output"};
  require_given(a, t, "f32 (heads, max_k_tiles, query tokens)");
  require_dtype(a, t, {DType::f32});
  require_rank(a, t, 3, "(heads, max_k_tiles, query tokens)");
  require_size(a, t, 0, p.out_heads(), "heads of the result");
  require_size(a, t, 1, tiles, "max_k_tiles");
  p.max_k_tiles = tiles;
  require_size(a, t, 2, p.q.tokens, "query tokens");
  require_device(a, t, device);
  require_no_overlap(a, t);
  require_address(a, t);
  p.out = {static_cast<float*>(t.data), t.stride[0], t.stride[1], t.stride[2]};
}

Accepted read_fp4(const char* op, const ScoreFp4Args& args, ScoreProblem& p) {
  const Argument q{op, "q_fp4"}, k{op, "k_fp4"}, q_scale{op, "q_scale"}, k_scale{op, "k_scale"};
  require_given(q, args.q_fp4, "(query tokens, query heads, 64) codes");
  require_given(k, args.k_fp4, "(key tokens, key heads, 64) or (pages, key heads, 128, 64) codes");
  const Device device = args.q_fp4.device;
  const bool wide = args.q_fp4.dtype == DType::bf16 || args.q_fp4.dtype == DType::f16;
  if (!wide) require_dtype(q, args.q_fp4, {DType::u8, DType::e2m1x2, DType::bf16, DType::f16});
  read::require_rows(q, args.q_fp4, 3, "(query tokens, query heads, row)", wide ? 128 : 64);
  read::queries(q, args.q_fp4, p.q);
  require_dtype(k, args.k_fp4, {DType::u8, DType::e2m1x2});
  require_device(k, args.k_fp4, device);
  read::keys(k, args.k_fp4, args.page_table.defined, 64, p.k);
  require_head_groups(op, "q_fp4", p);

  if (wide) {
    if (args.q_scale.defined)
      fail(q_scale, describe(args.q_scale), "nothing beside unquantised queries");
    if (args.q_global_scale.pointer || args.q_global_scale.value != 1.0f)
      fail({op, "q_global_scale"},
           args.q_global_scale.pointer ? "a tensor" : message("{}", args.q_global_scale.value),
           "1 beside unquantised queries");
  } else {
    require_given(q_scale, args.q_scale, "e4m3 bytes beside packed queries");
    require_scales(q_scale, args.q_scale,
                   scale_layout::bytes(SfLayout::layout_128x4, p.q.tokens * p.q.heads, 8), device);
    p.q.scale = read::bytes(args.q_scale);
  }
  require_given(k_scale, args.k_scale, "e4m3 bytes");
  if (p.k.paged) {
    p.k.scale_page_stride = read::page_scales(k_scale, args.k_scale, p.k.count, p.k.heads, device);
  } else {
    require_scales(k_scale, args.k_scale,
                   scale_layout::bytes(SfLayout::layout_128x4, p.k.count * p.k.heads, 8), device);
  }
  p.k.scale = read::bytes(args.k_scale);

  p.q_global = args.q_global_scale;
  p.k_global = args.k_global_scale;
  if (!p.q_global.pointer && !p.k_global.pointer) {
    const float product = p.q_global.value * p.k_global.value;
    if (!(product > 0.0f) || !std::isfinite(product))
      fail({op, "q_global_scale * k_global_scale"},
           message("{} * {} = {} in float32", p.q_global.value, p.k_global.value, product),
           "a finite product above 0 (it can also underflow)");
  }
  read_requests(op, args, device, p);
  return {op, device};
}

}  // namespace

Accepted validate_inputs(const ScoreFp4Args& args, ScoreProblem& p) {
  return read_fp4(kScoreFp4, args, p);
}

Accepted validate(const ScoreFp4Args& args, ScoreProblem& p) {
  const Accepted a = validate_inputs(args, p);
  read_output(a.operation, args.output, args.max_k_tiles, a.device, p);
  return a;
}

Accepted validate_inputs(const ScoreArgs& args, ScoreProblem& p) {
  const Argument q{kScore, "q"}, k{kScore, "k"};
  require_given(q, args.q, "(query tokens, query heads, 128)");
  require_given(k, args.k, "(key tokens, key heads, 128) or (pages, key heads, 128, 128)");
  require_dtype(q, args.q, {DType::bf16, DType::f16, DType::e4m3});
  if (args.q.dtype == DType::e4m3)
    require_dtype(k, args.k, {DType::e4m3});
  else
    require_dtype(k, args.k, {args.q.dtype, DType::e4m3});
  read::require_rows(q, args.q, 3, "(query tokens, query heads, 128)", 128);
  read::queries(q, args.q, p.q);
  require_device(k, args.k, args.q.device);
  read::keys(k, args.k, args.page_table.defined, 128, p.k);
  require_head_groups(kScore, "q", p);
  read_requests(kScore, args, args.q.device, p);
  return {kScore, args.q.device};
}

Accepted validate(const ScoreArgs& args, ScoreProblem& p) {
  const Accepted a = validate_inputs(args, p);
  read_output(a.operation, args.output, args.max_k_tiles, a.device, p);
  return a;
}

Accepted validate_inputs(const IndexArgs& args, IndexProblem& p) {
  const Accepted a = read_fp4(kIndex, args.score, p.score);
  read::rule(a.operation, args.topk, args.force_begin_blocks, args.force_end_blocks, false, p.rule);
  return a;
}

Accepted validate(const IndexArgs& args, IndexProblem& p) {
  const Accepted a = validate_inputs(args, p);
  const std::int64_t tokens = p.score.q.tokens, heads = p.score.out_heads();
  read::selected(a.operation, args.output, args.scores, tokens, heads, args.topk, a.device, p.out);
  return a;
}

}  // namespace kvscout
