"""Attention over selected blocks in plain torch, reading NVFP4 pages: a reference, and a proof that the bytes which
the indexer scored are the bytes that attention reads. Not a fast kernel.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantize_pages(codes: Tensor, scales: Tensor, inverse_scale: float | Tensor, pages: Tensor) -> Tensor:
    """float32 (n, key heads, 128, 128) of some pages of an NVFP4 cache.

    Args:
        codes: uint8 (P, Hkv, 128, 64), any strides.
        scales: e4m3 bytes of every page, 1024 a key head in the 128x4 layout; (P, Hkv*1024), any page stride.
        inverse_scale: 1 / the global scale that the cache was written with.
        pages: int (n), page ids.
    """
    pages = pages.long()
    packed = codes[pages]
    values = torch.tensor([*_MAGNITUDES, *[-m for m in _MAGNITUDES]], device=codes.device)
    elements = torch.stack([values[(packed & 15).long()], values[(packed >> 4).long()]], -1).flatten(-2)
    n, heads = packed.shape[:2]
    tiles = scales.view(torch.uint8).reshape(scales.shape[0], -1)[pages].view(n, heads, 2, 32, 4, 4)
    rows = tiles.permute(0, 1, 4, 3, 2, 5).reshape(n, heads, 128, 8)  # slot, group of 16
    factors = (rows & 0x7F).view(torch.float8_e4m3fn).float()
    return (elements.unflatten(-1, (8, 16)) * factors[..., None]).flatten(-2) * inverse_scale


def block_sparse_attention(
    q: Tensor,
    ids: Tensor,
    key_codes: Tensor,
    key_scales: Tensor,
    key_inverse_scale: float | Tensor,
    values: Tensor,
    cu_seqlens_q: Tensor,
    page_table: Tensor,
    seqused_k: Tensor,
    softmax_scale: Optional[float] = None,
) -> Tensor:
    """softmax(q k^T * softmax_scale) v over the blocks in `ids`, causally masked.

    Args:
        q: (Tq, Hq, 128), Hq a multiple of the key heads.
        ids: int32 (Tq, H', k) of the selection, -1 pads; H' divides Hq.
        key_codes, key_scales, key_inverse_scale: the NVFP4 cache that the indexer scored.
        values: (P, Hkv, 128, Dv), paged like the keys.
        cu_seqlens_q, page_table, seqused_k: as in the score.

    Returns:
        float32 (Tq, Hq, Dv); rows without a visible key are 0.
    """
    tokens, heads, dim = q.shape
    key_heads = key_codes.shape[1]
    scale = dim**-0.5 if softmax_scale is None else softmax_scale
    out = torch.zeros(tokens, heads, values.shape[-1], device=q.device)
    starts, lengths = cu_seqlens_q.tolist(), seqused_k.tolist()
    for b, length in enumerate(lengths):
        for token in range(starts[b], starts[b + 1]):
            limit = min(max(length - (starts[b + 1] - token) + 1, 0), length)
            for h in range(heads):
                blocks = ids[token, h * ids.shape[1] // heads]
                blocks = blocks[blocks >= 0].long()
                if len(blocks) == 0 or limit == 0:
                    continue
                pages = page_table[b, blocks]
                kv = h * key_heads // heads
                keys = dequantize_pages(key_codes, key_scales, key_inverse_scale, pages)[:, kv].reshape(-1, dim)
                rows = values[pages.long(), kv].reshape(-1, values.shape[-1]).float()
                positions = (blocks[:, None] * 128 + torch.arange(128, device=q.device)).reshape(-1)
                logits = (keys @ q[token, h].float()) * scale
                weights = logits.masked_fill(positions >= limit, -torch.inf).softmax(0)
                rows = torch.where((positions < limit)[:, None], rows, 0)  # unwritten slots hold anything
                out[token, h] = weights.nan_to_num(0) @ rows
    return out
