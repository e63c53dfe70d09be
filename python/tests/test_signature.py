"""Names, order, defaults and keyword-only marks: the peer's, and as docs/operations.md writes them down."""

from __future__ import annotations

import inspect
import re
import typing

import pytest

import kvscout
from conftest import ROOT

# The peer's (flashinfer 0.7.2): what code written for it may rely on. That release has two more at the end of
# nvfp4_quantize, out_scale and nvfp4_4over6, which are not offered here.
PEER = {
    "nvfp4_quantize": "(a, a_global_sf, sfLayout=SfLayout.layout_128x4, do_shuffle=False, sf_vec_size=16, enable_pdl=None, "
    "backend='cuda', per_token_activation=False, expanded_idx_to_permuted_idx=None)",
    "msa_proxy_score_fp4": "(q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q, "
    "cu_seqlens_k=None, *, page_table=None, seqused_k=None, causal=True, max_seqlen_q=None, max_k_tiles=None, "
    "output=None, reduce_heads=False, q_offset=None)",
    "msa_proxy_score": "(q, k, cu_seqlens_q, cu_seqlens_k=None, *, page_table=None, seqused_k=None, causal=True, "
    "max_seqlen_q=None, max_k_tiles=None, output=None, reduce_heads=False, q_offset=None)",
    "msa_topk_select": "(max_score, topk, num_valid_pages=None, output=None, force_begin_blocks=0, force_end_blocks=0)",
}
# Ours beyond the peer's: keyword-only, with a default that changes nothing.
OURS = {
    "msa_proxy_score_fp4": "kv_block_start=0, kv_block_step=1",
    "msa_proxy_score": "use_fp32_acc=True, kv_block_start=0, kv_block_step=1",
    "msa_topk_select": "skip_masked=False",
}


def documented() -> dict[str, str]:
    """The signatures of docs/operations.md, in the spelling of `written`."""
    text = (ROOT / "docs" / "operations.md").read_text()
    found = {}
    for name, arguments in re.findall(r"^    (\w+)(\([^)]*\))", text, re.M):
        if name in kvscout.__all__:
            found[name] = re.sub(r"\s+", " ", arguments).replace('"', "'")
    return found


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


@pytest.mark.parametrize("name", PEER)
def test_the_peer_signature_and_what_is_added_to_it(name):
    ours, peer = written(getattr(kvscout, name)), PEER[name]
    if name in OURS:
        peer = peer[:-1] + (", " if "*" in peer else ", *, ") + OURS[name] + ")"
    assert ours == peer


@pytest.mark.parametrize("name", ["nvfp4_quantize", "msa_proxy_score_fp4", "msa_topk_select", "msa_index_append_fp4"])
def test_the_documented_signature(name):
    assert written(getattr(kvscout, name)) == documented()[name]


@pytest.mark.parametrize("name,beyond", [("msa_index_select_fp4", None), ("msa_index_select_fp4_workspace", 3)])
def test_index_takes_the_arguments_of_the_score(name, beyond):
    """Those of the score but its output, then the rule of the selection; the size query has no outputs."""
    of = lambda n: inspect.signature(getattr(kvscout, n)).parameters  # noqa: E731
    score, index = of("msa_proxy_score_fp4"), of(name)
    for argument, p in score.items():
        if argument != "output":
            assert index[argument] == p
    assert all(p.kind is p.KEYWORD_ONLY for n, p in index.items() if n not in score)
    added = ", ".join(f"{n}={p.default!r}" for n, p in index.items() if n not in score or n == "output")
    told = documented()["msa_index_select_fp4"].removeprefix("(..., ").removesuffix(")").split(", ")
    assert added == ", ".join(told[:beyond])


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
