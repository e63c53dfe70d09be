"""Random NVFP4 problems for the tests: bytes on the host, decoded by the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import oracle


def prefix(lengths) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def random_scales(rng, count: int) -> np.ndarray:
    return rng.integers(0x20, 0x48, count, dtype=np.uint8)


@dataclass
class Problem:
    """Arguments as host arrays, by the names of the operation."""

    q_fp4: np.ndarray
    k_fp4: np.ndarray
    q_scale: np.ndarray
    k_scale: np.ndarray
    cu_seqlens_q: np.ndarray
    keywords: dict = field(default_factory=dict)  # cu_seqlens_k, or page_table and seqused_k
    q_global_scale: float = 0.5
    k_global_scale: float = 0.25

    @property
    def global_scale(self) -> float:
        return float(np.float32(self.q_global_scale) * np.float32(self.k_global_scale))

    def exact(self, **options):
        """(scores without the global scales, magnitudes, limits)."""
        keywords = {{"cu_seqlens_k": "cu_k"}.get(k, k): v for k, v in self.keywords.items()}
        q = oracle.dequantize(self.q_fp4, self.q_scale)
        return oracle.score(q, self.keys(), self.cu_seqlens_q, **keywords, **options)

    def keys(self) -> np.ndarray:
        return oracle.dequantize(self.k_fp4, self.k_scale)

    def call(self, operation, world, **options):
        arguments = [self.q_fp4, self.k_fp4, self.q_scale, self.k_scale]
        return operation(*[world.array(x) for x in arguments], self.q_global_scale, self.k_global_scale,
                         world.array(self.cu_seqlens_q), **{k: world.array(v) for k, v in self.keywords.items()},
                         **options)


def scale_bytes(rows: int) -> int:
    return -(-rows // 128) * 1024


def make(rng, q_lengths, k_lengths, heads=4, key_heads=1, paged=True, spare_pages=2, width=None) -> Problem:
    q_tokens = int(np.sum(q_lengths))
    q = rng.integers(0, 256, (q_tokens, heads, 64), dtype=np.uint8)
    q_scale = random_scales(rng, scale_bytes(q_tokens * heads))
    if not paged:
        k_tokens = int(np.sum(k_lengths))
        k = rng.integers(0, 256, (k_tokens, key_heads, 64), dtype=np.uint8)
        k_scale = random_scales(rng, scale_bytes(k_tokens * key_heads))
        return Problem(q, k, q_scale, k_scale, prefix(q_lengths), {"cu_seqlens_k": prefix(k_lengths)})
    blocks = [-(-int(n) // 128) for n in k_lengths]
    pages = sum(blocks) + spare_pages
    width = max([*blocks, 1]) + 1 if width is None else width
    table = np.full((len(blocks), width), -1, np.int32)
    ids = rng.permutation(pages)
    for b, n in enumerate(blocks):
        table[b, :n], ids = ids[:n], ids[n:]
    k = rng.integers(0, 256, (pages, key_heads, 128, 64), dtype=np.uint8)
    k_scale = random_scales(rng, pages * key_heads * 1024)
    return Problem(q, k, q_scale, k_scale, prefix(q_lengths),
                   {"page_table": table, "seqused_k": np.array(k_lengths, np.int32)})
