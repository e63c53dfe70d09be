#include <algorithm>
#include <cmath>
#include <limits>

#include "data.h"
#include "oracle.h"

namespace kvscout::cases {

std::vector<std::int32_t> select_answer(const SelectArgs& a) {
  const std::int64_t heads = a.max_score.size(0), tiles = a.max_score.size(1),
                     tokens = a.max_score.size(2);
  std::vector<std::int32_t> out;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::int64_t n = a.num_valid_pages_tensor.defined
                           ? element<std::int32_t>(a.num_valid_pages_tensor, t)
                       : a.has_num_valid_pages ? a.num_valid_pages
                                               : tiles;
      n = std::clamp<std::int64_t>(n, 0, tiles);
      const std::int64_t begin = std::min<std::int64_t>(a.force_begin_blocks, n);
      const std::int64_t end = n - std::min<std::int64_t>(a.force_end_blocks, n - begin);
      std::vector<std::int32_t> chosen, rest;
      for (std::int64_t i = 0; i < n; ++i) {
        const float score = element<float>(a.max_score, h, i, t);
        const bool masked = std::isnan(score) || score == -std::numeric_limits<float>::infinity();
        if (i < begin || i >= end)
          chosen.push_back(static_cast<std::int32_t>(i));
        else if (!(a.skip_masked && masked))
          rest.push_back(static_cast<std::int32_t>(i));
      }
      // Larger first; NaN behind -inf; a stable sort leaves equal scores (-0.0 == 0.0) in the order
      // of ids.
      std::stable_sort(rest.begin(), rest.end(), [&](std::int32_t x, std::int32_t y) {
        const float sx = element<float>(a.max_score, h, x, t),
                    sy = element<float>(a.max_score, h, y, t);
        if (std::isnan(sx) || std::isnan(sy)) return !std::isnan(sx) && std::isnan(sy);
        return sx > sy;
      });
      const auto room = static_cast<std::size_t>(
          std::max<std::int64_t>(a.topk - static_cast<std::int64_t>(chosen.size()), 0));
      rest.resize(std::min(rest.size(), room));
      chosen.insert(chosen.end(), rest.begin(), rest.end());
      std::sort(chosen.begin(), chosen.end());
      chosen.resize(static_cast<std::size_t>(a.topk), -1);
      out.insert(out.end(), chosen.begin(), chosen.end());
    }
  }
  return out;
}

namespace {

// The index in values[0..count) nearest to x >= 0; between two equally near ones the even index.
int nearest(double x, double (*value)(unsigned), int count) {
  int low = 0, high = count - 1;
  if (x >= value(static_cast<unsigned>(high))) return high;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (value(static_cast<unsigned>(middle)) <= x ? low : high) = middle;
  }
  const double below = x - value(static_cast<unsigned>(low)),
               above = value(static_cast<unsigned>(high)) - x;
  return below < above || (below == above && low % 2 == 0) ? low : high;
}

float load(Element type, const std::uint8_t* row, std::int64_t i) {
  std::uint32_t bits = 0;
  if (type == Element::f32)
    std::memcpy(&bits, row + 4 * i, 4);
  else
    std::memcpy(&bits, row + 2 * i, 2);
  return static_cast<float>(value_of(type, bits));
}

float number(const GlobalScale& g) { return g.pointer ? *g.pointer : g.value; }

}  // namespace

void quantize_row(Element type, const std::uint8_t* row, std::int64_t columns, float global_scale,
                  std::uint8_t* codes, std::uint8_t* scales) {
  const bool usable = global_scale > 0 && std::isfinite(global_scale);
  const float sixth = static_cast<float>(1.0 / 6.0);
  for (std::int64_t g = 0; g < columns / 16; ++g) {
    float x[16], amax = 0;
    bool all_nan = true;
    for (int i = 0; i < 16; ++i) {
      x[i] = load(type, row, 16 * g + i);
      if (std::isnan(x[i])) continue;
      all_nan = false;
      amax = std::max(amax, std::fabs(x[i]));
    }
    const float inner = amax * sixth;
    const float sf = global_scale * inner;
    std::uint8_t byte = static_cast<std::uint8_t>(nearest(sf, scale_value, 0x7F));
    float out = 0;
    if (byte != 0 && amax != 0) {
      const float inverse = 1.0f / global_scale;
      const float step = static_cast<float>(scale_value(byte)) * inverse;
      out = std::min(1.0f / step, std::numeric_limits<float>::max());
    }
    if (all_nan) byte = 0x7F;
    scales[g] = usable ? byte : 0;
    for (int i = 0; i < 16; ++i) {
      unsigned code = 7;
      if (!std::isnan(x[i])) {
        const float scaled = std::isinf(x[i]) ? x[i] : x[i] * out;
        code = static_cast<unsigned>(nearest(std::fabs(scaled), code_value, 8)) |
               (std::signbit(x[i]) ? 8u : 0u);
      }
      if (!usable) code = 0;
      std::uint8_t& pair = codes[(16 * g + i) / 2];
      pair = static_cast<std::uint8_t>(i % 2 ? pair | code << 4 : code);
    }
  }
}

std::vector<std::uint32_t> quantize_answer(const QuantizeArgs& a) {
  const std::int64_t rows = a.a.count() / std::max<std::int64_t>(a.a.size(-1), 1),
                     columns = a.a.size(-1);
  const std::int64_t groups = columns / 16;
  const auto code_count = static_cast<std::size_t>(rows * columns / 2);
  std::vector<std::uint32_t> out(code_count + static_cast<std::size_t>(a.scales.count()), 0);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(columns / 2)),
      scales(static_cast<std::size_t>(groups));
  for (std::int64_t r = 0; r < rows; ++r) {
    quantize_row(element_of(a.a.dtype), at(a.a, r), columns, number(a.a_global_sf), codes.data(),
                 scales.data());
    std::copy(codes.begin(), codes.end(), out.begin() + r * columns / 2);
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t tiles = (groups + 3) / 4;
      const std::int64_t place =
          a.layout == SfLayout::layout_linear ? r * groups + g
          : a.layout == SfLayout::layout_8x4
              ? r / 8 * tiles * 32 + g / 4 * 32 + r % 8 * 4 + g % 4
              : (r / 128 * tiles + g / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + g % 4;
      out[code_count + static_cast<std::size_t>(place)] = scales[static_cast<std::size_t>(g)];
    }
  }
  return out;
}

void append_answer(const AppendArgs& a) {
  std::uint8_t codes[64], scales[8];
  for (std::int64_t n = 0; n < a.slot_mapping.size(0); ++n) {
    const std::int64_t slot = element<std::int64_t>(a.slot_mapping, n);
    if (slot < 0 || slot >= a.k_cache_fp4.size(0) * 128) continue;
    for (std::int64_t h = 0; h < a.k.size(1); ++h) {
      quantize_row(element_of(a.k.dtype), at(a.k, n, h), 128, number(a.global_scale), codes,
                   scales);
      std::memcpy(at(a.k_cache_fp4, slot / 128, h, slot % 128), codes, 64);
      for (int g = 0; g < 8; ++g) {
        *at(a.k_cache_scale, slot / 128, h * 1024 + scale_place(slot % 128, g)) = scales[g];
      }
    }
  }
}

}  // namespace kvscout::cases
