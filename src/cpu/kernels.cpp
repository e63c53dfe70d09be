// Which instruction sets this machine has, and the one way to force one of them.
#include "cpu/kernels.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

namespace kvscout::cpu {

namespace {

struct Found {
  std::array<const Kernels*, 9> list{};
  std::size_t count = 0;
  Found() {
    count = static_cast<std::size_t>(highway_kernels(list.data() + 1));
    if (std::strcmp(list[1]->name, "avx512") == 0) list[0] = vnni_kernels(*list[1]);
    if (list[0])
      ++count;
    else
      std::copy_n(list.begin() + 1, count, list.begin());
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
