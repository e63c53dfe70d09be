// The executable specification: every operation as plain loops, as docs/operations.md has them.
//
// It reads no decoder and no scale layout from the library's headers; formats, addresses, limits
// and the order of the selection are spelled out here a second time, so that the fast back ends are
// compared with an independent opinion. It allocates nothing and runs on one thread; speed is not
// its purpose.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend.h"

namespace kvscout {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- formats -----------------------------------------------------------------------------------

constexpr float kE2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};

float e4m3(std::uint8_t byte) {  // unsigned: bit 7 is ignored
  const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
  if (exponent == 15 && mantissa == 7) return kNan;
  return exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                       : std::ldexp(1.0f + mantissa / 8.0f, exponent - 7);
}

float f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const float magnitude = exponent == 31  ? (mantissa ? kNan : kInfinity)
                          : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                          : std::ldexp(1.0f + mantissa / 1024.0f, exponent - 15);
  return bits & 0x8000 ? -magnitude : magnitude;
}

float element(const void* row, Element type, std::int64_t d) {
  const auto* bytes = static_cast<const std::uint8_t*>(row);
  std::uint16_t half = 0;
  if (type == Element::f16 || type == Element::bf16) std::memcpy(&half, bytes + 2 * d, 2);
  switch (type) {
    case Element::e2m1:
      return kE2m1[d % 2 ? bytes[d / 2] >> 4 : bytes[d / 2] & 15];
    case Element::e4m3:
      return bytes[d] & 0x80 ? -e4m3(bytes[d]) : e4m3(bytes[d]);
    case Element::f16:
      return f16(half);
    case Element::bf16: {
      const std::uint32_t u = static_cast<std::uint32_t>(half) << 16;
      float x;
      std::memcpy(&x, &u, 4);
      return x;
    }
    case Element::f32:
      break;
  }
  float x;
  std::memcpy(&x, bytes + 4 * d, 4);
  return x;
}

// Offset of a scale byte: 128 rows by 4 groups in 512 bytes, rows r, r+32, r+64, r+96 side by side.
std::int64_t scale_offset(SfLayout layout, std::int64_t row, std::int64_t g, std::int64_t groups) {
  const std::int64_t column_tiles = (groups + 3) / 4;
  if (layout == SfLayout::layout_linear) return row * groups + g;
  if (layout == SfLayout::layout_8x4)
    return (row / 8) * column_tiles * 32 + (g / 4) * 32 + (row % 8) * 4 + g % 4;
  return ((row / 128) * column_tiles + g / 4) * 512 + (row % 32) * 16 + ((row % 128) / 32) * 4 +
         g % 4;
}

// A row of 128 as floats; with scales, code times scale (exact).
void decode_row(const void* row, Element type, const std::uint8_t* scales, std::int64_t scale_row,
                float (&out)[kHeadDim]) {
  for (int d = 0; d < kHeadDim; ++d) out[d] = element(row, type, d);
  if (type != Element::e2m1) return;
  for (int g = 0; g < 8; ++g) {
    const float scale = e4m3(scales[scale_offset(SfLayout::layout_128x4, scale_row, g, 8)]);
    for (int d = 16 * g; d < 16 * g + 16; ++d) out[d] *= scale;
  }
}

// ---- msa_proxy_score ---------------------------------------------------------------------------

const char* at(const void* base, std::int64_t bytes) {
  return static_cast<const char*>(base) + bytes;
}

void decode_query(const ScoreProblem& p, std::int64_t token, std::int64_t head,
                  float (&out)[kHeadDim]) {
  decode_row(at(p.q.data, token * p.q.token_stride + head * p.q.head_stride), p.q.type, p.q.scale,
             token * p.q.heads + head, out);
}

// S: sums of groups of 16. Of NVFP4 queries they are exact, with or without fma, and added in
// order; others are added in pairs, then the pairs in order.
float dot(const float (&q)[kHeadDim], const float (&k)[kHeadDim], Element q_type) {
  float group[8] = {};
  for (int d = 0; d < kHeadDim; ++d) {
    float& s = group[d / 16];
    s = q_type == Element::e2m1 ? s + q[d] * k[d] : std::fma(q[d], k[d], s);
  }
  float sum = group[0] + group[1];
  for (int g = 2; g < 8; g += 2)
    sum = q_type == Element::e2m1 ? sum + group[g] + group[g + 1] : sum + (group[g] + group[g + 1]);
  return sum;
}

// One request, spelled out: which queries, which keys, how far each query sees.
struct Request {
  std::int64_t q0, q_count, k0, k_count, offset;
  std::int64_t limit(std::int64_t i, bool causal) const {
    return causal ? std::clamp<std::int64_t>(i + offset + 1, 0, k_count) : k_count;
  }
};

Request request_of(const ScoreProblem& p, std::int64_t b) {
  const Requests& r = p.requests;
  const std::int64_t q0 = std::clamp<std::int64_t>(r.cu_q[b], 0, p.q.tokens);
  const std::int64_t q1 = std::clamp<std::int64_t>(r.cu_q[b + 1], 0, p.q.tokens);
  const std::int64_t len_q = std::max<std::int64_t>(q1 - q0, 0);
  std::int64_t len_k =
      p.k.paged ? std::int64_t{r.used_k[b]} : std::int64_t{r.cu_k[b + 1]} - r.cu_k[b];
  len_k = std::max<std::int64_t>(len_k, 0);
  const std::int64_t k0 = p.k.paged ? 0 : std::clamp<std::int64_t>(r.cu_k[b], 0, p.k.count);
  const std::int64_t room = p.k.paged ? r.table_width * 128 : p.k.count - k0;
  const std::int64_t offset = r.offsets ? r.offsets[b] : r.has_offset ? r.offset : len_k - len_q;
  return {q0, std::min(len_q, r.max_seqlen_q), k0, std::min(len_k, room), offset};
}

// The keys of one block as floats; false if its page id is not a page.
bool decode_block(const ScoreProblem& p, const Request& request, std::int64_t b, std::int64_t head,
                  std::int64_t block, float (&keys)[kBlock][kHeadDim]) {
  const std::int64_t first = block * kBlock;
  const std::int64_t count = std::min<std::int64_t>(kBlock, request.k_count - first);
  if (p.k.paged) {
    const Requests& r = p.requests;
    const std::int64_t page = r.page_table[b * r.table_row_stride + block * r.table_column_stride];
    if (page < 0 || page >= p.k.count) return false;
    const char* codes = at(p.k.data, page * p.k.page_stride + head * p.k.head_stride);
    const std::uint8_t* scales =
        p.k.scale ? p.k.scale + page * p.k.scale_page_stride + head * 1024 : nullptr;
    for (std::int64_t j = 0; j < count; ++j)
      decode_row(codes + j * p.k.token_stride, p.k.type, scales, j, keys[j]);
  } else {
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t token = request.k0 + first + j;
      decode_row(at(p.k.data, token * p.k.token_stride + head * p.k.head_stride), p.k.type,
                 p.k.scale, token * p.k.heads + head, keys[j]);
    }
  }
  return true;
}

float global_of(const ScoreProblem& p) {
  const float q = p.q_global.pointer ? *p.q_global.pointer : p.q_global.value;
  const float k = p.k_global.pointer ? *p.k_global.pointer : p.k_global.value;
  return q * k;
}

// Maximum of S over the keys of a block below `limit`; NaN never wins.
float block_maximum(const ScoreProblem& p, const float (&q)[kHeadDim],
                    const float (&keys)[kBlock][kHeadDim], std::int64_t visible) {
  float best = -kInfinity;
  for (std::int64_t j = 0; j < std::min<std::int64_t>(visible, kBlock); ++j) {
    const float s = dot(q, keys[j], p.q.type);
    if (s > best) best = s;
  }
  return best;
}

float scaled(float maximum, float global) {
  return maximum == -kInfinity ? maximum : global * maximum;
}

std::int64_t out_head(const ScoreProblem& p, std::int64_t head) {
  return p.reduce == Reduce::none ? head : p.reduce == Reduce::all ? 0 : head / p.group();
}

void score(const ScoreProblem& p, const Launch&) {
  const auto out = [&](std::int64_t h, std::int64_t t, std::int64_t token) -> float& {
    return p.out.data[h * p.out.head_stride + t * p.out.tile_stride + token * p.out.token_stride];
  };
  for (std::int64_t h = 0; h < p.out_heads(); ++h)
    for (std::int64_t t = 0; t < p.max_k_tiles; ++t)
      for (std::int64_t token = 0; token < p.q.tokens; ++token) out(h, t, token) = -kInfinity;

  float keys[kBlock][kHeadDim], query[kHeadDim];
  for (std::int64_t b = 0; b < p.requests.batch; ++b) {
    const Request request = request_of(p, b);
    for (std::int64_t t = 0; t < p.max_k_tiles; ++t) {
      const std::int64_t block = p.block_start + t * p.block_step;
      if (block * kBlock >= request.k_count) break;
      for (std::int64_t kv = 0; kv < p.k.heads; ++kv) {
        if (!decode_block(p, request, b, kv, block, keys)) continue;
        for (std::int64_t i = 0; i < request.q_count; ++i) {
          const std::int64_t visible = request.limit(i, p.requests.causal) - block * kBlock;
          for (std::int64_t h = kv * p.group(); visible > 0 && h < (kv + 1) * p.group(); ++h) {
            decode_query(p, request.q0 + i, h, query);
            float& best = out(out_head(p, h), t, request.q0 + i);
            best = std::max(best, block_maximum(p, query, keys, visible));
          }
        }
      }
    }
  }
  // The maximum over heads is taken of S; the global scale comes last.
  const float global = global_of(p);
  for (std::int64_t h = 0; h < p.out_heads(); ++h)
    for (std::int64_t t = 0; t < p.max_k_tiles; ++t)
      for (std::int64_t token = 0; token < p.q.tokens; ++token)
        out(h, t, token) = scaled(out(h, t, token), global);
}

// ---- msa_topk_select ---------------------------------------------------------------------------

struct Choice {
  float score;
  std::int64_t id;
};

// Larger score first; equal scores (and -0.0 with +0.0): lower id; NaN below -inf.
bool wins(const Choice& a, const Choice& b) {
  if (std::isnan(a.score) != std::isnan(b.score)) return std::isnan(b.score);
  if (!std::isnan(a.score) && a.score != b.score) return a.score > b.score;
  return a.id < b.id;
}

// The row of one (token, head): forced blocks, then the best of the rest, ascending, then -1.
struct Selection {
  const SelectRule& rule;
  std::int64_t n;
  Choice chosen[kMaxTopk];
  int forced = 0, count = 0;  // chosen[0..forced) are forced, [forced..count) sorted by wins()

  std::int64_t begin() const { return std::min<std::int64_t>(rule.force_begin, n); }
  std::int64_t end() const { return std::min<std::int64_t>(rule.force_end, n - begin()); }

  void insert(const Choice& c, int place) {
    for (int r = count++; r > place; --r) chosen[r] = chosen[r - 1];
    chosen[place] = c;
  }

  void offer(float score, std::int64_t id) {
    const Choice c{score, id};
    if (id < begin() || id >= n - end()) return insert(c, forced++);
    if (rule.skip_masked && !(score > -kInfinity)) return;
    // Forced blocks at the end of the range are still to come: keep room for them.
    const int room = rule.topk - static_cast<int>(begin() + end());
    int place = count;
    while (place > forced && wins(c, chosen[place - 1])) --place;
    if (place - forced >= room) return;
    if (count - forced == room) --count;
    insert(c, place);
  }

  void store(const SelectOutput& out, std::int64_t token, std::int64_t head) {
    std::sort(chosen, chosen + count, [](const Choice& a, const Choice& b) { return a.id < b.id; });
    for (int r = 0; r < rule.topk; ++r) {
      const Choice c = r < count ? chosen[r] : Choice{-kInfinity, -1};
      out.ids[token * out.token_stride + head * out.head_stride + r * out.rank_stride] =
          static_cast<std::int32_t>(c.id);
      if (out.scores)
        out.scores[token * out.score_token_stride + head * out.score_head_stride +
                   r * out.score_rank_stride] = c.score;
    }
  }
};

void select(const SelectProblem& p, const Launch&) {
  for (std::int64_t token = 0; token < p.tokens; ++token)
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const std::int64_t n =
          std::clamp<std::int64_t>(p.valids ? p.valids[token] : p.valid, 0, p.tiles);
      Selection row{p.rule, n, {}};
      for (std::int64_t t = 0; t < n; ++t)
        row.offer(p.scores[h * p.head_stride + t * p.tile_stride + token * p.token_stride], t);
      row.store(p.out, token, h);
    }
}

// ---- msa_index_select_fp4 ----------------------------------------------------------------------
// select(score(...)), one row at a time.

void index(const IndexProblem& p, const Launch&) {
  const ScoreProblem& s = p.score;
  for (std::int64_t token = 0; token < s.q.tokens; ++token)
    for (std::int64_t h = 0; h < s.out_heads(); ++h)
      Selection{p.rule, 0, {}}.store(p.out, token, h);

  const float global = global_of(s);
  float keys[kBlock][kHeadDim], query[kHeadDim];
  for (std::int64_t b = 0; b < s.requests.batch; ++b) {
    const Request request = request_of(s, b);
    for (std::int64_t i = 0; i < request.q_count; ++i) {
      const std::int64_t limit = request.limit(i, s.requests.causal);
      const std::int64_t blocks = (limit + kBlock - 1) / kBlock - s.block_start;
      const std::int64_t n = std::clamp<std::int64_t>(
          blocks <= 0 ? 0 : (blocks + s.block_step - 1) / s.block_step, 0, s.max_k_tiles);
      for (std::int64_t oh = 0; oh < s.out_heads(); ++oh) {
        Selection row{p.rule, n, {}};
        for (std::int64_t t = 0; t < n; ++t) {
          const std::int64_t block = s.block_start + t * s.block_step;
          float best = -kInfinity;
          for (std::int64_t kv = 0; kv < s.k.heads; ++kv) {
            const bool mine =
                out_head(s, kv * s.group()) <= oh && oh <= out_head(s, (kv + 1) * s.group() - 1);
            if (!mine || !decode_block(s, request, b, kv, block, keys)) continue;
            for (std::int64_t head = kv * s.group(); head < (kv + 1) * s.group(); ++head) {
              if (out_head(s, head) != oh) continue;
              decode_query(s, request.q0 + i, head, query);
              best = std::max(best, block_maximum(s, query, keys, limit - block * kBlock));
            }
          }
          row.offer(scaled(best, global), t);
        }
        row.store(p.out, request.q0 + i, oh);
      }
    }
  }
}

// ---- nvfp4_quantize, msa_index_append_fp4 ------------------------------------------------------

std::uint8_t to_e4m3(float x) {  // nearest of the 127 values, ties to even, saturating
  if (std::isnan(x)) return 0x7F;
  std::uint8_t best = 0;
  for (std::uint8_t byte = 1; byte <= 0x7E; ++byte) {
    const float below = e4m3(byte - 1), middle = below + (e4m3(byte) - below) / 2;
    if (x > middle || (x == middle && byte % 2 == 0)) best = byte;
  }
  return best;
}

std::uint8_t to_e2m1(float x) {  // nearest of the 8 magnitudes, ties to even, saturating; sign kept
  if (std::isnan(x)) return 0x7;
  std::uint8_t best = 0;
  for (std::uint8_t code = 1; code <= 7; ++code) {
    const float middle = (kE2m1[code - 1] + kE2m1[code]) / 2;
    if (std::fabs(x) > middle || (std::fabs(x) == middle && code % 2 == 0)) best = code;
  }
  return std::signbit(x) ? best | 8 : best;
}

// One group of 16: writes 8 bytes of codes, returns the scale byte.
std::uint8_t quantize_group(const void* row, Element type, std::int64_t first, float global,
                            std::uint8_t* codes) {
  std::memset(codes, 0, 8);
  if (!(global > 0) || std::isinf(global)) return 0;
  float x[16], amax = kNan;
  for (int i = 0; i < 16; ++i) {
    x[i] = element(row, type, first + i);
    // Not fmax, which lets a signalling NaN through.
    if (std::isnan(amax) || std::fabs(x[i]) > amax) amax = std::fabs(x[i]);
  }
  const float sixth = 1.0f / 6.0f;
  const float inner = amax * sixth;
  const std::uint8_t byte = to_e4m3(global * inner);
  float factor = 0;
  if (byte != 0 && amax != 0)
    factor = std::min(1.0f / (e4m3(byte) * (1.0f / global)), std::numeric_limits<float>::max());
  for (int i = 0; i < 16; ++i) {
    const float scaled = std::isinf(x[i]) ? x[i] : x[i] * factor;  // never inf * 0
    codes[i / 2] = static_cast<std::uint8_t>(codes[i / 2] | to_e2m1(scaled) << (i % 2 * 4));
  }
  return byte;
}

float value_of(const GlobalScale& s) { return s.pointer ? *s.pointer : s.value; }

void quantize(const QuantizeProblem& p, const Launch&) {
  const std::int64_t groups = p.columns / 16;
  const bool tiled = p.layout != SfLayout::layout_linear;
  const std::int64_t unit = p.layout == SfLayout::layout_128x4 ? 128 : tiled ? 8 : 1;
  const std::int64_t rows = (p.rows + unit - 1) / unit * unit;
  const std::int64_t columns = tiled ? (groups + 3) / 4 * 4 : groups;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t g = 0; g < columns; ++g) {
      std::uint8_t& scale = p.scales[scale_offset(p.layout, row, g, groups)];
      scale = 0;
      if (row < p.rows && g < groups)
        scale = quantize_group(at(p.data, row * p.row_stride), p.type, g * 16, value_of(p.global),
                               p.codes + row * p.columns / 2 + g * 8);
    }
}

void append(const AppendProblem& p, const Launch&) {
  for (std::int64_t n = 0; n < p.count; ++n) {
    const std::int64_t page = p.slots[n] / kBlock, position = p.slots[n] % kBlock;
    if (p.slots[n] < 0 || page >= p.pages) continue;
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const char* row = at(p.data, n * p.token_stride + h * p.head_stride);
      std::uint8_t* codes =
          p.codes + page * p.page_stride + h * p.cache_head_stride + position * p.slot_stride;
      std::uint8_t* scales = p.scales + page * p.scale_page_stride + h * 1024;
      for (int g = 0; g < 8; ++g)
        scales[scale_offset(SfLayout::layout_128x4, position, g, 8)] =
            quantize_group(row, p.type, g * 16, value_of(p.global), codes + g * 8);
    }
  }
}

bool runs_on(int, std::string*) { return true; }
std::string describe(int) { return "plain loops, one thread"; }
std::string explain(const ScoreProblem&, const Launch&) {
  return "plain loops over (request, block, key head, query)";
}

}  // namespace

extern const Backend reference_backend = {
    .name = "reference",
    .built_for = "any CPU",
    .run_by_authors = true,
    .device = Device::cpu,
    .runs_on = runs_on,
    .describe = describe,
    .quantize = quantize,
    .score = score,
    .select = select,
    .index = index,
    .append = append,
    .score_workspace = nullptr,
    .index_workspace = nullptr,
    .explain = explain,
    .read = nullptr,
};

}  // namespace kvscout
