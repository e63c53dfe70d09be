"""Files whose results were made without any code of ours (tests/golden/README.md)."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors import safe_open

import kvscout
import oracle
from conftest import GOLDEN

SCORES = sorted(p.name for p in GOLDEN.glob("*.safetensors") if not p.name.startswith("quantize"))


def load(name):
    with safe_open(GOLDEN / name, "np") as f:
        return {k: f.get_tensor(k) for k in f.keys()}, f.metadata()


def test_the_golden_files_are_there():
    assert len(SCORES) >= 15


@pytest.mark.parametrize("name", SCORES)
def test_scores(world, name):
    data, meta = load(name)
    keywords = {k: data[k] for k in ("cu_seqlens_k", "page_table", "seqused_k") if k in data}
    options = {"causal": meta["causal"] == "1"}
    if meta.get("reduce_heads", "none") != "none":
        options["reduce_heads"] = True if meta["reduce_heads"] == "all" else "kv_group"
    if "q_offset" in data:
        options["q_offset"] = data["q_offset"]
    elif "q_offset" in meta:
        options["q_offset"] = int(meta["q_offset"])
    expected, scales = data["expected"], (float(meta["q_global_scale"]), float(meta["k_global_scale"]))
    arguments = [world.array(data[k]) for k in ("q_fp4", "k_fp4", "q_scale", "k_scale")]
    got = kvscout.msa_proxy_score_fp4(
        *arguments, *scales, world.array(data["cu_seqlens_q"]), **{k: world.array(v) for k, v in keywords.items()},
        max_k_tiles=expected.shape[1],
        **{k: world.array(v) if isinstance(v, np.ndarray) else v for k, v in options.items()})
    q, k = oracle.dequantize(data["q_fp4"], data["q_scale"]), oracle.dequantize(data["k_fp4"], data["k_scale"])
    keywords = {{"cu_seqlens_k": "cu_k"}.get(n, n): v for n, v in keywords.items()}
    exact, size, _ = oracle.score(q, k, data["cu_seqlens_q"], **keywords, tiles=expected.shape[1], **options)
    product = float(np.float32(scales[0]) * np.float32(scales[1]))
    oracle.assert_scores(world.host(got), exact, size, world.tolerance, product)
    slack = 4e-7 * product * size  # the float32 references round, too
    oracle.assert_scores(world.host(got), expected.astype(np.float64), size + slack / world.tolerance, world.tolerance)

    if "expected_ids" in data:
        rule = dict(topk=int(meta["topk"]), force_begin_blocks=int(meta["force_begin_blocks"]),
                    force_end_blocks=int(meta["force_end_blocks"]))
        ids = kvscout.msa_topk_select(got, num_valid_pages=world.array(data["num_valid_pages"]), **rule)
        assert np.array_equal(world.host(ids), data["expected_ids"])


@pytest.mark.parametrize("name,dtype", [("quantize_bf16", "bfloat16"), ("quantize_fp16", "float16")])
def test_quantize(world, name, dtype):
    import ml_dtypes

    data, meta = load(name + ".safetensors")
    x = data["x"].view(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    scale = float(meta["global_scale"])
    codes, scales = kvscout.nvfp4_quantize(world.array(x), scale)
    _, linear = kvscout.nvfp4_quantize(world.array(x), scale, kvscout.SfLayout.layout_linear)
    assert np.array_equal(world.host(scales).reshape(-1), data["scale_128x4"])
    assert np.array_equal(world.host(linear), data["scale_linear"])
    expected = data["packed"].copy()
    minus_zero = (x.astype(np.float32) == 0) & np.signbit(x.astype(np.float32))  # the reference drops the sign
    assert minus_zero[9, 9]
    expected[minus_zero[:, 0::2]] |= 0x08
    expected[minus_zero[:, 1::2]] |= 0x80
    assert np.array_equal(world.host(codes), expected)
