// The back ends of this machine that serve host memory, as options of a call.
#pragma once

#include <string>
#include <vector>

#include "registry.h"

namespace kvscout::cases {

inline std::vector<Options> host_backends() {
  std::vector<Options> list;
  for (const Backend* b : all_backends()) {
    std::string why;
    if (b->device != Device::cpu || !b->runs_on(0, &why)) continue;
    list.emplace_back().backend = b->name;
  }
  return list;
}

}  // namespace kvscout::cases
