// The proof on a GPU: one binary that needs nothing but a driver. Fails where nothing could run.
#include <gtest/gtest.h>

#include <cstdio>

#include "kvscout/kvscout.h"

namespace kvscout::gpu {
void add_conformance_tests();
void print_conformance();
}  // namespace kvscout::gpu

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  bool any = false;
  for (const kvscout::BackendInfo& b : kvscout::backends()) {
    std::printf("%-10s %-14s %s\n", b.name.c_str(), b.available ? "runs here" : "does not run",
                b.status.c_str());
    any = any || (b.available && b.name.find("sm") == 0);
  }
  if (!any) {
    std::printf("no CUDA back end runs on this machine: nothing was tested\n");
    return 77;
  }
  kvscout::gpu::add_conformance_tests();
  const int result = RUN_ALL_TESTS();
  kvscout::gpu::print_conformance();
  return result;
}
