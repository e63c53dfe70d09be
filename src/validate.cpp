// Legal questions about everything but scores: msa_topk_select, nvfp4_quantize,
// msa_index_append_fp4.
#include "validate.h"

#include "kvscout/scale_layout.h"
#include "message.h"
#include "read.h"
#include "span.h"

namespace kvscout {

using namespace checks;  // NOLINT: the vocabulary of this file

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
  read::rule(op, args.topk, args.force_begin_blocks, args.force_end_blocks, args.skip_masked,
             p.rule);

  p.valid = args.has_num_valid_pages ? clamp(args.num_valid_pages, 0, p.tiles) : p.tiles;
  if (args.num_valid_pages_tensor.defined) {
    const Argument n{op, "num_valid_pages"};
    if (args.has_num_valid_pages) fail(n, "a number and a tensor", "one of the two");
    require_lengths(n, args.num_valid_pages_tensor, p.tokens, "query tokens", s.device);
    p.valids = read::ints(args.num_valid_pages_tensor);
  }
  read::selected(op, args.output, {}, p.tokens, p.heads, args.topk, s.device, p.out);
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
  p.type = read::element_of(t.dtype);
  p.columns = t.size(-1);
  p.rows = 1;
  std::int64_t row_stride = t.size(-1);  // of the leading dimensions, flattened
  std::int64_t reach = 0;                // of those so far
  bool first = true;
  for (int i = t.rank - 2; i >= 0; --i) {
    p.rows *= t.shape[i];
    if (t.shape[i] <= 1) continue;
    if (first)
      row_stride = t.stride[i];
    else if (t.stride[i] != reach)
      fail(a, describe_strides(t), "leading dimensions that flatten to rows of one stride");
    reach = t.stride[i] * t.shape[i];
    first = false;
  }
  p.row_stride = row_stride * bytes_of(t.dtype);

  read::require_forward_scale({op, "a_global_sf"}, args.a_global_sf);
  p.global = args.a_global_sf;
  p.layout = args.layout;
  require_given(codes, args.codes, "u8 (..., K/2)");
  require_dtype(codes, args.codes, {DType::u8, DType::e2m1x2});
  require_device(codes, args.codes, t.device);
  require_dense(codes, args.codes);
  if (args.codes.count() != p.rows * p.columns / 2)
    fail(codes, describe(args.codes), message("{} bytes", p.rows * p.columns / 2));
  require_address(codes, args.codes);
  p.codes = static_cast<std::uint8_t*>(args.codes.data);
  require_given(scales, args.scales, "u8 scale bytes");
  require_dtype(scales, args.scales, {DType::u8, DType::e4m3});
  require_device(scales, args.scales, t.device);
  require_dense(scales, args.scales);
  const std::int64_t needed = scale_layout::bytes(p.layout, p.rows, p.columns / 16);
  if (args.scales.count() != needed)
    fail(scales, describe(args.scales), message("{} bytes, padding included", needed));
  require_address(scales, args.scales);
  p.scales = static_cast<std::uint8_t*>(args.scales.data);
  return {op, t.device};
}

Accepted validate(const AppendArgs& args, AppendProblem& p) {
  const char* op = "msa_index_append_fp4";
  const Argument k{op, "k"}, cache{op, "k_cache_fp4"}, scale{op, "k_cache_scale"},
      slots{op, "slot_mapping"};
  require_given(k, args.k, "f32, f16 or bf16 (tokens, key heads, 128)");
  require_dtype(k, args.k, {DType::f32, DType::f16, DType::bf16});
  read::require_rows(k, args.k, 3, "(tokens, key heads, 128)", 128);
  const Device device = args.k.device;
  p.data = args.k.data;
  p.type = read::element_of(args.k.dtype);
  p.heads = args.k.shape[1];
  p.token_stride = read::stride_bytes(args.k, 0);
  p.head_stride = read::stride_bytes(args.k, 1);

  require_given(cache, args.k_cache_fp4, "u8 (pages, key heads, 128, 64)");
  require_dtype(cache, args.k_cache_fp4, {DType::u8, DType::e2m1x2});
  require_device(cache, args.k_cache_fp4, device);
  Keys pages;
  read::keys(cache, args.k_cache_fp4, true, 64, pages);
  require_size(cache, args.k_cache_fp4, 1, p.heads, "key heads, from k");
  require_no_overlap(cache, args.k_cache_fp4);
  p.codes = static_cast<std::uint8_t*>(args.k_cache_fp4.data);
  p.pages = pages.count;
  p.page_stride = pages.page_stride;
  p.cache_head_stride = pages.head_stride;
  p.slot_stride = pages.token_stride;
  require_given(scale, args.k_cache_scale, "e4m3 bytes");
  p.scale_page_stride =
      read::page_scales(scale, args.k_cache_scale, pages.count, pages.heads, device);
  require_no_overlap(scale, args.k_cache_scale);
  p.scales = static_cast<std::uint8_t*>(args.k_cache_scale.data);

  require_given(slots, args.slot_mapping, "i64 (N)");
  require_dtype(slots, args.slot_mapping, {DType::i64});
  require_rank(slots, args.slot_mapping, 1, "one dimension");
  require_device(slots, args.slot_mapping, device);
  require_dense(slots, args.slot_mapping);
  require_address(slots, args.slot_mapping);
  p.count = args.slot_mapping.shape[0];
  if (p.count > args.k.shape[0])
    fail(slots, message("{} slots", p.count), message("at most the {} rows of k", args.k.shape[0]));
  p.slots = static_cast<const std::int64_t*>(args.slot_mapping.data);
  read::require_forward_scale({op, "global_scale"}, args.global_scale);
  p.global = args.global_scale;
  return {op, device};
}

}  // namespace kvscout
