// Scores: prefill, causal, decoding, and the curves of docs/numbers.md.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peer.h"
#include "problem.h"
#include "sections.h"

namespace bench {

namespace {

// The register-only loop that bounds an instruction set's score.
struct Mix {
  const char* target;
  double (*run)(std::int64_t loops);
  const char* name;
  double share, goal;  // of it that the project asks for, percent; 0: a bar against the peer only
};
constexpr Mix kIntegerMixes[] = {{"amx", amx_mix, "tile products", 0, 0},
                                 {"vnni", vnni_mix, "VNNI mix", 93, 98},
                                 {"vnni", fused_mix, "VNNI mix of two fma", 90, 95},
                                 {"vnni_table", table_mix, "table mix", 90, 95},
                                 {"avx2", avx2_mix, "AVX2 mix", 80, 90}};
constexpr Mix kFloatMixes[] = {{"amx", amx_bf16_mix, "tile products", 0, 0},
                               {"vnni", wide_fma_loop, "fma", 93, 98},
                               {"avx2", fma_loop, "fma, 256 bits", 80, 96}};

double seconds_of(const std::vector<Contender>& all, const char* name) {
  for (const Contender& c : all)
    if (c.name == name) return c.seconds;
  return 0;
}

// `mix_rates`: of one thread.
void prefill_bars(bool bf16, int threads, double operations, const std::vector<Contender>& all,
                  std::span<const Mix> mixes, const std::vector<double>& mix_rates) {
  const char* kind = bf16 ? "bf16 queries, " : "";
  const double peer = peer_core() ? std::min(all[0].seconds, all[1].seconds) : 0;
  const std::string sgemm = std::string("sgemm (") + (peer_core() ? peer_core() : "none") + ")";
  const auto ceiling = [&](const char* target) -> std::string {
    for (std::size_t i = 0; i < mixes.size(); ++i)
      if (std::strcmp(mixes[i].target, target) == 0 && mix_rates[i] > 0)
        return cell(mixes[i].name, mix_rates[i] * threads, "GFLOP/s");
    return "-";
  };
  const auto against_peer = [&](const char* target, double must, double goal) {
    const double ours = seconds_of(all, target);
    if (peer > 0 && ours > 0)
      report({std::string("prefill, ") + kind + target, threads, ceiling(target),
              cell(sgemm.c_str(), gflops(operations, peer), "GFLOP/s"),
              cell("", gflops(operations, ours), "GFLOP/s"), peer / ours, "x", must, goal});
  };
  const char* fastest = compared().front()->name;
  const double must = bf16 ? 1.5 : 3.0, goal = bf16 ? 2.2 : threads == 1 ? 3.6 : 3.5;
  if (std::strcmp(fastest, "vnni") != 0) against_peer(fastest, must, goal);
  against_peer("vnni", must, goal);
  if (!bf16) against_peer("avx2", 1.8, 2.2);
  for (std::size_t i = 0; threads == 1 && i < mixes.size(); ++i) {
    const double ours = seconds_of(all, mixes[i].target);
    if (ours > 0 && mix_rates[i] > 0 && mixes[i].share > 0)
      report({std::string("prefill, ") + kind + mixes[i].target + ", share of " + mixes[i].name,
              threads, cell(mixes[i].name, mix_rates[i], "GFLOP/s"), "-",
              cell("", gflops(operations, ours), "GFLOP/s"),
              100 * gflops(operations, ours) / mix_rates[i], "%", mixes[i].share, mixes[i].goal});
  }
}

}  // namespace

void prefill(bool bf16) {
  std::printf("\n== prefill%s: 512 queries x 4 heads, 8192 keys, not causal\n",
              bf16 ? ", bf16 queries" : "");
  const Problem p(512, 4, 8192, false, bf16);
  const Peer one(p.rows, p.keys, p.keys), chunks(p.rows, p.keys, 1024);
  const std::span<const Mix> mixes =
      bf16 ? std::span<const Mix>(kFloatMixes) : std::span<const Mix>(kIntegerMixes);
  std::vector<double> rates(mixes.size());
  for (int threads : thread_counts()) {
    std::vector<Contender> all;
    if (peer_core()) {
      all.push_back({"OpenBLAS sgemm, one call", [&, threads] { one.run(threads); }});
      all.push_back({"OpenBLAS sgemm, chunks", [&, threads] { chunks.run(threads); }});
    }
    for (const cpu::Kernels* k : compared())
      all.push_back({k->name, [&, k, threads] { force(k->name), p.score(threads); }});
    const std::size_t contenders = all.size();
    if (threads == 1)
      for (std::size_t i = 0; i < mixes.size(); ++i)
        all.push_back({mixes[i].name, [&, i] { rates[i] = mixes[i].run(200000); }});
    race(all, rounds);
    const double peer = peer_core() ? std::min(all[0].seconds, all[1].seconds) : 0;
    for (std::size_t i = 0; i < contenders; ++i) {
      const Contender& c = all[i];
      std::printf("%d threads  %-26s %8.2f ms %8.1f GFLOP/s", threads, c.name.c_str(),
                  c.seconds * 1e3, gflops(p.operations(), c.seconds));
      if (peer > 0) std::printf(" %6.2fx sgemm", peer / c.seconds);
      std::printf("\n");
    }
    for (std::size_t i = contenders; i < all.size(); ++i)
      rates[i - contenders] = gflops(rates[i - contenders], all[i].seconds);
    prefill_bars(bf16, threads, p.operations(), all, mixes, rates);
  }
}

void causal() {
  std::printf("\n== causal: 8192 queries x 4 heads, 8192 keys\n");
  // Alike but for the mask, so that both write 8 MB.
  const Problem full(8192, 4, 8192, false), triangle(8192, 4, 8192, true);
  const double visible = 256.0 * 4 * 8192.0 * 8193.0 / 2;
  double one = 0;
  for (const int threads : thread_counts()) {
    std::vector<Contender> all;
    all.push_back({"unmasked", [&, threads] { full.score(threads); }});
    all.push_back({"causal, visible pairs", [&, threads] { triangle.score(threads); }});
    race(all, std::max(3, rounds / 2));
    const double a = gflops(full.operations(), all[0].seconds), b = gflops(visible, all[1].seconds);
    if (threads == 1) one = all[1].seconds;
    std::printf(
        "%d threads  unmasked %.1f GFLOP/s, causal %.1f on visible pairs: %.1f%%; %.2fx of one "
        "thread\n",
        threads, a, b, 100 * b / a, one / all[1].seconds);
    report({"causal against unmasked, visible pairs", threads, cell("unmasked", a, "GFLOP/s"), "-",
            cell("", b, "GFLOP/s"), 100 * b / a, "%", 95, 98});
    if (threads == 2)
      report({"causal, two threads against one", threads, "-", "-", cell("", b, "GFLOP/s"),
              one / all[1].seconds, "x", 1.9, 2.0});
  }
}

namespace {

void decode_one(std::int64_t queries, std::int64_t heads, std::int64_t keys, bool with_peer) {
  const Problem p(queries, heads, keys, true);
  std::unique_ptr<Peer> peer;
  if (with_peer && peer_core()) peer = std::make_unique<Peer>(p.rows, p.keys, 65536);
  const double bytes = static_cast<double>(p.k.bytes() + p.ks.bytes());
  const int repeats = static_cast<int>(std::max<std::int64_t>(1, (1 << 20) / keys / p.rows));
  for (const int threads : thread_counts()) {
    std::vector<Contender> all;
    all.push_back({"read", [&] {
                     for (int i = 0; i < repeats; ++i) {
                       stream_read(p.k.get(), p.k.bytes(), threads);
                       stream_read(p.ks.get(), p.ks.bytes(), threads);
                     }
                   }});
    all.push_back({"score", [&] {
                     for (int i = 0; i < repeats; ++i) p.score(threads);
                   }});
    if (peer) all.push_back({"sgemm", [&] { peer->run(threads); }});
    double work = 0;
    all.push_back({"mix", [&] { work = vnni_mix(200000); }});
    race(all, rounds);
    const double read = all[0].seconds / repeats, score = all[1].seconds / repeats;
    std::printf(
        "%2lld rows %8lld keys %d threads  %9.1f us  %5.2f ns/key/core  %6.1f GFLOP/s  keys %5.1f "
        "GB/s, read %5.1f GB/s: %3.0f%%",
        static_cast<long long>(p.rows), static_cast<long long>(keys), threads, score * 1e6,
        score * 1e9 / static_cast<double>(keys) * threads, gflops(p.operations(), score),
        bytes / score * 1e-9, bytes / read * 1e-9, 100 * read / score);
    if (peer) std::printf("  sgemm %.1f us, %.1fx", all[2].seconds * 1e6, all[2].seconds / score);
    std::printf("\n");
    const std::string what = "decode, " + std::to_string(p.rows) +
                             (p.rows == 1 ? " row x " : " rows x ") +
                             (keys >= 1 << 20 ? "1M" : "128k");
    const double mix = gflops(work, all.back().seconds) * threads;
    if (keys >= 1 << 20 && (p.rows == 4 || threads == 2))
      report({what + ", share of the stream", threads, cell("read", bytes / read * 1e-9, "GB/s"),
              "-", cell("", bytes / score * 1e-9, "GB/s"), 100 * read / score, "%",
              p.rows == 1    ? 60.0
              : threads == 1 ? 38.0
                             : 50.0,
              p.rows == 1    ? 90.0
              : threads == 1 ? 45.0
                             : 58.0});
    if (peer && keys >= 1 << 20)
      report({what + " against sgemm", threads, "-", cell(peer_core(), all[2].seconds * 1e3, "ms"),
              cell("", score * 1e3, "ms"), all[2].seconds / score, "x", 9, 12});
    if (keys < 1 << 20 && p.rows == 4)
      report({what, threads, cell("VNNI mix", mix, "GFLOP/s"), "-", cell("", score * 1e3, "ms"),
              score * 1e9 / static_cast<double>(keys) * threads, " ns/key/core", 4.8, 4.4});
    if (p.rows >= 8 && work > 0)
      report({what + ", share of the mix", threads, cell("VNNI mix", mix, "GFLOP/s"), "-",
              cell("", gflops(p.operations(), score), "GFLOP/s"),
              100 * gflops(p.operations(), score) / mix, "%",
              p.rows == 8    ? 80.0
              : p.rows == 16 ? 82.0
                             : 85.0,
              p.rows == 8    ? 85.0
              : p.rows == 16 ? 95.0
                             : 105.0});
  }
}

}  // namespace

void decode(bool quick) {
  std::printf("\n== decode\n");
  decode_one(1, 4, 1 << 20, true);
  decode_one(1, 4, 1 << 17, !quick);
  for (std::int64_t q : {2, 4, 8}) decode_one(q, 4, 1 << 17, false);
  decode_one(1, 1, 1 << 20, false);
}

void curves() {
  std::printf("\n== curves: rows, keys, threads, microseconds\n");
  const int threads = thread_counts().back();
  for (const std::int64_t rows : {1, 4, 16, 64, 512, 2048})
    for (std::int64_t keys = 1 << 10; keys <= 1 << 20 && rows * keys <= 1 << 27; keys *= 4) {
      const Problem p((rows + 3) / 4, std::min<std::int64_t>(rows, 4), keys, false);
      const int repeats =
          static_cast<int>(std::max<std::int64_t>(1, (1 << 20) / std::max(keys, rows * keys / 4)));
      std::vector<Contender> all;
      all.push_back({"score", [&] {
                       for (int i = 0; i < repeats; ++i) p.score(threads);
                     }});
      race(all, rounds);
      std::printf("curve %lld %lld %d %.2f\n", static_cast<long long>(rows),
                  static_cast<long long>(keys), threads, all[0].seconds / repeats * 1e6);
    }
}

}  // namespace bench
