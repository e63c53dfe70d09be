"""What goes wrong for users of such libraries: padding, lengths, ties, odd numbers. Values from the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import kvscout
import oracle
import problems


def call(problem, world, **options):
    return world.host(problem.call(kvscout.msa_proxy_score_fp4, world, **options))


def check(problem, world, **options):
    exact, size, _ = problem.exact(**{{"max_k_tiles": "tiles", "kv_block_start": "start", "kv_block_step": "step"}
                                      .get(k, k): v for k, v in options.items()})
    arrays = {k: world.array(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    got = call(problem, world, **arrays)
    oracle.assert_scores(got, exact, size, world.tolerance, problem.global_scale)
    return got


@pytest.mark.parametrize("reduce_heads", [False, True, "kv_group"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("offset", [None, 200, "tensor"])
def test_the_matrix_of_modes(world, rng, reduce_heads, causal, paged, offset):
    problem = problems.make(rng, [2, 0, 3], [300, 40, 129], heads=6, key_heads=2, paged=paged)
    if offset == "tensor":
        offset = np.array([-1, 5, 128], np.int32)
    check(problem, world, reduce_heads=reduce_heads, causal=causal, q_offset=offset)


def test_the_tail_of_the_last_page_does_not_show(world, rng):
    problem = problems.make(rng, [2], [130])
    plain = call(problem, world)
    page = problem.keywords["page_table"][0, 1]
    problem.k_fp4[page, :, 2:] = 0xFF
    rows = np.arange(1024).reshape(2, 32, 4, 4).transpose(2, 1, 0, 3).reshape(128, 8)  # scale bytes of each slot
    problem.k_scale.reshape(-1, 1024)[page, rows[2:].reshape(-1)] = 0x7F
    assert np.array_equal(call(problem, world), plain)


@pytest.mark.parametrize("tiles", [255, 256, 257])
def test_columns_past_a_power_of_two_are_written(world, rng, tiles):
    problem = problems.make(rng, [1], [(tiles - 1) * 128 + 1], heads=1)
    out = world.array(np.full((1, tiles + 3, 1), 7, np.float32))
    got = call(problem, world, output=out, max_seqlen_q=1)
    assert np.isneginf(got[0, tiles:, 0]).all() and np.isfinite(got[0, :tiles, 0]).all()


def test_bounds_below_the_lengths_truncate(world, rng):
    problem = problems.make(rng, [2], [1000])
    whole = call(problem, world)
    assert np.array_equal(call(problem, world, max_k_tiles=3), whole[:, :3])
    assert np.array_equal(call(problem, world, max_k_tiles=12)[:, :8], whole)
    assert call(problem, world, max_k_tiles=0).shape == (4, 0, 2)


def test_lengths_beyond_the_table_count_only_for_the_limit(world, rng):
    problem = problems.make(rng, [2], [500], width=4)
    problem.keywords["seqused_k"][0] = 1000
    check(problem, world)


def test_page_ids_outside_the_pool_score_minus_infinity(world, rng):
    problem = problems.make(rng, [1], [512])
    problem.keywords["page_table"][0, 1] = 10_000
    problem.keywords["page_table"][0, 2] = -5
    got = check(problem, world)
    assert np.isneginf(got[:, 1:3]).all()


def test_no_keys_and_more_queries_than_keys(world, rng):
    problem = problems.make(rng, [4, 4, 1], [2, 129, 0])
    check(problem, world)
    ids = world.host(problem.call(kvscout.msa_index_select_fp4, world))
    assert (ids[:2] == -1).all() and (ids[-1] == -1).all() and (ids[3, :, 0] == 0).all()


def test_rows_that_belong_to_nobody(world, rng):
    problem = problems.make(rng, [3, 2], [200, 100])
    problem.cu_seqlens_q = np.array([1, 2, 4], np.int32)
    got = check(problem, world)
    assert np.isneginf(got[:, :, [0, 4]]).all()
    ids = world.host(problem.call(kvscout.msa_index_select_fp4, world, topk=2))
    assert (ids[[0, 4]] == -1).all()
    problem.cu_seqlens_q, problem.keywords["page_table"] = np.array([0], np.int32), np.zeros((0, 3), np.int32)
    problem.keywords["seqused_k"] = np.zeros(0, np.int32)
    assert np.isneginf(call(problem, world, max_k_tiles=2)).all()


def test_no_queries(world, rng):
    problem = problems.make(rng, [0, 0], [200, 100])
    assert call(problem, world).shape == (4, 2, 0)
    assert world.host(problem.call(kvscout.msa_index_select_fp4, world)).shape == (0, 4, 16)


def test_odd_scale_bytes(world, rng):
    problem = problems.make(rng, [2], [256], paged=False)
    plain = call(problem, world)
    problem.k_scale |= 0x80  # the format is unsigned
    assert np.array_equal(call(problem, world), plain)
    problem.k_scale[4 * 17 % 16] = 0xFF  # one row is NaN and does not count
    check(problem, world)
    problem.k_scale[:] = 0x7F
    assert np.isneginf(call(problem, world)).all()


def test_large_logits_stay_exact(world):
    codes = np.full((1, 1, 64), 0x77, np.uint8)  # 6 * 448
    scale = np.full(1024, 0x7E, np.uint8)
    problem = problems.Problem(codes, np.repeat(codes, 128, 0), scale, scale, np.array([0, 1], np.int32),
                               {"cu_seqlens_k": np.array([0, 128], np.int32)}, 1.0, 1.0)
    assert call(problem, world)[0, 0, 0] == 128 * 2688.0**2


@pytest.mark.parametrize("start,step", [(0, 2), (1, 2), (3, 4), (50, 1)])
def test_block_subset(world, rng, start, step):
    problem = problems.make(rng, [2, 1], [1000, 300])
    whole = call(problem, world)
    got = check(problem, world, kv_block_start=start, kv_block_step=step)
    assert np.array_equal(got, whole[:, start::step])


def test_index_is_select_of_score(world, rng):
    problem = problems.make(rng, [3, 1, 40], [3000, 129, 700], heads=8, key_heads=2)
    for reduce_heads in (False, True, "kv_group"):
        scores = problem.call(kvscout.msa_proxy_score_fp4, world, reduce_heads=reduce_heads)
        limits = problem.exact(tiles=1)[2]
        n = np.minimum(-(-np.maximum(limits, 0) // 128), scores.shape[1])
        rule = dict(topk=5, force_begin_blocks=1, force_end_blocks=1)
        expected = kvscout.msa_topk_select(scores, num_valid_pages=world.int32(n), **rule)
        ids, values = problem.call(kvscout.msa_index_select_fp4, world, reduce_heads=reduce_heads, return_scores=True, **rule)
        ids, values, host = world.host(ids), world.host(values), world.host(scores)
        assert np.array_equal(ids, world.host(expected))
        t, h, r = np.nonzero(ids >= 0)
        assert np.array_equal(values[t, h, r], host[h, ids[t, h, r], t])
        assert np.isneginf(values[ids < 0]).all()
        out = world.empty(ids.shape, "int32")
        size = problem.call(kvscout.msa_index_select_fp4_workspace, world, reduce_heads=reduce_heads, **rule)
        assert isinstance(size, int) and size >= 0
        assert problem.call(kvscout.msa_index_select_fp4, world, reduce_heads=reduce_heads, output=out, **rule) is out
        assert np.array_equal(world.host(out), ids)


TOPK_ROWS = {
    "all equal": np.zeros(8192),
    "nan and infinities": np.array([np.nan, np.inf, -np.inf, 1, np.nan, -0.0, 0.0, -np.inf] * 5),
    "all nan": np.full(40, np.nan),
    "all masked": np.full(40, -np.inf),
    "ties across the last place": np.array([1.0, 3, 3, 3, 2] * 9),
    "few": np.array([1.0, 2, 3]),
}


@pytest.mark.parametrize("row", TOPK_ROWS)
@pytest.mark.parametrize("skip_masked", [False, True])
def test_select(world, row, skip_masked):
    scores = np.tile(TOPK_ROWS[row].astype(np.float32)[None, :, None], (2, 1, 3))
    for topk in (1, 8, 16, 64):
        valid = np.array([scores.shape[1], 2, 0])
        got = kvscout.msa_topk_select(world.array(scores), topk, world.int32(valid), None, 1, 0 if topk == 1 else 1,
                                      skip_masked=skip_masked)
        assert np.array_equal(world.host(got), oracle.select(scores, topk, valid, 1, 0 if topk == 1 else 1, skip_masked))


@pytest.mark.parametrize("layout", list(kvscout.SfLayout))
def test_quantize(world, rng, layout):
    x = (rng.standard_normal((5, 3, 64)) * np.exp(rng.standard_normal((5, 3, 1)) * 3)).astype(np.float32)
    x[0, 0, :16] = 0
    x[1, 1, 3] = np.nan
    x[1, 2, 16:32] = np.nan
    x[2, 0, 5] = -np.inf
    x[2, 1] = 0.0
    x[2, 1, 0] = -0.0
    codes, scales = kvscout.nvfp4_quantize(world.array(x), 3.0, layout)
    expected_codes, linear = oracle.quantize(x.reshape(15, 64), 3.0)
    assert np.array_equal(world.host(codes).reshape(15, 32), expected_codes)
    got = world.host(scales)
    assert got.shape == kvscout.scale_shape(15, 64, layout)
    if layout == kvscout.SfLayout.layout_128x4:
        got = oracle.unpack_scales(got, 128, 4)
        assert not got[15:].any()
        got = got[:15]
    elif layout == kvscout.SfLayout.layout_8x4:
        got = got.reshape(2, 1, 8, 4).transpose(0, 2, 1, 3).reshape(16, 4)
        assert not got[15:].any()
        got = got[:15]
    assert np.array_equal(got, linear)


def test_worked_block(world):
    x = np.array([[6, -6, 3, -3, 1.5, -1.5, 0.5, -0.5, 0, -0.0, 0.25, 0.75, 1.25, 2.5, 5, 4.9]])
    codes, scales = kvscout.nvfp4_quantize(world.array(x, "bfloat16"), 1, kvscout.SfLayout.layout_linear)
    assert world.host(codes).tobytes().hex().upper() == "F7D5B39180204266" and world.host(scales).tolist() == [[0x38]]


def test_quantize_strided_and_scale_on_the_device(world, rng):
    x = rng.standard_normal((6, 128)).astype(np.float32)
    plain = kvscout.nvfp4_quantize(world.array(x[::2, :64].copy()), 2.0)
    got = kvscout.nvfp4_quantize(world.array(x)[::2, :64], world.array(np.float32([2.0])))
    assert all(np.array_equal(world.host(a), world.host(b)) for a, b in zip(got, plain))
    y = rng.standard_normal((3, 5, 32)).astype(np.float32)
    turned = world.array(y).transpose(1, 0, 2) if world.name == "numpy" else world.array(y).transpose(0, 1)
    codes, scales = kvscout.nvfp4_quantize(turned, 2.0)
    plain = kvscout.nvfp4_quantize(world.array(y.transpose(1, 0, 2).copy()), 2.0)
    assert np.array_equal(world.host(codes), world.host(plain[0])) and codes.shape == (5, 3, 16)
    assert np.array_equal(world.host(scales), world.host(plain[1]))
    zero = kvscout.nvfp4_quantize(world.array(x), world.array(np.float32([0.0])))
    assert not world.host(zero[0]).any() and not world.host(zero[1]).any()


def test_global_scale_of(world, rng):
    x = rng.standard_normal((7, 16)).astype(np.float32)
    x[0, 0], x[1, 1] = -9.0, np.nan
    assert float(kvscout.global_scale_of(world.array(x))) == np.float32(2688) / np.float32(9)
    assert float(kvscout.global_scale_of(world.array(x * 0 + np.nan))) == np.float32(2688) / np.float32(1e-12)


def test_append(world, rng):
    pages, heads = 4, 2
    pool = world.array(np.full((pages, heads * 9216), 0xEE, np.uint8))
    codes, scales = pool[:, : heads * 8192].reshape(pages, heads, 128, 64) if world.name == "numpy" else None, None
    if world.name == "numpy":
        codes = np.lib.stride_tricks.as_strided(pool, (pages, heads, 128, 64), (heads * 9216, 8192, 64, 1))
    else:
        codes = pool.as_strided((pages, heads, 128, 64), (heads * 9216, 8192, 64, 1))
    scales = pool[:, heads * 8192 :]
    k = rng.standard_normal((7, heads, 128)).astype(np.float32)
    slots = np.array([5, -1, 300, 128 * 4 + 3, 127], np.int64)  # one skipped, one beyond the pool
    kvscout.msa_index_append_fp4(world.array(k), codes, scales, world.array(slots), 700.0)
    expected_codes, linear = oracle.quantize(k.reshape(-1, 128), 700.0)
    expected_codes = expected_codes.reshape(7, heads, 64)
    got, got_scales = world.host(codes), world.host(scales)
    written = np.zeros((pages, heads, 128), bool)
    for n, slot in enumerate(slots):
        if 0 <= slot < pages * 128:
            page, position = divmod(int(slot), 128)
            written[page, :, position] = True
            assert np.array_equal(got[page, :, position], expected_codes[n])
            for h in range(heads):
                row = oracle.unpack_scales(got_scales[page, h * 1024 : h * 1024 + 1024], 128)[position]
                assert np.array_equal(row, linear[n * heads + h])
    assert (got[~written] == 0xEE).all()
    int32_slots = world.array(slots.astype(np.int32))
    kvscout.msa_index_append_fp4(world.array(k, "bfloat16"), codes, scales, int32_slots, world.array(np.float32([700.0])))
