// safetensors_copy IN OUT: reads and writes again, so that another implementation can compare.
// Exit code 3: refused, with one line on stderr.
#include <cstdio>

#include "safetensors.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const kvscout::safetensors::File file(argv[1]);
    kvscout::safetensors::write(argv[2], file.contents());
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
