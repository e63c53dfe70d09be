"""The shared object of the package, loaded when the first operation asks for it.

Loading goes through tvm-ffi, which takes arrays of torch, numpy, JAX and CuPy from their own C tables and
hands over torch's current stream. tvm-ffi imports torch where torch is installed; kvscout itself never
does unless it is given a torch tensor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FUNCTIONS = (
    "nvfp4_quantize",
    "msa_proxy_score_fp4",
    "msa_proxy_score_fp4_bounds",
    "msa_proxy_score",
    "msa_proxy_score_bounds",
    "msa_topk_select",
    "msa_index_select_fp4",
    "msa_index_select_fp4_workspace",
    "msa_index_append_fp4",
    "backends",
)
PATH = Path(__file__).with_name("_kvscout.so")


def __getattr__(name: str) -> Any:
    """Loads everything on the first use of one function; later uses are plain module attributes."""
    if name not in FUNCTIONS:
        raise AttributeError(name)
    import tvm_ffi

    module = tvm_ffi.load_module(PATH)
    for function in FUNCTIONS:
        globals()[function] = module[function]
    return globals()[name]
