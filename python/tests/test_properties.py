"""Random problems against the float64 oracle, and what must not change a result."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvscout
import oracle
import problems
from conftest import HAS_CUDA, NO_CUDA, World

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(params=["numpy", "cuda"])
def w(request) -> World:
    if request.param == "cuda" and not HAS_CUDA:
        pytest.skip(NO_CUDA)
    return World(request.param)


def on(w: World, options: dict) -> dict:
    return {k: w.array(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}


@st.composite
def a_problem(draw):
    key_heads = draw(st.sampled_from([1, 1, 2, 3]))
    heads = key_heads * draw(st.integers(1, 5))
    requests = draw(st.integers(0, 4))
    q_lengths = draw(st.lists(st.integers(0, 6), min_size=requests, max_size=requests))
    k_lengths = draw(st.lists(st.sampled_from([0, 1, 127, 128, 129, 200, 300, 500]), min_size=requests, max_size=requests))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    problem = problems.make(rng, q_lengths, k_lengths, heads, key_heads, paged=draw(st.booleans()))
    options = {"causal": draw(st.booleans()), "reduce_heads": draw(st.sampled_from([False, True, "kv_group"]))}
    kind = draw(st.sampled_from(["none", "number", "array"]))
    if kind == "number":
        options["q_offset"] = draw(st.integers(-200, 600))
    elif kind == "array":
        options["q_offset"] = rng.integers(-200, 600, requests).astype(np.int32)
    return problem, options


@SETTINGS
@given(a_problem())
def test_scores(w, drawn):
    problem, options = drawn
    exact, size, _ = problem.exact(**options)
    got = problem.call(kvscout.msa_proxy_score_fp4, w, **on(w, options))
    oracle.assert_scores(w.host(got), exact, size, w.tolerance, problem.global_scale)


@SETTINGS
@given(a_problem(), st.integers(1, 64), st.data())
def test_index(w, drawn, topk, data):
    problem, options = drawn
    begin = data.draw(st.integers(0, topk))
    end = data.draw(st.integers(0, topk - begin))
    scores = w.host(problem.call(kvscout.msa_proxy_score_fp4, w, **on(w, options)))
    limits = problem.exact(**options)[2]
    valid = np.minimum(-(-np.maximum(limits, 0) // 128), scores.shape[1])
    ids = problem.call(kvscout.msa_index_select_fp4, w, topk=topk, force_begin_blocks=begin, force_end_blocks=end,
                       **on(w, options))
    assert np.array_equal(w.host(ids), oracle.select(scores, topk, valid, begin, end))


@SETTINGS
@given(st.data())
def test_select(w, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shape = (data.draw(st.integers(1, 3)), data.draw(st.integers(0, 90)), data.draw(st.integers(0, 4)))
    pool = np.array([0, -0.0, 1, 1, 2.5, -3, np.inf, -np.inf, np.nan], np.float32)
    scores = rng.choice(pool, shape) if data.draw(st.booleans()) else rng.standard_normal(shape).astype(np.float32)
    topk = data.draw(st.integers(1, 64))
    begin = data.draw(st.integers(0, topk))
    end = data.draw(st.integers(0, topk - begin))
    valid = data.draw(st.sampled_from([None, 7, "array"]))
    if valid == "array":
        valid = rng.integers(-3, shape[1] + 4, shape[2]).astype(np.int32)
    skip = data.draw(st.booleans())
    given_valid = w.array(valid) if isinstance(valid, np.ndarray) else valid
    got = kvscout.msa_topk_select(w.array(scores), topk, given_valid, None, begin, end, skip_masked=skip)
    assert np.array_equal(w.host(got), oracle.select(scores, topk, valid, begin, end, skip))


@SETTINGS
@given(st.integers(0, 2**32), st.floats(2.0**-20, 2.0**20), st.integers(1, 9), st.sampled_from([16, 32, 80, 128]))
def test_quantize(w, seed, scale, rows, columns):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-40, 40, (rows, 1)))).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = rng.choice(np.float32([0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3e38]))
    codes, scales = kvscout.nvfp4_quantize(w.array(x), scale, kvscout.SfLayout.layout_linear)
    expected_codes, expected_scales = oracle.quantize(x, scale)
    assert np.array_equal(w.host(scales), expected_scales) and np.array_equal(w.host(codes), expected_codes)


@SETTINGS
@given(st.integers(0, 2**32))
def test_a_request_alone_equals_its_rows_of_a_batch(w, seed):
    rng = np.random.default_rng(seed)
    problem = problems.make(rng, [2, 1, 3], [300, 129, 700])
    whole = w.host(problem.call(kvscout.msa_proxy_score_fp4, w))
    order = rng.permutation(3)
    table, used = problem.keywords["page_table"][order], problem.keywords["seqused_k"][order]
    cu = problem.cu_seqlens_q
    rows = np.concatenate([np.arange(cu[b], cu[b + 1]) for b in order])
    moved = problems.Problem(problem.q_fp4[rows], problem.k_fp4, _repack(problem.q_scale, rows, 4), problem.k_scale,
                             problems.prefix(np.diff(cu)[order]), {"page_table": table, "seqused_k": used})
    assert np.array_equal(w.host(moved.call(kvscout.msa_proxy_score_fp4, w)), whole[:, :, rows])


def _repack(scales: np.ndarray, tokens: np.ndarray, heads: int) -> np.ndarray:
    """128x4 scale bytes of some tokens, in their new order."""
    rows = (tokens[:, None] * heads + np.arange(heads)).reshape(-1)
    linear = oracle.unpack_scales(scales, len(scales) // 8)[rows]
    padded = np.zeros((-(-len(rows) // 128) * 128, 8), np.uint8)
    padded[: len(rows)] = linear
    return padded.reshape(-1, 4, 32, 2, 4).transpose(0, 3, 2, 1, 4).reshape(-1)
