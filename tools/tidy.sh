#!/usr/bin/env bash
# clang-tidy over the library's own sources, with the checks of .clang-tidy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
git ls-files 'src/*.cpp' 'cli/*.cpp' | grep -v '^src/cuda/' |
  xargs clang-tidy -p build/release --quiet --warnings-as-errors='*'
