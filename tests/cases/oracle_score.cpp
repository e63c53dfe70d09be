#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "data.h"
#include "oracle.h"

namespace kvscout::cases {

Element element_of(DType t) {
  switch (t) {
    case DType::f16:
      return Element::f16;
    case DType::bf16:
      return Element::bf16;
    case DType::f32:
      return Element::f32;
    case DType::e4m3:
      return Element::e4m3;
    default:
      return Element::e2m1;
  }
}

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// One row of 128 as float64. `scale`: its bytes in a 128x4 buffer, null for other types.
void decode(const std::uint8_t* data, Element type, const std::uint8_t* scale, std::int64_t row,
            double* out) {
  for (int d = 0; d < 128; ++d) {
    if (type == Element::e2m1) {
      const unsigned code = d % 2 ? data[d / 2] >> 4 : data[d / 2] & 15;
      out[d] = code_value(code) * scale_value(scale[scale_place(row, d / 16)] & 0x7F);
    } else if (type == Element::e4m3) {
      out[d] = value_of(type, data[d]);
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, data + 2 * d, 2);
      out[d] = value_of(type, bits);
    }
  }
}

// sum q*k and sum |q*k|; in sixteen partial sums, which a compiler can keep in vectors.
void dot(const double* q, const double* k, double* sum, double* magnitude) {
  double s[8] = {}, m[8] = {};
  for (int d = 0; d < 128; d += 8)
    for (int u = 0; u < 8; ++u) {
      const double product = q[d + u] * k[d + u];
      s[u] += product;
      m[u] += std::fabs(product);
    }
  *sum = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  *magnitude = ((m[0] + m[1]) + (m[2] + m[3])) + ((m[4] + m[5]) + (m[6] + m[7]));
}

// What both kinds of score have in common.
struct Question {
  Tensor q, k, q_scale, k_scale, cu_q, cu_k, table, used, offsets;
  bool causal, has_offset;
  std::int64_t offset, max_seqlen_q, columns, start, step;
  Reduce reduce;
};

Question question(const ScoreFp4Args& a) {
  return {a.q_fp4,         a.k_fp4,       a.q_scale,      a.k_scale,     a.cu_seqlens_q,
          a.cu_seqlens_k,  a.page_table,  a.seqused_k,    a.q_offsets,   a.causal,
          a.has_q_offset,  a.q_offset,    a.max_seqlen_q, a.max_k_tiles, a.kv_block_start,
          a.kv_block_step, a.reduce_heads};
}
Question question(const ScoreArgs& a) {
  return {a.q,
          a.k,
          {},
          {},
          a.cu_seqlens_q,
          a.cu_seqlens_k,
          a.page_table,
          a.seqused_k,
          a.q_offsets,
          a.causal,
          a.has_q_offset,
          a.q_offset,
          a.max_seqlen_q,
          a.max_k_tiles,
          a.kv_block_start,
          a.kv_block_step,
          a.reduce_heads};
}

// A request: its queries and how far they see. Lengths that make no sense are clamped.
struct Request {
  std::int64_t first = 0, queries = 0, first_key = 0, keys = 0, offset = 0;
  std::int64_t limit(const Question& a, std::int64_t i) const {
    return a.causal ? std::clamp<std::int64_t>(i + offset + 1, 0, keys) : keys;
  }
};

Request request(const Question& a, std::int64_t b) {
  const auto at_i32 = [](const Tensor& t, std::int64_t i) -> std::int64_t {
    return element<std::int32_t>(t, i);
  };
  Request r;
  const std::int64_t tokens = a.q.size(0);
  r.first = std::clamp<std::int64_t>(at_i32(a.cu_q, b), 0, tokens);
  const std::int64_t end = std::clamp<std::int64_t>(at_i32(a.cu_q, b + 1), 0, tokens);
  const std::int64_t len_q = std::max<std::int64_t>(end - r.first, 0);
  r.queries = std::min(len_q, a.max_seqlen_q);
  std::int64_t len_k, room;
  if (a.table.defined) {
    len_k = at_i32(a.used, b);
    room = a.table.size(1) * 128;
  } else {
    len_k = at_i32(a.cu_k, b + 1) - at_i32(a.cu_k, b);
    r.first_key = std::clamp<std::int64_t>(at_i32(a.cu_k, b), 0, a.k.size(0));
    room = a.k.size(0) - r.first_key;
  }
  len_k = std::max<std::int64_t>(len_k, 0);
  r.keys = std::min(len_k, room);
  r.offset = a.offsets.defined ? at_i32(a.offsets, b) : a.has_offset ? a.offset : len_k - len_q;
  return r;
}

// Keys [128*block, +count) of a request for one key head. False: the page does not exist.
bool decode_block(const Question& a, const Request& r, std::int64_t b, std::int64_t head,
                  std::int64_t block, std::int64_t count, double* out) {
  const Element type = element_of(a.k.dtype);
  if (a.table.defined) {
    const std::int64_t page = element<std::int32_t>(a.table, b, block);
    if (page < 0 || page >= a.k.size(0)) return false;
    const std::uint8_t* scale = nullptr;
    if (a.k_scale.defined) {
      const std::int64_t step = a.k_scale.rank == 2 ? a.k_scale.stride[0] : a.k.size(1) * 1024;
      scale = static_cast<const std::uint8_t*>(a.k_scale.data) + page * step + head * 1024;
    }
    for (std::int64_t s = 0; s < count; ++s)
      decode(at(a.k, page, head, s), type, scale, s, out + 128 * s);
    return true;
  }
  for (std::int64_t s = 0; s < count; ++s) {
    const std::int64_t token = r.first_key + 128 * block + s;
    decode(at(a.k, token, head), type, static_cast<const std::uint8_t*>(a.k_scale.data),
           token * a.k.size(1) + head, out + 128 * s);
  }
  return true;
}

ScoreAnswer answer(const Question& a) {
  const std::int64_t tokens = a.q.size(0), q_heads = a.q.size(1), k_heads = a.k.size(1);
  const std::int64_t group = q_heads / k_heads, columns = a.columns;
  const std::int64_t heads = a.reduce == Reduce::none  ? q_heads
                             : a.reduce == Reduce::all ? 1
                                                       : k_heads;
  ScoreAnswer out;
  const auto size = static_cast<std::size_t>(heads * columns * tokens);
  out.exact.assign(size, -kInf);
  out.magnitude.assign(size, 0);
  out.masked.assign(size, true);

  const Element type = element_of(a.q.dtype);
  std::vector<double> block(128 * 128), rows;
  for (std::int64_t b = 0; b + 1 < a.cu_q.size(0); ++b) {
    const Request r = request(a, b);
    if (r.queries == 0) continue;
    rows.resize(static_cast<std::size_t>(r.queries * q_heads * 128));
    for (std::int64_t i = 0; i < r.queries; ++i)
      for (std::int64_t h = 0; h < q_heads; ++h)
        decode(at(a.q, r.first + i, h), type, static_cast<const std::uint8_t*>(a.q_scale.data),
               (r.first + i) * q_heads + h,
               &rows[static_cast<std::size_t>((i * q_heads + h) * 128)]);
    for (std::int64_t n = 0; n < columns; ++n) {
      const std::int64_t t = a.start + n * a.step;
      if (128 * t >= r.keys) break;
      for (std::int64_t kv = 0; kv < k_heads; ++kv) {
        const std::int64_t count = std::min<std::int64_t>(128, r.keys - 128 * t);
        if (!decode_block(a, r, b, kv, t, count, block.data())) continue;
        for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
          const std::int64_t row = a.reduce == Reduce::none ? h : a.reduce == Reduce::all ? 0 : kv;
          for (std::int64_t i = 0; i < r.queries; ++i) {
            const auto place = static_cast<std::size_t>((row * columns + n) * tokens + r.first + i);
            const std::int64_t end = std::min(128 * t + count, r.limit(a, i));
            for (std::int64_t j = 128 * t; j < end; ++j) {
              double sum, magnitude;
              dot(&rows[static_cast<std::size_t>((i * q_heads + h) * 128)],
                  &block[static_cast<std::size_t>((j - 128 * t) * 128)], &sum, &magnitude);
              if (std::isnan(sum)) continue;
              out.masked[place] = false;
              out.exact[place] = std::max(out.exact[place], sum);
              out.magnitude[place] = std::max(out.magnitude[place], magnitude);
            }
          }
        }
      }
    }
  }
  return out;
}

float number(const GlobalScale& g) { return g.pointer ? *g.pointer : g.value; }

}  // namespace

ScoreAnswer score_answer(const ScoreFp4Args& a) {
  ScoreAnswer out = answer(question(a));
  out.scale = number(a.q_global_scale) * number(a.k_global_scale);
  return out;
}
ScoreAnswer score_answer(const ScoreArgs& a) { return answer(question(a)); }

std::vector<std::int32_t> visible_columns(const ScoreFp4Args& args) {
  const Question a = question(args);
  std::vector<std::int32_t> visible(static_cast<std::size_t>(a.q.size(0)), 0);
  for (std::int64_t b = 0; b + 1 < a.cu_q.size(0); ++b) {
    const Request r = request(a, b);
    for (std::int64_t i = 0; i < r.queries; ++i) {
      std::int32_t n = 0;
      while (n < a.columns && 128 * (a.start + n * a.step) < r.limit(a, i)) ++n;
      visible[static_cast<std::size_t>(r.first + i)] = n;
    }
  }
  return visible;
}

std::string compare(const ScoreAnswer& answer, const Tensor& output, double tolerance,
                    double* worst) {
  std::size_t place = 0;
  const double scale = answer.scale;
  for (std::int64_t h = 0; h < output.size(0); ++h)
    for (std::int64_t n = 0; n < output.size(1); ++n)
      for (std::int64_t t = 0; t < output.size(2); ++t, ++place) {
        const double out = element<float>(output, h, n, t);
        const double exact = answer.exact[place], magnitude = answer.magnitude[place];
        bool ok;
        if (answer.masked[place]) {
          ok = out == -kInf;
        } else if (std::isnan(scale)) {
          ok = std::isnan(out);
        } else if (std::isinf(scale)) {  // the sign of a sum near 0 is open
          ok = std::fabs(exact) <= tolerance * magnitude ? !std::isfinite(out)
                                                         : out == scale * exact;
        } else if (std::isinf(exact)) {
          ok = scale == 0 ? std::isnan(out) : out == scale * exact;
        } else {
          const double error = std::fabs(out - scale * exact) - 0x1p-23 * std::fabs(out) - 0x1p-149;
          ok = error <= tolerance * std::fabs(scale) * magnitude;  // false for NaN
          if (worst && error > 0 && magnitude > 0)
            *worst = std::max(*worst, error / (std::fabs(scale) * magnitude));
        }
        if (ok) continue;
        char text[256];
        std::snprintf(text, sizeof text,
                      "score (head %lld, column %lld, token %lld): got %.9g, expected %s%.9g "
                      "(magnitude %.3g, tolerance %.3g)",
                      static_cast<long long>(h), static_cast<long long>(n),
                      static_cast<long long>(t), out, answer.masked[place] ? "masked " : "",
                      scale * exact, std::fabs(scale) * magnitude, tolerance);
        return text;
      }
  return "";
}

}  // namespace kvscout::cases
