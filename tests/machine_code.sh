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

# How often an instruction stands in the kernels of a name:
#   expect OBJECT KERNEL_PATTERN INSTRUCTION_PATTERN COUNT WHY
expect() {
  local object=$1 kernel=$2 instruction=$3 count=$4 why=$5 list
  list=$(awk -v kernel="$kernel" -v instruction="$instruction" '
    /Function : / { name = $NF ~ kernel ? $NF : ""; if (name != "") found[name] = 0 }
    name != "" && $0 ~ instruction { ++found[name] }
    END           { for (name in found) print found[name], name }' "$sass/$object")
  if [ -z "$list" ]; then fail "$object: no kernel matches $kernel"; return; fi
  looked=$((looked + $(wc -l <<<"$list")))
  list=$(grep -v "^$count " <<<"$list" || true)
  [ -z "$list" ] || fail "$object: $why: $count expected, found"$'\n'"$list"
}

# Kernels that still keep something on the stack, and how much at most: it may shrink, not grow or spread. The last
# line counts them, so that nobody forgets.
known_stack='score_(cells|shared)|select_lanes' most_stack=24

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
wide='LDG\.E[A-Z0-9_.]*\.128|LDGSTS[A-Z0-9_.]*\.128'
for folder in sm80 sm89 sm90 sm120; do
  sources=(score operations)
  [ "$folder" != sm90 ] || sources+=(score_warpgroup)
  [ "$folder" != sm120 ] || sources+=(score_fp4)
  for source in "${sources[@]}"; do
    object=$objects/kvscout_$folder.dir/$folder/$source.cu.o
    [ -f "$object" ] || { fail "$object was not built"; continue; }
    "$cuobjdump" --dump-sass "$object" >"$sass/$folder.$source"
    known=$known_stack
    [ "$source" != score_fp4 ] || known=none
    # 16 rows: what a lane needs once a block of keys.
    [ "$folder" != sm89 ] || known+='|score_stream.*Li2E'
    # bf16 queries, two warps a column: on SM110 only, 8 bytes.
    [ "$folder" != sm80 ] || known+='|score_single.*E3ELS5_0EEELi2E'
    "$cuobjdump" --dump-resource-usage "$object" 2>&1 |
      awk -v known="$known" -v most="$most_stack" '
        /Function / { name = $2 }
        /REG:/ {
          match($0, /STACK:[0-9]+/); stack = substr($0, RSTART + 6, RLENGTH - 6) + 0
          match($0, /LOCAL:[0-9]+/); local = substr($0, RSTART + 6, RLENGTH - 6) + 0
          if (stack + local > 0) print (name ~ known && local == 0 && stack <= most + 0 ? "known" : "new"), name, "stack", stack, "local", local
        }' >"$sass/spills"
    on_stack=$((on_stack + $(grep -c '^known' "$sass/spills" || true)))
    grep '^new' "$sass/spills" >"$sass/unknown" || true
    [ ! -s "$sass/unknown" ] || fail "$object: stack or local memory in"$'\n'"$(cut -c1-240 "$sass/unknown")"
    # Where a kernel may start early, it reads nothing before the kernel before has finished, but for the lengths that an
    # index's selection looks up: the assembler moves loads of read-only data above that wait.
    awk '/Function : / { name = $NF; early = waits = 0 }
         / LDG/ && !waits { early = 1 }
         /ACQBULK/ && !waits { waits = 1; if (early && name !~ /select_.*VisibleColumns/) print name }' "$sass/$folder.$source" >"$sass/early"
    [ ! -s "$sass/early" ] || fail "$object: loads before the wait in"$'\n'"$(cut -c1-240 "$sass/early")"
  done
  require "$folder.score" 'score_(stream|cells|single|columns|unaligned|shared)I' 'HMMA\.16816' "the matrix instruction"
  require "$folder.score" 'score_stream' "$wide" "16-byte loads"
  require "$folder.operations" 'quantize_tiles.*Lb1E' "$wide" "16-byte loads"
  require "$folder.operations" 'append_keys.*Lb1E' "$wide" "16-byte loads"
done
require sm90.score_warpgroup 'score_warpgroup' 'HGMMA' "the warpgroup matrix instruction"
require sm90.score_warpgroup 'score_warpgroup' "$wide" "16-byte loads"
for folder in sm80 sm89 sm120; do
  if [ -s "$sass/$folder.score" ]; then require "$folder.score" 'score_shared' "$wide" "16-byte loads"; fi
done
# The block-scaled instruction, two for 16 keys and 8 rows. Up to 32 rows: half a block (64 keys), and two groups (32
# keys) with masks; without 16-byte loads the latter alone. 64 rows from memory: a group with masks and one without.
# From pages: two groups with masks, two without, and two that ptxas takes out of the loop.
omma='OMMA\.SF\.16864\.F32\.E2M1\.E2M1\.UE4M3\.4X'
for rows in 8 16 32; do
  tiles=$((rows / 8))
  expect sm120.score_fp4 "score_rowsILi${tiles}ELb1" "$omma" $((12 * tiles)) "block-scaled instructions of $rows rows"
  expect sm120.score_fp4 "score_cellsILi${tiles}" "$omma" $((12 * tiles)) "block-scaled instructions of $rows rows"
done
expect sm120.score_fp4 'score_rowsILi4ELb0' "$omma" 16 "block-scaled instructions of unaligned rows"
expect sm120.score_fp4 'score_tiles' "$omma" 32 "block-scaled instructions of 64 rows"
expect sm120.score_fp4 'score_pages' "$omma" 96 "block-scaled instructions of a page"
expect sm120.score_fp4 'score_' 'HMMA|F2FP|HFMA2' 0 "nothing is dequantised"
require sm120.score_fp4 'score_(rows.*Lb1|cells|tiles|pages)' "$wide" "16-byte loads"
require sm120.score_fp4 'score_pages' 'LDSM' "keys from shared memory as operands"
[ "$bad" = 0 ] || exit 1
echo "machine code: $looked kernels inspected, as intended; $on_stack of them keep up to $most_stack bytes on the stack"
