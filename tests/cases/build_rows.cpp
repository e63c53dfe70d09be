// Queries, flat keys, pages and page tables of a score.
#include "build_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>

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

// Gaps in elements behind a head, a token and a page: none, one vector, or an odd number.
struct Gaps {
  std::int64_t small = 0, shift = 0;
  explicit Gaps(const ScoreSpec& s, Element e) {
    if (s.strides == Strides::interleaved) small = s.misaligned ? 7 : 16;
    if (s.misaligned) shift = element_bytes(e);
  }
};

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

}  // namespace

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

Rows paged_keys(Problem& p, const ScoreSpec& s, Tensor* table, Random& random) {
  std::int64_t live = 0, width = 1;
  for (std::int32_t n : s.k_lengths) {
    live += (n + 127) / 128;
    width = std::max<std::int64_t>(width, (n + 127) / 128);
  }
  const std::int64_t pages = live + 2;
  width = std::max(width + 2, s.table_width);
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
  std::int64_t next = 0, read = 0, wrong_ids = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int64_t slots = std::clamp<std::int64_t>(s.k_lengths[b] - 128 * c, 0, 128);
      std::int32_t id = c % 3 == 0   ? -1
                        : c % 3 == 1 ? static_cast<std::int32_t>(random.below(pages))
                                     : std::numeric_limits<std::int32_t>::max();
      if (slots > 0) {
        id = order[next++];
        filled[id] = static_cast<std::int32_t>(slots);
        const bool wrong_allowed = s.pages == Pages::out_of_range && has_column(s, c);
        if (wrong_allowed && (++read == pages_read(s) || random.one_in(4))) {  // one at least
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

}  // namespace kvscout::cases
