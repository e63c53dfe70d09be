"""Names, order, defaults and keyword-only marks, as the contract writes them down."""

from __future__ import annotations

import inspect
import typing

import pytest

import kvscout

SIGNATURES = {
    "nvfp4_quantize": "(a, a_global_sf, sfLayout=SfLayout.layout_128x4, do_shuffle=False, sf_vec_size=16, enable_pdl=None, "
    "backend='cuda', per_token_activation=False, expanded_idx_to_permuted_idx=None)",
    "msa_proxy_score_fp4": "(q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q, "
    "cu_seqlens_k=None, *, page_table=None, seqused_k=None, causal=True, max_seqlen_q=None, max_k_tiles=None, "
    "output=None, reduce_heads=False, q_offset=None, kv_block_start=0, kv_block_step=1)",
    "msa_proxy_score": "(q, k, cu_seqlens_q, cu_seqlens_k=None, *, page_table=None, seqused_k=None, causal=True, "
    "max_seqlen_q=None, max_k_tiles=None, output=None, reduce_heads=False, q_offset=None, use_fp32_acc=True, "
    "kv_block_start=0, kv_block_step=1)",
    "msa_topk_select": "(max_score, topk, num_valid_pages=None, output=None, force_begin_blocks=0, force_end_blocks=0, *, "
    "skip_masked=False)",
    "msa_index_select_fp4": "(q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q, "
    "cu_seqlens_k=None, *, page_table=None, seqused_k=None, causal=True, max_seqlen_q=None, max_k_tiles=None, "
    "reduce_heads=False, q_offset=None, topk=16, force_begin_blocks=0, force_end_blocks=0, output=None, "
    "return_scores=False, workspace=None, kv_block_start=0, kv_block_step=1)",
    "msa_index_append_fp4": "(k, k_cache_fp4, k_cache_scale, slot_mapping, global_scale)",
}


def written(function) -> str:
    parts, marked = [], False
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and not marked:
            parts.append("*")
            marked = True
        default = p.default
        text = f"SfLayout.{default.name}" if isinstance(default, kvscout.SfLayout) else repr(default)
        parts.append(p.name if default is p.empty else f"{p.name}={text}")
    return "(" + ", ".join(parts) + ")"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    assert written(getattr(kvscout, name)) == SIGNATURES[name]


@pytest.mark.parametrize("name", kvscout.__all__)
def test_documented_and_typed(name):
    thing = getattr(kvscout, name)
    assert inspect.getdoc(thing)
    if inspect.isfunction(thing):
        hints = typing.get_type_hints(thing)
        assert set(inspect.signature(thing).parameters) <= set(hints) and "return" in hints
        if name.startswith(("msa_", "nvfp4")) and not name.endswith("workspace"):
            assert "Args:" in thing.__doc__ and "ValueError" in thing.__doc__


def test_sf_layout_values():
    assert [(m.name, int(m)) for m in kvscout.SfLayout] == [
        ("layout_128x4", 0), ("layout_8x4", 1), ("layout_linear", 2)]
