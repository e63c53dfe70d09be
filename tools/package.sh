#!/usr/bin/env bash
# tools/package.sh [--cuda] [--try ROOT]... [-D...]: a tarball that runs on Debian 12 and 13 as they come, with tool,
# libraries, headers, CMake files, and oneTBB beside them. Build it on Debian 12: a newer system's libraries
# do not run on an older one. --try unpacks it in a clean root (debootstrap --variant=minbase) and runs it there.
# --cuda adds the CUDA back ends, by the nvcc that CUDACXX names (./dev package looks for one); the result also runs
# where there is no GPU and no driver.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
roots=() options=() variant=""
while [ $# -gt 0 ]; do
  case $1 in
    --try) roots+=("$(realpath "$2")"); shift 2 ;;
    --cuda) variant=-cuda; shift ;;
    -D*) options+=("$1"); shift ;;
    *) sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done

build=build/package$variant
if [ -n "$variant" ]; then
  options+=(-DKVSCOUT_CUDA=ON)
  [ -x "${CUDACXX:-}" ] || { echo "no nvcc here (./dev setup --cuda fetches one)" >&2; exit 1; }
fi
mkdir -p build
if command -v ccache >/dev/null; then
  options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVSCOUT_TESTS=OFF -DKVSCOUT_EXAMPLES=OFF \
  -DCMAKE_INSTALL_LIBDIR=lib '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib;$ORIGIN' "${options[@]}" >"$build.log" 2>&1 ||
  { cat "$build.log" >&2; exit 1; }
cmake --build "$build" -j "${KVSCOUT_JOBS:-$(nproc)}" >>"$build.log" 2>&1 || { tail -n 40 "$build.log" >&2; exit 1; }

version=$("$build/kvscout" --version)
name=kvscout-$version-linux-$(uname -m)$variant
stage=$build/$name
rm -rf "$stage"
cmake --install "$build" --prefix "$stage" --strip >>"$build.log"
tbb=$(ldd "$stage/lib/libkvscout.so" | awk '$1 == "libtbb.so.12" {print $3}')
cp -L "$tbb" "$stage/lib/libtbb.so.12"
mkdir -p "$stage/share/doc/kvscout"
cp README.md LICENSE docs/operations.md docs/format.md docs/tool.md "$stage/share/doc/kvscout/"
cat >"$stage/share/doc/kvscout/THIRD-PARTY" <<'TEXT'
lib/libtbb.so.12 is oneTBB as Debian builds it, Apache-2.0. The code of Highway (Apache-2.0 or BSD-3-Clause), {fmt} (MIT),
CLI11 (BSD-3-Clause) and nlohmann/json (MIT) is compiled in.
TEXT
[ -z "$variant" ] || echo "So is NVIDIA's static CUDA runtime, under the license of the CUDA toolkit." >>"$stage/share/doc/kvscout/THIRD-PARTY"
tar -C "$build" --owner=0 --group=0 --sort=name -czf "$build/$name.tar.gz" "$name"
ls -l "$build/$name.tar.gz"

# Programs of somebody else, built against the unpacked package: one in C with nothing but flags, one through CMake.
[ ${#roots[@]} -eq 0 ] && exit 0
user=$build/user
rm -rf "$user" && mkdir -p "$user"
cc -std=c11 examples/decode_loop.c -I"$stage/include" -L"$stage/lib" -lkvscout -lm \
  '-Wl,-rpath,$ORIGIN/'"$name"/lib -o "$user/decode_loop"
cat >"$user/CMakeLists.txt" <<TEXT
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(kvscout REQUIRED)
add_executable(quickstart $PWD/examples/quickstart.cpp)
target_link_libraries(quickstart PRIVATE kvscout::kvscout)
set_target_properties(quickstart PROPERTIES BUILD_RPATH "\$ORIGIN/$name/lib")
TEXT
cmake -S "$user" -B "$user/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$PWD/$stage" -DCMAKE_DISABLE_FIND_PACKAGE_TBB=ON >>"$build.log"
cmake --build "$user/build" >>"$build.log"

for root in "${roots[@]}"; do
  place=$root/root/package-test
  rm -rf "$place" && mkdir -p "$place"
  tar -C "$place" -xzf "$build/$name.tar.gz"
  cp "$user/decode_loop" "$user/build/quickstart" tests/golden/flat_hq4_hkv1_causal.safetensors "$place/"
  echo "== $root: $(. "$root/etc/os-release" && echo "$PRETTY_NAME")"
  # With /proc, where the loader finds out what $ORIGIN is; the mount ends with the command.
  unshare --mount sh -ec 'mount -t proc proc "$1/proc"; exec chroot "$1" /bin/bash -eo pipefail -c "$2"' - "$root" "cd /root/package-test
    for file in $name/bin/kvscout $name/lib/libkvscout.so decode_loop quickstart; do
      if ldd \$file | grep 'not found'; then exit 1; fi
    done
    $name/bin/kvscout info
    $name/bin/kvscout score flat_hq4_hkv1_causal.safetensors --compare expected
    $name/bin/kvscout check --small | tail -n 1
    $name/bin/kvscout bench --keys 20000 | tail -n 1
    test -s $name/share/man/man1/kvscout.1
    bash -n $name/share/bash-completion/completions/kvscout
    ./decode_loop | tail -n 1
    ./quickstart"
  rm -rf "$place"
done
