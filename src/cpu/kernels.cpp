// Which instruction sets this machine has, and the one way to force one of them.
#include "cpu/kernels.h"

#include <array>
#include <cstdlib>
#include <cstring>

namespace kvscout::cpu {

// Filled in by simd.cpp and vnni.cpp; null where it was not built or the CPU lacks it.
const Kernels* vnni_kernels();
int highway_kernels(const Kernels** list);  // fastest first, at most 8

namespace {

struct Found {
  std::array<const Kernels*, 9> list{};
  std::size_t count = 0;
  Found() {
    if (const Kernels* k = vnni_kernels()) list[count++] = k;
    count += static_cast<std::size_t>(highway_kernels(list.data() + count));
  }
};

const Found& found() {
  static const Found result;
  return result;
}

}  // namespace

std::span<const Kernels* const> available_kernels() { return {found().list.data(), found().count}; }

const Kernels& chosen_kernels() {
  const auto list = available_kernels();
  const char* forced = std::getenv("KVSCOUT_CPU_TARGET");
  if (forced && *forced)
    for (const Kernels* k : list)
      if (std::strcmp(k->name, forced) == 0) return *k;
  return *list.front();
}

}  // namespace kvscout::cpu
