// The sections of the CPU benchmark, and what they share.
#pragma once

#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/threads.h"
#include "harness.h"

namespace bench {

inline int rounds = 7;

// Instruction sets to compare: SSSE3 is SSE4 without crypto, so it says nothing new.
inline std::vector<const kvscout::cpu::Kernels*> compared() {
  std::vector<const kvscout::cpu::Kernels*> list;
  for (const kvscout::cpu::Kernels* k : kvscout::cpu::available_kernels())
    if (list.empty() || std::strcmp(k->name, "ssse3") != 0) list.push_back(k);
  return list;
}
inline void force(const char* name) { setenv("KVSCOUT_CPU_TARGET", name, 1); }

inline std::vector<int> thread_counts() {
  const int most = cpu_time ? 1 : kvscout::cpu::most_threads(0);
  return most > 1 ? std::vector<int>{1, most} : std::vector<int>{1};
}
inline double gflops(double operations, double seconds) { return operations / seconds * 1e-9; }

// score.cpp; the instruction set is the one in force, but for prefill, which compares them.
void prefill(bool bf16);
void causal();
void decode(bool quick);
void curves();  // time against keys, for several numbers of rows: one line a point, for plot.py

// operations.cpp
void quantize();
void select();
void index();

}  // namespace bench
