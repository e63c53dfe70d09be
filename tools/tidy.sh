#!/usr/bin/env bash
# clang-tidy over the library's own sources, with the checks of .clang-tidy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
git ls-files 'src/*.cpp' 'cli/*.cpp' | grep -v '^src/cuda/' |
  xargs -P "${KVSCOUT_JOBS:-$(nproc)}" -n 2 clang-tidy -p build/release --quiet --warnings-as-errors='*' 2>&1 |
  { grep -v 'warnings\? generated' || true; }
