"""The operations: names, arguments and results of `flashinfer.msa_ops`, on torch, numpy and any DLPack array.

Shapes use B requests, Hq query heads, Hkv key heads (Hq a multiple of Hkv), Tq query tokens, Tk key tokens,
P pages of 128 tokens; the head dimension is 128, so a packed row is 64 bytes. docs/operations.md holds the
contract, to the byte. Illegal arguments raise ValueError before anything is written; RuntimeError means that
no back end runs on the device, or that the device failed.
"""

from __future__ import annotations

import enum
import math
from typing import Any, Literal

from . import _library as library
from ._arrays import kind_of, typed
from ._call import NAMES, mode_of, query, resolve_bounds, run

Array = Any  # torch.Tensor, numpy.ndarray, or any array with __dlpack__
Scale = Any  # a number, or a one-element float32 array on the device of the data


class SfLayout(enum.IntEnum):
    """Where the bytes of block scales lie."""

    layout_128x4 = 0  # tiles of 128 rows x 4 groups: tensor cores and every consumer here
    layout_8x4 = 1
    layout_linear = 2


def _shape(operation: str, name: str, x: Array, ranks: tuple[int, ...], expected: str) -> tuple[int, ...]:
    shape = tuple(x.shape)
    if len(shape) not in ranks:
        raise ValueError(f"{operation}: {name}: got shape {shape}, expected {expected}")
    return shape


def _result_heads(operation: str, mode: int, q_name: str, q: Array, k_name: str, k: Array) -> tuple[int, int]:
    """(heads of a result, query tokens)."""
    tokens, heads, _ = _shape(operation, q_name, q, (3,), "(query tokens, query heads, row)")
    reduce = mode >> 1
    if reduce == 1:
        heads = 1
    elif reduce == 2:
        heads = _shape(operation, k_name, k, (3, 4), "(tokens, key heads, row) or (pages, key heads, 128, row)")[1]
    return heads, tokens


def nvfp4_quantize(
    a: Array,
    a_global_sf: Scale,
    sfLayout: SfLayout = SfLayout.layout_128x4,
    do_shuffle: bool = False,
    sf_vec_size: int = 16,
    enable_pdl: bool | None = None,
    backend: str = "cuda",
    per_token_activation: bool = False,
    expanded_idx_to_permuted_idx: Array | None = None,
) -> tuple[Array, Array]:
    """Quantises rows to NVFP4: 4-bit e2m1 codes, one e4m3 scale byte for 16 elements.

    value = e2m1(code) * e4m3(scale) / a_global_sf. All steps are IEEE float32, rounded to nearest even, so
    every machine gives the same bytes: scale = e4m3(a_global_sf * (amax * 1/6)), code = e2m1(x / (scale /
    a_global_sf)), ties to the even code. NaN elements become code 7 and do not count in amax.

    Args:
        a: float32, float16 or bfloat16 (..., K), K a multiple of 16; leading dimensions count as M rows.
        a_global_sf: the *forward* scale, 2688 / amax(a) (see `global_scale_of`): a number or one float32.
            Consumers take the inverse, 1 / a_global_sf.
        sfLayout: where scale bytes lie. `layout_128x4` pads to 128 rows and 4 groups, `layout_8x4` to 8
            rows and 4 groups; padding is 0.
        do_shuffle, per_token_activation, expanded_idx_to_permuted_idx: refused unless at their defaults.
        sf_vec_size: 16.
        enable_pdl, backend: accepted, without influence on the result.

    Returns:
        codes uint8 (..., K/2), low nibble first; scales uint8 (padded rows, padded groups).

    Raises:
        ValueError: dtype, shape, or a_global_sf <= 0 or not finite (when it is a number).
    """
    op = "nvfp4_quantize"
    for name, value, only in (("do_shuffle", do_shuffle, False), ("sf_vec_size", sf_vec_size, 16),
                              ("per_token_activation", per_token_activation, False),
                              ("expanded_idx_to_permuted_idx", expanded_idx_to_permuted_idx, None)):
        if value is not only and (only is None or value != only):
            raise ValueError(f"{op}: {name}: got {value!r}, expected {only!r}, the one that is supported")
    if sfLayout not in (0, 1, 2):
        raise ValueError(f"{op}: sfLayout: got {sfLayout!r}, expected a member of SfLayout")
    kind = kind_of(a)
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.quantize(a, a_global_sf, int(sfLayout))
    *leading, columns = tuple(a.shape) or (0,)
    if columns < 16 or columns % 16:
        raise ValueError(f"{op}: a: got shape {tuple(a.shape)}, expected a last dimension that is a multiple of 16")
    codes = kind.empty(a, (*leading, columns // 2), "uint8")
    scales = kind.empty(a, scale_shape(math.prod(leading), columns, sfLayout), "uint8")
    data, code = typed(a)
    run(op, (data, a_global_sf, int(sfLayout), codes, scales, code, kind.stream(a)), kind, a)
    return kind.finish(codes, a), kind.finish(scales, a)


def scale_shape(rows: int, columns: int, layout: SfLayout = SfLayout.layout_128x4) -> tuple[int, int]:
    """The shape of the scale bytes of (rows, columns) elements, padding included."""
    groups = columns // 16
    if layout == SfLayout.layout_linear:
        return rows, groups
    tile = 128 if layout == SfLayout.layout_128x4 else 8
    return -(-rows // tile) * tile, -(-groups // 4) * 4


def msa_proxy_score_fp4(
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
    output: Array | None = None,
    reduce_heads: bool | Literal["kv_group"] = False,
    q_offset: int | Array | None = None,
    kv_block_start: int = 0,
    kv_block_step: int = 1,
) -> Array:
    """The largest logit of each block of 128 keys, from NVFP4 queries and keys.

    out[h, t, token] = q_global_scale * k_global_scale * max of <q, k_j> over the visible keys j of block t;
    -inf where the query sees no key of the block. Query i of a request sees keys j < i + off + 1 with
    off = q_offset, or len_k - len_q by default (right-aligned); all keys when causal is False. No softmax
    scale. float32 accumulation.

    Args:
        q_fp4: uint8 (Tq, Hq, 64) codes, two elements a byte, low nibble first. Or bfloat16/float16
            (Tq, Hq, 128) with q_scale=None and q_global_scale=1: unquantised queries against NVFP4 keys.
        k_fp4: uint8 codes: flat (Tk, Hkv, 64) with cu_seqlens_k, or paged (P, Hkv, 128, 64) with page_table
            and seqused_k. Any strides whose rows of 64 bytes are contiguous.
        q_scale, k_scale: e4m3 bytes in the 128x4 layout; row token*Hq + head, token*Hkv + head, or
            (page*Hkv + head)*128 + slot. Paged k_scale also as a strided (P, Hkv*1024) view of a pool.
        q_global_scale, k_global_scale: inverse global scales (1 / what nvfp4_quantize was given).
        cu_seqlens_q, cu_seqlens_k: int32 (B+1), prefix sums of lengths.
        page_table, seqused_k: int32 (B, width), int32 (B). page_table selects paged keys.
        causal: mask keys after the query.
        max_seqlen_q, max_k_tiles: bounds on the queries of a request and on the blocks. None: derived from
            the lengths (one read of the device; ValueError while a CUDA graph is captured). max_k_tiles
            also comes from output. Too large costs time only.
        output: float32 of the result's shape, any strides without overlap (tiles innermost, too).
        reduce_heads: False: a score per query head. True: the maximum over all heads. "kv_group": the
            maximum over the heads of each key head.
        q_offset: None, int, or int32 (B): the position of the first query of a request among its keys.
        kv_block_start, kv_block_step: column n of the result is block start + n*step (context parallelism).

    Returns:
        float32 (Hq, max_k_tiles, Tq); (1, ...) or (Hkv, ...) with reduce_heads. `output` if given.

    Raises:
        ValueError: an illegal argument, named with what came and what was expected.
        RuntimeError: no back end for the device.

    With output and both bounds given the call allocates nothing and waits for nothing on a GPU; it runs on
    the current stream and may be captured and replayed with other lengths.
    """
    op = "msa_proxy_score_fp4"
    kind = kind_of(q_fp4)
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.score_fp4(q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q,
                                    cu_seqlens_k, page_table, seqused_k, causal, max_seqlen_q, max_k_tiles, output,
                                    reduce_heads, q_offset, kv_block_start, kv_block_step)
    rare = () if q_offset is None and kv_block_start == 0 and kv_block_step == 1 else (
        q_offset, kv_block_start, kv_block_step)
    return _score(op, kind, (q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale),
                  (cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, mode_of(op, causal, reduce_heads), max_seqlen_q,
                   max_k_tiles), output, rare)


def msa_proxy_score(
    q: Array,
    k: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array | None = None,
    *,
    page_table: Array | None = None,
    seqused_k: Array | None = None,
    causal: bool = True,
    max_seqlen_q: int | None = None,
    max_k_tiles: int | None = None,
    output: Array | None = None,
    reduce_heads: bool | Literal["kv_group"] = False,
    q_offset: int | Array | None = None,
    use_fp32_acc: bool = True,
    kv_block_start: int = 0,
    kv_block_step: int = 1,
) -> Array:
    """The largest logit of each block of 128 keys, in bfloat16, float16 or e4m3: the precision reference.

    As `msa_proxy_score_fp4` without scales: out[h, t, token] = max of <q, k_j> over the visible keys of block t.

    Args:
        q: bfloat16, float16 or float8_e4m3fn (Tq, Hq, 128).
        k: q's dtype or float8_e4m3fn: flat (Tk, Hkv, 128) or paged (P, Hkv, 128, 128). Beside e4m3 queries: e4m3.
        use_fp32_acc: True; accumulation is always float32, so False is refused.
        The rest as in `msa_proxy_score_fp4`.

    Returns:
        float32 (Hq, max_k_tiles, Tq); (1, ...) or (Hkv, ...) with reduce_heads. `output` if given.

    Raises:
        ValueError: an illegal argument. RuntimeError: no back end for the device.
    """
    op = "msa_proxy_score"
    if not use_fp32_acc:
        raise ValueError(f"{op}: use_fp32_acc: got {use_fp32_acc!r}, expected True: accumulation is always float32")
    kind = kind_of(q)
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.score(q, k, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, causal, max_seqlen_q,
                                max_k_tiles, output, reduce_heads, q_offset, kv_block_start, kv_block_step)
    return _score(op, kind, (q, k),
                  (cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, mode_of(op, causal, reduce_heads), max_seqlen_q,
                   max_k_tiles), output, (q_offset, kv_block_start, kv_block_step))


def _plain(kind: Any, data: tuple, rare: tuple) -> tuple[tuple, tuple]:
    """Data and the rare end of the arguments for arrays that do not go to the binding as they are."""
    (q, q_type), (k, k_type) = typed(data[0]), typed(data[1])
    return (q, k, *data[2:]), (*(rare or (None, 0, 1)), q_type, k_type, kind.stream(data[0]))


def _score(op: str, kind: Any, data: tuple, requests: tuple, output: Any, rare: tuple) -> Array:
    """What both scores share: bounds, the output, the call."""
    q, k = data[:2]
    if not kind.direct:
        data, rare = _plain(kind, data, rare)
    if requests[6] is None and output is not None:
        requests = (*requests[:6], _shape(op, "output", output, (3,), "(heads, max_k_tiles, query tokens)")[1])
    if requests[5] is None or requests[6] is None:
        requests = resolve_bounds(op, data, requests, rare, kind, q)
    if output is not None:
        run(op, (*data, *requests, output, None, *rare), kind, q)
        return output
    names = NAMES[op]
    heads, tokens = _result_heads(op, requests[4], names[0], q, names[1], k)
    made = kind.empty(q, (heads, max(int(requests[6]), 0), tokens), "float32")
    run(op, (*data, *requests, made, None, *rare), kind, q)
    return kind.finish(made, q)


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
        max_score: float32 (H, P, Tq), any strides.
        topk: 1 to 64.
        num_valid_pages: None (P), int, or int32 (Tq).
        output: int32 (Tq, H, topk), any strides without overlap.
        force_begin_blocks, force_end_blocks: at least 0, together at most topk.
        skip_masked: blocks of -inf (or NaN) are not chosen unless forced.

    Returns:
        int32 (Tq, H, topk): min(topk, n) distinct ascending ids, then -1. `output` if given.

    Raises:
        ValueError: an illegal argument. RuntimeError: no back end for the device.
    """
    op = "msa_topk_select"
    kind = kind_of(max_score)
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.select(max_score, topk, num_valid_pages, output, force_begin_blocks, force_end_blocks,
                                 skip_masked)
    made = None
    if output is None:
        heads, _, tokens = _shape(op, "max_score", max_score, (3,), "(heads, blocks, query tokens)")
        made = output = kind.empty(max_score, (tokens, heads, max(0, min(int(topk), 64))), "int32")
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
        ValueError: an illegal argument. RuntimeError: no back end for the device.
    """
    op = "msa_index_select_fp4"
    kind = kind_of(q_fp4)
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.index(q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q,
                                cu_seqlens_k, page_table, seqused_k, causal, max_seqlen_q, max_k_tiles, reduce_heads,
                                q_offset, topk, force_begin_blocks, force_end_blocks, output, return_scores, workspace,
                                kv_block_start, kv_block_step)
    made = scores = None
    if output is None or return_scores:
        heads, tokens = _result_heads(op, mode_of(op, True, reduce_heads), "q_fp4", q_fp4, "k_fp4", k_fp4)
        shape = (tokens, heads, max(0, min(int(topk), 64)))
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
        data, rare = _plain(kind, data, rare)
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

    A function of shapes and bounds, never of lengths: ask once, with the bounds of a captured graph.
    """
    op = "msa_index_select_fp4"
    kind = kind_of(q_fp4)
    known, rare = _index_arguments(
        kind, q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q, cu_seqlens_k, page_table,
        seqused_k, causal, max_seqlen_q, max_k_tiles, reduce_heads, q_offset, topk, force_begin_blocks,
        force_end_blocks, kv_block_start, kv_block_step)
    return query(op, library.msa_index_select_fp4_workspace, (*known, None, None, None, *rare), kind, q_fp4)


def msa_index_append_fp4(
    k: Array,
    k_cache_fp4: Array,
    k_cache_scale: Array,
    slot_mapping: Array,
    global_scale: Scale,
) -> None:
    """Quantises new index keys and writes them into a paged NVFP4 cache, in place.

    Bit-equal to nvfp4_quantize of the same rows; slot = page*128 + position.

    Args:
        k: float32, float16 or bfloat16 (T, Hkv, 128).
        k_cache_fp4: uint8 (P, Hkv, 128, 64), any page stride (codes and scales may share a pool).
        k_cache_scale: e4m3 bytes, 1024 contiguous for a (page, key head) in the 128x4 layout: contiguous of
            any shape, or a strided (P, Hkv*1024) view.
        slot_mapping: int64 (N), N <= T. Rows of k beyond N are ignored; negative slots are skipped, as are
            slots beyond the cache. Each slot at most once.
        global_scale: the *forward* scale of the cache, 2688 / amax; its inverse is k_global_scale of the score.

    Raises:
        ValueError: an illegal argument. RuntimeError: no back end for the device.
    """
    op = "msa_index_append_fp4"
    kind = kind_of(k)
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.append(k, k_cache_fp4, k_cache_scale, slot_mapping, global_scale)
    if kind.direct:
        run(op, (k, k_cache_fp4, k_cache_scale, slot_mapping, global_scale), kind, k)
    else:
        data, k_type = typed(k)
        run(op, (data, k_cache_fp4, k_cache_scale, slot_mapping, global_scale, k_type, kind.stream(k)), kind, k)
