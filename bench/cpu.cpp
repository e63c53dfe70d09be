// The back end `cpu` beside its ceilings and its peer (OpenBLAS sgemm on keys and queries that were
// dequantised beforehand and for nothing), in the same run. Usage: kvscout_bench_cpu [--quick]
// [section ...]
#include <cblas.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/threads.h"
#include "harness.h"
#include "kvscout/kvscout.h"
#include "kvscout/scale_layout.h"

extern "C" char* openblas_get_corename(void);

namespace {

using namespace kvscout;
using bench::Contender;

int rounds = 7;

// Instruction sets to compare: SSSE3 is SSE4 without crypto, so it says nothing new.
std::vector<const cpu::Kernels*> compared() {
  std::vector<const cpu::Kernels*> list;
  for (const cpu::Kernels* k : cpu::available_kernels())
    if (list.empty() || std::strcmp(k->name, "ssse3") != 0) list.push_back(k);
  return list;
}

std::uint64_t random_bits() {
  static std::uint64_t s = 88172645463325252ull;
  s ^= s << 13, s ^= s >> 7, s ^= s << 17;
  return s;
}

// Page-aligned and touched, so that no first access is measured.
template <class T>
struct Buffer {
  std::size_t count;
  std::unique_ptr<T, void (*)(void*)> data;
  explicit Buffer(std::int64_t n)
      : count(static_cast<std::size_t>(n)),
        data(static_cast<T*>(
                 std::aligned_alloc(1 << 21, (count * sizeof(T) + (1 << 21)) >> 21 << 21)),
             std::free) {
    std::memset(data.get(), 0, count * sizeof(T));
  }
  T* get() const { return data.get(); }
  std::size_t bytes() const { return count * sizeof(T); }
};

void fill_codes(Buffer<std::uint8_t>& b) {
  for (std::size_t i = 0; i < b.count; ++i)
    b.get()[i] = static_cast<std::uint8_t>(random_bits() >> 20);
}
void fill_scales(Buffer<std::uint8_t>& b) {  // numbers near 1, as a quantiser gives them
  for (std::size_t i = 0; i < b.count; ++i)
    b.get()[i] = static_cast<std::uint8_t>(0x30 + (random_bits() >> 20) % 32);
}

// One request: `queries` x `heads` rows against `keys` flat keys of one key head.
struct Problem {
  std::int64_t queries, heads, keys, blocks, rows;
  Buffer<std::uint8_t> q, qs, k, ks;
  Buffer<float> out;
  Buffer<std::uint8_t> workspace;
  std::vector<std::int32_t> cu_q, cu_k;
  ScoreFp4Args args;

  Problem(std::int64_t q_count, std::int64_t head_count, std::int64_t key_count, bool causal,
          bool bf16 = false)
      : queries(q_count),
        heads(head_count),
        keys(key_count),
        blocks((keys + 127) / 128),
        rows(queries * heads),
        q(rows * (bf16 ? 256 : 64)),
        qs(scale_layout::bytes(SfLayout::layout_128x4, rows, 8)),
        k(keys * 64),
        ks(scale_layout::bytes(SfLayout::layout_128x4, keys, 8)),
        out(rows * blocks),
        workspace(64 << 20),
        cu_q{0, static_cast<std::int32_t>(queries)},
        cu_k{0, static_cast<std::int32_t>(keys)} {
    fill_codes(q), fill_codes(k), fill_scales(qs), fill_scales(ks);
    if (bf16)  // numbers in [1, 2)
      for (std::size_t i = 0; i < q.count; i += 2) q.get()[i + 1] = 0x3F, q.get()[i] |= 0x80;
    args.q_fp4 = bf16 ? Tensor(q.get(), DType::bf16, {queries, heads, 128})
                      : Tensor(q.get(), DType::u8, {queries, heads, 64});
    args.k_fp4 = Tensor(k.get(), DType::u8, {keys, 1, 64});
    if (!bf16) args.q_scale = Tensor(qs.get(), DType::u8, {static_cast<std::int64_t>(qs.count)});
    args.k_scale = Tensor(ks.get(), DType::u8, {static_cast<std::int64_t>(ks.count)});
    args.cu_seqlens_q = Tensor(cu_q.data(), DType::i32, {2});
    args.cu_seqlens_k = Tensor(cu_k.data(), DType::i32, {2});
    args.causal = causal;
    args.max_seqlen_q = queries;
    args.max_k_tiles = blocks;
    args.output = Tensor(out.get(), DType::f32, {heads, blocks, queries});
  }
  Options options(int threads) const {
    Options o;
    o.backend = "cpu";
    o.threads = threads;
    o.workspace = workspace.get();
    o.workspace_bytes = workspace.count;
    return o;
  }
  void score(int threads) const { msa_proxy_score_fp4(args, options(threads)); }
  double operations() const {
    return 256.0 * static_cast<double>(rows) * static_cast<double>(keys);
  }
};

struct Sgemm {
  std::int64_t rows, keys, step;
  Buffer<float> q, k, out;
  Sgemm(std::int64_t r, std::int64_t t, std::int64_t chunk)
      : rows(r), keys(t), step(std::min(chunk, t)), q(r * 128), k(t * 128), out(r * step) {
    for (std::size_t i = 0; i < q.count; ++i)
      q.get()[i] = static_cast<float>(random_bits() % 13) - 6;
    for (std::size_t i = 0; i < k.count; ++i)
      k.get()[i] = static_cast<float>(random_bits() % 13) - 6;
  }
  // In chunks of keys, so that its result stays in the cache: kinder than one call.
  void run(int threads) const {
    openblas_set_num_threads(threads);
    for (std::int64_t t = 0; t < keys; t += step)
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(rows),
                  static_cast<int>(std::min(step, keys - t)), 128, 1, q.get(), 128,
                  k.get() + t * 128, 128, 0, out.get(), static_cast<int>(step));
  }
};

std::vector<int> thread_counts() {
  const int most = bench::cpu_time ? 1 : cpu::most_threads(0);
  return most > 1 ? std::vector<int>{1, most} : std::vector<int>{1};
}

double gflops(double operations, double seconds) { return operations / seconds * 1e-9; }

void mixes() {
  std::vector<Contender> all;
  double work[4] = {};
  all.push_back({"fma, ymm", [&] { work[0] = bench::fma_loop(200000); }});
  all.push_back({"AVX2 mix", [&] { work[1] = bench::avx2_mix(100000); }});
  all.push_back({"VNNI mix, scales multiplied", [&] { work[2] = bench::vnni_mix(100000); }});
  all.push_back({"VNNI mix, scales by table", [&] { work[3] = bench::table_mix(100000); }});
  bench::race(all, 3 * rounds);
  for (int i = 0; i < 4; ++i)
    if (work[i] > 0)
      std::printf("%-34s %8.1f GFLOP/s, one core\n", all[i].name.c_str(),
                  gflops(work[i], all[i].seconds));
}

void force(const char* name) { setenv("KVSCOUT_CPU_TARGET", name, 1); }

void prefill(bool bf16) {
  std::printf("\n== prefill%s: 512 queries x 4 heads, 8192 keys, not causal\n",
              bf16 ? ", bf16 queries" : "");
  const Problem p(512, 4, 8192, false, bf16);
  const Sgemm one(p.rows, p.keys, p.keys), chunks(p.rows, p.keys, 1024);
  for (int threads : thread_counts()) {
    std::vector<Contender> all;
    all.push_back({"OpenBLAS sgemm, one call", [&, threads] { one.run(threads); }});
    all.push_back({"OpenBLAS sgemm, chunks", [&, threads] { chunks.run(threads); }});
    for (const cpu::Kernels* k : compared())
      all.push_back({k->name, [&, k, threads] { force(k->name), p.score(threads); }});
    bench::race(all, rounds);
    const double peer = std::min(all[0].seconds, all[1].seconds);
    for (const Contender& c : all)
      std::printf("%d threads  %-26s %8.2f ms %8.1f GFLOP/s %6.2fx\n", threads, c.name.c_str(),
                  c.seconds * 1e3, gflops(p.operations(), c.seconds), peer / c.seconds);
  }
}

void causal() {
  std::printf("\n== causal: 8192 queries x 4 heads, 8192 keys\n");
  const Problem full(1024, 4, 8192, false), triangle(8192, 4, 8192, true);
  const double visible = 256.0 * 4 * 8192.0 * 8193.0 / 2;
  double one = 0;
  for (const int threads : thread_counts()) {
    std::vector<Contender> all;
    all.push_back({"unmasked", [&, threads] { full.score(threads); }});
    all.push_back({"causal, visible pairs", [&, threads] { triangle.score(threads); }});
    bench::race(all, std::max(3, rounds / 2));
    const double a = gflops(full.operations(), all[0].seconds), b = gflops(visible, all[1].seconds);
    if (threads == 1) one = all[1].seconds;
    std::printf(
        "%d threads  unmasked %.1f GFLOP/s, causal %.1f on visible pairs: %.1f%%; %.2fx of one "
        "thread\n",
        threads, a, b, 100 * b / a, one / all[1].seconds);
  }
}

void decode(std::int64_t queries, std::int64_t heads, std::int64_t keys, bool with_peer) {
  const Problem p(queries, heads, keys, true);
  std::unique_ptr<Sgemm> peer;
  if (with_peer) peer = std::make_unique<Sgemm>(p.rows, p.keys, 65536);
  const double bytes = static_cast<double>(p.k.bytes() + p.ks.bytes());
  const int repeats = static_cast<int>(std::max<std::int64_t>(1, (1 << 20) / keys / p.rows));
  for (const int threads : thread_counts()) {
    std::vector<Contender> all;
    all.push_back({"read", [&] {
                     for (int i = 0; i < repeats; ++i) {
                       bench::stream_read(p.k.get(), p.k.bytes(), threads);
                       bench::stream_read(p.ks.get(), p.ks.bytes(), threads);
                     }
                   }});
    all.push_back({"score", [&] {
                     for (int i = 0; i < repeats; ++i) p.score(threads);
                   }});
    if (peer) all.push_back({"sgemm", [&] { peer->run(threads); }});
    bench::race(all, rounds);
    const double read = all[0].seconds / repeats, score = all[1].seconds / repeats;
    std::printf(
        "%2lld rows %8lld keys %d threads  %9.1f us  %5.2f ns/key/core  %6.1f GFLOP/s  keys %5.1f "
        "GB/s, read %5.1f GB/s: %3.0f%%",
        static_cast<long long>(p.rows), static_cast<long long>(keys), threads, score * 1e6,
        score * 1e9 / static_cast<double>(keys) * threads, gflops(p.operations(), score),
        bytes / score * 1e-9, bytes / read * 1e-9, 100 * read / score);
    if (peer) std::printf("  sgemm %.1f us, %.1fx", all[2].seconds * 1e6, all[2].seconds / score);
    std::printf("\n");
  }
}

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
  for (const int threads : thread_counts()) {
    std::vector<Contender> all;
    // As many bytes read and written as the quantiser moves: 328 a row.
    all.push_back({"memcpy", [&] {
                     bench::stream_copy(copy.get(), a.get(), static_cast<std::size_t>(rows) * 164,
                                        threads);
                   }});
    for (const cpu::Kernels* k : compared())
      all.push_back({k->name, [&, k] {
                       force(k->name);
                       Options o;
                       o.backend = "cpu";
                       o.threads = threads;
                       nvfp4_quantize(args, o);
                     }});
    bench::race(all, rounds);
    for (const Contender& c : all)
      std::printf("%d threads  %-8s %8.2f ms  %6.1f GB/s  %3.0f%%\n", threads, c.name.c_str(),
                  c.seconds * 1e3, static_cast<double>(rows) * 328 / c.seconds * 1e-9,
                  100 * all[0].seconds / c.seconds);
  }
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
  for (const int threads : thread_counts()) {
    std::vector<Contender> all;
    all.push_back({"read", [&] { bench::stream_read(scores.get(), scores.bytes(), threads); }});
    for (const cpu::Kernels* k : compared())
      all.push_back({k->name, [&, k] {
                       force(k->name);
                       Options o;
                       o.backend = "cpu";
                       o.threads = threads;
                       msa_topk_select(args, o);
                     }});
    bench::race(all, rounds);
    for (const Contender& c : all)
      std::printf("%d threads  %-8s %8.2f ms  %6.1f GB/s  %3.0f%%\n", threads, c.name.c_str(),
                  c.seconds * 1e3, static_cast<double>(scores.bytes()) / c.seconds * 1e-9,
                  100 * all[0].seconds / c.seconds);
  }
}

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
    bench::race(all, rounds);
    std::printf(
        "%lld queries x 4 heads, %lld keys, %d threads  score %.2f ms, index %.2f ms: %.3fx\n",
        static_cast<long long>(queries), static_cast<long long>(keys), threads,
        all[0].seconds * 1e3, all[1].seconds * 1e3, all[1].seconds / all[0].seconds);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> wanted;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0)
      quick = true, rounds = 3;
    else if (std::strcmp(argv[i], "--cpu-time") == 0)  // one thread, on a machine that is not idle
      bench::cpu_time = true;
    else
      wanted.push_back(argv[i]);
  }
  const auto want = [&](const char* name) {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  std::printf("kvscout %s, OpenBLAS core type %s, instruction sets:", version(),
              openblas_get_corename());
  for (const cpu::Kernels* k : cpu::available_kernels()) std::printf(" %s", k->name);
  std::printf("; best of %d interleaved rounds\n", rounds);
  const std::string fastest =
      std::getenv("KVSCOUT_CPU_TARGET") ? std::getenv("KVSCOUT_CPU_TARGET") : "";

  if (want("mixes")) mixes();
  if (want("prefill")) prefill(false);
  if (want("mixed")) prefill(true);
  force(fastest.c_str());
  if (want("causal")) causal();
  if (want("decode")) {
    std::printf("\n== decode\n");
    decode(1, 4, 1 << 20, true);
    decode(1, 4, 1 << 17, !quick);
    for (std::int64_t q : {2, 4, 8}) decode(q, 4, 1 << 17, false);
    decode(1, 1, 1 << 20, false);
  }
  if (want("quantize")) quantize();
  if (want("select")) select();
  force(fastest.c_str());
  if (want("index")) {
    std::printf("\n== index\n");
    index_against_score(1024, 65536);
    index_against_score(1, 1 << 20);
  }
}
