#!/usr/bin/env bash
# Runs the CPU benchmarks and keeps what they print in build/bench/cpu.txt. Arguments: --quick, sections.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset OPENBLAS_CORETYPE
{
  echo "date: $(date -u +%F)"
  echo "machine: $(LC_ALL=C lscpu | sed -n 's/^Model name: *//p' | head -1), $(nproc) CPUs, load $(cut -d' ' -f1 /proc/loadavg)"
  build/bench/bench/kvscout_bench_cpu "$@"
} | tee build/bench/cpu.txt
