"""Which blocks: from scores, or from queries and keys in one call. Letters of shapes as in score.py.
"""

from __future__ import annotations

from typing import Any, Literal

from . import _library as library
from ._arrays import kind_of
from ._call import Array, Scale, mode_of, plain, query, require_shape, resolve_bounds, result_heads, run, topk_columns


def msa_topk_select(
    max_score: Array,
    topk: int,
    num_valid_pages: int | Array | None = None,
    output: Array | None = None,
    force_begin_blocks: int = 0,
    force_end_blocks: int = 0,
    *,
    skip_masked: bool = False,
) -> Array:
    """The best blocks of every token and head, exactly and deterministically.

    Of the first n = clamp(num_valid_pages, 0, P) blocks of a token, the first force_begin_blocks and the last
    force_end_blocks are always chosen, the rest by score: larger first, ties to the lower block, -0.0 equals
    +0.0, NaN below -inf. The ids come in ascending order, then -1.

    Args:
        max_score: float32 (H heads, P blocks, Tq query tokens), any strides.
        topk: 1 to 64.
        num_valid_pages: None (P), int, or int32 (Tq).
        output: int32 (Tq, H, topk), any strides without overlap.
        force_begin_blocks, force_end_blocks: at least 0, together at most topk.
        skip_masked: blocks of -inf (or NaN) are not chosen unless forced.

    Returns:
        int32 (Tq, H, topk): min(topk, n) distinct ascending ids, then -1. `output` if given.

    Raises:
        ValueError: an illegal argument, named with what came and what was expected.
        RuntimeError: no back end for the device.
    """
    op = "msa_topk_select"
    kind = kind_of(max_score, "msa_topk_select: max_score")
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.select(max_score, topk, num_valid_pages, output, force_begin_blocks, force_end_blocks,
                                 skip_masked)
    made = None
    if output is None:
        heads, _, tokens = require_shape(op, "max_score", max_score, (3,), "(heads, blocks, query tokens)")
        made = output = kind.empty(max_score, (tokens, heads, topk_columns(topk)), "int32")
    run(op, (max_score, topk, num_valid_pages, output, force_begin_blocks, force_end_blocks, bool(skip_masked),
             kind.stream(max_score)), kind, max_score)
    return output if made is None else kind.finish(made, max_score)


def msa_index_select_fp4(
    q_fp4: Array,
    k_fp4: Array,
    q_scale: Array | None,
    k_scale: Array,
    q_global_scale: Scale,
    k_global_scale: Scale,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array | None = None,
    *,
    page_table: Array | None = None,
    seqused_k: Array | None = None,
    causal: bool = True,
    max_seqlen_q: int | None = None,
    max_k_tiles: int | None = None,
    reduce_heads: bool | Literal["kv_group"] = False,
    q_offset: int | Array | None = None,
    topk: int = 16,
    force_begin_blocks: int = 0,
    force_end_blocks: int = 0,
    output: Array | None = None,
    return_scores: bool = False,
    workspace: Array | None = None,
    kv_block_start: int = 0,
    kv_block_step: int = 1,
) -> Array | tuple[Array, Array]:
    """Score and selection in one call, without a score buffer in memory.

    To the bit msa_topk_select(msa_proxy_score_fp4(...), topk, n, ...) with n = min(ceil(limit/128),
    max_k_tiles) for each token, limit being the keys it sees. Rows that belong to no request are -1.
    `msa_proxy_score_fp4` explains the shapes' letters.

    Args:
        topk, force_begin_blocks, force_end_blocks: as in `msa_topk_select`.
        output: int32 (Tq, H', topk), any strides without overlap; H' is Hq, 1 or Hkv (reduce_heads).
        return_scores: also return the scores of the chosen blocks.
        workspace: uint8 on the device of the data, 256-byte aligned, any content, at least
            `msa_index_select_fp4_workspace(...)` bytes; it serves one stream at a time. None: allocated.
        kv_block_start, kv_block_step: ids are column numbers n of blocks start + n*step.
        The rest as in `msa_proxy_score_fp4`.

    Returns:
        ids int32 (Tq, H', topk), ascending, then -1; with return_scores also float32 scores of that shape,
        -inf beside -1.

    Raises:
        ValueError: an illegal argument, named with what came and what was expected.
        RuntimeError: no back end for the device.

    With output, both bounds and workspace given the call allocates nothing and waits for nothing on a GPU; it
    runs on the current stream and may be captured and replayed with other lengths.
    """
    op = "msa_index_select_fp4"
    kind = kind_of(q_fp4, "msa_index_select_fp4: q_fp4")
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.index(q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q,
                                cu_seqlens_k, page_table, seqused_k, causal, max_seqlen_q, max_k_tiles, reduce_heads,
                                q_offset, topk, force_begin_blocks, force_end_blocks, output, return_scores, workspace,
                                kv_block_start, kv_block_step)
    if (output is not None and not return_scores and max_seqlen_q is not None and max_k_tiles is not None and kind.direct
            and q_offset is None and kv_block_start == 0 and kv_block_step == 1):
        # The call of every decode step, with everything given: one tuple, straight to the binding.
        run(op, (q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q, cu_seqlens_k, page_table,
                 seqused_k, mode_of(op, causal, reduce_heads), max_seqlen_q, max_k_tiles, topk, force_begin_blocks,
                 force_end_blocks, output, None, workspace), kind, q_fp4)
        return output
    made = scores = None
    if output is None or return_scores:
        heads, tokens = result_heads(op, mode_of(op, True, reduce_heads), "q_fp4", q_fp4, "k_fp4", k_fp4)
        shape = (tokens, heads, topk_columns(topk))
        if output is None:
            made = output = kind.empty(q_fp4, shape, "int32")
        if return_scores:
            scores = kind.empty(q_fp4, shape, "float32")
    _index_into(q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q, cu_seqlens_k, page_table,
                seqused_k, causal, max_seqlen_q, max_k_tiles, reduce_heads, q_offset, topk, force_begin_blocks,
                force_end_blocks, kv_block_start, kv_block_step, output, scores, workspace)
    ids = output if made is None else kind.finish(made, q_fp4)
    return (ids, kind.finish(scores, q_fp4)) if return_scores else ids


def _index_into(*args: Any) -> None:
    """`msa_index_select_fp4` into arrays that are there: its arguments, then output, scores, workspace."""
    *question, output, scores, workspace = args
    kind = kind_of(args[0])
    known, rare = _index_arguments(kind, *question)
    run("msa_index_select_fp4", (*known, output, scores, workspace, *rare), kind, args[0])


def _index_arguments(kind: Any, q_fp4: Array, k_fp4: Array, q_scale: Any, k_scale: Array, q_global_scale: Scale,
                     k_global_scale: Scale, cu_seqlens_q: Array, cu_seqlens_k: Any, page_table: Any, seqused_k: Any,
                     causal: bool, max_seqlen_q: Any, max_k_tiles: Any, reduce_heads: Any, q_offset: Any, topk: int,
                     force_begin_blocks: int, force_end_blocks: int, kv_block_start: int,
                     kv_block_step: int) -> tuple[tuple, tuple]:
    """The binding's arguments before the output, and the rare ones after it."""
    op = "msa_index_select_fp4"
    data: tuple = (q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale)
    rare: tuple = (q_offset, kv_block_start, kv_block_step)
    if not kind.direct:
        data, rare = plain(op, kind, data, rare)
    requests = (cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, mode_of(op, causal, reduce_heads), max_seqlen_q,
                max_k_tiles)
    if max_seqlen_q is None or max_k_tiles is None:
        requests = resolve_bounds(op, data, requests, rare, kind, q_fp4)
    return (*data, *requests, topk, force_begin_blocks, force_end_blocks), rare


def msa_index_select_fp4_workspace(
    q_fp4: Array,
    k_fp4: Array,
    q_scale: Array | None,
    k_scale: Array,
    q_global_scale: Scale,
    k_global_scale: Scale,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array | None = None,
    *,
    page_table: Array | None = None,
    seqused_k: Array | None = None,
    causal: bool = True,
    max_seqlen_q: int | None = None,
    max_k_tiles: int | None = None,
    reduce_heads: bool | Literal["kv_group"] = False,
    q_offset: int | Array | None = None,
    topk: int = 16,
    force_begin_blocks: int = 0,
    force_end_blocks: int = 0,
    kv_block_start: int = 0,
    kv_block_step: int = 1,
) -> int:
    """Bytes of workspace that `msa_index_select_fp4` needs for these arguments.

    A function of shapes and bounds, never of lengths: ask once, with the bounds of a captured graph. Bounds that
    are None are derived from the lengths, as there.
    """
    op = "msa_index_select_fp4"
    kind = kind_of(q_fp4, "msa_index_select_fp4: q_fp4")
    known, rare = _index_arguments(
        kind, q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q, cu_seqlens_k, page_table,
        seqused_k, causal, max_seqlen_q, max_k_tiles, reduce_heads, q_offset, topk, force_begin_blocks,
        force_end_blocks, kv_block_start, kv_block_step)
    return query(op, library.msa_index_select_fp4_workspace, (*known, None, None, None, *rare), kind, q_fp4)
