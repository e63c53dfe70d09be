"""One clear error before anything is written: operation, argument, what came, what was expected."""

from __future__ import annotations

import numpy as np
import pytest

import kvscout
import problems
from conftest import World

W = World("numpy")


@pytest.fixture
def problem(rng):
    return problems.make(rng, [2, 3], [300, 500])


def refused(problem, world, match, **changes):
    options = {k: v for k, v in changes.items() if not hasattr(problem, k)}
    for name, value in changes.items():
        if hasattr(problem, name):
            setattr(problem, name, value)
        elif name in problem.keywords:
            problem.keywords[name] = options.pop(name)
    shape = (4, 4, 5)
    options.setdefault("max_seqlen_q", 3)
    if "output" not in options:
        options["output"] = world.array(np.full(shape, 7, np.float32))
        options.setdefault("max_k_tiles", 4)
    with pytest.raises(ValueError, match=match) as error:
        problem.keywords = {k: v for k, v in problem.keywords.items() if v is not None}
        problem.call(kvscout.msa_proxy_score_fp4, world, **options)
    assert str(error.value).startswith("msa_proxy_score_fp4: ") and "\n" not in str(error.value)
    output = options["output"]
    if tuple(getattr(output, "shape", ())) == shape:
        assert (world.host(output) == 7).all(), "written in spite of the error"


CASES = {
    "dtype of codes": dict(match="q_fp4", q_fp4=np.zeros((5, 4, 64), np.int32)),
    "float page table": dict(match="page_table", page_table=np.zeros((2, 5), np.float32)),
    "rank": dict(match="q_fp4", q_fp4=np.zeros((5, 64), np.uint8)),
    "head dimension": dict(match="q_fp4.*64", q_fp4=np.zeros((5, 4, 32), np.uint8)),
    "heads no multiple": dict(match="q_fp4.*heads", k_fp4=np.zeros((20, 3, 128, 64), np.uint8), k_scale=np.zeros(20 * 3072, np.uint8)),
    "paged without seqused_k": dict(match="seqused_k", seqused_k=None),
    "flat without cu_seqlens_k": dict(match="cu_seqlens_k", page_table=None, k_fp4=np.zeros((800, 1, 64), np.uint8)),
    "more lengths than requests": dict(match=r"seqused_k.*\(8\).*2", seqused_k=np.zeros(8, np.int32)),
    "page table of another batch": dict(match="page_table", page_table=np.zeros((3, 4), np.int32)),
    "offsets of another batch": dict(match="q_offset", q_offset=np.zeros(3, np.int32)),
    "pages of 64 tokens": dict(match="128", k_fp4=np.zeros((20, 1, 64, 64), np.uint8)),
    "pages of 256 tokens": dict(match="128", k_fp4=np.zeros((20, 1, 256, 64), np.uint8)),
    "short k_scale": dict(match="k_scale.*bytes", k_scale=np.zeros(1000, np.uint8)),
    "linear q_scale": dict(match="q_scale.*1024", q_scale=np.zeros(5 * 4 * 8, np.uint8)),
    "output shape": dict(match="output", output=np.zeros((4, 4, 6), np.float32)),
    "output heads": dict(match="output", output=np.zeros((1, 4, 5), np.float32)),
    "output dtype": dict(match="output", output=np.full((4, 4, 5), 7, np.float64)),
    "output overlaps": dict(match="output"),
    "too few queries a request": dict(match="max_seqlen_q.*3", max_seqlen_q=2),
    "negative bound": dict(match="max_k_tiles", max_k_tiles=-1, output=None),
    "global scale 0": dict(match="q_global_scale", q_global_scale=0.0),
    "global scale nan": dict(match="q_global_scale", q_global_scale=float("nan")),
    "global scales underflow": dict(match="underflow", q_global_scale=1e-30, k_global_scale=1e-30),
    "reduce": dict(match="reduce_heads", reduce_heads="heads"),
    "block step": dict(match="kv_block_step", kv_block_step=0),
    "rank-5 keys": dict(match="k_fp4", k_fp4=np.zeros((1, 20, 1, 128, 64), np.uint8)),
    "a string for an array": dict(match="q_offset", q_offset="3"),
    "unsigned lengths": dict(match="cu_seqlens_q: got uint32 elements, expected int32 or int64", cu_seqlens_q=np.zeros(3, np.uint32)),
    "lengths of bools": dict(match="seqused_k: got bool elements, expected int32 or int64", seqused_k=np.ones(2, np.bool_)),
    "scale of doubles": dict(match="k_global_scale: got float64 elements, expected a number or one float32", k_global_scale=np.ones(1)),
    "two scales": dict(match="k_global_scale: got 2 elements of type f32", k_global_scale=np.ones(2, np.float32)),
    "a list for an output": dict(match="output: got list, expected", output=[[[1.0]]], max_k_tiles=None),
}


@pytest.mark.parametrize("case", CASES)
def test_msa_proxy_score_fp4(world, problem, case):
    changes = dict(CASES[case])
    match = changes.pop("match")
    if case == "too few queries a request" and world.name == "cuda":  # its lengths are not read: -inf, no error
        got = world.host(problem.call(kvscout.msa_proxy_score_fp4, world, max_seqlen_q=2, max_k_tiles=4))
        assert np.isneginf(got[:, :, 4]).all() and np.isfinite(got[:, 0, :4]).all()
        return
    if case == "output overlaps":
        if world.name != "numpy":
            changes["output"] = (world.empty((4, 1, 5)) + 7).expand(4, 4, 5)
        else:
            changes["output"] = np.lib.stride_tricks.as_strided(np.full((4, 1, 5), 7, np.float32), (4, 4, 5), (20, 0, 4))
    changes = {k: world.array(v) if isinstance(v, np.ndarray) and not hasattr(problem, k) and k not in problem.keywords
               else v for k, v in changes.items()}
    refused(problem, world, match, **changes)


def test_arrays_in_foreign_byte_order(problem):
    swapped = lambda x: x.astype(x.dtype.newbyteorder())  # noqa: E731
    refused(problem, W, "cu_seqlens_q: got ndarray .>i4 elements of foreign byte order., expected", cu_seqlens_q=swapped(problem.cu_seqlens_q))
    with pytest.raises(ValueError, match="nvfp4_quantize: a: got ndarray .>f4 elements"):
        kvscout.nvfp4_quantize(swapped(np.ones((4, 32), np.float32)), 1.0)
    with pytest.raises(ValueError, match="msa_topk_select: output: got ndarray .>i4 elements"):
        kvscout.msa_topk_select(np.ones((1, 3, 1), np.float32), 2, output=swapped(np.ones((1, 1, 2), np.int32)))


@pytest.mark.parametrize("call", [
    lambda x: kvscout.nvfp4_quantize(x, 1.0), lambda x: kvscout.msa_proxy_score_fp4(x, *[x] * 6), lambda x: kvscout.msa_topk_select(x, 1),
    lambda x: kvscout.msa_proxy_score(x, x, x), lambda x: kvscout.msa_index_select_fp4(x, *[x] * 6),
    lambda x: kvscout.msa_index_append_fp4(x, *[x] * 4), kvscout.global_scale_of])
def test_what_is_no_array(call):
    for x in ([[[1.0]]], None, "abc"):
        with pytest.raises(ValueError, match=r"^\w+: \w+: got \w+, expected an array"):
            call(x)


def test_a_workspace_that_is_not_one_piece_of_memory(world, problem):
    """Its bytes are written one after the other: a view with other strides would have others' bytes overwritten."""
    inputs = (*[world.array(x) for x in (problem.q_fp4, problem.k_fp4, problem.q_scale, problem.k_scale)], 0.5, 0.25,
              world.array(problem.cu_seqlens_q))
    keywords = {k: world.array(v) for k, v in problem.keywords.items()}
    needed = kvscout.msa_index_select_fp4_workspace(*inputs, **keywords)
    size = max(needed, 256)
    memory = world.empty(3 * size + 512, "uint8")
    address = memory.ctypes.data if world.name == "numpy" else memory.data_ptr()
    memory = memory[-address % 256 :]
    views = {"strides": memory[: 2 * size : 2]}
    if world.name == "numpy":
        views["order"] = memory[size // 256 * 256 :: -1]
    for view in views.values():
        with pytest.raises(ValueError, match="msa_index_select_fp4: workspace: got a strided array, expected contiguous"):
            kvscout.msa_index_select_fp4(*inputs, **keywords, workspace=view)
    assert not memory.any()
    if world.name == "cuda":
        with pytest.raises(ValueError, match="workspace: got memory on another device"):
            kvscout.msa_index_select_fp4(*inputs, **keywords, workspace=memory.cpu())
    plain = kvscout.msa_index_select_fp4(*inputs, **keywords)
    assert (kvscout.msa_index_select_fp4(*inputs, **keywords, workspace=memory[:size]) == plain).all()


@pytest.mark.parametrize("changes,match", [
    (dict(topk=None), "topk: got nothing"), (dict(topk="3"), "topk: got a string"), (dict(topk=3.0), "topk: got a float"),
    (dict(topk=0), "topk"), (dict(topk=65), "topk"), (dict(topk=2**32 + 1), "topk"), (dict(force_begin_blocks=-1), "force_begin"),
    (dict(force_begin_blocks=9, force_end_blocks=8), "force_begin_blocks"), (dict(num_valid_pages=np.zeros(3, np.int32)), "num_valid"),
    (dict(output=np.zeros((5, 2, 15), np.int32)), "output"), (dict(output=np.zeros((5, 2, 16), np.int64)), "output")])
def test_msa_topk_select(world, changes, match):
    changes = {k: world.array(v) if isinstance(v, np.ndarray) else v for k, v in changes.items()}
    with pytest.raises(ValueError, match="msa_topk_select: .*" + match):
        kvscout.msa_topk_select(world.empty((2, 30, 5)), **{"topk": 16, **changes})


@pytest.mark.parametrize("changes,match", [
    (dict(do_shuffle=True), "do_shuffle"), (dict(per_token_activation=True), "per_token_activation"),
    (dict(expanded_idx_to_permuted_idx=np.zeros(3)), "expanded_idx"), (dict(sf_vec_size=32), "sf_vec_size"),
    (dict(a_global_sf=0.0), "a_global_sf"), (dict(a_global_sf=-1.0), "a_global_sf"), (dict(a_global_sf=float("inf")), "a_global_sf"),
    (dict(sfLayout=3), "sfLayout"), (dict(a=np.zeros((4, 24), np.float32)), "multiple of 16"), (dict(a=np.zeros((4, 32), np.int32)), "a:"),
    (dict(a=np.zeros((4, 32), np.float64)), "a:")])
def test_nvfp4_quantize(world, changes, match):
    arguments = {"a": np.ones((4, 32), np.float32), "a_global_sf": 1.0, **changes}
    if isinstance(arguments["a"], np.ndarray):
        arguments["a"] = world.array(arguments["a"])
    with pytest.raises(ValueError, match="nvfp4_quantize: .*" + match):
        kvscout.nvfp4_quantize(**arguments)


@pytest.mark.parametrize("changes,match", [
    (dict(slot_mapping=np.zeros(5, np.int64)), "slot_mapping"), (dict(k=np.zeros((4, 2, 128), np.float32)), "k_cache_fp4"),
    (dict(k_cache_scale=np.zeros(1023, np.uint8)), "k_cache_scale"), (dict(global_scale=0), "global_scale"),
    (dict(slot_mapping=np.zeros(4, np.float32)), "slot_mapping")])
def test_msa_index_append_fp4(world, changes, match):
    arguments = dict(k=np.zeros((4, 1, 128), np.float32), k_cache_fp4=np.full((2, 1, 128, 64), 9, np.uint8),
                     k_cache_scale=np.zeros(2048, np.uint8), slot_mapping=np.arange(4), global_scale=1.0)
    arguments = {k: world.array(v) if isinstance(v, np.ndarray) else v for k, v in {**arguments, **changes}.items()}
    with pytest.raises(ValueError, match="msa_index_append_fp4: .*" + match):
        kvscout.msa_index_append_fp4(**arguments)
    assert (world.host(arguments["k_cache_fp4"]) == 9).all()


def test_msa_proxy_score_refuses_half_accumulation():
    with pytest.raises(ValueError, match="use_fp32_acc"):
        kvscout.msa_proxy_score(np.zeros((1, 1, 128), np.float16), np.zeros((1, 1, 128), np.float16), np.array([0, 1]),
                                np.array([0, 1]), use_fp32_acc=False)


def test_a_cpu_that_no_back_end_serves_is_a_runtime_error(problem, monkeypatch):
    monkeypatch.setenv("KVSCOUT_BACKEND", "nothing_of_that_name")
    with pytest.raises(RuntimeError, match="reference"):
        problem.call(kvscout.msa_proxy_score_fp4, W)


def test_checked_mode(problem, monkeypatch):
    monkeypatch.setenv("KVSCOUT_CHECK", "1")
    problem.call(kvscout.msa_proxy_score_fp4, W)
    problem.keywords["page_table"][1, 2] = 99
    with pytest.raises(ValueError, match="page 99 in column 2 of request 1"):
        problem.call(kvscout.msa_proxy_score_fp4, W)
