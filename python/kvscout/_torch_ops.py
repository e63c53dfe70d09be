"""The operations as torch custom ops, for torch.compile: `fullgraph=True` works, shapes are inferred.

Eager calls never come here. An operation with an output given mutates it and returns it; without one it is
functional. Scalars that may also be tensors (global scales, q_offset, num_valid_pages) travel as a pair.
Bounds that are None stay None: the compiled graph then has a result of a size known only when it runs.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.library import custom_op

from . import quantize as quantizing
from . import score as scoring
from . import select as selecting
from ._call import mode_of

_REDUCE: dict[int, Any] = {0: False, 1: True, 2: "kv_group"}


def _pair(x: Any) -> tuple[Optional[float], Optional[Tensor]]:
    return (None, x) if isinstance(x, Tensor) else (x, None)


def _one(number: Any, tensor: Optional[Tensor]) -> Any:
    return number if tensor is None else tensor


def _tiles(max_k_tiles: Optional[int]) -> Any:
    return torch.library.get_ctx().new_dynamic_size() if max_k_tiles is None else max_k_tiles


def _heads(q: Tensor, k: Tensor, reduce: int) -> Any:
    return 1 if reduce == 1 else k.shape[1] if reduce == 2 else q.shape[1]


# ---- nvfp4_quantize -------------------------------------------------------------------------------


@custom_op("kvscout::nvfp4_quantize", mutates_args=())
def _quantize(a: Tensor, scale: Optional[float], scale_tensor: Optional[Tensor], layout: int) -> tuple[Tensor, Tensor]:
    return quantizing.nvfp4_quantize(a, _one(scale, scale_tensor), quantizing.SfLayout(layout))


@_quantize.register_fake
def _(a, scale, scale_tensor, layout):
    *leading, columns = a.shape
    rows = 1
    for n in leading:
        rows = rows * n
    return (a.new_empty((*leading, columns // 2), dtype=torch.uint8),
            a.new_empty(quantizing.scale_shape(rows, columns, quantizing.SfLayout(layout)), dtype=torch.uint8))


def quantize(a, scale, layout):
    return _quantize(a, *_pair(scale), layout)


# ---- scores ---------------------------------------------------------------------------------------


@custom_op("kvscout::msa_proxy_score_fp4", mutates_args=())
def _score_fp4(q_fp4: Tensor, k_fp4: Tensor, q_scale: Optional[Tensor], k_scale: Tensor, q_global: Optional[float],
               q_global_tensor: Optional[Tensor], k_global: Optional[float], k_global_tensor: Optional[Tensor],
               cu_seqlens_q: Tensor, cu_seqlens_k: Optional[Tensor], page_table: Optional[Tensor],
               seqused_k: Optional[Tensor], causal: bool, max_seqlen_q: Optional[int], max_k_tiles: Optional[int],
               reduce: int, q_offset: Optional[int], q_offset_tensor: Optional[Tensor], kv_block_start: int,
               kv_block_step: int) -> Tensor:
    return scoring.msa_proxy_score_fp4(
        q_fp4, k_fp4, q_scale, k_scale, _one(q_global, q_global_tensor), _one(k_global, k_global_tensor), cu_seqlens_q,
        cu_seqlens_k, page_table=page_table, seqused_k=seqused_k, causal=causal, max_seqlen_q=max_seqlen_q,
        max_k_tiles=max_k_tiles, reduce_heads=_REDUCE[reduce], q_offset=_one(q_offset, q_offset_tensor),
        kv_block_start=kv_block_start, kv_block_step=kv_block_step)


@_score_fp4.register_fake
def _(q_fp4, k_fp4, q_scale, k_scale, q_global, q_global_tensor, k_global, k_global_tensor, cu_seqlens_q, cu_seqlens_k,
      page_table, seqused_k, causal, max_seqlen_q, max_k_tiles, reduce, q_offset, q_offset_tensor, kv_block_start,
      kv_block_step):
    return q_fp4.new_empty((_heads(q_fp4, k_fp4, reduce), _tiles(max_k_tiles), q_fp4.shape[0]), dtype=torch.float32)


@custom_op("kvscout::msa_proxy_score_fp4_out", mutates_args=("output",))
def _score_fp4_out(q_fp4: Tensor, k_fp4: Tensor, q_scale: Optional[Tensor], k_scale: Tensor, q_global: Optional[float],
                   q_global_tensor: Optional[Tensor], k_global: Optional[float], k_global_tensor: Optional[Tensor],
                   cu_seqlens_q: Tensor, cu_seqlens_k: Optional[Tensor], page_table: Optional[Tensor],
                   seqused_k: Optional[Tensor], causal: bool, max_seqlen_q: Optional[int], max_k_tiles: Optional[int],
                   reduce: int, q_offset: Optional[int], q_offset_tensor: Optional[Tensor], kv_block_start: int,
                   kv_block_step: int, output: Tensor) -> None:
    scoring.msa_proxy_score_fp4(
        q_fp4, k_fp4, q_scale, k_scale, _one(q_global, q_global_tensor), _one(k_global, k_global_tensor), cu_seqlens_q,
        cu_seqlens_k, page_table=page_table, seqused_k=seqused_k, causal=causal, max_seqlen_q=max_seqlen_q,
        max_k_tiles=max_k_tiles, output=output, reduce_heads=_REDUCE[reduce],
        q_offset=_one(q_offset, q_offset_tensor), kv_block_start=kv_block_start, kv_block_step=kv_block_step)


def score_fp4(q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q, cu_seqlens_k, page_table,
              seqused_k, causal, max_seqlen_q, max_k_tiles, output, reduce_heads, q_offset, start, step):
    args = (q_fp4, k_fp4, q_scale, k_scale, *_pair(q_global_scale), *_pair(k_global_scale), cu_seqlens_q, cu_seqlens_k,
            page_table, seqused_k, causal, max_seqlen_q, max_k_tiles,
            mode_of("msa_proxy_score_fp4", False, reduce_heads) >> 1, *_pair(q_offset), start, step)
    if output is None:
        return _score_fp4(*args)
    _score_fp4_out(*args, output)
    return output


@custom_op("kvscout::msa_proxy_score", mutates_args=())
def _score(q: Tensor, k: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Optional[Tensor], page_table: Optional[Tensor],
           seqused_k: Optional[Tensor], causal: bool, max_seqlen_q: Optional[int], max_k_tiles: Optional[int],
           reduce: int, q_offset: Optional[int], q_offset_tensor: Optional[Tensor], kv_block_start: int,
           kv_block_step: int) -> Tensor:
    return scoring.msa_proxy_score(
        q, k, cu_seqlens_q, cu_seqlens_k, page_table=page_table, seqused_k=seqused_k, causal=causal,
        max_seqlen_q=max_seqlen_q, max_k_tiles=max_k_tiles, reduce_heads=_REDUCE[reduce],
        q_offset=_one(q_offset, q_offset_tensor), kv_block_start=kv_block_start, kv_block_step=kv_block_step)


@_score.register_fake
def _(q, k, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, causal, max_seqlen_q, max_k_tiles, reduce, q_offset,
      q_offset_tensor, kv_block_start, kv_block_step):
    return q.new_empty((_heads(q, k, reduce), _tiles(max_k_tiles), q.shape[0]), dtype=torch.float32)


@custom_op("kvscout::msa_proxy_score_out", mutates_args=("output",))
def _score_out(q: Tensor, k: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Optional[Tensor],
               page_table: Optional[Tensor], seqused_k: Optional[Tensor], causal: bool, max_seqlen_q: Optional[int],
               max_k_tiles: Optional[int], reduce: int, q_offset: Optional[int], q_offset_tensor: Optional[Tensor],
               kv_block_start: int, kv_block_step: int, output: Tensor) -> None:
    scoring.msa_proxy_score(
        q, k, cu_seqlens_q, cu_seqlens_k, page_table=page_table, seqused_k=seqused_k, causal=causal,
        max_seqlen_q=max_seqlen_q, max_k_tiles=max_k_tiles, output=output, reduce_heads=_REDUCE[reduce],
        q_offset=_one(q_offset, q_offset_tensor), kv_block_start=kv_block_start, kv_block_step=kv_block_step)


def score(q, k, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, causal, max_seqlen_q, max_k_tiles, output,
          reduce_heads, q_offset, start, step):
    args = (q, k, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, causal, max_seqlen_q, max_k_tiles,
            mode_of("msa_proxy_score", False, reduce_heads) >> 1, *_pair(q_offset), start, step)
    if output is None:
        return _score(*args)
    _score_out(*args, output)
    return output


# ---- selection ------------------------------------------------------------------------------------


@custom_op("kvscout::msa_topk_select", mutates_args=())
def _select(max_score: Tensor, topk: int, valid: Optional[int], valid_tensor: Optional[Tensor],
            force_begin_blocks: int, force_end_blocks: int, skip_masked: bool) -> Tensor:
    return selecting.msa_topk_select(max_score, topk, _one(valid, valid_tensor), None, force_begin_blocks, force_end_blocks,
                               skip_masked=skip_masked)


@_select.register_fake
def _(max_score, topk, valid, valid_tensor, force_begin_blocks, force_end_blocks, skip_masked):
    return max_score.new_empty((max_score.shape[2], max_score.shape[0], topk), dtype=torch.int32)


@custom_op("kvscout::msa_topk_select_out", mutates_args=("output",))
def _select_out(max_score: Tensor, topk: int, valid: Optional[int], valid_tensor: Optional[Tensor],
                force_begin_blocks: int, force_end_blocks: int, skip_masked: bool, output: Tensor) -> None:
    selecting.msa_topk_select(max_score, topk, _one(valid, valid_tensor), output, force_begin_blocks, force_end_blocks,
                        skip_masked=skip_masked)


def select(max_score, topk, num_valid_pages, output, force_begin_blocks, force_end_blocks, skip_masked):
    args = (max_score, topk, *_pair(num_valid_pages), force_begin_blocks, force_end_blocks, skip_masked)
    if output is None:
        return _select(*args)
    _select_out(*args, output)
    return output


@custom_op("kvscout::msa_index_select_fp4_out", mutates_args=("output", "scores", "workspace"))
def _index_out(q_fp4: Tensor, k_fp4: Tensor, q_scale: Optional[Tensor], k_scale: Tensor, q_global: Optional[float],
               q_global_tensor: Optional[Tensor], k_global: Optional[float], k_global_tensor: Optional[Tensor],
               cu_seqlens_q: Tensor, cu_seqlens_k: Optional[Tensor], page_table: Optional[Tensor],
               seqused_k: Optional[Tensor], causal: bool, max_seqlen_q: Optional[int], max_k_tiles: Optional[int],
               reduce: int, q_offset: Optional[int], q_offset_tensor: Optional[Tensor], topk: int,
               force_begin_blocks: int, force_end_blocks: int, kv_block_start: int, kv_block_step: int, output: Tensor,
               scores: Optional[Tensor], workspace: Optional[Tensor]) -> None:
    selecting._index_into(
        q_fp4, k_fp4, q_scale, k_scale, _one(q_global, q_global_tensor), _one(k_global, k_global_tensor), cu_seqlens_q,
        cu_seqlens_k, page_table, seqused_k, causal, max_seqlen_q, max_k_tiles, _REDUCE[reduce],
        _one(q_offset, q_offset_tensor), topk, force_begin_blocks, force_end_blocks, kv_block_start, kv_block_step,
        output, scores, workspace)


def index(q_fp4, k_fp4, q_scale, k_scale, q_global_scale, k_global_scale, cu_seqlens_q, cu_seqlens_k, page_table,
          seqused_k, causal, max_seqlen_q, max_k_tiles, reduce_heads, q_offset, topk, force_begin_blocks,
          force_end_blocks, output, return_scores, workspace, start, step):
    reduce = mode_of("msa_index_select_fp4", False, reduce_heads) >> 1
    shape = (q_fp4.shape[0], _heads(q_fp4, k_fp4, reduce), topk)
    if output is None:
        output = torch.empty(shape, dtype=torch.int32, device=q_fp4.device)
    scores = torch.empty(shape, dtype=torch.float32, device=q_fp4.device) if return_scores else None
    _index_out(q_fp4, k_fp4, q_scale, k_scale, *_pair(q_global_scale), *_pair(k_global_scale), cu_seqlens_q,
               cu_seqlens_k, page_table, seqused_k, causal, max_seqlen_q, max_k_tiles, reduce, *_pair(q_offset), topk,
               force_begin_blocks, force_end_blocks, start, step, output, scores, workspace)
    return (output, scores) if return_scores else output


# ---- append ---------------------------------------------------------------------------------------


@custom_op("kvscout::msa_index_append_fp4", mutates_args=("k_cache_fp4", "k_cache_scale"))
def _append(k: Tensor, k_cache_fp4: Tensor, k_cache_scale: Tensor, slot_mapping: Tensor, scale: Optional[float],
            scale_tensor: Optional[Tensor]) -> None:
    quantizing.msa_index_append_fp4(k, k_cache_fp4, k_cache_scale, slot_mapping, _one(scale, scale_tensor))


def append(k, k_cache_fp4, k_cache_scale, slot_mapping, global_scale):
    _append(k, k_cache_fp4, k_cache_scale, slot_mapping, *_pair(global_scale))
