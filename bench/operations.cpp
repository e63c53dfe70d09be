// The other operations: quantise, select, index.
#include <cstdio>
#include <functional>
#include <vector>

#include "problem.h"
#include "sections.h"

namespace bench {
namespace {

// The compared instruction sets at `call`, which moves so many bytes, beside the ceiling that moves
// as many.
void race_to(const char* what, double must, double goal, const char* ceiling, double bytes,
             const std::function<void(int threads)>& reach,
             const std::function<void(const Options&)>& call) {
  for (const int threads : thread_counts()) {
    std::vector<Contender> all;
    all.push_back({ceiling, [&] { reach(threads); }});
    for (const cpu::Kernels* k : compared())
      all.push_back({k->name, [&, k] {
                       force(k->name);
                       Options o;
                       o.backend = "cpu";
                       o.threads = threads;
                       call(o);
                     }});
    race(all, rounds);
    for (const Contender& c : all)
      std::printf("%d threads  %-8s %8.2f ms  %6.1f GB/s  %3.0f%%\n", threads, c.name.c_str(),
                  c.seconds * 1e3, bytes / c.seconds * 1e-9, 100 * all[0].seconds / c.seconds);
    report({what, threads, cell(ceiling, bytes / all[0].seconds * 1e-9, "GB/s"), "-",
            cell("", bytes / all[1].seconds * 1e-9, "GB/s"), 100 * all[0].seconds / all[1].seconds,
            "%", must, goal});
  }
}

}  // namespace

void quantize() {
  std::printf("\n== quantise: bf16, 65536 rows of 128, 128x4 scales\n");
  const std::int64_t rows = 65536;
  Buffer<std::uint8_t> a(rows * 256), codes(rows * 64), scales(rows * 8), copy(rows * 164);
  for (std::size_t i = 0; i < a.count; i += 2) {  // magnitudes between 2^-4 and 2^4
    const std::uint64_t r = random_bits();
    const auto bits = static_cast<std::uint16_t>((r & 0x8000) | (0x3D80 + (r >> 20) % 0x400));
    std::memcpy(a.get() + i, &bits, 2);
  }
  QuantizeArgs args;
  args.a = Tensor(a.get(), DType::bf16, {rows, 128});
  args.a_global_sf.value = 100;
  args.codes = Tensor(codes.get(), DType::u8, {rows, 64});
  args.scales = Tensor(scales.get(), DType::u8, {rows * 8});
  // As many bytes read and written as the quantiser moves: 328 a row.
  race_to(
      "quantise bf16", 60, 85, "memcpy", static_cast<double>(rows) * 328,
      [&](int threads) {
        stream_copy(copy.get(), a.get(), static_cast<std::size_t>(rows) * 164, threads);
      },
      [&](const Options& o) { nvfp4_quantize(args, o); });
}

void select() {
  std::printf("\n== select: 8192 tokens x 4 heads, 512 blocks, k = 16\n");
  const std::int64_t tokens = 8192, heads = 4, blocks = 512;
  Buffer<float> scores(tokens * heads * blocks);
  for (std::size_t i = 0; i < scores.count; ++i)
    scores.get()[i] = static_cast<float>(random_bits() % 1000000);
  Buffer<std::int32_t> ids(tokens * heads * 16);
  SelectArgs args;
  args.max_score = Tensor(scores.get(), DType::f32, {heads, blocks, tokens});
  args.output = Tensor(ids.get(), DType::i32, {tokens, heads, 16});
  race_to(
      "select, 32768 rows x 512, k 16", 40, 70, "read", static_cast<double>(scores.bytes()),
      [&](int threads) { stream_read(scores.get(), scores.bytes(), threads); },
      [&](const Options& o) { msa_topk_select(args, o); });
}

namespace {

void index_against_score(std::int64_t queries, std::int64_t keys) {
  const Problem p(queries, 4, keys, true);
  Buffer<std::int32_t> ids(p.rows * 16);
  IndexArgs args;
  args.score = p.args;
  args.output = Tensor(ids.get(), DType::i32, {queries, 4, 16});
  for (const int threads : thread_counts()) {
    std::vector<Contender> all;
    all.push_back({"score", [&] { p.score(threads); }});
    all.push_back({"index", [&] { msa_index_select_fp4(args, p.options(threads)); }});
    race(all, rounds);
    std::printf(
        "%lld queries x 4 heads, %lld keys, %d threads  score %.2f ms, index %.2f ms: %.3fx\n",
        static_cast<long long>(queries), static_cast<long long>(keys), threads,
        all[0].seconds * 1e3, all[1].seconds * 1e3, all[1].seconds / all[0].seconds);
    report({queries == 1 ? "index against score, 4 rows x 1M" : "index against score, 4096 x 64k",
            threads, cell("score", all[0].seconds * 1e3, "ms"), "-",
            cell("", all[1].seconds * 1e3, "ms"), all[1].seconds / all[0].seconds, "x", 1.03, 1.0});
  }
}

}  // namespace

void index() {
  std::printf("\n== index\n");
  index_against_score(1024, 65536);
  index_against_score(1, 1 << 20);
}

}  // namespace bench
