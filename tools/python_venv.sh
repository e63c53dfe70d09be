# Read by scripts in the repository's root: the virtual environment of everything that is Python here, made
# where it is missing. Sets $venv; pip installs into it. Ends with 77 where Python cannot make one.
venv=build/python/venv
mkdir -p build/python
if [ ! -x "$venv/bin/pip" ]; then
  if ! "${KVSCOUT_PYTHON:-python3}" -m venv "$venv" >build/python/venv.log 2>&1; then
    rm -rf "$venv"
    echo "no virtual environment with ${KVSCOUT_PYTHON:-python3} (./dev setup installs python3-venv): Python not run" >&2
    exit 77
  fi
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@" 2>&1 | { grep -v '^WARNING: Location' || true; }; }
