// Selection, quantiser and append.
#include <algorithm>
#include <limits>

#include "build.h"

namespace kvscout::cases {

namespace {

DType dtype_of(Element e) {
  return e == Element::f16 ? DType::f16 : e == Element::bf16 ? DType::bf16 : DType::f32;
}
std::int64_t size_of(Element e) { return e == Element::f32 ? 4 : 2; }

void store(Element e, std::uint8_t* to, double x) {
  if (e == Element::f32) {
    const float f = static_cast<float>(x);
    std::memcpy(to, &f, 4);
  } else {
    const std::uint16_t bits = half_bits(e, x);
    std::memcpy(to, &bits, 2);
  }
}

float special_score(Random& random) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const float values[] = {inf,
                          -inf,
                          std::numeric_limits<float>::quiet_NaN(),
                          0.0f,
                          -0.0f,
                          1.0f,
                          -1.0f,
                          std::numeric_limits<float>::denorm_min(),
                          -std::numeric_limits<float>::denorm_min(),
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::lowest()};
  return values[random.below(11)];
}

float score_of(const SelectSpec& s, Random& random, std::int64_t tile, std::int64_t token) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  switch (s.scores) {
    case SelectSpec::normals:
      return static_cast<float>(random.normal());
    case SelectSpec::ties:
      return static_cast<float>(random.below(4)) - 1.0f;
    case SelectSpec::equal:
      return 0.0f;
    case SelectSpec::ascending:
      return static_cast<float>(tile);
    case SelectSpec::masked:
      return tile > token ? -inf : static_cast<float>(random.normal());
    case SelectSpec::specials:
      if (token == 0) return std::numeric_limits<float>::quiet_NaN();
      if (token == 1) return -inf;
      if (token == 2) return random.one_in(2) ? 0.0f : -0.0f;
      if (token == 3)
        return tile % 97 == 5 ? 1.0f + static_cast<float>(tile % 5) : 0.0f;  // few winners
      return special_score(random);
  }
  return 0;
}

// Every rounding boundary of e2m1 in a group whose multiplier is a power of two, and its
// neighbours.
constexpr double kTies[] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0};

double input_value(const QuantizeSpec& s, Random& random, std::int64_t row, std::int64_t column) {
  switch (s.input) {
    case QuantizeSpec::zeros:
      return 0.0;
    case QuantizeSpec::minus_five:
      return -5.0;
    case QuantizeSpec::some_zero:
      return (row * s.columns + column) / 16 % 10 == 3 ? 0.0 : random.normal();
    case QuantizeSpec::ties: {
      if (column % 16 == 0) return 6.0 * std::ldexp(1.0, static_cast<int>(row % 24) - 12);
      const double tie =
          kTies[(row + column) % 7] * std::ldexp(1.0, static_cast<int>(row % 24) - 12);
      const double near[] = {tie, -tie, tie * (1 + 0x1p-7), tie * (1 - 0x1p-7),
                             -tie * (1 + 0x1p-9)};
      return near[random.below(5)];
    }
    default:
      return std::ldexp(random.normal(), static_cast<int>(random.between(-6, 2)));
  }
}

void fill_input(const QuantizeSpec& s, Random& random, std::uint8_t* to, std::int64_t row,
                std::int64_t column) {
  if (s.input ==
      QuantizeSpec::patterns) {  // every pattern of 16 bits, in order; for f32 the upper half
    const auto bits = static_cast<std::uint16_t>(s.first_pattern + row * s.columns + column);
    if (s.type == Element::f32) {
      const std::uint32_t wide =
          static_cast<std::uint32_t>(bits) << 16 | (bits * 2654435761u >> 16);
      std::memcpy(to, &wide, 4);
    } else {
      std::memcpy(to, &bits, 2);
    }
    return;
  }
  if (s.input == QuantizeSpec::specials &&
      (row + column / 16) % 3 == 0) {  // NaN, inf, -0.0 in some groups
    constexpr double inf = HUGE_VAL;
    const bool all_nan = row % 9 == 0;
    const double values[] = {
        std::numeric_limits<double>::quiet_NaN(), inf, -inf, -0.0, 0.0, 1.0, -1e-30, 3.0};
    const double x =
        all_nan ? values[0] : values[random.below(row % 2 ? 8 : 1 + 3 * random.below(2))];
    if (s.type == Element::f32) return store(s.type, to, x);
    const bool special = std::isnan(x) || std::isinf(x);
    const std::uint16_t infinity = s.type == Element::f16 ? 0x7C00 : 0x7F80;
    std::uint16_t bits = special
                             ? static_cast<std::uint16_t>(infinity | (std::isnan(x) ? 0x41 : 0) |
                                                          (x < 0 || random.one_in(2) ? 0x8000 : 0))
                             : half_bits(s.type, x);
    std::memcpy(to, &bits, 2);
    return;
  }
  store(s.type, to, input_value(s, random, row, column));
}

}  // namespace

Problem build_select(const SelectSpec& s) {
  Problem p;
  Random random(s.seed);
  SelectArgs a;
  a.topk = s.topk;
  a.force_begin_blocks = s.force_begin;
  a.force_end_blocks = s.force_end;
  a.skip_masked = s.skip_masked;
  std::int64_t head = s.tiles * s.tokens, tile = s.tokens, token = 1;
  if (s.strides == OutputStrides::tiles_innermost)
    head = s.tiles, tile = 1, token = s.heads * s.tiles;
  if (s.strides == OutputStrides::padded)
    token = 2, tile = 2 * s.tokens + 3, head = tile * s.tiles + 1;
  std::uint8_t* scores = p.add_input(4 * (s.heads * head + s.tiles * tile + s.tokens * token + 1));
  a.max_score =
      Tensor(scores, DType::f32, {s.heads, s.tiles, s.tokens}).strided({head, tile, token});
  for (std::int64_t h = 0; h < s.heads; ++h)
    for (std::int64_t n = 0; n < s.tiles; ++n)
      for (std::int64_t t = 0; t < s.tokens; ++t)
        element<float>(a.max_score, h, n, t) = score_of(s, random, n, t);
  if (s.valid == Offset::number) {
    a.has_num_valid_pages = true;
    a.num_valid_pages = s.valid_number;
  } else if (s.valid == Offset::tensor) {
    std::vector<std::int32_t> valid;
    const std::int32_t first[] = {1, 9, 3, 0, -5};
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      valid.push_back(t < 5 ? first[t] : static_cast<std::int32_t>(random.below(s.tiles + 3)));
    }
    a.num_valid_pages_tensor = p.add_i32(valid);
  }
  std::uint8_t* output = p.add_output(4 * s.tokens * s.heads * s.topk);
  a.output = Tensor(output, DType::i32, {s.tokens, s.heads, s.topk});
  if (s.heads_first) a.output = a.output.strided({s.topk, s.tokens * s.topk, 1});
  p.args = a;
  return p;
}

Problem build_quantize(const QuantizeSpec& s) {
  Problem p;
  Random random(s.seed);
  QuantizeArgs a;
  a.layout = s.layout;
  const std::int64_t stride = s.columns + s.row_gap;
  std::uint8_t* data = p.add_input(s.rows * stride * size_of(s.type));
  a.a = Tensor(data, dtype_of(s.type), {s.rows, s.columns}).strided({stride, 1});
  for (std::int64_t r = 0; r < s.rows; ++r)
    for (std::int64_t c = 0; c < s.columns; ++c) fill_input(s, random, at(a.a, r, c), r, c);
  a.a_global_sf.value = s.global_scale;
  if (s.scale_pointer) {
    a.a_global_sf.pointer = p.add_float(s.global_scale);
    a.a_global_sf.value = -1.0f;
  }
  std::int64_t rows = s.rows, groups = s.columns / 16;
  const auto up = [](std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; };
  if (s.layout != SfLayout::layout_linear) {
    rows = up(rows, s.layout == SfLayout::layout_128x4 ? 128 : 8);
    groups = up(groups, 4);
  }
  a.codes = Tensor(p.add_output(s.rows * s.columns / 2), DType::u8, {s.rows, s.columns / 2});
  a.scales = Tensor(p.add_output(rows * groups), DType::u8, {rows, groups});
  p.args = a;
  return p;
}

Problem build_append(const AppendSpec& s) {
  Problem p;
  Random random(s.seed);
  AppendArgs a;
  const std::int64_t head = kHeadDim + (s.misaligned ? 3 : 0);
  const std::int64_t token = s.heads * head + (s.strides == Strides::interleaved ? 16 : 0);
  std::uint8_t* data =
      p.add_input(s.tokens * token * size_of(s.type), s.misaligned ? size_of(s.type) : 0);
  a.k = Tensor(data, dtype_of(s.type), {s.tokens, s.heads, kHeadDim}).strided({token, head, 1});
  for (std::int64_t t = 0; t < s.tokens; ++t)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t d = 0; d < kHeadDim; ++d) store(s.type, at(a.k, t, h, d), random.normal());

  // The cache: dense codes and scales, or one pool with both in every page.
  const bool one_pool = s.strides == Strides::interleaved;
  const std::int64_t slot = s.misaligned && !one_pool ? 67 : 64, cache_head = 128 * slot;
  const std::int64_t page = s.heads * cache_head + (one_pool ? s.heads * 1024 : 0);
  const std::int64_t shift = s.misaligned ? 1 : 0;
  std::uint8_t* codes = p.add_output(s.pages * page, shift);
  std::uint8_t* scales =
      one_pool ? codes + s.heads * cache_head : p.add_output(s.pages * s.heads * 1024, shift);
  a.k_cache_fp4 =
      Tensor(codes, DType::u8, {s.pages, s.heads, 128, 64}).strided({page, cache_head, slot, 1});
  a.k_cache_scale = Tensor(scales, DType::u8, {s.pages, s.heads * 1024})
                        .strided({one_pool ? page : s.heads * 1024, 1});
  const auto count = static_cast<std::int64_t>(s.slots.size());
  std::uint8_t* slots = p.add_input(8 * count);
  std::copy(s.slots.begin(), s.slots.end(), reinterpret_cast<std::int64_t*>(slots));
  a.slot_mapping = Tensor(slots, DType::i64, {count});
  a.global_scale.value = s.global_scale;
  if (s.scale_pointer) {
    a.global_scale.pointer = p.add_float(s.global_scale);
    a.global_scale.value = -1.0f;
  }
  p.args = a;
  return p;
}

}  // namespace kvscout::cases
