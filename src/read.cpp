#include "read.h"

#include "kvscout/nvfp4.h"
#include "kvscout/scale_layout.h"
#include "message.h"

namespace kvscout::read {

using namespace checks;  // NOLINT: the vocabulary of this file

Element element_of(DType t) {
  switch (t) {
    case DType::e4m3:
      return Element::e4m3;
    case DType::f16:
      return Element::f16;
    case DType::bf16:
      return Element::bf16;
    case DType::f32:
      return Element::f32;
    default:
      return Element::e2m1;
  }
}

std::int64_t stride_bytes(const Tensor& t, int dimension) {
  // Of a single element it is never used and may be any number: no signed overflow.
  const auto stride = static_cast<std::uint64_t>(t.stride[dimension]);
  return static_cast<std::int64_t>(stride * static_cast<std::uint64_t>(bytes_of(t.dtype)));
}

void require_forward_scale(Argument a, const GlobalScale& scale) {
  if (!scale.pointer && !nvfp4::is_legal_global(scale.value))
    fail(a, message("{}", scale.value), "a finite number above 0");
}

void require_rows(Argument a, const Tensor& t, int rank, const char* shape, std::int64_t last) {
  require_rank(a, t, rank, shape);
  require_size(a, t, rank - 1, last, "one row of 128 elements");
  require_dense_rows(a, t);
  require_address(a, t);
}

void queries(Argument a, const Tensor& t, Queries& q) {
  q.data = t.data;
  q.type = element_of(t.dtype);
  q.tokens = t.shape[0];
  q.heads = t.shape[1];
  q.token_stride = stride_bytes(t, 0);
  q.head_stride = stride_bytes(t, 1);
  if (q.heads < 1) fail(a, "0 query heads", "at least 1");
}

void keys(Argument a, const Tensor& t, bool paged, std::int64_t last, Keys& k) {
  k.paged = paged;
  if (paged) {
    require_rank(a, t, 4, "(pages, key heads, 128, row) beside a page_table");
    if (t.shape[2] != kBlock)
      fail(a, message("{}: pages of {} tokens", describe(t), t.shape[2]), "pages of 128 tokens");
  }
  require_rows(a, t, paged ? 4 : 3, "(tokens, key heads, row) without a page_table", last);
  k.data = t.data;
  k.type = element_of(t.dtype);
  k.count = t.shape[0];
  k.heads = t.shape[1];
  if (k.heads < 1) fail(a, "0 key heads", "at least 1");
  k.page_stride = paged ? stride_bytes(t, 0) : 0;
  k.head_stride = stride_bytes(t, 1);
  k.token_stride = stride_bytes(t, paged ? 2 : 0);
}

std::int64_t page_scales(Argument a, const Tensor& t, std::int64_t pages, std::int64_t heads,
                         Device device) {
  const std::int64_t page_bytes = heads * scale_layout::kPageBytes;
  if (t.is_dense() || t.rank < 2) {
    require_scales(a, t, pages * page_bytes, device);
    return page_bytes;
  }
  Tensor inner = t;  // one page
  for (int i = 1; i < t.rank; ++i) {
    inner.shape[i - 1] = t.shape[i];
    inner.stride[i - 1] = t.stride[i];
  }
  inner.rank = t.rank - 1;
  if (t.shape[0] != pages || !inner.is_dense() || inner.count() != page_bytes)
    fail(a, describe_strides(t),
         message("contiguous bytes, or ({}, {}) bytes with a page stride", pages, page_bytes));
  require_dtype(a, t, {DType::u8, DType::e4m3});
  require_device(a, t, device);
  require_address(a, t);
  return t.stride[0];
}

void rule(const char* op, int topk, int begin, int end, bool skip_masked, SelectRule& result) {
  if (topk < 1 || topk > kMaxTopk)
    fail({op, "topk"}, message("{}", topk), message("1 to {}", kMaxTopk));
  require_at_least({op, "force_begin_blocks"}, begin, 0);
  require_at_least({op, "force_end_blocks"}, end, 0);
  if (begin > topk - end)
    fail({op, "force_begin_blocks + force_end_blocks"}, message("{} + {}", begin, end),
         message("at most topk = {}", topk));
  result = {topk, begin, end, skip_masked};
}

namespace {

void require_selected(Argument a, const Tensor& t, DType type, std::int64_t tokens,
                      std::int64_t heads, int topk, Device device) {
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

}  // namespace

void selected(const char* op, const Tensor& ids, const Tensor& scores, std::int64_t tokens,
              std::int64_t heads, int topk, Device device, SelectOutput& out) {
  require_selected({op, "output"}, ids, DType::i32, tokens, heads, topk, device);
  out.ids = static_cast<std::int32_t*>(ids.data);
  out.token_stride = ids.stride[0];
  out.head_stride = ids.stride[1];
  out.rank_stride = ids.stride[2];
  if (!scores.defined) return;
  require_selected({op, "scores"}, scores, DType::f32, tokens, heads, topk, device);
  out.scores = static_cast<float*>(scores.data);
  out.score_token_stride = scores.stride[0];
  out.score_head_stride = scores.stride[1];
  out.score_rank_stride = scores.stride[2];
}

}  // namespace kvscout::read
