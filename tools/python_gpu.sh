#!/usr/bin/env bash
# The Python tests, all of them, and the host cost on this machine's GPU, with the python3 that has torch.
#
#   tools/python_gpu.sh [WHEELS]   WHEELS: a folder with a kvscout wheel that was built elsewhere (tools/wheel.sh
#                                  -DKVSCOUT_CUDA=ON), and any wheel that python3 lacks (apache-tvm-ffi).
#                                  Without it the package is built here.
# Exits 77 where python3 has no torch that sees a GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${KVSCOUT_PYTHON:-python3}
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "no torch that sees a GPU in $python: Python on the GPU not run"
  exit 77
fi
site=build/python/gpu
rm -rf "$site"
mkdir -p "$site"
if [ $# -gt 0 ]; then
  "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$1"/*.whl
else
  "$python" -m pip install -q --no-deps --target "$site" 'apache-tvm-ffi>=0.1.6,<0.2'
  PYTHONPATH="$site" "$python" -m pip install -q --no-build-isolation --no-deps --target "$site" \
    -C build-dir=build/python/gpu-build -C cmake.define.KVSCOUT_CUDA=ON .
fi
export PYTHONPATH="$PWD/$site" XLA_PYTHON_CLIENT_PREALLOCATE=false
options=(-q -p no:cacheprovider -rs --durations=8)
"$python" -c 'import xdist' 2>/dev/null && options+=(-n "${KVSCOUT_JOBS:-8}")
status=0
"$python" -m pytest "${options[@]}" python/tests || status=$?
"$python" bench/python_host.py
exit "$status"
