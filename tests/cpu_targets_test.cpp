// Every instruction set of this machine gives the bits of the reference back end, for all
// operations, on random problems: ragged batches, any number of heads, any strides, masks,
// reductions, block subsets. Without fma (SSE) the float routes are compared within the contract's
// tolerance instead.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cpu/kernels.h"
#include "kvscout/float_types.h"
#include "kvscout/kvscout.h"
#include "kvscout/scale_layout.h"

namespace kvscout {
namespace {

struct Random {
  std::mt19937_64 engine;
  std::int64_t below(std::int64_t n) {
    return n <= 0 ? 0 : static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(n));
  }
  std::int64_t between(std::int64_t a, std::int64_t b) { return a + below(b - a + 1); }
  bool one_in(int n) { return below(n) == 0; }
};

// Random problems of a kind. Sanitized and emulated code is slower by so much that a fifth of them
// has to do.
#if defined(KVSCOUT_SANITIZED) || defined(KVSCOUT_EMULATED)
constexpr int kProblems = 40;
#else
constexpr int kProblems = 200;
#endif

bool has_fma(const std::string& target) { return target.find("sse") == std::string::npos; }

// Options that force the reference, or an instruction set of the back end `cpu`.
Options with(const std::string& target, std::vector<std::uint8_t>& workspace, std::size_t bytes,
             int threads) {
  Options o;
  o.backend = target.empty() ? "reference" : "cpu";
  if (!target.empty()) setenv("KVSCOUT_CPU_TARGET", target.c_str(), 1);
  workspace.assign(bytes + 256, 0xA5);
  o.workspace =
      workspace.data() + (256 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 256) % 256;
  o.workspace_bytes = bytes;
  o.threads = threads;
  return o;
}

struct Problem {
  std::vector<std::uint8_t> q, k, q_scale, k_scale;
  std::vector<std::int32_t> cu_q{0}, cu_k{0}, used, table, offsets;
  ScoreFp4Args fp4;
  ScoreArgs plain;
  std::int64_t tokens = 0, heads = 1;
};

void fill(Random& r, std::vector<std::uint8_t>& bytes, DType type, bool wild) {
  for (auto& b : bytes) b = static_cast<std::uint8_t>(r.engine());
  if (type != DType::bf16 && type != DType::f16) return;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    std::normal_distribution<float> normal;
    if (wild && r.one_in(50)) continue;  // any bits: NaN, infinities, subnormals
    const float x = normal(r.engine);
    const std::uint16_t h = type == DType::bf16 ? float_to_bf16(x) : float_to_f16(x);
    std::memcpy(&bytes[i], &h, 2);
  }
}

// codes: NVFP4 keys. Queries are codes, or 16-bit floats; without codes keys may also be e4m3.
void make(Random& r, Problem& p, bool nvfp4_keys) {
  const DType wide = r.one_in(2) ? DType::bf16 : DType::f16;
  const DType q_type =
      nvfp4_keys ? (r.one_in(3) ? wide : DType::u8) : (r.one_in(4) ? DType::e4m3 : wide);
  const DType k_type =
      nvfp4_keys ? DType::u8 : (r.one_in(2) || q_type == DType::e4m3 ? DType::e4m3 : q_type);
  const std::int64_t q_row = q_type == DType::u8 ? 64 : 128, k_row = nvfp4_keys ? 64 : 128;
  const std::int64_t batch = r.between(1, 3), hkv = r.between(1, 3),
                     group = r.between(1, r.one_in(4) ? 20 : 5);
  const std::int64_t hq = hkv * group;
  const bool paged = r.one_in(2), causal = !r.one_in(3), wild = r.one_in(3);
  std::int64_t width = 0, longest = 0, max_q = 1;
  if (r.one_in(4)) p.cu_q[0] = static_cast<std::int32_t>(r.below(4));
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto q = static_cast<std::int32_t>(r.one_in(8)   ? 0
                                             : r.one_in(3) ? r.between(1, 60)
                                                           : r.between(1, 4));
    const auto k = static_cast<std::int32_t>(r.one_in(8) ? 0 : r.between(1, 700));
    p.cu_q.push_back(p.cu_q.back() + q);
    p.cu_k.push_back(p.cu_k.back() + k);
    p.used.push_back(k);
    p.offsets.push_back(static_cast<std::int32_t>(r.between(-20, 600)));
    longest = std::max<std::int64_t>(longest, k);
    max_q = std::max<std::int64_t>(max_q, q);
  }
  p.tokens = p.cu_q.back() + r.below(3);
  width = (longest + 127) / 128 + r.below(2);

  const std::int64_t q_pad = r.one_in(2) ? r.below(3) * 8 : 0,
                     k_pad = r.one_in(2) ? r.below(3) * 8 : 0;
  const std::int64_t q_size = bytes_of(q_type), k_size = bytes_of(k_type);
  p.q.resize(static_cast<std::size_t>(p.tokens * hq * (q_row + q_pad) * q_size + 64));
  fill(r, p.q, q_type, wild);
  p.q_scale.resize(
      static_cast<std::size_t>(scale_layout::bytes(SfLayout::layout_128x4, p.tokens * hq, 8)));
  fill(r, p.q_scale, DType::u8, wild);
  const Tensor q = Tensor(p.q.data(), q_type, {p.tokens, hq, q_row})
                       .strided({hq * (q_row + q_pad), q_row + q_pad, 1});
  Tensor k, table, used;
  if (paged) {
    const std::int64_t pages = batch * width + 3;
    const std::int64_t page = hkv * 128 * (k_row + k_pad);
    p.k.resize(static_cast<std::size_t>(pages * page * k_size + 64));
    k = Tensor(p.k.data(), k_type, {pages, hkv, 128, k_row})
            .strided({page, 128 * (k_row + k_pad), k_row + k_pad, 1});
    p.k_scale.resize(static_cast<std::size_t>(pages * hkv * 1024));
    for (std::int64_t i = 0; i < batch * width; ++i)
      p.table.push_back(
          static_cast<std::int32_t>(r.one_in(12) ? r.between(-2, pages + 1) : r.below(pages)));
    table = Tensor(p.table.data(), DType::i32, {batch, width});
    used = Tensor(p.used.data(), DType::i32, {batch});
  } else {
    const std::int64_t tk = p.cu_k.back() + r.below(3);
    p.k.resize(static_cast<std::size_t>(tk * hkv * (k_row + k_pad) * k_size + 64));
    k = Tensor(p.k.data(), k_type, {tk, hkv, k_row})
            .strided({hkv * (k_row + k_pad), k_row + k_pad, 1});
    p.k_scale.resize(
        static_cast<std::size_t>(scale_layout::bytes(SfLayout::layout_128x4, tk * hkv, 8)));
  }
  fill(r, p.k, k_type, wild);
  fill(r, p.k_scale, DType::u8, wild);
  if (r.one_in(2))  // blocks without a NaN take other ways
    for (auto& b : p.k_scale) b = (b & 0x7F) == 0x7F ? 0x7E : b;
  if (r.one_in(3)) {  // so do blocks of positive, normal numbers, with some other bytes or without
    for (auto& b : p.k_scale) b = static_cast<std::uint8_t>(0x08 + b % 0x77);
    if (r.one_in(2))
      for (std::int64_t i = r.below(2048); i < std::ssize(p.k_scale); i += 1 + r.below(4096))
        p.k_scale[static_cast<std::size_t>(i)] =
            static_cast<std::uint8_t>(r.one_in(2)   ? 0xFF - r.below(130)
                                      : r.one_in(2) ? 0
                                                    : r.below(9));
  }
  if (r.one_in(8)) std::fill(p.k_scale.begin(), p.k_scale.end(), 0);  // a sum of zeros is not -0

  const auto common = [&](auto& a) {
    a.cu_seqlens_q = Tensor(p.cu_q.data(), DType::i32, {batch + 1});
    if (paged) {
      a.page_table = table;
      a.seqused_k = used;
    } else {
      a.cu_seqlens_k = Tensor(p.cu_k.data(), DType::i32, {batch + 1});
    }
    a.causal = causal;
    a.max_seqlen_q = max_q + r.below(3);
    a.reduce_heads = r.one_in(2) ? Reduce::none : r.one_in(2) ? Reduce::all : Reduce::kv_group;
    if (r.one_in(3)) a.q_offsets = Tensor(p.offsets.data(), DType::i32, {batch});
    if (r.one_in(4)) a.kv_block_start = r.below(2), a.kv_block_step = r.between(1, 2);
    const std::int64_t columns =
        ((longest + 127) / 128 - a.kv_block_start + a.kv_block_step - 1) / a.kv_block_step;
    a.max_k_tiles = std::max<std::int64_t>(0, columns + r.between(-1, 1));
    p.heads = a.reduce_heads == Reduce::none ? hq : a.reduce_heads == Reduce::all ? 1 : hkv;
  };
  if (nvfp4_keys) {
    ScoreFp4Args& a = p.fp4;
    a.q_fp4 = q;
    a.k_fp4 = k;
    a.q_global_scale.value = 1;
    if (q_type == DType::u8) {
      a.q_scale =
          Tensor(p.q_scale.data(), DType::u8, {static_cast<std::int64_t>(p.q_scale.size())});
      a.q_global_scale.value = 0.37f;
    }
    a.k_scale = Tensor(p.k_scale.data(), DType::u8, {static_cast<std::int64_t>(p.k_scale.size())});
    a.k_global_scale.value = 1.7f;
    common(a);
  } else {
    p.plain.q = q;
    p.plain.k = k;
    common(p.plain);
  }
}

void expect_same(const std::vector<float>& got, const std::vector<float>& want, bool exact,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], 4) == 0) continue;
    const bool close = !exact && std::isfinite(got[i]) && std::isfinite(want[i]) &&
                       std::fabs(got[i] - want[i]) <= 1e-4f * (1 + std::fabs(want[i]));
    ASSERT_TRUE(close) << what << ": element " << i << " is " << got[i] << ", expected " << want[i];
  }
}

std::vector<float> run_score(Problem& p, bool nvfp4_keys, const std::string& target, int threads,
                             int layout) {
  const std::int64_t tiles = nvfp4_keys ? p.fp4.max_k_tiles : p.plain.max_k_tiles;
  std::vector<float> out(static_cast<std::size_t>(p.heads * tiles * p.tokens), 77.0f);
  Tensor t(out.data(), DType::f32, {p.heads, tiles, p.tokens});
  if (layout == 1) t = t.strided({tiles, 1, p.heads * tiles});
  std::vector<std::uint8_t> workspace;
  if (nvfp4_keys) {
    p.fp4.output = t;
    Options o = with(target, workspace, 0, threads);
    o = with(target, workspace, msa_proxy_score_fp4_workspace(p.fp4, o), threads);
    msa_proxy_score_fp4(p.fp4, o);
  } else {
    p.plain.output = t;
    Options o = with(target, workspace, 0, threads);
    o = with(target, workspace, msa_proxy_score_workspace(p.plain, o), threads);
    msa_proxy_score(p.plain, o);
  }
  return out;
}

// `ordinary`: numbers for which the tolerance of targets without fma makes sense.
void compare_targets(Random& r, Problem& p, bool nvfp4_keys, bool ordinary,
                     const std::string& what) {
  const int layout = static_cast<int>(r.below(2)), threads = static_cast<int>(r.between(1, 2));
  const auto want = run_score(p, nvfp4_keys, "", 1, layout);
  for (const cpu::Kernels* k : cpu::available_kernels()) {
    const bool exact = has_fma(k->name) || (nvfp4_keys && p.fp4.q_scale.defined);
    if (!exact && !ordinary) continue;
    const auto got = run_score(p, nvfp4_keys, k->name, threads, layout);
    expect_same(got, want, exact, std::string(k->name) + ", " + what);
    if (testing::Test::HasFatalFailure()) return;
  }
}

void compare_scores(bool nvfp4_keys, int rounds) {
  for (int seed = 0; seed < rounds; ++seed) {
    Random r{std::mt19937_64(static_cast<std::uint64_t>(seed) + 1000 * nvfp4_keys)};
    Problem p;
    make(r, p, nvfp4_keys);
    compare_targets(r, p, nvfp4_keys, true, "seed " + std::to_string(seed));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(CpuTargets, Nvfp4Scores) { compare_scores(true, kProblems); }
TEST(CpuTargets, FloatScores) { compare_scores(false, kProblems); }

// Tile registers flush subnormals, and take bf16 between bounds (amx/layout.h). So queries, keys or
// both, all rows or one of `every`, are of one binade here, from subnormals to infinities and NaN,
// around these bounds above all. Beyond the lower one products and sums are subnormal, too.
void set_binade(Random& r, int exponent, std::size_t every, std::span<std::uint8_t> numbers) {
  constexpr std::size_t kRow = 256;
  for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) {
    if (i / kRow % every != every - 1) continue;
    const auto x = static_cast<std::uint16_t>((r.below(2) << 15) | (exponent << 7) | r.below(128));
    std::memcpy(&numbers[i], &x, 2);
  }
}

void compare_sizes(bool nvfp4_keys, std::initializer_list<int> exponents) {
  for (int exponent : exponents)
    for (int seed = 0; seed < kProblems / 40; ++seed) {
      Random r{std::mt19937_64(static_cast<std::uint64_t>(exponent * 100 + seed) + 3000)};
      Problem p;
      do {
        p = Problem();
        make(r, p, nvfp4_keys);
      } while ((nvfp4_keys ? p.fp4.q_fp4 : p.plain.q).dtype != DType::bf16 ||
               (seed > 0 && !nvfp4_keys && p.plain.k.dtype != DType::bf16));
      const bool bf16_keys = !nvfp4_keys && p.plain.k.dtype == DType::bf16;
      const bool both = bf16_keys && seed % 3 == 2, only_keys = bf16_keys && seed % 3 == 1;
      const std::size_t every = seed < 3 || r.one_in(2) ? 1 : 16;
      if (!only_keys) set_binade(r, exponent, every, p.q);
      if (only_keys || both) set_binade(r, exponent, every, p.k);
      if (r.one_in(2) || exponent < 18)
        std::fill(p.k_scale.begin(), p.k_scale.end(), std::uint8_t{1});
      compare_targets(r, p, nvfp4_keys, false,
                      "exponent " + std::to_string(exponent) + ", seed " + std::to_string(seed));
      if (testing::Test::HasFatalFailure()) return;
    }
}

TEST(CpuTargets, Bf16QueriesOfAnySize) { compare_sizes(true, {0, 13, 17, 18, 142, 143, 254, 255}); }
TEST(CpuTargets, Bf16OfAnySize) {
  compare_sizes(false, {0, 17, 18, 63, 70, 71, 142, 143, 182, 183, 255});
}

// A tile begins on tile registers and goes on by fma from the block whose keys they do not take.
TEST(CpuTargets, Bf16KeysOutOfRangeAmidATile) {
  constexpr std::int64_t kTokens = 40, kHeads = 4, kBlocks = 5, kBlockBytes = 128 * 256;
  for (int exponent : {0, 183, 254, 255})
    for (std::int64_t block = 0; block < kBlocks; ++block) {
      Random r{std::mt19937_64(static_cast<std::uint64_t>(exponent * 100 + block) + 4000)};
      Problem p;
      p.tokens = kTokens, p.heads = kHeads;
      p.cu_q.push_back(kTokens), p.cu_k.push_back(kBlocks * 128);
      p.q.resize(kTokens * kHeads * 256), p.k.resize(kBlocks * kBlockBytes);
      fill(r, p.q, DType::bf16, false), fill(r, p.k, DType::bf16, false);
      set_binade(
          r, exponent, 1,
          std::span(p.k).subspan(static_cast<std::size_t>(block * kBlockBytes), kBlockBytes));
      ScoreArgs& a = p.plain;
      a.q = Tensor(p.q.data(), DType::bf16, {kTokens, kHeads, 128});
      a.k = Tensor(p.k.data(), DType::bf16, {kBlocks * 128, 1, 128});
      a.cu_seqlens_q = Tensor(p.cu_q.data(), DType::i32, {2});
      a.cu_seqlens_k = Tensor(p.cu_k.data(), DType::i32, {2});
      a.causal = false, a.max_seqlen_q = kTokens, a.max_k_tiles = kBlocks;
      compare_targets(r, p, false, false,
                      "exponent " + std::to_string(exponent) + ", block " + std::to_string(block));
      if (testing::Test::HasFatalFailure()) return;
    }
}

// `heads` of the result.
void run_index(IndexArgs& a, std::int64_t heads, const std::string& target, int threads,
               std::vector<std::int32_t>& ids, std::vector<float>& scores) {
  const std::int64_t tokens = a.score.q_fp4.shape[0];
  const auto size = static_cast<std::size_t>(tokens * heads * a.topk);
  ids.assign(size, 77);
  scores.assign(size, 77);
  a.output = Tensor(ids.data(), DType::i32, {tokens, heads, a.topk});
  a.scores = Tensor(scores.data(), DType::f32, {tokens, heads, a.topk});
  std::vector<std::uint8_t> workspace;
  Options o = with(target, workspace, 0, threads);
  o = with(target, workspace, msa_index_select_fp4_workspace(a, o), threads);
  msa_index_select_fp4(a, o);
}

TEST(CpuTargets, Index) {
  for (int seed = 0; seed < kProblems; ++seed) {
    Random r{std::mt19937_64(static_cast<std::uint64_t>(seed) + 5000)};
    Problem p;
    do {
      p = Problem();
      make(r, p, true);
    } while (!p.fp4.q_scale.defined);  // without fma, other queries may be chosen
    IndexArgs a;
    a.score = p.fp4;
    a.topk = static_cast<int>(r.between(1, 8));
    a.force_begin_blocks = static_cast<int>(r.between(0, a.topk / 2));
    a.force_end_blocks = static_cast<int>(r.between(0, a.topk - a.force_begin_blocks));
    std::vector<std::int32_t> ids, want_ids;
    std::vector<float> scores, want_scores;
    run_index(a, p.heads, "", 1, want_ids, want_scores);
    for (const cpu::Kernels* k : cpu::available_kernels())
      for (int threads = 1; threads <= 2; ++threads) {
        run_index(a, p.heads, k->name, threads, ids, scores);
        ASSERT_EQ(ids, want_ids) << k->name << ", seed " << seed;
        expect_same(scores, want_scores, true,
                    std::string(k->name) + ", seed " + std::to_string(seed));
        if (testing::Test::HasFatalFailure()) return;
      }
  }
}

// With two threads columns are split, and what the splits leave is merged, a strip of it at a time.
// Keys are few, so that scores tie; one thread needs no splits.
TEST(CpuTargets, IndexOfLongContexts) {
  for (int seed = 0; seed < kProblems / 10; ++seed) {
    Random r{std::mt19937_64(static_cast<std::uint64_t>(seed) + 6000)};
    const std::int64_t tokens = r.between(1, 3), heads = r.between(1, 12);
    const std::int64_t keys = r.between(128 * 128, 128 * 700);
    const std::size_t different = static_cast<std::size_t>(r.between(1, 200));
    std::vector<std::uint8_t> q(static_cast<std::size_t>(tokens * heads) * 64),
        some(different * 64);
    std::vector<std::uint8_t> k(static_cast<std::size_t>(keys) * 64);
    fill(r, q, DType::u8, false), fill(r, some, DType::u8, false);
    for (std::size_t j = 0; j < k.size(); j += 64)
      std::copy_n(&some[static_cast<std::size_t>(r.below(std::ssize(some) / 64)) * 64], 64, &k[j]);
    const auto scales = [](std::int64_t rows) {
      return std::vector<std::uint8_t>(
          static_cast<std::size_t>(scale_layout::bytes(SfLayout::layout_128x4, rows, 8)), 0x38);
    };
    std::vector<std::uint8_t> q_scale = scales(tokens * heads), k_scale = scales(keys);
    const bool wild = r.one_in(2);
    for (std::int64_t i = 0; wild && i < 50; ++i)
      k_scale[static_cast<std::size_t>(r.below(std::ssize(k_scale)))] =
          static_cast<std::uint8_t>(r.one_in(2) ? 0x7F : 0x7E);
    std::vector<std::int32_t> cu_q{0, static_cast<std::int32_t>(tokens)};
    std::vector<std::int32_t> cu_k{0, static_cast<std::int32_t>(keys)};
    IndexArgs a;
    a.score.q_fp4 = Tensor(q.data(), DType::u8, {tokens, heads, 64});
    a.score.k_fp4 = Tensor(k.data(), DType::u8, {keys, 1, 64});
    a.score.q_scale = Tensor(q_scale.data(), DType::u8, {std::ssize(q_scale)});
    a.score.k_scale = Tensor(k_scale.data(), DType::u8, {std::ssize(k_scale)});
    a.score.q_global_scale.value = a.score.k_global_scale.value = 1;
    a.score.cu_seqlens_q = Tensor(cu_q.data(), DType::i32, {2});
    a.score.cu_seqlens_k = Tensor(cu_k.data(), DType::i32, {2});
    a.score.max_seqlen_q = tokens;
    a.score.max_k_tiles = (keys + 127) / 128 + r.below(100);
    a.topk = static_cast<int>(r.one_in(2) ? r.between(33, 64) : r.between(1, 16));
    a.force_begin_blocks = static_cast<int>(r.one_in(2) ? 0 : r.between(0, a.topk / 2));
    a.force_end_blocks = static_cast<int>(r.between(0, a.topk - a.force_begin_blocks));
    std::vector<std::int32_t> ids[2];
    std::vector<float> scores[2];
    for (const cpu::Kernels* kernels : cpu::available_kernels()) {
      const std::string target = kernels->name;
      for (int threads = 1; threads <= 2; ++threads)
        run_index(a, heads, target, threads, ids[threads - 1], scores[threads - 1]);
      ASSERT_EQ(ids[0], ids[1]) << target << ", seed " << seed;
      expect_same(scores[1], scores[0], true, target + ", seed " + std::to_string(seed));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(CpuTargets, Select) {
  for (int seed = 0; seed < kProblems; ++seed) {
    Random r{std::mt19937_64(static_cast<std::uint64_t>(seed) + 9000)};
    const std::int64_t heads = r.between(1, 3), tokens = r.between(1, 150);
    const std::int64_t tiles = r.one_in(4) ? r.between(500, 1300) : r.between(1, 200);
    std::vector<float> scores(static_cast<std::size_t>(heads * tiles * tokens));
    const int style = static_cast<int>(r.below(4));
    for (auto& x : scores) {
      x = static_cast<float>(static_cast<std::int32_t>(r.engine())) * 1e-6f;
      if (style == 1)
        x = static_cast<float>(r.between(-2, 2)) * (r.one_in(2) ? 1.0f : -1.0f);    // ties, +-0
      if (style == 2) x = nvfp4::float_of(static_cast<std::uint32_t>(r.engine()));  // any bits
      if (style == 3 && !r.one_in(10)) x = -std::numeric_limits<float>::infinity();
    }
    std::vector<std::int32_t> valid(static_cast<std::size_t>(tokens));
    for (auto& v : valid) v = static_cast<std::int32_t>(r.between(-1, tiles + 1));
    SelectArgs a;
    a.topk = static_cast<int>(r.one_in(3) ? r.between(1, 64) : 16);
    a.force_begin_blocks = static_cast<int>(r.one_in(2) ? 0 : r.between(0, a.topk / 2));
    a.force_end_blocks =
        static_cast<int>(r.one_in(2) ? 0 : r.between(0, a.topk - a.force_begin_blocks));
    a.skip_masked = r.one_in(3);
    a.max_score = Tensor(scores.data(), DType::f32, {heads, tiles, tokens});
    if (r.one_in(3)) a.max_score = a.max_score.strided({1, heads, heads * tiles});
    if (r.one_in(2)) a.num_valid_pages_tensor = Tensor(valid.data(), DType::i32, {tokens});
    std::vector<std::int32_t> want(static_cast<std::size_t>(tokens * heads * a.topk)), got;
    std::vector<std::uint8_t> none;
    a.output = Tensor(want.data(), DType::i32, {tokens, heads, a.topk});
    msa_topk_select(a, with("", none, 0, 1));
    for (const cpu::Kernels* k : cpu::available_kernels()) {
      got.assign(want.size(), 77);
      a.output = Tensor(got.data(), DType::i32, {tokens, heads, a.topk});
      msa_topk_select(a, with(k->name, none, 0, 2));
      ASSERT_EQ(got, want) << k->name << ", seed " << seed;
    }
  }
}

TEST(CpuTargets, Quantize) {
  for (int seed = 0; seed < kProblems; ++seed) {
    Random r{std::mt19937_64(static_cast<std::uint64_t>(seed) + 7000)};
    const std::int64_t rows = r.between(1, 140),
                       columns = 16 * (r.one_in(4) ? r.between(1, 300) : r.between(1, 17));
    const DType type = r.one_in(3) ? DType::f32 : r.one_in(2) ? DType::f16 : DType::bf16;
    std::vector<std::uint8_t> data(static_cast<std::size_t>(rows * columns * bytes_of(type)));
    const int style = static_cast<int>(r.below(3));
    fill(r, data, type, style == 1);
    if (type == DType::f32 || style == 2) {
      if (type == DType::f32)
        for (std::size_t i = 0; i < data.size(); i += 4) {
          std::normal_distribution<float> normal;
          const float x = style == 1 ? std::round(normal(r.engine) * 8) / 4 : normal(r.engine);
          if (style != 2) std::memcpy(&data[i], &x, 4);
        }
      else
        for (auto& b : data) b = static_cast<std::uint8_t>(r.engine());  // any bits
    }
    QuantizeArgs a;
    a.a = Tensor(data.data(), type, {rows, columns});
    a.layout = static_cast<SfLayout>(r.below(3));
    a.a_global_sf.value =
        r.one_in(3)
            ? 1.0f
            : std::exp2(static_cast<float>(r.between(-30, 30)) * (r.one_in(4) ? 4.0f : 0.3f));
    const auto run = [&](const std::string& target, std::vector<std::uint8_t>& codes,
                         std::vector<std::uint8_t>& scales) {
      codes.assign(static_cast<std::size_t>(rows * columns / 2), 0x5A);
      scales.assign(static_cast<std::size_t>(scale_layout::bytes(a.layout, rows, columns / 16)),
                    0x5A);
      a.codes = Tensor(codes.data(), DType::u8, {rows, columns / 2});
      a.scales = Tensor(scales.data(), DType::u8, {static_cast<std::int64_t>(scales.size())});
      std::vector<std::uint8_t> none;
      nvfp4_quantize(a, with(target, none, 0, 2));
    };
    std::vector<std::uint8_t> codes, scales, want_codes, want_scales;
    run("", want_codes, want_scales);
    for (const cpu::Kernels* k : cpu::available_kernels()) {
      run(k->name, codes, scales);
      const auto first_difference = [](const auto& x, const auto& y) {
        return std::mismatch(x.begin(), x.end(), y.begin()).first - x.begin();
      };
      ASSERT_TRUE(scales == want_scales) << k->name << ", seed " << seed << ": scale byte "
                                         << first_difference(scales, want_scales);
      ASSERT_TRUE(codes == want_codes)
          << k->name << ", seed " << seed << ": code byte " << first_difference(codes, want_codes);
    }
  }
}

TEST(CpuTargets, FillAround) {
  constexpr std::int64_t kMost = 90;
  for (const cpu::Kernels* k : cpu::available_kernels())
    for (std::int64_t begin = 0; begin < 17; ++begin)
      for (std::int64_t n = 0; begin + n < kMost; ++n) {
        alignas(64) float data[kMost] = {};
        k->fill_around(data + begin, n, 3);
        for (std::int64_t i = 0; i < kMost; ++i)
          ASSERT_EQ(data[i], i >= begin && i < begin + n ? 3 : 0)
              << k->name << ": " << n << " from " << begin << " on, at " << i;
      }
}

TEST(CpuTargets, ThereIsMoreThanOneOnX86) {
#if defined(__x86_64__)
  EXPECT_GE(cpu::available_kernels().size(), 2u);
#endif
  EXPECT_GE(cpu::available_kernels().size(), 1u);
}

}  // namespace
}  // namespace kvscout
