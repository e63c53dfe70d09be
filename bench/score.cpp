// Scores: prefill, causal, decoding, and the curves of docs/numbers.md.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "peer.h"
#include "problem.h"
#include "sections.h"

namespace bench {

void prefill(bool bf16) {
  std::printf("\n== prefill%s: 512 queries x 4 heads, 8192 keys, not causal\n",
              bf16 ? ", bf16 queries" : "");
  const Problem p(512, 4, 8192, false, bf16);
  const Peer one(p.rows, p.keys, p.keys), chunks(p.rows, p.keys, 1024);
  for (int threads : thread_counts()) {
    std::vector<Contender> all;
    if (peer_core()) {
      all.push_back({"OpenBLAS sgemm, one call", [&, threads] { one.run(threads); }});
      all.push_back({"OpenBLAS sgemm, chunks", [&, threads] { chunks.run(threads); }});
    }
    for (const cpu::Kernels* k : compared())
      all.push_back({k->name, [&, k, threads] { force(k->name), p.score(threads); }});
    race(all, rounds);
    const double peer = peer_core() ? std::min(all[0].seconds, all[1].seconds) : 0;
    for (const Contender& c : all) {
      std::printf("%d threads  %-26s %8.2f ms %8.1f GFLOP/s", threads, c.name.c_str(),
                  c.seconds * 1e3, gflops(p.operations(), c.seconds));
      if (peer > 0) std::printf(" %6.2fx sgemm", peer / c.seconds);
      std::printf("\n");
    }
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
    race(all, std::max(3, rounds / 2));
    const double a = gflops(full.operations(), all[0].seconds), b = gflops(visible, all[1].seconds);
    if (threads == 1) one = all[1].seconds;
    std::printf(
        "%d threads  unmasked %.1f GFLOP/s, causal %.1f on visible pairs: %.1f%%; %.2fx of one "
        "thread\n",
        threads, a, b, 100 * b / a, one / all[1].seconds);
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
