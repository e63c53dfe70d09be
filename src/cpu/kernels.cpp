// Which instruction sets this machine has, and the one way to force one of them.
#include "cpu/kernels.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kvscout/kvscout.h"

namespace kvscout::cpu {

namespace {

struct Found {
  std::array<const Kernels*, kMostAmxKernels + kMostVnniKernels + kMostHighwayKernels> list{};
  std::size_t count = 0;
  Found() {
    std::array<const Kernels*, kMostHighwayKernels> highway{};
    const int plain = highway_kernels(highway.data());
    std::array<const Kernels*, kMostVnniKernels> vnni{};
    const int dots =
        std::strcmp(highway[0]->name, "avx512") == 0 ? vnni_kernels(*highway[0], vnni.data()) : 0;
    if (dots > 0) count = static_cast<std::size_t>(amx_kernels(*vnni[0], list.data()));
    for (int i = 0; i < dots; ++i) list[count++] = vnni[static_cast<std::size_t>(i)];
    for (int i = 0; i < plain; ++i) list[count++] = highway[static_cast<std::size_t>(i)];
  }
};

}  // namespace

std::span<const Kernels* const> available_kernels() {
  static const Found found;
  return {found.list.data(), found.count};
}

const Kernels* find_kernels() {
  const auto list = available_kernels();
  const char* forced = std::getenv("KVSCOUT_CPU_TARGET");
  if (!forced || !*forced) return list.front();
  for (const Kernels* k : list)
    if (std::strcmp(k->name, forced) == 0) return k;
  return nullptr;
}

const Kernels& chosen_kernels(const char* operation) {
  if (const Kernels* k = find_kernels()) return *k;
  std::string names;
  for (const Kernels* k : available_kernels())
    names += (names.empty() ? "" : ", ") + std::string(k->name);
  const char* forced = std::getenv("KVSCOUT_CPU_TARGET");
  throw Error(Error::unsupported, std::string(operation) + ": KVSCOUT_CPU_TARGET: got '" +
                                      (forced ? forced : "") + "', expected one of: " + names);
}

}  // namespace kvscout::cpu
