// Scores and the fused index: queries, flat or paged keys, page tables, lengths, outputs.
#include <algorithm>
#include <limits>
#include <numeric>

#include "build.h"

namespace kvscout::cases {

Element query_type(Types t) {
  switch (t) {
    case Types::fp4_fp4:
      return Element::e2m1;
    case Types::f16_fp4:
    case Types::f16_f16:
    case Types::f16_e4m3:
      return Element::f16;
    case Types::e4m3_e4m3:
      return Element::e4m3;
    default:
      return Element::bf16;
  }
}
Element key_type(Types t) {
  return is_fp4(t)               ? Element::e2m1
         : t == Types::bf16_bf16 ? Element::bf16
         : t == Types::f16_f16   ? Element::f16
                                 : Element::e4m3;
}

namespace {

// Codes are 64 bytes a row; other types 128 elements.
std::int64_t row_elements(Element e) { return e == Element::e2m1 ? 64 : kHeadDim; }
std::int64_t element_bytes(Element e) { return row_bytes(e) / row_elements(e); }
DType dtype_of(Element e, bool plain_bytes) {
  switch (e) {
    case Element::e2m1:
      return plain_bytes ? DType::u8 : DType::e2m1x2;
    case Element::e4m3:
      return DType::e4m3;
    case Element::f16:
      return DType::f16;
    case Element::bf16:
      return DType::bf16;
    case Element::f32:
      return DType::f32;
  }
  return DType::u8;
}

struct Lengths {
  std::vector<std::int32_t> cu_q, cu_k;
  std::int64_t q_tokens, k_tokens, batch;
  explicit Lengths(const ScoreSpec& s) {
    batch = static_cast<std::int64_t>(s.q_lengths.size());
    cu_q.assign(1, static_cast<std::int32_t>(s.rows_before));
    cu_k.assign(1, s.rows_before ? 3 : 0);  // flat keys too may have rows that nobody owns
    for (std::int64_t b = 0; b < batch; ++b) {
      cu_q.push_back(cu_q.back() + s.q_lengths[b]);
      cu_k.push_back(cu_k.back() + s.k_lengths[b]);
    }
    q_tokens = cu_q.back() + s.rows_after;
    k_tokens = cu_k.back() + (s.rows_after ? 5 : 0);
  }
};

// Gaps in elements behind a head, a token and a page: none, one vector, or an odd number.
struct Gaps {
  std::int64_t small = 0, shift = 0;
  explicit Gaps(const ScoreSpec& s, Element e) {
    if (s.strides == Strides::interleaved) small = s.misaligned ? 7 : 16;
    if (s.misaligned) shift = element_bytes(e);
  }
};

struct Rows {  // a tensor of rows and, for e2m1, its scales
  Tensor data, scales;
};

Rows queries(Problem& p, const ScoreSpec& s, const Lengths& n, Random& random) {
  const Element e = query_type(s.types);
  const Gaps gaps(s, e);
  const std::int64_t head = row_elements(e) + gaps.small, token = s.q_heads * head + 2 * gaps.small;
  std::uint8_t* data =
      p.add_input(std::max<std::int64_t>(n.q_tokens * token, 1) * element_bytes(e), gaps.shift);
  const bool plain_bytes = s.seed % 2 == 0;
  Rows rows;
  rows.data = Tensor(data, dtype_of(e, plain_bytes), {n.q_tokens, s.q_heads, row_elements(e)})
                  .strided({token, head, 1});
  std::uint8_t* scales = nullptr;
  if (e == Element::e2m1) {
    const std::int64_t bytes = scale_bytes(n.q_tokens * s.q_heads);
    scales = p.add_input(bytes, s.misaligned ? 1 : 0);
    rows.scales = Tensor(scales, plain_bytes ? DType::u8 : DType::e4m3, {bytes});
  }
  for (std::int64_t t = 0; t < n.q_tokens; ++t) {
    const bool owned = t >= n.cu_q.front() && t < n.cu_q.back();
    for (std::int64_t h = 0; h < s.q_heads; ++h) {
      fill_row(random, owned ? s.values : Values::poison, e, at(rows.data, t, h), scales,
               t * s.q_heads + h);
    }
  }
  return rows;
}

Rows flat_keys(Problem& p, const ScoreSpec& s, const Lengths& n, Random& random) {
  const Element e = key_type(s.types);
  const Gaps gaps(s, e);
  const std::int64_t head = row_elements(e) + gaps.small, token = s.k_heads * head + gaps.small;
  std::uint8_t* data = p.add_input(n.k_tokens * token * element_bytes(e), gaps.shift);
  Rows rows;
  rows.data = Tensor(data, dtype_of(e, true), {n.k_tokens, s.k_heads, row_elements(e)})
                  .strided({token, head, 1});
  std::uint8_t* scales = nullptr;
  if (e == Element::e2m1) {
    const std::int64_t bytes = scale_bytes(n.k_tokens * s.k_heads);
    scales = p.add_input(bytes, s.misaligned ? 1 : 0);
    rows.scales = Tensor(scales, DType::u8, {bytes});
  }
  for (std::int64_t t = 0; t < n.k_tokens; ++t) {
    const bool owned = t >= n.cu_k.front() && t < n.cu_k.back();
    for (std::int64_t h = 0; h < s.k_heads; ++h) {
      fill_row(random, owned ? s.values : Values::poison, e, at(rows.data, t, h), scales,
               t * s.k_heads + h);
    }
  }
  return rows;
}

// An empty pool of pages: codes and scales of a page side by side when interleaved and aligned.
Rows page_pool(Problem& p, const ScoreSpec& s, std::int64_t pages) {
  const Element e = key_type(s.types);
  const Gaps gaps(s, e);
  const std::int64_t row = row_elements(e), size = element_bytes(e);
  const bool one_pool = e == Element::e2m1 && s.strides == Strides::interleaved && !s.misaligned;
  const std::int64_t token = one_pool ? row : row + gaps.small;
  const std::int64_t head = kBlock * token + (one_pool ? 0 : gaps.small);
  const std::int64_t page = s.k_heads * head + (one_pool ? s.k_heads * 1024 : gaps.small);
  std::uint8_t* data = p.add_input(pages * page * size, gaps.shift);
  Rows rows;
  rows.data = Tensor(data, dtype_of(e, true), {pages, s.k_heads, kBlock, row})
                  .strided({page, head, token, 1});
  if (e != Element::e2m1) return rows;
  const std::int64_t step = one_pool ? page : s.k_heads * 1024 + (gaps.small ? 3 * gaps.small : 0);
  std::uint8_t* scales = one_pool ? data + s.k_heads * head : p.add_input(pages * step, gaps.shift);
  rows.scales = Tensor(scales, DType::u8, {pages, s.k_heads * 1024}).strided({step, 1});
  return rows;
}

// Pages in the order of the requests, permuted as asked; the tail of each last page, pages of
// nobody and the gaps between strides hold poison. Table columns behind the live ones hold
// anything.
Rows paged_keys(Problem& p, const ScoreSpec& s, Tensor* table, Random& random) {
  std::int64_t live = 0, width = 1;
  for (std::int32_t n : s.k_lengths) {
    live += (n + 127) / 128;
    width = std::max<std::int64_t>(width, (n + 127) / 128);
  }
  const std::int64_t pages = live + 2;
  width += 2;
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  if (s.pages != Pages::ascending) {
    for (std::int64_t i = pages - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  }
  Rows rows = page_pool(p, s, pages);
  std::vector<std::int32_t> filled(static_cast<std::size_t>(pages), 0);

  const auto batch = static_cast<std::int64_t>(s.k_lengths.size());
  const bool strided = s.strides == Strides::interleaved;
  const std::int64_t column = strided ? 2 : 1, row = width * column + (strided ? 1 : 0);
  *table =
      Tensor(p.add_input(4 * std::max<std::int64_t>(batch * row, 1)), DType::i32, {batch, width})
          .strided({row, column});
  std::int64_t next = 0, wrong_ids = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int64_t slots = std::clamp<std::int64_t>(s.k_lengths[b] - 128 * c, 0, 128);
      std::int32_t id = c % 3 == 0   ? -1
                        : c % 3 == 1 ? static_cast<std::int32_t>(random.below(pages))
                                     : std::numeric_limits<std::int32_t>::max();
      if (slots > 0) {
        id = order[next++];
        filled[id] = static_cast<std::int32_t>(slots);
        if (s.pages == Pages::out_of_range &&
            (next == live || random.one_in(4))) {  // at least the last one
          const std::int32_t wrong[] = {-1, static_cast<std::int32_t>(pages),
                                        std::numeric_limits<std::int32_t>::max(),
                                        std::numeric_limits<std::int32_t>::min()};
          id = wrong[++wrong_ids % 4];
        }
      }
      element<std::int32_t>(*table, b, c) = id;
    }
  }
  const Element e = key_type(s.types);
  for (std::int64_t page = 0; page < pages; ++page) {
    for (std::int64_t h = 0; h < s.k_heads; ++h) {
      std::uint8_t* scales = e == Element::e2m1 ? at(rows.scales, page, h * 1024) : nullptr;
      for (std::int64_t slot = 0; slot < 128; ++slot) {
        fill_row(random, slot < filled[page] ? s.values : Values::poison, e,
                 at(rows.data, page, h, slot), scales, slot);
      }
    }
  }
  return rows;
}

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
