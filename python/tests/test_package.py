"""What is in the package, and what is not: no torch inside, two symbols of the runtime, the README's example."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import kvscout
from conftest import ROOT
from kvscout import _library


def tool(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        pytest.skip(f"not run: {command[0]} is not installed")


def test_the_shared_object_links_neither_torch_nor_python():
    needed = re.findall(r"NEEDED.*\[(.*)\]", tool("readelf", "-d", str(_library.PATH)))
    assert needed, "readelf found no dependencies at all"
    assert not [n for n in needed if re.search("torch|c10|python|cudart|cuda", n)], needed


def test_two_symbols_of_the_runtime_are_imported():
    symbols = tool("nm", "-D", "--undefined-only", str(_library.PATH))
    assert sorted(re.findall(r"\bTVM\w+", symbols)) == ["TVMFFIEnvGetStream", "TVMFFIErrorSetRaisedFromCStr"]


def test_only_the_operations_are_exported():
    symbols = tool("nm", "-D", "--defined-only", str(_library.PATH))
    exported = set(re.findall(r" T (\w+)", symbols))
    assert {"__tvm_ffi_" + f for f in _library.FUNCTIONS} <= exported
    assert not {s for s in exported if "kvscout" in s}


def test_one_version():
    cmake = re.search(r"project\(kvscout VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
    wheel = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert kvscout.__version__ == cmake == wheel


def test_marked_as_typed():
    assert (_library.PATH.parent / "py.typed").exists()


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_brings_neither_torch_nor_matplotlib_and_no_library():
    found = run_python("import kvscout, sys; print([m for m in ('torch', 'matplotlib', 'tvm_ffi', 'vllm') if m in sys.modules])")
    assert found.strip() == "[]"


def test_works_where_torch_is_not_installed():
    code = ("import sys; sys.modules['torch'] = None\n"
            "import kvscout, numpy as np\n"
            "print(kvscout.msa_topk_select(np.ones((1, 3, 1), np.float32), 2)[0, 0])")
    assert run_python(code).strip() == "[0 1]"


def test_a_forked_process_computes_too():
    """Data loaders fork after the first call: the threads of the parent are not there."""
    code = ("import os, numpy as np, kvscout\n"
            "keys = np.random.default_rng(0).standard_normal((100_000, 128)).astype(np.float32)\n"
            "first = kvscout.nvfp4_quantize(keys, 448.0)\n"
            "child = os.fork()\n"
            "same = all(map(np.array_equal, first, kvscout.nvfp4_quantize(keys, 448.0)))\n"
            "if child == 0: os._exit(0 if same else 1)\n"
            "print(os.waitpid(child, 0)[1], same)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["0", "True"], done.stderr


def test_backends():
    listed = kvscout.backends()
    names = [b.name for b in listed]
    assert "reference" in names and len(set(names)) == len(names)
    assert any(b.available for b in listed) and all(b.built_for and b.status for b in listed)


def test_help_reads_as_text():
    text = run_python("import kvscout; help(kvscout.msa_proxy_score_fp4)")
    for word in ("q_fp4", "(Tq, Hq, 64)", "-inf", "page_table", "ValueError", "float32"):
        assert word in text


def test_the_readme_example_is_the_file_and_runs():
    source = (ROOT / "examples" / "quickstart.py").read_text()
    assert f"```python\n{source}```" in (ROOT / "README.md").read_text(), "README.md differs from examples/quickstart.py"
    lines = run_python(source).splitlines()
    assert len(lines) == 3 and any(line.startswith("block 5,") for line in lines)  # key 700 lies in block 5
