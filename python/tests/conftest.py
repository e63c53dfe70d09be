"""Every test that takes `world` runs on numpy, torch on the CPU and, where there is one, torch on a GPU.

What is not on the machine is reported as "not run" and shows among the skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

try:
    import torch
except ImportError:
    torch = None

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(os.environ.get("KVSCOUT_GOLDEN", ROOT / "tests" / "golden"))
HAS_CUDA = torch is not None and torch.cuda.is_available()
NO_TORCH = "not run: torch is not installed"
NO_CUDA = "not run: no GPU"

needs_torch = pytest.mark.skipif(torch is None, reason=NO_TORCH)
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason=NO_CUDA)


class World:
    """One array library on one device."""

    def __init__(self, name: str):
        self.name = name
        self.tolerance = 4e-6 if name == "cuda" else 5e-7
        self.device = "cuda" if name == "cuda" else "cpu"

    def array(self, x, dtype: str | None = None):
        """A host array, or nested lists, as this world's; dtype by name, bfloat16 and e4m3 included."""
        x = np.asarray(x)
        if dtype is not None:
            x = x.astype(getattr(ml_dtypes, dtype) if hasattr(ml_dtypes, dtype) else dtype)
        if self.name == "numpy":
            return x
        as_torch = {"bfloat16": ("uint16", "bfloat16"), "float8_e4m3fn": ("uint8", "float8_e4m3fn")}
        if x.dtype.name in as_torch:
            plain, name = as_torch[x.dtype.name]
            return torch.from_numpy(x.view(plain).copy()).view(getattr(torch, name)).to(self.device)
        return torch.from_numpy(np.array(x)).to(self.device)

    def int32(self, x):
        return self.array(x, "int32")

    def empty(self, shape, dtype="float32"):
        return self.array(np.zeros(shape, dtype))

    def host(self, x) -> np.ndarray:
        if self.name == "numpy":
            assert isinstance(x, np.ndarray)
            return x
        assert isinstance(x, torch.Tensor)
        return x.cpu().numpy()

    def is_mine(self, x) -> bool:
        return isinstance(x, np.ndarray) if self.name == "numpy" else isinstance(x, torch.Tensor)


@pytest.fixture(params=["numpy", "torch", "cuda"])
def world(request) -> World:
    if request.param == "torch" and torch is None:
        pytest.skip(NO_TORCH)
    if request.param == "cuda" and not HAS_CUDA:
        pytest.skip(NO_CUDA)
    return World(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
