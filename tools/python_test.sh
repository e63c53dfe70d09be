#!/usr/bin/env bash
# Builds the Python package into a virtual environment of its own under build/python and runs its tests.
#
# torch is used where pip finds it without a download of gigabytes: in a folder of wheels that pip is
# configured with, or already in the environment; KVSCOUT_TORCH=1 installs it from anywhere, KVSCOUT_TORCH=0
# leaves it out. Without torch its tests are reported as "not run", one by one. Writes "passed failed skipped" to
# build/python/counts. Exits 77 where Python cannot make a virtual environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rm -f build/python/counts
. tools/python_venv.sh
torch=torch==2.13.0

# --no-compile: what the tests import compiles itself; the rest of torch is twenty seconds of it.
pip install -q --no-compile 'scikit-build-core>=0.10' 'apache-tvm-ffi>=0.1.6,<0.2' ninja pytest pytest-xdist \
  hypothesis numpy safetensors ml_dtypes matplotlib

# A CPU build of torch that lies on disk is welcome; the one that pip fetches brings gigabytes of CUDA libraries.
# --no-index: pip looks into the folders of wheels that it is configured with and nowhere else, so asking costs no
# download either.
torch_on_disk() {
  local found=build/python/torch.json
  rm -f "$found"
  "$venv/bin/python" -m pip install -qq --dry-run --no-index --no-deps --report "$found" "$torch" >/dev/null 2>&1 &&
    grep -q '"version": "[^"]*+cpu"' "$found"
}
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  case ${KVSCOUT_TORCH:-auto} in
    0) ;;
    1) pip install -q --no-compile torch ;;
    *) if torch_on_disk; then pip install -q --no-compile "$torch"; fi ;;
  esac
fi
"$venv/bin/python" -c 'import torch; print("torch", torch.__version__)' 2>/dev/null ||
  echo "no torch in $venv and no CPU build of $torch on disk: tests on torch will be counted as not run"

command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
jobs=${KVSCOUT_JOBS:-$(nproc)}
export CMAKE_BUILD_PARALLEL_LEVEL=$jobs
pip install -q --no-build-isolation --no-deps --force-reinstall .

report=build/python/report.xml
status=0
"$venv/bin/python" -m pytest -q -p no:cacheprovider -n "$jobs" --junitxml "$report" python/tests "$@" ||
  status=$?
"$venv/bin/python" - "$report" >build/python/counts <<'PY'
import collections, sys, xml.etree.ElementTree as tree
suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
for reason, n in collections.Counter(s.get("message") for s in suite.iter("skipped")).items():
    print(f"{n:5d} {reason}", file=sys.stderr)
total, bad, skipped = (int(suite.get(k)) for k in ("tests", "failures", "skipped"))
bad += int(suite.get("errors"))
print(total - bad - skipped, bad, skipped)
PY
read -r passed failed skipped <build/python/counts
echo "Python: $passed passed, $failed failed, $skipped not run"
exit "$status"
