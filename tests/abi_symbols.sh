#!/usr/bin/env bash
# tests/abi_symbols.sh LIBRARY [--update]: the symbols that libkvscout.so shows are those of abi_symbols.txt.
# A line that goes is a broken promise to programs that link the library; a new one is decided, not an accident.
set -euo pipefail
list="$(dirname "${BASH_SOURCE[0]}")/abi_symbols.txt"
found=$(nm -DC --defined-only "$1" | cut -d ' ' -f 3- | LC_ALL=C sort -u)
if [ "${2:-}" = --update ]; then
  echo "$found" >"$list"
elif ! diff -u --label "tests/abi_symbols.txt" --label "$1" "$list" <(echo "$found"); then
  echo "the exported symbols changed; if that is intended: tests/abi_symbols.sh LIBRARY --update" >&2
  exit 1
fi
echo "$(wc -l <"$list") exported symbols, as listed"
