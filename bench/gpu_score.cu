// Score kernels on a GPU: `gpu_score check` compares random small problems of every kind with a
// float64 oracle and compares bits across schedules; `gpu_score bench` times graph replays next to
// the streaming read of the same run.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cuda/score.h"
#include "kvscout/float_types.h"
#include "kvscout/scale_layout.h"

using namespace kvscout;

#define CK(x)                                                               \
  do {                                                                      \
    cudaError_t e = (x);                                                    \
    if (e != cudaSuccess) {                                                 \
      std::printf("CUDA %s at line %d\n", cudaGetErrorString(e), __LINE__); \
      std::fflush(stdout);                                                  \
      std::exit(1);                                                         \
    }                                                                       \
  } while (0)

namespace {

using ScoreTokens = void (*)(const ScoreProblem&, const Launch&, TokenRange);
ScoreTokens score_of(const std::string& name) {
#ifdef WITH_SM80
  if (name == "sm80") return sm80::score_tokens;
#endif
#ifdef WITH_SM89
  if (name == "sm89") return sm89::score_tokens;
#endif
  return sm90::score_tokens;
}

struct Random {
  std::uint64_t s;
  std::uint32_t operator()() {
    s = s * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<std::uint32_t>(s >> 32);
  }
  int below(int n) { return n <= 1 ? 0 : static_cast<int>((*this)() % static_cast<unsigned>(n)); }
  int in(int a, int b) { return a + below(b - a + 1); }
};

// A host buffer and its copy on the device.
struct Memory {
  std::vector<std::uint8_t> host;
  std::uint8_t* device = nullptr;
  void upload() {
    CK(cudaMalloc(&device, host.size() + 64));
    CK(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice));
  }
  ~Memory() { cudaFree(device); }
};

// One problem: host data, device data, the problem seen from either side.
struct Setup {
  Memory q, qs, k, ks, cu_q, cu_k, used, table, offsets, globals;
  ScoreProblem host, device;
  std::int64_t out_elements = 0;
  std::string name;
};

void fill_rows(std::vector<std::uint8_t>& v, Element e, Random& r) {
  if (e == Element::e2m1) {
    for (auto& b : v) b = static_cast<std::uint8_t>(r());
  } else if (e == Element::e4m3) {
    for (auto& b : v)
      b = static_cast<std::uint8_t>(r() & 0x80) | static_cast<std::uint8_t>(r.below(0x70));
  } else {
    for (std::size_t i = 0; i + 1 < v.size(); i += 2) {
      const float x = (static_cast<float>(r.below(4001)) - 2000.0f) / 700.0f;
      const std::uint16_t h = e == Element::bf16 ? float_to_bf16(x) : float_to_f16(x);
      std::memcpy(&v[i], &h, 2);
    }
  }
}
void fill_scales(std::vector<std::uint8_t>& v, Random& r, bool nan) {
  for (auto& b : v) b = static_cast<std::uint8_t>(r.in(0x20, 0x58) | (r.below(4) == 0 ? 0x80 : 0));
  if (nan)
    for (std::size_t i = 0; i < v.size() / 300; ++i) v[r.below(static_cast<int>(v.size()))] = 0x7F;
}
void ints(Memory& m, const std::vector<std::int32_t>& v) {
  m.host.resize(std::max<std::size_t>(v.size() * 4, 4));
  if (!v.empty()) std::memcpy(m.host.data(), v.data(), v.size() * 4);
}

struct Shape {
  Element qt = Element::e2m1, kt = Element::e2m1;
  std::int64_t hkv = 1, group = 4;
  bool paged = true, causal = true, aligned = true, interleaved = false, tiles_inner = false;
  std::vector<std::int32_t> q_len, k_len;
  std::int64_t max_tiles = -1, max_q = -1;
  std::int64_t start = 0, step = 1;
  Reduce reduce = Reduce::none;
  int offset_kind = 0;  // 1: number, 2: device
  bool device_scales = false, nan = false, bad_pages = false, lead_in = false;
  bool random_data = true;
};

void build(Setup& s, const Shape& c, Random& r) {
  const int B = static_cast<int>(c.q_len.size());
  std::vector<std::int32_t> cu_q{c.lead_in ? 3 : 0}, cu_k{c.lead_in ? 5 : 0};
  std::int64_t width = 1;
  for (int b = 0; b < B; ++b) {
    cu_q.push_back(cu_q.back() + c.q_len[b]);
    cu_k.push_back(cu_k.back() + c.k_len[b]);
    width = std::max<std::int64_t>(width, (c.k_len[b] + 127) / 128);
  }
  const std::int64_t tq = cu_q.back() + (c.lead_in ? 2 : 0), tk = cu_k.back(), hq = c.hkv * c.group;
  const std::int64_t qrow = row_bytes(c.qt), krow = row_bytes(c.kt), slack = c.aligned ? 0 : 3;
  ScoreProblem& p = s.host;
  p.q.type = c.qt, p.k.type = c.kt;
  p.q.tokens = tq, p.q.heads = hq;
  p.q.head_stride = qrow + slack, p.q.token_stride = (qrow + slack) * hq + (c.interleaved ? 16 : 0);
  s.q.host.resize(tq * p.q.token_stride + 64);
  fill_rows(s.q.host, c.qt, r);
  if (c.qt == Element::e2m1)
    s.qs.host.resize(scale_layout::bytes(SfLayout::layout_128x4, tq * hq, 8));
  fill_scales(s.qs.host, r, false);
  p.k.paged = c.paged, p.k.heads = c.hkv;
  std::vector<std::int32_t> table;
  if (c.paged) {
    std::int64_t pages = 3;
    for (int b = 0; b < B; ++b) pages += (c.k_len[b] + 127) / 128;
    p.k.count = pages;
    p.k.token_stride = krow + slack, p.k.head_stride = (krow + slack) * 128;
    p.k.page_stride = p.k.head_stride * c.hkv + (c.interleaved ? 1024 * c.hkv : 0);
    std::vector<std::int32_t> ids(pages);
    for (int i = 0; i < pages; ++i) ids[i] = i;
    for (int i = static_cast<int>(pages) - 1; i > 0; --i) std::swap(ids[i], ids[r.below(i + 1)]);
    table.assign(B * (width + 2), 0x7FFFFFF0);  // never read beyond the live columns
    std::size_t next = 0;
    for (int b = 0; b < B; ++b)
      for (int i = 0; i < (c.k_len[b] + 127) / 128; ++i)
        table[b * (width + 2) + i] = c.bad_pages && r.below(5) == 0
                                         ? (r.below(2) ? -1 : static_cast<int>(pages) + 7)
                                         : ids[next++];
    s.k.host.resize(pages * p.k.page_stride + 64);
    fill_rows(s.k.host, c.kt, r);
    if (c.kt == Element::e2m1) {
      if (c.interleaved) {
        p.k.scale_page_stride = p.k.page_stride;
      } else {
        p.k.scale_page_stride = 1024 * c.hkv + (c.aligned ? 0 : 1);
        s.ks.host.resize(pages * p.k.scale_page_stride + 64);
        fill_scales(s.ks.host, r, c.nan);
      }
    }
    p.requests.table_width = width + 1, p.requests.table_row_stride = width + 2,
    p.requests.table_column_stride = 1;
  } else {
    p.k.count = tk;
    p.k.token_stride = (krow + slack) * c.hkv + (c.interleaved ? 32 : 0),
    p.k.head_stride = krow + slack;
    s.k.host.resize(tk * p.k.token_stride + 64);
    fill_rows(s.k.host, c.kt, r);
    if (c.kt == Element::e2m1)
      s.ks.host.resize(scale_layout::bytes(SfLayout::layout_128x4, tk * c.hkv, 8));
    fill_scales(s.ks.host, r, c.nan);
  }
  ints(s.cu_q, cu_q), ints(s.cu_k, cu_k), ints(s.used, c.k_len), ints(s.table, table);
  std::vector<std::int32_t> off;
  for (int b = 0; b < B; ++b) off.push_back(r.in(-20, c.k_len[b] + 5));
  ints(s.offsets, off);
  const float gs[2] = {0.37f, 1.9f};
  s.globals.host.resize(8);
  std::memcpy(s.globals.host.data(), gs, 8);
  p.requests.batch = B, p.requests.causal = c.causal;
  p.requests.has_offset = c.offset_kind == 1, p.requests.offset = 17;
  p.requests.max_seqlen_q = 1;
  for (int n : c.q_len)
    p.requests.max_seqlen_q = std::max<std::int64_t>(p.requests.max_seqlen_q, n);
  if (c.max_q > 0) p.requests.max_seqlen_q = c.max_q;
  p.q_global.value = gs[0], p.k_global.value = gs[1];
  p.reduce = c.reduce;
  p.block_start = c.start, p.block_step = c.step;
  p.max_k_tiles = c.max_tiles >= 0 ? c.max_tiles : width;
  if (c.tiles_inner)
    p.out.tile_stride = 1, p.out.token_stride = p.max_k_tiles + 1,
    p.out.head_stride = p.out.token_stride * tq;
  else
    p.out.token_stride = 1, p.out.tile_stride = tq, p.out.head_stride = tq * p.max_k_tiles;
  s.out_elements = p.out.head_stride * p.out_heads();
  for (Memory* m :
       {&s.q, &s.qs, &s.k, &s.ks, &s.cu_q, &s.cu_k, &s.used, &s.table, &s.offsets, &s.globals})
    m->upload();
  ScoreProblem& d = s.device;
  d = p;
  const auto bind = [&](ScoreProblem& x, bool dev) {
    const auto at = [&](Memory& m) { return dev ? m.device : m.host.data(); };
    const std::int64_t shift = c.aligned ? 0 : 1;
    x.q.data = at(s.q) + shift, x.k.data = at(s.k) + shift;
    x.q.scale = c.qt == Element::e2m1 ? at(s.qs) : nullptr;
    x.k.scale = c.kt != Element::e2m1      ? nullptr
                : c.interleaved && c.paged ? at(s.k) + 128 * krow * c.hkv
                                           : at(s.ks);
    const auto i32 = [&](Memory& m) { return reinterpret_cast<const std::int32_t*>(at(m)); };
    x.requests.cu_q = i32(s.cu_q);
    if (c.paged)
      x.requests.used_k = i32(s.used), x.requests.page_table = i32(s.table);
    else
      x.requests.cu_k = i32(s.cu_k);
    if (c.offset_kind == 2) x.requests.offsets = i32(s.offsets);
    if (c.device_scales) {
      x.q_global.pointer = reinterpret_cast<const float*>(at(s.globals));
      x.k_global.pointer = x.q_global.pointer + 1;
    }
  };
  bind(s.host, false), bind(s.device, true);
}

void decode(const std::uint8_t* row, Element e, const std::uint8_t* scales, std::int64_t scale_row,
            double* v) {
  for (int d = 0; d < 128; ++d) {
    if (e == Element::e2m1) {
      const unsigned code = d % 2 ? row[d / 2] >> 4 : row[d / 2] & 15;
      v[d] = static_cast<double>(nvfp4::e2m1_to_float(code)) *
             nvfp4::e4m3_to_float(scales[scale_layout::tiled_128x4(scale_row, d / 16, 8)]);
    } else if (e == Element::e4m3) {
      v[d] = nvfp4::e4m3_element_to_float(row[d]);
    } else {
      std::uint16_t h;
      std::memcpy(&h, row + 2 * d, 2);
      v[d] = e == Element::bf16 ? bf16_to_float(h) : f16_to_float(h);
    }
  }
}

// The float64 answer and M (largest sum of magnitudes) of all outputs.
void oracle(const Setup& s, std::vector<double>& out, std::vector<double>& scale) {
  const ScoreProblem& p = s.host;
  const std::int64_t G = p.group(), H = p.out_heads(), T = p.max_k_tiles, N = p.q.tokens;
  out.assign(H * T * N, -INFINITY), scale.assign(H * T * N, 0);
  const double gs = static_cast<double>(0.37f * 1.9f);
  std::vector<double> kv(128 * 128), qv(128);
  for (std::int64_t b = 0; b < p.requests.batch; ++b) {
    const std::int64_t q0 = p.requests.cu_q[b], nq = p.requests.cu_q[b + 1] - q0;
    const std::int64_t lk =
        p.k.paged ? p.requests.used_k[b] : p.requests.cu_k[b + 1] - p.requests.cu_k[b];
    const std::int64_t off = p.requests.offsets      ? p.requests.offsets[b]
                             : p.requests.has_offset ? p.requests.offset
                                                     : lk - nq;
    for (std::int64_t n = 0; n < T; ++n) {
      const std::int64_t block = p.block_start + n * p.block_step;
      if (block * 128 >= lk) continue;
      const int rows = static_cast<int>(std::min<std::int64_t>(128, lk - block * 128));
      for (std::int64_t kh = 0; kh < p.k.heads; ++kh) {
        bool ok = true;
        for (int j = 0; j < rows && ok; ++j) {
          const auto* data = static_cast<const std::uint8_t*>(p.k.data);
          if (p.k.paged) {
            const std::int64_t page =
                p.requests.page_table[b * p.requests.table_row_stride + block];
            if (page < 0 || page >= p.k.count) {
              ok = false;
              break;
            }
            decode(data + page * p.k.page_stride + kh * p.k.head_stride + j * p.k.token_stride,
                   p.k.type, p.k.scale + page * p.k.scale_page_stride + kh * 1024, j, &kv[j * 128]);
          } else {
            const std::int64_t token = p.requests.cu_k[b] + block * 128 + j;
            decode(data + token * p.k.token_stride + kh * p.k.head_stride, p.k.type, p.k.scale,
                   token * p.k.heads + kh, &kv[j * 128]);
          }
        }
        if (!ok) continue;
        for (std::int64_t i = 0; i < std::min(nq, p.requests.max_seqlen_q); ++i)
          for (std::int64_t g = 0; g < G; ++g) {
            const std::int64_t h = kh * G + g, t = q0 + i;
            decode(static_cast<const std::uint8_t*>(p.q.data) + t * p.q.token_stride +
                       h * p.q.head_stride,
                   p.q.type, p.q.scale, t * p.q.heads + h, qv.data());
            const std::int64_t limit =
                p.requests.causal ? std::clamp<std::int64_t>(i + off + 1, 0, lk) : lk;
            const std::int64_t oh = p.reduce == Reduce::none ? h : p.reduce == Reduce::all ? 0 : kh;
            double& o = out[(oh * T + n) * N + t];
            double& M = scale[(oh * T + n) * N + t];
            for (int j = 0; j < rows && block * 128 + j < limit; ++j) {
              double sum = 0, mag = 0;
              for (int d = 0; d < 128; ++d)
                sum += qv[d] * kv[j * 128 + d], mag += std::fabs(qv[d] * kv[j * 128 + d]);
              if (!std::isfinite(sum)) continue;
              o = std::max(o, gs * sum), M = std::max(M, gs * mag);
            }
          }
      }
    }
  }
}

std::vector<float> run(const Setup& s, ScoreTokens f, TokenRange range = {},
                       const ScoreProblem* problem = nullptr) {
  ScoreProblem p = problem ? *problem : s.device;
  float* out;
  const std::size_t bytes = (s.out_elements + 8) * 4;
  CK(cudaMalloc(&out, bytes));
  CK(cudaMemset(out, 0x7B, bytes));  // poison: 1.3e36
  p.out.data = out;
  f(p, Launch{}, range);
  CK(cudaGetLastError());
  CK(cudaDeviceSynchronize());
  std::vector<float> v(s.out_elements + 8);
  CK(cudaMemcpy(v.data(), out, bytes, cudaMemcpyDeviceToHost));
  CK(cudaFree(out));
  return v;
}

int failures = 0;
double worst = 0;

bool compare(const Setup& s, const std::vector<float>& got, const std::string& what) {
  std::vector<double> want, scale;
  oracle(s, want, scale);
  const ScoreProblem& p = s.host;
  int bad = 0;
  for (std::int64_t h = 0; h < p.out_heads(); ++h)
    for (std::int64_t n = 0; n < p.max_k_tiles; ++n)
      for (std::int64_t t = 0; t < p.q.tokens; ++t) {
        const float g = got[h * p.out.head_stride + n * p.out.tile_stride + t * p.out.token_stride];
        const std::int64_t i = (h * p.max_k_tiles + n) * p.q.tokens + t;
        const bool inf = want[i] == -INFINITY;
        if (scale[i] > 1e37) continue;  // beyond float32
        bool ok = inf ? g == -INFINITY
                      : std::fabs(g - want[i]) <= 4e-6 * scale[i] + 1.2e-7 * std::fabs(g);
        if (!inf && ok && scale[i] > 0) worst = std::max(worst, std::fabs(g - want[i]) / scale[i]);
        if (!ok && ++bad <= 3)
          std::printf("  %s: head %d column %d token %d: %g, expected %g\n", what.c_str(), (int)h,
                      (int)n, (int)t, g, want[i]);
      }
  if (bad) ++failures, std::printf("FAIL %s: %d of %zu\n", what.c_str(), bad, want.size());
  return bad == 0;
}

int check(ScoreTokens f, int count, int first) {
  const Element types[8][2] = {{Element::e2m1, Element::e2m1}, {Element::bf16, Element::e2m1},
                               {Element::f16, Element::e2m1},  {Element::bf16, Element::bf16},
                               {Element::f16, Element::f16},   {Element::bf16, Element::e4m3},
                               {Element::f16, Element::e4m3},  {Element::e4m3, Element::e4m3}};
  const int groups[] = {4, 1, 2, 3, 16, 5, 8, 40, 12, 7};
  int done = 0;
  for (int i = first; i < first + count; ++i) {
    Random r{static_cast<std::uint64_t>(i) * 77 + 5};
    for (int w = 0; w < 5; ++w) r();
    Shape c;
    const int ty = i % 2 ? 0 : r.below(8);
    c.qt = types[ty][0], c.kt = types[ty][1];
    c.group = groups[r.below(i % 3 ? 4 : 10)];
    c.hkv = r.below(3) ? 1 : r.in(1, 3);
    c.paged = r.below(3) != 0, c.causal = r.below(3) != 0, c.aligned = r.below(6) != 0;
    c.interleaved = c.aligned && r.below(4) == 0, c.tiles_inner = r.below(4) == 0;
    const int B = r.below(5) == 0 ? r.in(33, 70) : r.in(1, 5), kind = r.below(4);
    for (int b = 0; b < B; ++b) {
      const int most = B > 32      ? 3
                       : kind == 0 ? 1
                       : kind == 1 ? 9
                       : kind == 2 ? 70
                                   : (b % 2 ? 2 : 150);
      c.q_len.push_back(kind == 0 ? 1 : r.below(8) == 0 ? 0 : r.in(1, most));
      c.k_len.push_back(r.below(10) == 0 ? 0 : r.in(1, B > 32 ? 700 : 1800));
    }
    if (r.below(4) == 0) c.max_tiles = r.in(1, 20);
    if (r.below(4) == 0) c.max_q = r.in(1, 200);
    if (r.below(5) == 0) c.start = r.below(3), c.step = r.in(1, 4);
    c.reduce = r.below(3) == 0 ? Reduce::all : r.below(3) == 0 ? Reduce::kv_group : Reduce::none;
    c.offset_kind = r.below(3) == 0 ? r.in(1, 2) : 0;
    c.device_scales = r.below(3) == 0, c.nan = r.below(4) == 0, c.bad_pages = r.below(6) == 0,
    c.lead_in = r.below(3) == 0;
    Setup s;
    build(s, c, r);
    const std::string what = "case " + std::to_string(i) + " types " + std::to_string(ty) + " G " +
                             std::to_string(c.group) + " Hkv " + std::to_string(c.hkv) + " B " +
                             std::to_string(B) + " kind " + std::to_string(kind) +
                             (c.paged ? " paged" : " flat") + (c.causal ? " causal" : "") +
                             (c.aligned ? "" : " unaligned") + " reduce " +
                             std::to_string((int)c.reduce) + " step " + std::to_string(c.step);
    const std::vector<float> got = run(s, f);
    compare(s, got, what);
    // The same bits in token chunks and one token at a time (other schedules).
    const ScoreProblem& p = s.host;
    if (i % 3 == 0) {
      const std::int64_t chunk = r.below(2) ? 1 : r.in(1, 50);
      int bad = 0;
      for (std::int64_t t = 0; t < p.q.tokens && bad == 0; t += chunk) {
        const std::int64_t end = std::min(t + chunk, p.q.tokens);
        const std::vector<float> part = run(s, f, TokenRange{t, end});
        for (std::int64_t u = t; u < end; ++u)
          for (std::int64_t h = 0; h < p.out_heads(); ++h)
            for (std::int64_t n = 0; n < p.max_k_tiles; ++n) {
              const std::int64_t at = h * p.out.head_stride + n * p.out.tile_stride;
              bad += std::memcmp(&part[at + (u - t) * p.out.token_stride],
                                 &got[at + u * p.out.token_stride], 4) != 0;
            }
        if (t > 40 * chunk) break;
      }
      if (bad)
        ++failures, std::printf("FAIL %s: other bits in chunks of %d tokens (%d)\n", what.c_str(),
                                (int)chunk, bad);
    }
    // ... and one request at a time with a small bound, which takes the short schedule.
    if (c.max_q < 0 && B <= 5 && kind >= 2) {
      int bad = 0;
      for (int b = 0; b < B; ++b) {
        ScoreProblem x = s.device;
        x.requests.batch = 1, x.requests.cu_q += b;
        if (x.requests.cu_k) x.requests.cu_k += b;
        if (x.requests.used_k)
          x.requests.used_k += b, x.requests.page_table += b * x.requests.table_row_stride;
        if (x.requests.offsets) x.requests.offsets += b;
        const std::vector<float> part = run(s, f, {}, &x);
        for (std::int64_t t = p.requests.cu_q[b]; t < p.requests.cu_q[b + 1]; ++t)
          for (std::int64_t h = 0; h < p.out_heads(); ++h)
            for (std::int64_t n = 0; n < p.max_k_tiles; ++n) {
              const std::int64_t at =
                  h * p.out.head_stride + n * p.out.tile_stride + t * p.out.token_stride;
              bad += std::memcmp(&part[at], &got[at], 4) != 0;
            }
      }
      if (bad)
        ++failures, std::printf("FAIL %s: other bits request by request (%d)\n", what.c_str(), bad);
    }
    ++done;
  }
  std::printf("checked %d cases, %d failures, worst error / M %.3g\n", done, failures, worst);
  return failures != 0;
}

__global__ void read_kernel(const uint4* p, std::size_t n, unsigned* o) {
  unsigned a = 0;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    const uint4 v = __ldcs(p + i);
    a ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (a == 0x12345) *o = a;
}
__global__ void fill_kernel(unsigned* p, std::size_t n, unsigned mask, unsigned seed) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    unsigned x = static_cast<unsigned>(i) * 2654435761u + seed;
    x ^= x >> 16, x *= 0x85ebca6bu, x ^= x >> 13, x *= 0xc2b2ae35u, x ^= x >> 16;
    p[i] = x & mask;
  }
}

// Median microseconds of one call, from replays of a graph of `calls` of them.
double time_graph(const std::function<void(cudaStream_t)>& call, int calls, int replays = 9) {
  static cudaStream_t stream = nullptr;
  static cudaEvent_t e0, e1;
  if (!stream) {
    CK(cudaStreamCreate(&stream));
    CK(cudaEventCreate(&e0));
    CK(cudaEventCreate(&e1));
  }
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < calls; ++i) call(stream);
  CK(cudaStreamEndCapture(stream, &graph));
  CK(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<float> v;
  for (int i = 0; i < replays + 2; ++i) {
    CK(cudaEventRecord(e0, stream));
    CK(cudaGraphLaunch(exec, stream));
    CK(cudaEventRecord(e1, stream));
    CK(cudaEventSynchronize(e1));
    float t;
    CK(cudaEventElapsedTime(&t, e0, e1));
    if (i >= 2) v.push_back(t / calls);
  }
  CK(cudaGraphExecDestroy(exec));
  CK(cudaGraphDestroy(graph));
  std::sort(v.begin(), v.end());
  return v[v.size() / 2] * 1e3;
}

struct Pool {  // one large device pool that all benchmark problems share
  std::uint8_t *k, *ks, *q, *qs;
  std::int32_t *cu_q, *cu_k, *used, *table;
  float* out;
};
constexpr std::int64_t kPoolPages = 65536;

double bench_one(const Pool& m, ScoreTokens f, const char* name, const std::vector<int>& q_len,
                 const std::vector<int>& k_len, Element qt, Element kt, int hkv, int group,
                 bool causal, double peak, bool compute, bool paged = true,
                 bool tiles_inner = false, std::int64_t max_tiles = 0, int calls = 0) {
  const int B = static_cast<int>(q_len.size());
  std::vector<std::int32_t> cu_q{0}, cu_k{paged ? 0 : 5}, table;
  std::int64_t width = 0, live = 0;
  for (int b = 0; b < B; ++b) {
    cu_q.push_back(cu_q.back() + q_len[b]), cu_k.push_back(cu_k.back() + k_len[b]);
    width = std::max<std::int64_t>(width, (k_len[b] + 127) / 128);
    live += (k_len[b] + 127) / 128;
  }
  const std::int64_t krow = row_bytes(kt);
  const std::int64_t pages = std::min<std::int64_t>(kPoolPages, kPoolPages * 64 / krow / hkv);
  std::vector<std::int32_t> ids(pages);
  Random r{9};
  for (int i = 0; i < pages; ++i) ids[i] = i;
  for (int i = static_cast<int>(pages) - 1; i > 0; --i) std::swap(ids[i], ids[r.below(i + 1)]);
  table.assign(B * width, -1);
  std::int64_t next = 0;
  for (int b = 0; b < B; ++b)
    for (int i = 0; i < (k_len[b] + 127) / 128; ++i) table[b * width + i] = ids[next++ % pages];
  CK(cudaMemcpy(m.cu_q, cu_q.data(), cu_q.size() * 4, cudaMemcpyHostToDevice));
  CK(cudaMemcpy(m.cu_k, cu_k.data(), cu_k.size() * 4, cudaMemcpyHostToDevice));
  CK(cudaMemcpy(m.used, k_len.data(), B * 4, cudaMemcpyHostToDevice));
  CK(cudaMemcpy(m.table, table.data(), table.size() * 4, cudaMemcpyHostToDevice));
  ScoreProblem p;
  p.q.data = m.q, p.q.scale = qt == Element::e2m1 ? m.qs : nullptr, p.q.type = qt;
  p.q.tokens = cu_q.back(), p.q.heads = hkv * group, p.q.head_stride = row_bytes(qt),
  p.q.token_stride = p.q.head_stride * p.q.heads;
  p.k.data = m.k, p.k.scale = kt == Element::e2m1 ? m.ks : nullptr, p.k.type = kt,
  p.k.paged = paged, p.k.heads = hkv;
  if (paged) {
    p.k.count = pages, p.k.token_stride = krow, p.k.head_stride = krow * 128,
    p.k.page_stride = p.k.head_stride * hkv, p.k.scale_page_stride = 1024 * hkv;
    p.requests.used_k = m.used, p.requests.page_table = m.table;
    p.requests.table_width = width, p.requests.table_row_stride = width,
    p.requests.table_column_stride = 1;
  } else {
    p.k.count = cu_k.back(), p.k.token_stride = krow * hkv, p.k.head_stride = krow;
    p.requests.cu_k = m.cu_k;
  }
  p.requests.batch = B, p.requests.cu_q = m.cu_q, p.requests.causal = causal;
  p.requests.max_seqlen_q = *std::max_element(q_len.begin(), q_len.end());
  p.max_k_tiles = max_tiles ? max_tiles : width;
  p.out.data = m.out;
  if (tiles_inner)
    p.out.tile_stride = 1, p.out.token_stride = p.max_k_tiles,
    p.out.head_stride = p.max_k_tiles * p.q.tokens;
  else
    p.out.token_stride = 1, p.out.tile_stride = p.q.tokens,
    p.out.head_stride = p.q.tokens * p.max_k_tiles;
  const double bytes =
      static_cast<double>(live) * hkv * 128 * (krow + (kt == Element::e2m1 ? 8 : 0));
  double flops = 0;
  for (int b = 0; b < B; ++b)
    for (int i = 0; i < q_len[b]; ++i)
      flops += 256.0 * hkv * group *
               (causal ? std::max<double>(0, static_cast<double>(k_len[b]) - q_len[b] + i + 1)
                       : k_len[b]);
  if (!calls) calls = bytes < 4e7 && flops < 1e11 ? 40 : 4;
  const double us = time_graph(
      [&](cudaStream_t st) {
        Launch launch;
        launch.stream = st;
        f(p, launch, {});
      },
      calls, calls == 4 ? 5 : 9);
  if (compute)
    std::printf("%-44s %9.2f us  %6.0f TFLOP/s  %5.1f%%\n", name, us, flops / us * 1e-6,
                100 * flops / us * 1e-6 / peak);
  else
    std::printf("%-44s %9.2f us  %6.0f GB/s  %5.1f%%\n", name, us, bytes / us * 1e-3,
                100 * bytes / us * 1e-3 / peak);
  std::fflush(stdout);
  return us;
}

int bench(ScoreTokens f, double tflops, int level) {
  Pool m;
  const std::size_t kb = kPoolPages * 8192, sb = kPoolPages * 1024, qb = 64u << 20,
                    ob = std::size_t{1} << 28;
  CK(cudaMalloc(&m.k, kb));
  CK(cudaMalloc(&m.ks, sb));
  CK(cudaMalloc(&m.q, qb));
  CK(cudaMalloc(&m.qs, qb));
  CK(cudaMalloc(&m.out, ob * 4));
  CK(cudaMalloc(&m.cu_q, 1 << 16));
  CK(cudaMalloc(&m.cu_k, 1 << 16));
  CK(cudaMalloc(&m.used, 1 << 16));
  CK(cudaMalloc(&m.table, 8 << 20));
  // 0x3F.. patterns keep bf16, e4m3 and e2m1 finite alike.
  fill_kernel<<<1024, 256>>>(reinterpret_cast<unsigned*>(m.k), kb / 4, 0xBFFFBFFFu, 1);
  fill_kernel<<<1024, 256>>>(reinterpret_cast<unsigned*>(m.ks), sb / 4, 0x3F3F3F3Fu, 2);
  fill_kernel<<<1024, 256>>>(reinterpret_cast<unsigned*>(m.q), qb / 4, 0xBFFFBFFFu, 3);
  fill_kernel<<<1024, 256>>>(reinterpret_cast<unsigned*>(m.qs), qb / 4, 0x3F3F3F3Fu, 4);
  CK(cudaDeviceSynchronize());
  double read = 0;
  for (int mul : {8, 16})
    read = std::max(read, kb /
                              time_graph(
                                  [&](cudaStream_t st) {
                                    read_kernel<<<132 * mul, 256, 0, st>>>(
                                        reinterpret_cast<uint4*>(m.k), kb / 16,
                                        reinterpret_cast<unsigned*>(m.out));
                                  },
                                  3) *
                              1e-3);
  const double empty = time_graph(
      [&](cudaStream_t st) {
        read_kernel<<<132, 256, 0, st>>>(reinterpret_cast<uint4*>(m.k), 0,
                                         reinterpret_cast<unsigned*>(m.out));
      },
      40);
  std::printf("streaming read %.0f GB/s, empty node %.2f us, peak used for compute %.0f TFLOP/s\n",
              read, empty, tflops);
  const auto many = [](int n, int v) { return std::vector<int>(n, v); };
  using enum Element;
  const auto decode = [&](const char* name, int B, int ctx, int tokens = 1, int group = 4) {
    return bench_one(m, f, name, many(B, tokens), many(B, ctx), e2m1, e2m1, 1, group, true, read,
                     false);
  };
  decode("decode 64 x 131k", 64, 131072);
  decode("decode 32 x 131k", 32, 131072);
  decode("decode 8 x 131k", 8, 131072);
  decode("decode 1 x 1M", 1, 1 << 20);
  decode("decode 8 x 32k", 8, 32768);
  decode("decode 1 x 8k", 1, 8192);
  decode("decode 1 x 32k", 1, 32768);
  decode("decode 8 x 8k", 8, 8192);
  decode("decode 1 x 131k", 1, 131072);
  if (level >= 1) {
    decode("decode 64 x 131k, 4 tokens", 64, 131072, 4);
    decode("decode 64 x 131k, Hq 1", 64, 131072, 1, 1);
    decode("decode 64 x 131k, Hq 16", 64, 131072, 1, 16);
    std::vector<int> ragged;
    for (int i = 0; i < 32; ++i)
      ragged.push_back(11000 + static_cast<int>(225000 * std::pow(i / 31.0, 2.0)));
    std::int64_t sum = 0;
    for (int x : ragged) sum += x;
    bench_one(m, f, "ragged 32", many(32, 1), ragged, e2m1, e2m1, 1, 4, true, read, false);
    bench_one(m, f, "uniform of the same bytes", many(32, 1), many(32, static_cast<int>(sum / 32)),
              e2m1, e2m1, 1, 4, true, read, false);
    bench_one(m, f, "flat, odd starts, 64 x 131k", many(64, 1), many(64, 131070), e2m1, e2m1, 1, 4,
              true, read, false, false);
    bench_one(m, f, "tiles innermost, 64 x 131k", many(64, 1), many(64, 131072), e2m1, e2m1, 1, 4,
              true, read, false, true, true);
    bench_one(m, f, "8 x 2k, max_k_tiles 16", many(8, 1), many(8, 2048), e2m1, e2m1, 1, 4, true,
              read, false, true, false, 16);
    bench_one(m, f, "8 x 2k, max_k_tiles 8192", many(8, 1), many(8, 2048), e2m1, e2m1, 1, 4, true,
              read, false, true, false, 8192);
    bench_one(m, f, "bf16 q, e2m1 k, 64 x 131k", many(64, 1), many(64, 131072), bf16, e2m1, 1, 4,
              true, read, false);
    bench_one(m, f, "bf16 x bf16, 64 x 131k", many(64, 1), many(64, 131072), bf16, bf16, 1, 4, true,
              read, false);
  }
  bench_one(m, f, "prefill 8192 x 65536", {8192}, {65536}, e2m1, e2m1, 1, 4, false, tflops, true);
  if (level >= 1) {
    bench_one(m, f, "prefill 8192 x 65536, 1 head", {8192}, {65536}, e2m1, e2m1, 1, 1, false,
              tflops, true);
    bench_one(m, f, "30 x 67584, 8 tokens, 64/4 heads", many(30, 8), many(30, 67584), e2m1, e2m1, 4,
              16, true, tflops, true);
    bench_one(m, f, "causal 8192 x 8192", {8192}, {8192}, e2m1, e2m1, 1, 4, true, tflops, true);
    bench_one(m, f, "causal 2048 x 32768", {2048}, {32768}, e2m1, e2m1, 1, 4, true, tflops, true);
    bench_one(m, f, "causal 512 x 131072", {512}, {131072}, e2m1, e2m1, 1, 4, true, tflops, true);
    bench_one(m, f, "bf16 q, e2m1 k, 8192 x 65536", {8192}, {65536}, bf16, e2m1, 1, 4, false,
              tflops, true);
    bench_one(m, f, "bf16 x bf16, 8192 x 65536", {8192}, {65536}, bf16, bf16, 1, 4, false, tflops,
              true);
    std::vector<int> q = many(32, 1), k = many(32, 65536);
    q[7] = 512;
    bench_one(m, f, "mixed: 512 tokens beside 31 x 1, 65k", q, k, e2m1, e2m1, 1, 4, true, tflops,
              true);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "check", name = argc > 2 ? argv[2] : "sm90";
  cudaDeviceProp pr;
  CK(cudaGetDeviceProperties(&pr, 0));
  std::printf("%s, %d SMs, %s %s\n", pr.name, pr.multiProcessorCount, what.c_str(), name.c_str());
  if (what == "check")
    return check(score_of(name), argc > 3 ? std::atoi(argv[3]) : 100,
                 argc > 4 ? std::atoi(argv[4]) : 0);
  return bench(score_of(name), argc > 3 ? std::atof(argv[3]) : 750,
               argc > 4 ? std::atoi(argv[4]) : 1);
}
