"""The largest logit of every block of 128 keys: the drop-ins for `flashinfer.msa_ops`' two scores.

Shapes use B requests, Hq query heads, Hkv key heads (Hq a multiple of Hkv), Tq query tokens, Tk key tokens, P pages of
128 tokens; the head dimension is 128, so a packed row is 64 bytes. docs/operations.md holds the contract, to the byte.
"""

from __future__ import annotations

from typing import Any, Literal

from ._arrays import kind_of
from ._call import NAMES, Array, Scale, mode_of, plain, require_shape, resolve_bounds, result_heads, run


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

    Shapes: B requests, Tq query tokens, Hq query heads, Hkv key heads (Hq a multiple of Hkv), Tk key tokens,
    P pages of 128 keys. A row has 128 elements, 64 bytes when packed.

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
    kind = kind_of(q_fp4, "msa_proxy_score_fp4: q_fp4")
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.score_fp4(q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q,
                                    cu_seqlens_k, page_table, seqused_k, causal, max_seqlen_q, max_k_tiles, output,
                                    reduce_heads, q_offset, kv_block_start, kv_block_step)
    mode = mode_of(op, causal, reduce_heads)
    if (output is not None and max_seqlen_q is not None and max_k_tiles is not None and kind.direct and q_offset is None
            and kv_block_start == 0 and kv_block_step == 1):
        # The call of every decode step, with everything given: one tuple, straight to the binding.
        run(op, (q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q, cu_seqlens_k, page_table,
                 seqused_k, mode, max_seqlen_q, max_k_tiles, output, None), kind, q_fp4)
        return output
    return _score(op, kind, (q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale),
                  (cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, mode, max_seqlen_q, max_k_tiles), output,
                  (q_offset, kv_block_start, kv_block_step))


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

    As `msa_proxy_score_fp4` without scales: out[h, t, token] = max of <q, k_j> over the visible keys j of block t,
    -inf where there is none. It explains the shapes' letters.

    Args:
        q: bfloat16, float16 or float8_e4m3fn (Tq, Hq, 128).
        k: q's dtype or float8_e4m3fn: flat (Tk, Hkv, 128) or paged (P, Hkv, 128, 128). Beside e4m3 queries: e4m3.
        use_fp32_acc: True; accumulation is always float32, so False is refused.
        The rest as in `msa_proxy_score_fp4`.

    Returns:
        float32 (Hq, max_k_tiles, Tq); (1, ...) or (Hkv, ...) with reduce_heads. `output` if given.

    Raises:
        ValueError: an illegal argument, named with what came and what was expected.
        RuntimeError: no back end for the device.
    """
    op = "msa_proxy_score"
    if not use_fp32_acc:
        raise ValueError(f"{op}: use_fp32_acc: got {use_fp32_acc!r}, expected True: accumulation is always float32")
    kind = kind_of(q, "msa_proxy_score: q")
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.score(q, k, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, causal, max_seqlen_q,
                                max_k_tiles, output, reduce_heads, q_offset, kv_block_start, kv_block_step)
    return _score(op, kind, (q, k),
                  (cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, mode_of(op, causal, reduce_heads), max_seqlen_q,
                   max_k_tiles), output, (q_offset, kv_block_start, kv_block_step))


def _score(op: str, kind: Any, data: tuple, requests: tuple, output: Any, rare: tuple) -> Array:
    """What both scores share: bounds, the output, the call."""
    q, k = data[:2]
    if not kind.direct:
        data, rare = plain(op, kind, data, rare)
    if requests[6] is None and output is not None:
        requests = (*requests[:6], require_shape(op, "output", output, (3,), "(heads, max_k_tiles, query tokens)")[1])
    if requests[5] is None or requests[6] is None:
        requests = resolve_bounds(op, data, requests, rare, kind, q)
    if output is not None:
        run(op, (*data, *requests, output, None, *rare), kind, q)
        return output
    names = NAMES[op]
    heads, tokens = result_heads(op, requests[4], names[0], q, names[1], k)
    made = kind.empty(q, (heads, max(int(requests[6]), 0), tokens), "float32")
    run(op, (*data, *requests, made, None, *rare), kind, q)
    return kind.finish(made, q)
