#!/usr/bin/env bash
# The proof on this machine's GPU: the case list on every CUDA back end, the same under compute-sanitizer, streams
# and graphs, the Python tests where python3 has torch, then the benchmarks. Fits ten minutes on an H200.
#   tools/gpu.sh           builds first (needs nvcc)
#   tools/gpu.sh FOLDER    takes kvscout_gpu_test and kvscout_gpu_* from there (built elsewhere), and the wheels for the
#                          Python tests: kvscout's (tools/wheel.sh -DKVSCOUT_CUDA=ON), and what that python3 lacks
#   tools/gpu.sh --pack FOLDER   builds, and leaves the binaries in FOLDER for a machine without nvcc
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build() {
  local options=(-DKVSCOUT_BENCH=ON -DKVSCOUT_CUDA_TEST_ARCH=ON -DKVSCOUT_TOOL=OFF -DKVSCOUT_EXAMPLES=OFF)
  if command -v ccache >/dev/null; then
    options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  fi
  cmake --preset cuda -B build/gpu "${options[@]}" >/dev/null
  cmake --build build/gpu -j "${KVSCOUT_JOBS:-$(nproc)}" --target gpu_binaries
}

collect() {  # collect FOLDER: binaries, and the one shared library that GPU machines tend to lack
  mkdir -p "$1"
  cp build/gpu/tests/gpu/kvscout_gpu_test build/gpu/bench/kvscout_gpu_* "$1"
  strip "$1"/kvscout_gpu_*
  cp -L "$(ldd "$1/kvscout_gpu_test" | awk '/libtbb/{print $3}')" "$1"
}

if [ "${1:-}" = --pack ]; then
  build
  collect "${2:?a folder}"
  du -sh "$2"
  exit 0
fi
given=${1:-}
folder=${given:-build/gpu/binaries}
if [ $# -eq 0 ]; then
  build
  collect "$folder"
fi
export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
test=$folder/kvscout_gpu_test
bad=0
step() {  # step NAME COMMAND...: runs, says how it went and how long it took
  local name=$1 begin=$SECONDS status=0
  shift
  "$@" || status=$?
  local how="FAILED ($status)"
  case $status in 0) how=passed ;; 77) how="not run" ;; *) bad=1 ;; esac
  printf '== %-44s %s, %d s\n' "$name" "$how" $((SECONDS - begin))
}
quietly() { "$@" --gtest_brief=1 | grep -v 'Skipped$\|^\[ *SKIPPED\|no back end for' | tail -n 40; }

# Every case on every back end; streams and graphs.
step "conformance, graphs, streams" quietly "$test"

# The small cases and the streams again under each checker.
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck initcheck synccheck; do
    cases="sm*_small.*:Streams.*"
    # racecheck does not survive hundreds of large launches in one test; what they launch is in the cases, too.
    [ $tool != racecheck ] || cases+="-Streams.TwoAtOnceDoNotDisturbEachOther"
    step "compute-sanitizer $tool" quietly "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$test" "--gtest_filter=${KVSCOUT_SANITIZED:-$cases}"
  done
else
  echo "no compute-sanitizer here: memcheck, racecheck, initcheck and synccheck were not run"
  bad=1
fi

python_tests() {
  if compgen -G "$folder/kvscout-*.whl" >/dev/null; then
    bash tools/python_gpu.sh "$folder"
  elif [ -z "$given" ]; then
    bash tools/python_gpu.sh
  else
    echo "no wheel of kvscout in $folder"
    return 77
  fi
}
step "Python tests, host cost" python_tests

for benchmark in "$folder"/kvscout_gpu_*; do
  [ "$benchmark" = "$test" ] || step "$(basename "$benchmark")" "$benchmark"
done
exit $bad
