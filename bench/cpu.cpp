// The back end `cpu` beside its ceilings and its peer (peer.h), in the same run.
// Usage: kvscout_bench_cpu [--quick] [--cpu-time] [section ...]; sections: mixes prefill mixed
// causal decode quantize select index curves. `--peer` prints what the peer reaches on one thread,
// alone.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "kvscout/kvscout.h"
#include "peer.h"
#include "sections.h"

namespace bench {
namespace {

void mixes() {
  struct Mix {
    const char* name;
    double (*run)(std::int64_t);
    int loops;
  };
  const Mix list[] = {{"fma, 256 bits", fma_loop, 200000},
                      {"fma, 512 bits", wide_fma_loop, 200000},
                      {"AVX2 mix", avx2_mix, 100000},
                      {"VNNI mix, scales multiplied", vnni_mix, 100000},
                      {"VNNI mix, scales by two fma", fused_mix, 100000},
                      {"VNNI mix, scales by table", table_mix, 100000},
                      {"AMX tile products", amx_mix, 100000},
                      {"AMX tile products, bf16", amx_bf16_mix, 100000}};
  constexpr int kMixes = sizeof list / sizeof list[0];
  double work[kMixes] = {};
  std::vector<Contender> all;
  for (int i = 0; i < kMixes; ++i)
    all.push_back({list[i].name, [&, i] { work[i] = list[i].run(list[i].loops); }});
  race(all, 3 * rounds);
  std::printf("\n== instruction mixes without memory, one core\n");
  for (int i = 0; i < kMixes; ++i)
    if (work[i] > 0)
      std::printf("%-34s %8.1f GFLOP/s\n", list[i].name, gflops(work[i], all[i].seconds));
}

// What the peer reaches on one thread, for run.sh to choose its kernels by.
void peer_alone() {
  if (!peer_core()) {
    std::printf("none 0\n");
    return;
  }
  const Peer one(2048, 8192, 8192), chunks(2048, 8192, 1024);
  std::vector<Contender> all;
  all.push_back({"one call", [&] { one.run(1); }});
  all.push_back({"chunks", [&] { chunks.run(1); }});
  race(all, 5);
  std::printf("%s %.0f\n", peer_core(),
              gflops(256.0 * 2048 * 8192, std::min(all[0].seconds, all[1].seconds)));
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  using namespace bench;
  std::vector<std::string> wanted;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quick")
      quick = true, rounds = 3;
    else if (word == "--cpu-time")  // one thread, on a machine that is not idle
      cpu_time = true;
    else if (word == "--peer")
      return peer_alone(), 0;
    else
      wanted.push_back(word);
  }
  std::printf("kvscout %s, OpenBLAS core type %s, instruction sets:", kvscout::version(),
              peer_core() ? peer_core() : "(not found: peer not run)");
  for (const kvscout::cpu::Kernels* k : kvscout::cpu::available_kernels())
    std::printf(" %s", k->name);
  std::printf("; best of %d interleaved rounds%s\n", rounds, cpu_time ? ", CPU time" : "");
  const std::string fastest =
      std::getenv("KVSCOUT_CPU_TARGET") ? std::getenv("KVSCOUT_CPU_TARGET") : "";

  struct Section {
    const char* name;
    void (*run)(bool quick);
  };
  const Section sections[] = {{"mixes", [](bool) { mixes(); }},
                              {"prefill", [](bool) { prefill(false); }},
                              {"mixed", [](bool) { prefill(true); }},
                              {"causal", [](bool) { causal(); }},
                              {"decode", decode},
                              {"quantize", [](bool) { quantize(); }},
                              {"select", [](bool) { select(); }},
                              {"index", [](bool) { index(); }},
                              {"curves", [](bool) { curves(); }}};
  for (const Section& s : sections) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), s.name) == wanted.end())
      continue;
    force(fastest.c_str());
    const OtherLoad others;
    s.run(quick);
    std::printf("(meanwhile other processes took %.0f%% of the machine)\n", 100 * others.share());
  }
}
