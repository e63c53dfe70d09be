#!/usr/bin/env bash
# Runs the CPU benchmarks, keeps what they print in build/bench/cpu.txt, ends with the table of bars, one line
# each, and draws docs/cpu.svg.
# Arguments: --quick, --cpu-time, sections. BENCH_RUNNER: a command to run each section through.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bench=build/bench/bench/kvscout_bench_cpu
runner=${BENCH_RUNNER:-}

# OpenBLAS knows only the CPUs of its time: the peer is its fastest set of kernels.
unset OPENBLAS_CORETYPE
options=() sections=()
for word in "$@"; do
  case $word in --*) options+=("$word") ;; *) sections+=("$word") ;; esac
done
[ ${#sections[@]} -gt 0 ] || sections=(mixes prefill mixed causal decode quantize select index curves)
peer() { $bench ${options[@]+"${options[@]}"} --peer; }
best=$(peer) tried="unset: $best"
for core in Haswell Zen SkylakeX Cooperlake; do
  found=$(OPENBLAS_CORETYPE=$core peer 2>/dev/null) || continue  # the CPU lacks what it needs
  [ "${found% *}" = "$core" ] || continue                                 # this OpenBLAS lacks it
  tried="$tried, $found"
  if [ "${found#* }" -gt "${best#* }" ]; then best=$found; fi
done

{
  echo "date: $(date -u +%F)"
  echo "machine: $(LC_ALL=C lscpu | sed -n 's/^Model name: *//p' | head -1), $(nproc) CPUs, load $(cut -d' ' -f1 /proc/loadavg)"
  echo "OpenBLAS sgemm, one thread, GFLOP/s by core type: $tried; taken: ${best% *}"
  for section in "${sections[@]}"; do
    OPENBLAS_CORETYPE=${best% *} $runner $bench ${options[@]+"${options[@]}"} "$section"
  done
  if [[ " ${sections[*]} " == *" prefill "* ]]; then
    echo "== like with like: sgemm with AVX2 kernels"
    OPENBLAS_CORETYPE=Haswell $runner $bench ${options[@]+"${options[@]}"} prefill
  fi
} | tee build/bench/cpu.txt
{
  echo
  echo "== bars: what | threads | ceiling | peer | ours | ratio | must | goal"
  grep '^bar |' build/bench/cpu.txt | sed 's/^bar | //' | awk -F ' [|] ' '!seen[$1 "|" $2 "|" ($1 ~ /avx2$/ ? $4 : "")]++'
} | tee -a build/bench/cpu.txt
if grep -q '^curve ' build/bench/cpu.txt; then python3 bench/plot.py build/bench/cpu.txt docs/cpu.svg; fi
