#!/usr/bin/env bash
# The conformance list, the test of equal bits and the fuzzer's seeds on Arm (NEON), cross-compiled and
# run under qemu-user. Needs Debian's g++-aarch64-linux-gnu and qemu-user, which `./dev arm` installs; libraries for
# arm64 are fetched into build/arm/root, where the system does not see them. Speed under an emulator says nothing;
# --all also runs the large cases, which take it long.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for needed in aarch64-linux-gnu-g++ qemu-aarch64 dpkg-deb; do
  command -v $needed >/dev/null || { echo "no $needed here (g++-aarch64-linux-gnu, qemu-user)"; exit 77; }
done
arm=$PWD/build/arm root=$PWD/build/arm/root

# An apt of its own: the same sources, another architecture, no change to the system.
fetch() {
  mkdir -p "$arm/apt/lists/partial" "$arm/apt/cache/archives/partial" "$root" && : >"$arm/apt/status" || return
  local apt=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::status="$arm/apt/status"
    -o Dir::State::lists="$arm/apt/lists" -o Dir::Cache="$arm/apt/cache" -o APT::Sandbox::User=root)
  local packages=(libtbb-dev libgtest-dev libfmt-dev nlohmann-json3-dev librapidcheck-dev libhwy-dev) shared package
  apt-get "${apt[@]}" update || return
  # Their shared libraries, whose names have versions.
  mapfile -t shared < <(apt-cache "${apt[@]}" depends --recurse "${packages[@]}" | sed -nE 's/^ *Depends: (lib(fmt|hwy|tbb)[^ :]*)$/\1/p' | sort -u)
  (cd "$arm/apt" && apt-get "${apt[@]}" download "${packages[@]}" "${shared[@]}") || return
  for package in "$arm"/apt/*.deb; do dpkg-deb -x "$package" "$root" || return; done
  touch "$root/complete"
}
[ -e "$root/complete" ] || fetch || { echo "libraries for arm64 cannot be had here"; exit 77; }

cat >"$arm/toolchain.cmake" <<TEXT
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH $root)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
TEXT
launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
cmake -S . -B "$arm/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$arm/toolchain.cmake" \
  -DCMAKE_CXX_FLAGS=-DKVSCOUT_EMULATED -DKVSCOUT_TOOL=OFF -DKVSCOUT_EXAMPLES=OFF ${launcher[@]+"${launcher[@]}"} >"$arm/configure.log" 2>&1 ||
  { cat "$arm/configure.log"; exit 1; }
cmake --build "$arm/build" -j "${KVSCOUT_JOBS:-$(nproc)}" --target kvscout_conformance kvscout_cpu_targets kvscout_fuzz_replay

run() { qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu" "$arm/build/tests/$@"; }
if [ "${1:-}" = --all ]; then filter='*'; else filter='*small*'; fi
run kvscout_conformance --gtest_brief=1 --gtest_filter="$filter" >"$arm/conformance.log" 2>&1 &
bad=0
run kvscout_cpu_targets --gtest_brief=1 || bad=1
run kvscout_fuzz_replay tests/fuzz/corpus/fuzz_operations 200 || bad=1
wait $! || bad=1
tail -n 20 "$arm/conformance.log"
exit $bad
