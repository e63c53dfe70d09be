"""The pieces that vLLM's MiniMax-M3 indexer needs for `indexer_kv_dtype="nvfp4"`.

    cache = NvFp4IndexCache(pool, key_heads=1, global_scale=g)      # once a layer
    indexer = Indexer(heads=4, buffer=topk_indices_buffer)          # once a model
    ...
    cache.append(index_k, slot_mapping)                             # every step, every layer
    indexer.select(index_q, cache, step)                            # writes buffer[:tokens]

Shapes are the engine's: a key-only cache of one page a sparse block (128 tokens), bf16 index queries in
request order, int32 block tables as wide as the model's longest context, `seq_lens` that count the tokens
of this step, slots of -1 for padding, requests of length 0 for padding. Nothing here reads the device; with a
workspace made by `reserve`, `append` and `select` allocate nothing, so both can be captured in a CUDA graph
and replayed with other lengths and tables. No import of vLLM: `Step.from_metadata` reads its fields by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor

from ..quantize import msa_index_append_fp4
from ..select import msa_index_select_fp4, msa_index_select_fp4_workspace, msa_topk_select

BLOCK = 128
CODE_BYTES = 8192  # of one page and key head
SCALE_BYTES = 1024
PAGE_BYTES = CODE_BYTES + SCALE_BYTES


def _rows(what: str, x: Tensor, heads: int) -> Tensor:
    """(tokens, heads, 128) of that or of (tokens, heads * 128). Another number of heads would silently become another
    number of tokens."""
    if x.shape[1:] != (heads, 128) and x.shape[1:] != (heads * 128,):
        raise ValueError(f"{what}: got shape {tuple(x.shape)}, expected (tokens, {heads}, 128) or (tokens, {heads * 128})")
    return x.view(x.shape[0], heads, 128)


class NvFp4IndexCache:
    """Paged NVFP4 index keys of one layer: codes, then scales, in every page of a byte pool.

    Args:
        pool: uint8 (pages, at least key_heads * 9216), any page stride (a pool may hold all layers).
        key_heads: index key heads; 1 in MiniMax-M3.
        global_scale: the forward scale 2688 / amax, one for the life of the cache (docs/calibration.md).
    """

    def __init__(self, pool: Tensor, key_heads: int = 1, global_scale: float = 2688.0):
        if key_heads < 1 or not 0.0 < float(global_scale) < math.inf:
            raise ValueError(f"NvFp4IndexCache: key_heads, global_scale: got {key_heads} and {global_scale}, expected "
                             "at least 1 and a finite number above 0")
        if pool.dtype != torch.uint8 or pool.ndim != 2 or pool.shape[1] < key_heads * PAGE_BYTES:
            raise ValueError(f"NvFp4IndexCache: pool: got {pool.dtype} {tuple(pool.shape)}, expected uint8 "
                             f"(pages, at least {key_heads * PAGE_BYTES})")
        if pool.shape[1] > 1 and pool.stride(1) != 1:
            raise ValueError(f"NvFp4IndexCache: pool: got strides {pool.stride()}, expected the bytes of a page "
                             "side by side")
        self.pool, self.key_heads, self.global_scale = pool, key_heads, float(global_scale)
        self.codes = pool.as_strided((pool.shape[0], key_heads, BLOCK, 64),
                                     (pool.stride(0), CODE_BYTES, 64, 1), pool.storage_offset())
        self.scales = pool[:, key_heads * CODE_BYTES : key_heads * PAGE_BYTES]

    @staticmethod
    def page_bytes(key_heads: int = 1) -> int:
        """Bytes of a page, for the engine's cache specification: 9216, against 32768 in bf16."""
        return key_heads * PAGE_BYTES

    @property
    def inverse_scale(self) -> float:
        return 1.0 / self.global_scale

    def append(self, index_k: Tensor, slot_mapping: Tensor) -> None:
        """Quantises new keys (tokens, key_heads * 128) or (tokens, key_heads, 128) into their slots. `slot_mapping`
        int64 may be shorter than the padded keys, and -1 skips a row."""
        k = _rows("NvFp4IndexCache.append: index_k", index_k, self.key_heads)
        # Engines pad either of the two: rows of k beyond the slots are ignored, slots beyond k cut here.
        msa_index_append_fp4(k, self.codes, self.scales, slot_mapping[: k.shape[0]], self.global_scale)


@dataclass
class Step:
    """One engine step: decode, prefill or both in one batch, in request order.

    max_query_len and max_seq_len are bounds known on the host; in a captured graph they are those of the
    largest replay.
    """

    cu_seqlens_q: Tensor  # int32 (requests + 1), from 0
    seq_lens: Tensor  # int32 (requests): keys of a request, those of this step included; 0 pads
    block_table: Tensor  # int32 (requests, width)
    max_query_len: int
    max_seq_len: int

    @classmethod
    def from_metadata(cls, common: Any) -> "Step":
        """From the fields of vLLM's common attention metadata."""
        n = common.num_reqs
        return cls(common.query_start_loc[: n + 1], common.seq_lens[:n], common.block_table_tensor[:n],
                   int(common.max_query_len), int(common.max_seq_len))

    @classmethod
    def decode(cls, seq_lens: Tensor, block_table: Tensor, tokens: int, max_seq_len: int) -> "Step":
        """A decode step of `tokens` (1, or 1 + drafts) for every request."""
        starts = torch.arange(0, (seq_lens.shape[0] + 1) * tokens, tokens, dtype=torch.int32, device=seq_lens.device)
        return cls(starts, seq_lens, block_table, tokens, max_seq_len)

    @property
    def tiles(self) -> int:
        return -(-self.max_seq_len // BLOCK)


class Indexer:
    """Chooses the blocks that each query attends.

    Args:
        heads: index query heads of this rank.
        buffer: int32 (max_tokens, H', topk), persistent; H' is heads, or 1 with reduce_heads=True.
        init_blocks, local_blocks: blocks at the beginning and the end that are always chosen (M3: 0 and 1).
        reduce_heads: False, True or "kv_group", as in `msa_index_select_fp4`.
    """

    def __init__(self, heads: int, buffer: Tensor, init_blocks: int = 0, local_blocks: int = 1,
                 reduce_heads: Any = False):
        if buffer.ndim != 3:
            raise ValueError(f"Indexer: buffer: got shape {tuple(buffer.shape)}, expected (max_tokens, heads, topk)")
        self.heads, self.buffer = heads, buffer
        self.topk = buffer.shape[2]
        self.init_blocks = min(init_blocks, self.topk)
        self.local_blocks = min(local_blocks, self.topk - self.init_blocks)
        self.reduce_heads = reduce_heads
        self.workspace: Optional[Tensor] = None

    def _arguments(self, index_q: Tensor, cache: NvFp4IndexCache, step: Step) -> tuple[tuple, dict]:
        q = _rows("Indexer: index_q", index_q, self.heads)
        if q.dtype == torch.float8_e4m3fn:
            q = q.to(torch.bfloat16)
        positional = (q, cache.codes, None, cache.scales, 1.0, cache.inverse_scale, step.cu_seqlens_q)
        return positional, dict(page_table=step.block_table, seqused_k=step.seq_lens, max_seqlen_q=step.max_query_len,
                                max_k_tiles=step.tiles, reduce_heads=self.reduce_heads, topk=self.topk)

    def reserve(self, index_q: Tensor, cache: NvFp4IndexCache, step: Step) -> int:
        """Makes the workspace for steps up to this one's bounds. Call it once with the largest, before a graph
        is captured; returns its bytes."""
        positional, keywords = self._arguments(index_q, cache, step)
        needed = msa_index_select_fp4_workspace(*positional, **keywords)
        if self.workspace is None or self.workspace.numel() < needed:
            self.workspace = torch.empty(max(needed, 1), dtype=torch.uint8, device=index_q.device)
        return needed

    def select(self, index_q: Tensor, cache: NvFp4IndexCache, step: Step) -> Tensor:
        """buffer[:tokens] = ascending block ids of every token and head, then -1. Query i of a request sees the
        keys below seq_len - len_q + i + 1."""
        positional, keywords = self._arguments(index_q, cache, step)
        workspace = self.workspace if self.workspace is not None and index_q.is_cuda else None
        chosen = self.buffer[: positional[0].shape[0]]
        msa_index_select_fp4(*positional, **keywords, force_begin_blocks=self.init_blocks,
                             force_end_blocks=self.local_blocks, output=chosen, workspace=workspace)
        return chosen

    def candidates(self, index_q: Tensor, cache: NvFp4IndexCache, step: Step, rank: int,
                   ranks: int) -> tuple[Tensor, Tensor]:
        """Context parallelism, one rank's part: the best blocks among rank, rank + ranks, rank + 2*ranks, ...
        Returns block ids int32 and float32 scores (tokens, H', topk) to be gathered for `merge`."""
        if not 0 <= rank < ranks:
            raise ValueError(f"Indexer.candidates: rank, ranks: got {rank} of {ranks}, expected 0 to ranks - 1")
        positional, keywords = self._arguments(index_q, cache, step)
        keywords["max_k_tiles"] = max(0, -(-(step.tiles - rank) // ranks))
        columns, scores = msa_index_select_fp4(*positional, **keywords, return_scores=True, kv_block_start=rank,
                                               kv_block_step=ranks)
        return torch.where(columns >= 0, columns * ranks + rank, -1), scores

    def merge(self, ids: Tensor, scores: Tensor, visible_blocks: Tensor) -> Tensor:
        """Context parallelism, after the gather: exactly what `select` would have chosen, ties to the lower block.

        ids, scores: (ranks, tokens, H', topk) from every rank's `candidates`. visible_blocks: int32 (tokens),
        position // 128 + 1, or 0 for padding. Candidates are put in the order of blocks, joined by those that are
        always chosen, and the selection runs on them.
        """
        _, tokens, heads, _ = ids.shape
        columns = lambda x: x.permute(1, 2, 0, 3).reshape(tokens * heads, -1)  # noqa: E731
        n = visible_blocks.to(ids.dtype)[:, None].expand(tokens, heads).reshape(-1, 1)
        first = torch.arange(self.init_blocks, dtype=ids.dtype, device=ids.device).expand(len(n), -1)
        last = n - 1 - torch.arange(self.local_blocks, dtype=ids.dtype, device=ids.device)
        everything = torch.cat([columns(ids), first, last], 1)
        nobody = torch.iinfo(ids.dtype).max
        everything = torch.where((everything >= 0) & (everything < n), everything, nobody)
        ranked = torch.cat([columns(scores), torch.full((len(n), self.init_blocks + self.local_blocks), -torch.inf,
                                                        device=ids.device)], 1)
        everything, order = everything.sort(dim=1, stable=True)  # a real candidate stays before its forced copy
        ranked = ranked.gather(1, order)
        copies = torch.zeros_like(everything, dtype=torch.bool)
        copies[:, 1:] = everything[:, 1:] == everything[:, :-1]
        everything, order = everything.masked_fill(copies, nobody).sort(dim=1, stable=True)
        ranked = ranked.gather(1, order)
        count = (everything < nobody).sum(1, dtype=torch.int32)
        chosen = msa_topk_select(ranked.t()[None], self.topk, count, None, self.init_blocks, self.local_blocks)[:, 0]
        picked = torch.where(chosen >= 0, everything.gather(1, chosen.clamp(min=0).long()), -1)
        out = self.buffer[:tokens]
        out.copy_(picked.view(tokens, heads, self.topk))
        return out
