#!/usr/bin/env bash
# Formats every C++ and CUDA source in place; --check only says what would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(-i)
[ "${1:-}" != --check ] || mode=(--dry-run -Werror)
git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' '*.c' | xargs clang-format "${mode[@]}"
