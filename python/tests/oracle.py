"""The operations once more, in numpy and float64, written from docs/operations.md and from nothing else.

Slow on purpose; shares no code with the library. Scales are unpacked by reshaping, not by the address
formula.
"""

from __future__ import annotations

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3_table() -> np.ndarray:
    """The 256 scale bytes, unsigned: bit 7 does not count, 0x7F is NaN."""
    table = np.empty(256)
    for byte in range(256):
        exponent, mantissa = byte >> 3 & 15, byte & 7
        table[byte] = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        if byte & 0x7F == 0x7F:
            table[byte] = np.nan
    return table


E4M3 = e4m3_table()


def unpack_codes(codes: np.ndarray) -> np.ndarray:
    pairs = np.stack([codes & 15, codes >> 4], axis=-1)
    return E2M1[pairs.reshape(*codes.shape[:-1], codes.shape[-1] * 2)]


def unpack_scales(scales: np.ndarray, rows: int, groups: int = 8) -> np.ndarray:
    """128x4 bytes -> (rows, groups) scale bytes."""
    tiles_r, tiles_g = -(-rows // 128), -(-groups // 4)
    tiles = np.ascontiguousarray(scales).reshape(-1)[: tiles_r * tiles_g * 512].reshape(tiles_r, tiles_g, 32, 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(tiles_r * 128, tiles_g * 4)[:rows, :groups]


def dequantize(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """(rows..., K/2) codes and 128x4 scales -> float64 without the global scale."""
    values = unpack_codes(codes)
    flat = values.reshape(-1, values.shape[-1])
    groups = flat.shape[1] // 16
    factors = E4M3[unpack_scales(scales, len(flat), groups)]
    return (flat.reshape(len(flat), groups, 16) * factors[:, :, None]).reshape(values.shape)


def lengths(cu_q, cu_k=None, page_table=None, seqused_k=None, total_k=0):
    """[(q begin, q length, k begin, k length, k length that may be read)] of each request."""
    out = []
    for b in range(len(cu_q) - 1):
        q0, q1 = int(cu_q[b]), int(cu_q[b + 1])
        if page_table is not None:
            k0, n = 0, max(int(seqused_k[b]), 0)
            room = page_table.shape[1] * 128
        else:
            k0, n = int(cu_k[b]), max(int(cu_k[b + 1]) - int(cu_k[b]), 0)
            room = total_k - k0
        out.append((q0, max(q1 - q0, 0), k0, n, min(n, room)))
    return out


def score(q, k, cu_q, cu_k=None, page_table=None, seqused_k=None, causal=True, tiles=None, reduce_heads=False,
          q_offset=None, start=0, step=1):
    """(scores, magnitudes M, per-token limits): q (Tq, Hq, 128), k flat or paged, both float64."""
    tokens, heads, _ = q.shape
    key_heads = k.shape[1]
    group = heads // key_heads
    spans = lengths(cu_q, cu_k, page_table, seqused_k, len(k))
    if tiles is None:
        tiles = max([len(range(start, -(-s[4] // 128), step)) for s in spans], default=0)
    out = np.full((heads, tiles, tokens), -np.inf)
    size = np.zeros_like(out)
    limits = np.full(tokens, -1)
    for b, (q0, len_q, k0, len_k, room) in enumerate(spans):
        offset = len_k - len_q if q_offset is None else int(q_offset if np.ndim(q_offset) == 0 else q_offset[b])
        for i in range(len_q):
            limit = min(max(i + offset + 1, 0), room) if causal else room
            limits[q0 + i] = limit
            for n in range(tiles):
                t = start + n * step
                end = min(128 * t + 128, limit)
                if end <= 128 * t:
                    continue
                if page_table is None:
                    keys = k[k0 + 128 * t : k0 + end]
                else:
                    page = int(page_table[b, t])
                    if not 0 <= page < len(k):
                        continue
                    keys = k[page, :, : end - 128 * t].transpose(1, 0, 2)
                for h in range(heads):
                    products = keys[:, h // group] * q[q0 + i, h]
                    logits = products.sum(1)
                    good = logits[~np.isnan(logits)]
                    if len(good):
                        out[h, n, q0 + i] = good.max()
                        size[h, n, q0 + i] = np.nanmax(np.abs(products).sum(1))
    if reduce_heads:
        groups = 1 if reduce_heads is True else key_heads
        out = out.reshape(groups, heads // groups, tiles, tokens).max(1)
        size = size.reshape(groups, heads // groups, tiles, tokens).max(1)
    return out, size, limits


def assert_scores(got, exact, magnitude, tolerance, global_scale=1.0):
    """The contract's bound; the -inf pattern to the bit."""
    got = np.asarray(got, np.float64)
    assert got.shape == exact.shape
    assert np.array_equal(np.isneginf(got), np.isneginf(exact)), "-inf pattern"
    finite = ~np.isneginf(exact)
    error = np.abs(got[finite] - global_scale * exact[finite])
    bound = tolerance * global_scale * magnitude[finite] + 2.0**-23 * np.abs(got[finite]) + 2.0**-149
    assert (error <= bound).all(), f"off by {np.max(error - bound)} beyond the bound"


def select(scores, topk, valid=None, force_begin=0, force_end=0, skip_masked=False):
    """Ids (tokens, heads, topk): larger first, ties to the lower id, NaN last; ascending, then -1."""
    heads, blocks, tokens = scores.shape
    out = np.full((tokens, heads, topk), -1, np.int32)
    for t in range(tokens):
        n = blocks if valid is None else int(valid if np.ndim(valid) == 0 else valid[t])
        n = min(max(n, 0), blocks)
        begin = min(force_begin, n)
        end = min(force_end, n - begin)
        forced = set(range(begin)) | set(range(n - end, n))
        for h in range(heads):
            row = scores[h, :n, t]
            order = sorted(range(n), key=lambda i: (i not in forced, np.isnan(row[i]), -row[i] if row[i] == row[i] else 0, i))
            if skip_masked:
                order = [i for i in order if i in forced or row[i] > -np.inf]
            chosen = sorted(order[:topk])
            out[t, h, : len(chosen)] = chosen
    return out


def _round_e4m3(x: np.ndarray) -> np.ndarray:
    """Nearest even among the finite non-negative values, saturating."""
    values = E4M3[:127]
    high = np.clip(np.searchsorted(values, x), 0, 126)
    low = np.maximum(high - 1, 0)
    below, above = x - values[low], values[high] - x
    pick = np.where((below < above) | ((below == above) & (low % 2 == 0)), low, high)
    return np.where(x >= 448, 126, pick).astype(np.uint8)


def _round_e2m1(x: np.ndarray) -> np.ndarray:
    values = E2M1[:8]
    m = np.minimum(np.abs(x), 6)
    high = np.clip(np.searchsorted(values, m), 0, 7)
    low = np.maximum(high - 1, 0)
    below, above = m - values[low], values[high] - m
    pick = np.where((below < above) | ((below == above) & (low % 2 == 0)), low, high)
    return (pick + np.where(np.signbit(x), 8, 0)).astype(np.uint8)


def quantize(x: np.ndarray, global_scale: float) -> tuple[np.ndarray, np.ndarray]:
    """(codes (rows, K/2), linear scales (rows, K/16)), float32 steps as in section 2 of the contract."""
    f = np.float32
    g = f(global_scale)
    blocks = np.asarray(x, f).reshape(len(x), -1, 16)
    nan = np.isnan(blocks)
    with np.errstate(all="ignore"):
        amax = np.where(nan, f(0), np.abs(blocks)).max(-1).astype(f)
        sixth = np.array([0x3E2AAAAB], np.uint32).view(f)[0]
        scale = _round_e4m3((g * (amax * sixth).astype(f)).astype(f).astype(np.float64))
        real = E4M3[scale].astype(f)
        out = (f(1) / (real * (f(1) / g)).astype(f)).astype(f)
        out = np.minimum(out, np.finfo(f).max)
        out = np.where((scale == 0) | (amax == 0), f(0), out)
        scaled = (blocks * out[:, :, None]).astype(f)
        scaled = np.where(np.isinf(blocks), np.copysign(f(6), blocks), scaled)
        # A block with an infinity has an infinite amax: its scale saturates, and its codes follow from it.
        scaled = np.where((scale == 0)[:, :, None], np.copysign(f(0), blocks), scaled)
    codes = np.where(nan, 7, _round_e2m1(scaled))
    scale = np.where(nan.all(-1), np.uint8(0x7F), scale)
    codes = codes.reshape(len(x), -1).astype(np.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scale
