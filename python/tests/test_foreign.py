"""Arrays of other libraries, through DLPack: JAX, CuPy's protocol on the host, and a class that has nothing else.

Every result equals the one of numpy arrays to the bit. CuPy itself needs a GPU: test_cuda.py.
"""

from __future__ import annotations

import sys
import types

import ml_dtypes
import numpy as np
import pytest

import kvscout
import problems
from conftest import World

NUMPY = World("numpy")


@pytest.fixture
def problem(rng):
    return problems.make(rng, [3, 1, 5], [300, 129, 1000], heads=4, key_heads=2)


def arguments(problem, put):
    """(positional, keywords) of the score, every array through `put`."""
    data = [put(x) for x in (problem.q_fp4, problem.k_fp4, problem.q_scale, problem.k_scale)]
    return (*data, 0.5, 0.25, put(problem.cu_seqlens_q)), {k: put(v) for k, v in problem.keywords.items()}


# ---- JAX ------------------------------------------------------------------------------------------


@pytest.fixture
def put():
    """A host array as JAX's."""
    jax = pytest.importorskip("jax", reason="not run: jax is not installed")
    cpu = jax.devices("cpu")[0]
    return lambda x: jax.device_put(x, cpu)


def same(got, expected):
    """`got` is JAX's and has the bits of `expected`."""
    import jax

    assert isinstance(got, jax.Array) and got.dtype == expected.dtype
    assert np.array_equal(np.asarray(got), expected, equal_nan=expected.dtype.kind == "f")


def test_jax_scores_and_selection(problem, put):
    positional, keywords = arguments(problem, put)
    scores = kvscout.msa_proxy_score_fp4(*positional, **keywords)
    plain = problem.call(kvscout.msa_proxy_score_fp4, NUMPY)
    same(scores, plain)
    valid = np.arange(9, dtype=np.int32)
    same(kvscout.msa_topk_select(scores, 4, put(valid), None, 1, 1), kvscout.msa_topk_select(plain, 4, valid, None, 1, 1))
    ids, values = kvscout.msa_index_select_fp4(*positional, **keywords, topk=3, return_scores=True)
    for got, expected in zip((ids, values), problem.call(kvscout.msa_index_select_fp4, NUMPY, topk=3, return_scores=True)):
        same(got, expected)
    host_lengths = problem.keywords  # numpy beside JAX
    same(kvscout.msa_proxy_score_fp4(*positional[:-1], problem.cu_seqlens_q, **host_lengths), plain)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_jax_quantizes(put, rng, dtype):
    x = rng.standard_normal((130, 48)).astype(getattr(ml_dtypes, dtype, dtype))
    scale = kvscout.global_scale_of(put(x))
    assert scale == kvscout.global_scale_of(x)
    for got, expected in zip(kvscout.nvfp4_quantize(put(x), scale), kvscout.nvfp4_quantize(x, scale)):
        same(got, expected)


@pytest.mark.parametrize("q_type,k_type", [("bfloat16", "bfloat16"), ("float16", "float8_e4m3fn")])
def test_jax_unquantised(problem, put, rng, q_type, k_type):
    q = rng.standard_normal((9, 4, 128)).astype(getattr(ml_dtypes, q_type, q_type))
    k = rng.standard_normal((len(problem.k_fp4), 2, 128, 128)).astype(getattr(ml_dtypes, k_type, k_type))
    numbers = (problem.cu_seqlens_q,)
    same(kvscout.msa_proxy_score(put(q), put(k), *numbers, **problem.keywords),
         kvscout.msa_proxy_score(q, k, *numbers, **problem.keywords))
    rest = (None, problem.k_scale, 1, 0.25, problem.cu_seqlens_q)
    same(kvscout.msa_proxy_score_fp4(put(q), problem.k_fp4, *rest, **problem.keywords),
         kvscout.msa_proxy_score_fp4(q, problem.k_fp4, *rest, **problem.keywords))


def test_jax_arrays_are_never_written(problem, put):
    positional, keywords = arguments(problem, put)
    out = kvscout.msa_proxy_score_fp4(*positional, **keywords)
    before = np.array(out)
    with pytest.raises(ValueError, match="output: got a read-only array"):
        kvscout.msa_proxy_score_fp4(*positional, output=out, **keywords)
    with pytest.raises(ValueError, match="output: got a read-only array"):
        kvscout.msa_topk_select(out, 2, None, put(np.zeros((9, 4, 2), np.int32)))
    codes, scales = put(problem.k_fp4), put(problem.k_scale)
    with pytest.raises(ValueError, match="k_cache_fp4: got a read-only array"):
        kvscout.msa_index_append_fp4(put(np.ones((1, 2, 128), np.float32)), codes, scales, put(np.zeros(1, np.int64)), 1.0)
    assert np.array_equal(out, before) and np.array_equal(codes, problem.k_fp4)
    into = np.zeros(before.shape, np.float32)  # JAX beside an output that can be written
    assert kvscout.msa_proxy_score_fp4(*positional, output=into, **keywords) is into and np.array_equal(into, before)


def test_jax_errors_name_the_argument(problem, put):
    positional, keywords = arguments(problem, put)
    with pytest.raises(ValueError, match="msa_proxy_score_fp4: q_fp4: got f32 .*expected u8"):
        kvscout.msa_proxy_score_fp4(put(np.zeros((9, 4, 64), np.float32)), *positional[1:], **keywords)


# ---- CuPy's protocol ------------------------------------------------------------------------------


class FakeArray:
    """What CuPy's arrays show of themselves, over host memory. `asked` records the streams of their exports."""

    asked: list = []

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim

    def __dlpack__(self, *, stream=None, **_):
        FakeArray.asked.append(stream)
        return self.x.__dlpack__()

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()

    def reshape(self, *shape):
        return FakeArray(self.x.reshape(*shape))

    def get(self):
        return self.x


FakeArray.__module__ = "cupy"


@pytest.fixture
def cupy(monkeypatch):
    stream = types.SimpleNamespace(ptr=0x51, capturing=False)
    stream.is_capturing = lambda: stream.capturing
    module = types.ModuleType("cupy")
    module.ndarray, module.stream = FakeArray, stream
    module.cuda = types.SimpleNamespace(get_current_stream=lambda: stream)
    module.from_dlpack = lambda x: FakeArray(np.asarray(x))
    monkeypatch.setitem(sys.modules, "cupy", module)
    FakeArray.asked.clear()
    return module


def test_cupy_arrays_give_cupy_arrays_and_no_other_stream_waits(problem, cupy, rng):
    positional, keywords = arguments(problem, FakeArray)
    scores = kvscout.msa_proxy_score_fp4(*positional, **keywords)
    plain = problem.call(kvscout.msa_proxy_score_fp4, NUMPY)
    assert isinstance(scores, FakeArray) and np.array_equal(scores.x, plain)
    ids = kvscout.msa_topk_select(scores, 4)
    assert isinstance(ids, FakeArray) and np.array_equal(ids.x, kvscout.msa_topk_select(plain, 4))
    out = FakeArray(np.zeros_like(plain))
    assert kvscout.msa_proxy_score_fp4(*positional, **keywords, output=out) is out and np.array_equal(out.x, plain)
    k = rng.standard_normal((2, 2, 128)).astype(np.float32)
    pools = [[problem.k_fp4.copy(), problem.k_scale.copy()] for _ in range(2)]
    slots = np.array([5, 131])
    kvscout.msa_index_append_fp4(FakeArray(k), *map(FakeArray, pools[0]), FakeArray(slots), 448.0)
    kvscout.msa_index_append_fp4(k, *pools[1], slots, 448.0)
    assert all(np.array_equal(a, b) for a, b in zip(*pools)) and not np.array_equal(pools[0][0], problem.k_fp4)
    codes, scales = kvscout.nvfp4_quantize(FakeArray(k), 448.0)
    assert isinstance(codes, FakeArray) and isinstance(scales, FakeArray)
    assert FakeArray.asked and set(FakeArray.asked) == {-1}


def test_cupy_streams_reach_the_binding(problem, cupy, monkeypatch):
    seen = []
    real = kvscout._library.msa_topk_select
    monkeypatch.setattr(kvscout._library, "msa_topk_select", lambda *a: seen.append(a[-1]) or real(*a))
    kvscout.msa_topk_select(FakeArray(np.ones((1, 3, 1), np.float32)), 2)
    assert seen == [0x51]


def test_cupy_bounds_under_capture(problem, cupy):
    positional, keywords = arguments(problem, FakeArray)
    cupy.stream.capturing = True
    with pytest.raises(ValueError, match="max_seqlen_q and max_k_tiles: got None under stream capture"):
        kvscout.msa_proxy_score_fp4(*positional, **keywords)
    scores = kvscout.msa_proxy_score_fp4(*positional, **keywords, max_seqlen_q=5, max_k_tiles=8)
    assert np.array_equal(scores.x, problem.call(kvscout.msa_proxy_score_fp4, NUMPY))


# ---- nothing but DLPack ---------------------------------------------------------------------------


class Bare:
    def __init__(self, x):
        self.x, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim

    def __dlpack__(self, **_):
        return self.x.__dlpack__()

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()

    def __array__(self, *_, **__):
        return self.x


def test_any_dlpack_array_gives_numpy(problem):
    positional, keywords = arguments(problem, Bare)
    got = kvscout.msa_proxy_score_fp4(*positional, **keywords)
    assert isinstance(got, np.ndarray) and np.array_equal(got, problem.call(kvscout.msa_proxy_score_fp4, NUMPY))
