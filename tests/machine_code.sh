#!/usr/bin/env bash
# Looks at the machine code of the CUDA back ends, without a GPU: matrix instructions and 16-byte loads where
# they are meant to be, no spills, no stack.
#   bash tests/machine_code.sh BUILD_FOLDER        exit 77: no cuobjdump here
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/cuda}
objects=$build/src/cuda/CMakeFiles

find_tool() {  # beside nvcc, in the toolkit that ./dev setup --cuda fetched, or on PATH
  local nvcc tool
  nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt" 2>/dev/null || true)
  for tool in "${CUOBJDUMP:-}" "$(dirname "${nvcc:-/nowhere/nvcc}")/cuobjdump" \
    build/cuda-venv/lib/python3*/site-packages/nvidia/cu13/bin/cuobjdump "$(command -v cuobjdump || true)"; do
    if [ -n "$tool" ] && [ -x "$tool" ]; then echo "$tool"; return 0; fi
  done
  return 1
}
cuobjdump=$(find_tool) || { echo "no cuobjdump here (./dev setup --cuda fetches one): machine code not inspected"; exit 77; }
PATH=$(dirname "$cuobjdump"):$PATH  # it calls nvdisasm

# Kernels that still keep something on the stack, and how much at most: it may shrink, not grow or spread. The last
# line counts them, so that nobody forgets.
known_stack='score_(registers|cells|warpgroup)' most_stack=128

bad=0 looked=0 on_stack=0
fail() { echo "machine code: $*"; bad=1; }

# What every kernel of a name has to contain, in every architecture of the object:
#   require OBJECT KERNEL_PATTERN INSTRUCTION_PATTERN WHY
require() {
  local object=$1 kernel=$2 instruction=$3 why=$4 list
  list=$(awk -v kernel="$kernel" -v instruction="$instruction" '
    function end() { if (name != "") print (found ? "yes" : "no"), name }
    /Function : /  { end(); name = ""; if ($NF ~ kernel) { name = architecture " " $NF; found = 0 } }
    /^arch = /     { architecture = $3 }
    name != "" && $0 ~ instruction { found = 1 }
    END            { end() }' "$sass/$object")
  if [ -z "$list" ]; then fail "$object: no kernel matches $kernel"; return; fi
  looked=$((looked + $(wc -l <<<"$list")))
  local missing
  missing=$(grep '^no ' <<<"$list" || true)
  if [ -n "$missing" ]; then fail "$object: $why: not in"$'\n'"$missing"; fi
}

sass=$(mktemp -d)
trap 'rm -rf "$sass"' EXIT
wide='LDG\.E[A-Z0-9_.]*\.128|LDGSTS[A-Z0-9_.]*\.128|UBLKCP|UTMALDG'
for folder in sm80 sm89 sm90 sm120; do
  sources=(score operations)
  [ "$folder" != sm90 ] || sources+=(score_warpgroup)
  for source in "${sources[@]}"; do
    object=$objects/kvscout_$folder.dir/$folder/$source.cu.o
    [ -f "$object" ] || { fail "$object was not built"; continue; }
    "$cuobjdump" --dump-sass "$object" >"$sass/$folder.$source"
    "$cuobjdump" --dump-resource-usage "$object" 2>&1 |
      awk -v known="$known_stack" -v most="$most_stack" '
        /Function / { name = $2 }
        /REG:/ {
          match($0, /STACK:[0-9]+/); stack = substr($0, RSTART + 6, RLENGTH - 6) + 0
          match($0, /LOCAL:[0-9]+/); local = substr($0, RSTART + 6, RLENGTH - 6) + 0
          if (stack + local > 0) print (name ~ known && local == 0 && stack <= most + 0 ? "known" : "new"), name, "stack", stack, "local", local
        }' >"$sass/spills"
    on_stack=$((on_stack + $(grep -c '^known' "$sass/spills" || true)))
    grep '^new' "$sass/spills" >"$sass/unknown" || true
    [ ! -s "$sass/unknown" ] || fail "$object: stack or local memory in"$'\n'"$(cut -c1-240 "$sass/unknown")"
  done
  require "$folder.score" 'score_(registers|shared)' 'HMMA\.16816' "the matrix instruction"
  require "$folder.score" 'score_registers.*Lb1E' "$wide" "16-byte loads"
  require "$folder.operations" 'quantize_tiles.*Lb1E' "$wide" "16-byte loads"
  require "$folder.operations" 'append_keys.*Lb1E' "$wide" "16-byte loads"
done
require sm90.score_warpgroup 'score_warpgroup' 'HGMMA' "the warpgroup matrix instruction"
require sm90.score_warpgroup 'score_warpgroup' "$wide" "16-byte loads"
for folder in sm80 sm89 sm120; do
  if [ -s "$sass/$folder.score" ]; then require "$folder.score" 'score_shared' "$wide" "16-byte loads"; fi
done
[ "$bad" = 0 ] || exit 1
echo "machine code: $looked kernels inspected, as intended; $on_stack of them keep up to $most_stack bytes on the stack"
