// On one GPU a score has the same bits whatever way it takes: alone or among others, in chunks of
// any size (each meets another schedule), over a page table as long as the keys or much longer,
// flat or paged, from any column on, with fewer heads beside it, behind any number of other blocks.
// Keys of wide range, so that another order of additions would show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "kvscout/scale_layout.h"
#include "memory.h"
#include "registry.h"

namespace kvscout::gpu {
namespace {

constexpr int kTokens = 64, kHeads = 4, kBlocks = 40, kKeys = kBlocks * kBlock - 37;
constexpr int kWide = 3000;  // columns of the long page table

// Whether a column of the repeated keys has no page.
bool is_missing(int column) { return column % 7 == 6; }
bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// The same queries and keys for every way, on the GPU.
class Data {
 public:
  Data(Element q, Element k) : q_type_(q), k_type_(k) {
    std::vector<int> page(kBlocks);
    std::iota(page.begin(), page.end(), 0);
    std::shuffle(page.begin(), page.end(), random_);
    const std::vector<std::uint8_t> keys = rows(k, kBlocks * kBlock),
                                    scales = scales_of(kBlocks * kBlock);
    std::vector<std::uint8_t> pages(keys.size()), page_scales(scales.size());
    table_.assign(std::size_t{kTokens} * kWide, -1);
    for (int b = 0; b < kTokens; ++b)
      for (int n = 0; n < kWide; ++n) repeated_.push_back(is_missing(n) ? -1 : page[n % kBlocks]);
    for (int n = 0; n < kBlocks; ++n) {
      copy_block(keys, n, pages, page[n], row_bytes(k) * kBlock);
      copy_block(scales, n, page_scales, page[n], scale_layout::kPageBytes);
      for (int b = 0; b < kTokens; ++b) table_[std::size_t{kWide} * b + n] = page[n];
    }
    q_ = upload(rows(q, kTokens * kHeads)), q_scales_ = scales_of(kTokens * kHeads);
    flat_ = upload(keys), flat_scale_ = upload(scales);
    pages_ = upload(pages), page_scale_ = upload(page_scales);
    table_on_gpu_ = upload(table_), repeated_on_gpu_ = upload(repeated_);
    out_ = static_cast<float*>(memory_.allocate(std::size_t{kTokens} * kHeads * kWide * 4));
  }

  struct Way {
    int requests = 1, tokens = kTokens;  // of each
    bool paged = true, wide = false, columns_inside = false;
    int heads = kHeads, block_start = 0, block_step = 1;
    bool repeats = false;  // the keys again and again, in a long table where some pages are missing
  };

  // Scores by [head][block][token]; those that the way leaves out stay NaN.
  std::vector<float> scores(const Backend& backend, const Way& w) {
    std::vector<std::int32_t> cu_q(w.requests + 1),
        used(w.requests, w.repeats ? kWide * kBlock : kKeys);
    for (int b = 0; b <= w.requests; ++b) cu_q[b] = b * w.tokens;
    const int tokens = w.requests * w.tokens;
    ScoreProblem p;
    GpuMemory of_way;
    p.q.data = q_, p.q.type = q_type_;
    if (q_type_ == Element::e2m1) p.q.scale = upload(query_scales(w.heads), of_way);
    p.q.tokens = tokens, p.q.heads = w.heads;
    p.q.head_stride = row_bytes(q_type_), p.q.token_stride = p.q.head_stride * kHeads;
    const bool scaled = k_type_ == Element::e2m1;
    p.k.type = k_type_, p.k.paged = w.paged, p.k.heads = 1;
    p.k.data = w.paged ? pages_ : flat_;
    p.k.scale = !scaled ? nullptr : w.paged ? page_scale_ : flat_scale_;
    p.k.count = w.paged ? kBlocks : kKeys;
    p.k.token_stride = row_bytes(k_type_), p.k.head_stride = p.k.token_stride * kBlock;
    p.k.page_stride = p.k.head_stride, p.k.scale_page_stride = scale_layout::kPageBytes;
    p.requests.batch = w.requests, p.requests.causal = false;
    p.requests.max_seqlen_q = w.tokens;
    p.requests.cu_q = upload(cu_q, of_way);
    if (w.paged) {
      p.requests.used_k = upload(used, of_way);
      p.requests.page_table = w.repeats ? repeated_on_gpu_ : table_on_gpu_;
      p.requests.table_width = w.wide ? kWide : kBlocks;
      p.requests.table_row_stride = kWide, p.requests.table_column_stride = 1;
    } else {
      p.requests.cu_k = upload(std::vector<std::int32_t>{0, kKeys}, of_way);
    }
    p.block_start = w.block_start, p.block_step = w.block_step;
    p.max_k_tiles = w.wide ? kWide : (kBlocks - w.block_start - 1) / w.block_step + 1;
    p.out = {out_, p.max_k_tiles * tokens, tokens, 1};
    if (w.columns_inside) p.out.tile_stride = 1, p.out.token_stride = p.max_k_tiles;
    Launch launch;
    launch.device = {Device::cuda, 0};
    backend.score(p, launch);
    std::vector<float> got(static_cast<std::size_t>(w.heads * p.max_k_tiles * tokens));
    memory_.read(got.data(), out_, got.size() * 4);

    // A block that is met again with other bits, or that is missing and yet scored, or NaN, is put
    // down as +inf, which no block has.
    std::vector<float> all(std::size_t{kHeads} * kBlocks * kTokens, NAN);
    for (int h = 0; h < w.heads; ++h)
      for (int c = 0; c < p.max_k_tiles; ++c)
        for (int t = 0; t < tokens; ++t) {
          int n = c * w.block_step + w.block_start;
          const bool missing = w.repeats && is_missing(n);
          if (w.repeats) n %= kBlocks;
          // Nothing there; or the last one, which is whole where keys repeat, and only there.
          if (n >= kBlocks || (w.repeats && n == kBlocks - 1)) continue;
          const float v = got[static_cast<std::size_t>(
              h * p.out.head_stride + c * p.out.tile_stride + t * p.out.token_stride)];
          float& seen = all[(std::size_t{kBlocks} * h + n) * kTokens + t];
          const bool agrees =
              missing ? v == -INFINITY : !std::isnan(v) && (std::isnan(seen) || same_bits(seen, v));
          if (!agrees)
            seen = INFINITY;
          else if (!missing)
            seen = v;
        }
    return all;
  }

 private:
  static void copy_block(const std::vector<std::uint8_t>& from, int n,
                         std::vector<std::uint8_t>& to, int at, std::int64_t bytes) {
    std::memcpy(&to[static_cast<std::size_t>(at * bytes)],
                &from[static_cast<std::size_t>(n * bytes)], static_cast<std::size_t>(bytes));
  }
  // Rows of scales follow one another without the heads that are left out.
  std::vector<std::uint8_t> query_scales(int heads) const {
    std::vector<std::uint8_t> bytes(q_scales_.size());
    for (int t = 0; t < kTokens; ++t)
      for (int h = 0; h < heads; ++h)
        for (int half = 0; half < 2; ++half) {
          const std::int64_t at = half * scale_layout::kSecondHalf;
          std::memcpy(&bytes[scale_layout::row_128x4(std::int64_t{t} * heads + h) + at],
                      &q_scales_[scale_layout::row_128x4(std::int64_t{t} * kHeads + h) + at], 4);
        }
    return bytes;
  }
  // 16-bit elements lie between 2^-8 and 2^8, e4m3 scales between 2^-5 and 2^6.
  std::vector<std::uint8_t> rows(Element e, int count) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count * row_bytes(e)));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto bits = static_cast<std::uint8_t>(random_());
      const bool high = i % 2 == 1;
      bytes[i] = e == Element::e2m1 || !high ? bits
                 : e == Element::bf16
                     ? static_cast<std::uint8_t>((bits & 0x80) | (0x3C + bits % 8))
                     : static_cast<std::uint8_t>((bits & 0x80) | (0x1C + bits % 64));
    }
    return bytes;
  }
  std::vector<std::uint8_t> scales_of(int count) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>((count + 127) / 128) *
                                    scale_layout::kPageBytes);
    for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(0x10 + random_() % 0x58);
    return bytes;
  }
  template <class T>
  T* upload(const std::vector<T>& v, GpuMemory& memory) {
    void* p = memory.allocate(v.size() * sizeof(T));
    memory.write(p, v.data(), v.size() * sizeof(T));
    return static_cast<T*>(p);
  }
  template <class T>
  T* upload(const std::vector<T>& v) {
    return upload(v, memory_);
  }

  std::mt19937 random_{11};
  Element q_type_, k_type_;
  std::vector<std::int32_t> table_, repeated_;
  GpuMemory memory_;
  std::vector<std::uint8_t> q_scales_;
  std::uint8_t *q_, *flat_, *flat_scale_, *pages_, *page_scale_;
  std::int32_t *table_on_gpu_, *repeated_on_gpu_;
  float* out_;
};

TEST(Bits, DoNotDependOnTheWay) {
  using Way = Data::Way;
  const std::pair<const char*, Way> ways[] = {
      {"single tokens", {.requests = 64, .tokens = 1}},
      {"single tokens, long table", {.requests = 64, .tokens = 1, .wide = true}},
      {"2 tokens a request", {.requests = 32, .tokens = 2}},
      {"4 tokens a request", {.requests = 16, .tokens = 4}},
      {"4 tokens a request, long table", {.requests = 16, .tokens = 4, .wide = true}},
      {"8 tokens a request", {.requests = 8, .tokens = 8}},
      {"32 tokens a request", {.requests = 2, .tokens = 32}},
      {"one token", {.tokens = 1}},
      {"one token, long table", {.tokens = 1, .wide = true}},
      {"4 tokens, long table", {.tokens = 4, .wide = true}},
      {"8 tokens, long table", {.tokens = 8, .wide = true}},
      {"64 tokens, long table", {.wide = true}},
      {"flat", {.paged = false}},
      {"flat, 3 tokens", {.tokens = 3, .paged = false}},
      {"flat, 8 tokens", {.tokens = 8, .paged = false}},
      {"columns inside", {.requests = 64, .tokens = 1, .columns_inside = true}},
      {"every third block", {.block_start = 1, .block_step = 3}},
      {"every third block, single tokens",
       {.requests = 64, .tokens = 1, .block_start = 2, .block_step = 3}},
      {"single tokens, keys again and again",
       {.requests = 64, .tokens = 1, .wide = true, .repeats = true}},
      {"4 tokens a request, keys again and again",
       {.requests = 16, .tokens = 4, .wide = true, .repeats = true}},
      {"8 tokens a request, keys again and again",
       {.requests = 8, .tokens = 8, .wide = true, .repeats = true}},
      {"one token, keys again and again", {.tokens = 1, .wide = true, .repeats = true}},
      {"64 tokens, keys again and again", {.wide = true, .repeats = true}},
      {"one head", {.heads = 1}},
      {"3 heads, single tokens", {.requests = 64, .tokens = 1, .heads = 3}},
  };
  int backends = 0;
  for (const Backend* b : all_backends()) {
    if (b->device != Device::cuda || !b->runs_on(0, nullptr)) continue;
    ++backends;
    using enum Element;
    for (const auto& [q, k] : {std::pair{e2m1, e2m1}, {bf16, e2m1}, {f16, e2m1}, {bf16, bf16}}) {
      Data data(q, k);
      const std::vector<float> expected = data.scores(*b, {});
      for (const auto& [name, way] : ways) {
        const std::vector<float> got = data.scores(*b, way);
        int compared = 0, different = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          if (std::isnan(got[i])) continue;
          ++compared;
          different += !same_bits(got[i], expected[i]);
        }
        EXPECT_EQ(different, 0) << b->name << ", " << name << ", types " << static_cast<int>(q)
                                << " and " << static_cast<int>(k);
        EXPECT_GE(compared, way.heads * (kBlocks - way.repeats) / way.block_step) << name;
      }
    }
  }
  EXPECT_GT(backends, 0);
}

}  // namespace
}  // namespace kvscout::gpu
