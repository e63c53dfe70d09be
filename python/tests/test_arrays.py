"""What callers may hand in: strides, element types, integer kinds, read-only memory."""

from __future__ import annotations

import numpy as np
import pytest

import kvscout
import oracle
import problems
from conftest import needs_torch, torch


@pytest.fixture
def problem(rng):
    return problems.make(rng, [3, 1, 5], [300, 129, 1000], heads=4, key_heads=2)


def call(problem, world, **options):
    return world.host(problem.call(kvscout.msa_proxy_score_fp4, world, **options))


def test_against_the_oracle(world, problem):
    exact, size, _ = problem.exact()
    got = problem.call(kvscout.msa_proxy_score_fp4, world)
    assert world.is_mine(got) and str(got.dtype).endswith("float32")
    oracle.assert_scores(world.host(got), exact, size, world.tolerance, problem.global_scale)


def strided(world, x, axis_order):
    """The same values with the axes laid out in another order, and gaps."""
    x = np.asarray(x)
    back = np.argsort(axis_order)
    moved = world.array(np.ascontiguousarray(x.transpose(axis_order)))
    return moved.transpose(*back) if world.name == "numpy" else moved.permute(*back)


def test_strides_of_inputs(world, problem):
    plain = call(problem, world)
    w = world
    got = kvscout.msa_proxy_score_fp4(
        strided(w, problem.q_fp4, (1, 0, 2)), strided(w, problem.k_fp4, (2, 1, 0, 3)), w.array(problem.q_scale),
        w.array(problem.k_scale), problem.q_global_scale, problem.k_global_scale, w.array(problem.cu_seqlens_q),
        page_table=strided(w, problem.keywords["page_table"], (1, 0)), seqused_k=w.array(problem.keywords["seqused_k"]))
    assert np.array_equal(w.host(got), plain)


def test_rows_of_heads_split_off_a_projection(world, rng):
    projection = rng.standard_normal((5, 6, 128)).astype(np.float32)
    heads = world.array(projection)[:, 1:5]
    got = kvscout.nvfp4_quantize(heads, 448.0)
    expected = kvscout.nvfp4_quantize(world.array(projection[:, 1:5].copy()), 448.0)
    for x, y in zip(got, expected):
        assert x.shape == y.shape and np.array_equal(world.host(x), world.host(y))
    deep = world.array(projection.reshape(5, 1, 2, 3, 128)[:, :, :, ::2])  # five dimensions
    codes, _ = kvscout.nvfp4_quantize(deep, 448.0)
    assert tuple(codes.shape) == (5, 1, 2, 2, 64)
    spread = np.broadcast_to(projection[:3, None, 0], (3, 4, 128))
    rows = kvscout.nvfp4_quantize(world.array(spread) if world.name != "numpy" else spread, 448.0)
    assert np.array_equal(world.host(rows[0])[:, 0], world.host(rows[0])[:, 3])


def test_codes_and_scales_interleaved_in_one_pool(world, problem):
    pages, heads = problem.k_fp4.shape[:2]
    codes = problem.k_fp4.reshape(pages, -1)
    scales = problem.k_scale.reshape(pages, -1)
    pool = world.array(np.concatenate([codes, scales, np.full((pages, 48), 0xAB, np.uint8)], axis=1))
    k = pool[:, : codes.shape[1]]
    shape = (pages, heads, 128, 64)
    if world.name == "numpy":
        k = np.lib.stride_tricks.as_strided(k, shape, (pool.strides[0], 8192, 64, 1))
    else:
        k = k.as_strided(shape, (pool.stride(0), 8192, 64, 1))
    scale = pool[:, codes.shape[1] : codes.shape[1] + scales.shape[1]]
    got = kvscout.msa_proxy_score_fp4(
        world.array(problem.q_fp4), k, world.array(problem.q_scale), scale, 0.5, 0.25,
        world.array(problem.cu_seqlens_q), **{n: world.array(v) for n, v in problem.keywords.items()})
    assert np.array_equal(world.host(got), call(problem, world))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (0, 2, 1), (1, 2, 0)])
def test_output_strides(world, problem, order):
    plain = call(problem, world)
    out = strided(world, np.full(plain.shape, 7, np.float32), order)
    got = problem.call(kvscout.msa_proxy_score_fp4, world, output=out)
    assert got is out
    assert np.array_equal(world.host(out), plain)


def test_topk_output_with_swapped_axes_even_when_sizes_agree(world, rng):
    for tokens in (7, 4):  # 4 tokens and 4 heads: only strides can tell
        scores = world.array(rng.standard_normal((4, 40, tokens)).astype(np.float32))
        buffer = world.empty((4, tokens, 16), "int32")
        view = buffer.transpose(1, 0, 2) if world.name == "numpy" else buffer.transpose(0, 1)
        assert kvscout.msa_topk_select(scores, 16, output=view) is view
        expected = oracle.select(world.host(scores), 16)
        assert np.array_equal(world.host(buffer).transpose(1, 0, 2), expected)


def test_int64_lengths_and_numpy_integers(world, problem):
    plain = call(problem, world)
    keywords = {k: world.array(v, "int64") for k, v in problem.keywords.items()}
    got = kvscout.msa_proxy_score_fp4(
        *[world.array(x) for x in (problem.q_fp4, problem.k_fp4, problem.q_scale, problem.k_scale)],
        np.float32(0.5), np.float64(0.25), world.array(problem.cu_seqlens_q, "int64"), **keywords,
        max_seqlen_q=np.int64(5), max_k_tiles=np.int32(plain.shape[1]), kv_block_start=np.uint8(0))
    assert np.array_equal(world.host(got), plain)
    ids = kvscout.msa_topk_select(got, np.int32(4), np.int64(3), None, np.int8(1))
    assert np.array_equal(world.host(ids), oracle.select(plain, 4, 3, 1))
    per_token = kvscout.msa_topk_select(got, 4, world.array(np.arange(9), "int64"))
    assert np.array_equal(world.host(per_token), oracle.select(plain, 4, np.arange(9)))


def test_lengths_with_gaps(world, problem):
    wide = {k: world.array(np.repeat(v, 2, axis=0)) for k, v in problem.keywords.items()}
    got = kvscout.msa_proxy_score_fp4(
        *[world.array(x) for x in (problem.q_fp4, problem.k_fp4, problem.q_scale, problem.k_scale)], 0.5, 0.25,
        world.array(np.repeat(problem.cu_seqlens_q, 2))[::2], page_table=wide["page_table"][::2],
        seqused_k=wide["seqused_k"][::2])
    assert np.array_equal(world.host(got), call(problem, world))


def test_int64_lengths_beyond_int32_are_refused(world, problem):
    seqused = np.array([300, 129, 2**31], np.int64)
    for bounds in ({}, {"max_seqlen_q": 5, "max_k_tiles": 8}):
        if bounds and world.name == "cuda":
            continue  # would need a read of the device
        with pytest.raises(ValueError, match="seqused_k"):
            problem.keywords["seqused_k"] = seqused
            problem.call(kvscout.msa_proxy_score_fp4, world, **bounds)


def test_scales_on_the_device(world, problem):
    plain = call(problem, world)
    q_scale, k_scale = world.array(np.float32([0.5])), world.array(np.float32(0.25))
    problem.q_global_scale, problem.k_global_scale = q_scale, k_scale
    assert np.array_equal(call(problem, world), plain)


def test_bfloat16_and_float16_queries(world, problem, rng):
    q = rng.standard_normal((9, 4, 128)).astype(np.float32)
    for dtype in ("bfloat16", "float16"):
        queries = world.array(q, dtype)
        rounded = np.asarray(q.astype(_np(dtype)), np.float64)
        keywords = {k: world.array(v) for k, v in problem.keywords.items()}
        got = kvscout.msa_proxy_score_fp4(queries, world.array(problem.k_fp4), None, world.array(problem.k_scale), 1, 0.25,
                                          world.array(problem.cu_seqlens_q), **keywords)
        exact, size, _ = oracle.score(rounded, problem.keys(), problem.cu_seqlens_q, **problem.keywords)
        oracle.assert_scores(world.host(got), exact, size, world.tolerance, 0.25)


def _np(dtype):
    import ml_dtypes

    return getattr(ml_dtypes, dtype, dtype)


@pytest.mark.parametrize("q_type,k_type", [("bfloat16", "bfloat16"), ("float16", "float16"), ("bfloat16", "float8_e4m3fn"),
                                           ("float16", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e4m3fn")])
def test_msa_proxy_score(world, rng, q_type, k_type):
    q = rng.standard_normal((6, 4, 128)).astype(_np(q_type))
    k = rng.standard_normal((5, 2, 128, 128)).astype(_np(k_type))
    table, used = np.array([[3, 1, 0], [4, 2, -1]], np.int32), np.array([300, 140], np.int32)
    cu = problems.prefix([4, 2])
    got = kvscout.msa_proxy_score(world.array(q), world.array(k), world.array(cu), page_table=world.array(table),
                                  seqused_k=world.array(used), reduce_heads="kv_group", use_fp32_acc=True)
    exact, size, _ = oracle.score(np.asarray(q, np.float64), np.asarray(k, np.float64), cu, page_table=table,
                                  seqused_k=used, reduce_heads="kv_group")
    oracle.assert_scores(world.host(got), exact, size, world.tolerance)


@needs_torch
def test_torch_float4_and_float8_views(world, problem):
    if world.name == "numpy":
        pytest.skip("not run: numpy has no packed 4-bit type")
    q, k = (world.array(x).view(torch.float4_e2m1fn_x2) for x in (problem.q_fp4, problem.k_fp4))
    qs, ks = (world.array(x).view(torch.float8_e4m3fn) for x in (problem.q_scale, problem.k_scale))
    keywords = {n: world.array(v) for n, v in problem.keywords.items()}
    got = kvscout.msa_proxy_score_fp4(q, k, qs, ks, 0.5, 0.25, world.array(problem.cu_seqlens_q), **keywords)
    assert np.array_equal(world.host(got), call(problem, world))


def test_scale_shapes_do_not_matter(world, problem):
    plain = call(problem, world)
    for shape in [(1, -1), (-1, 8), (1, 1, 1, 1, -1, 2)]:
        p = problems.Problem(**{**problem.__dict__, "q_scale": problem.q_scale.reshape(shape),
                                "k_scale": problem.k_scale.reshape(shape)})
        assert np.array_equal(call(p, world), plain)


def test_read_only_numpy_inputs_work_and_outputs_do_not(problem, rng):
    from conftest import World

    world = World("numpy")
    plain = call(problem, world)
    for x in (problem.q_fp4, problem.k_fp4, problem.q_scale, problem.cu_seqlens_q):
        x.flags.writeable = False
    assert np.array_equal(call(problem, world), plain)
    out = np.zeros(plain.shape, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="output: got a read-only array"):
        call(problem, world, output=out)
    assert not out.any()


def test_arguments_of_mixed_libraries(world, problem):
    """numpy lengths beside torch data: copied where the data are."""
    plain = call(problem, world)
    data = [world.array(x) for x in (problem.q_fp4, problem.k_fp4, problem.q_scale, problem.k_scale)]
    got = kvscout.msa_proxy_score_fp4(*data, 0.5, 0.25, problem.cu_seqlens_q, **problem.keywords)
    assert world.is_mine(got) and np.array_equal(world.host(got), plain)
