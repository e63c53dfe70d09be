"""NVFP4 out of floats: rows, or new keys of a paged cache.

Illegal arguments raise ValueError before anything is written; docs/operations.md holds the contract, to the byte.
"""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np

from ._arrays import exported, kind_of
from ._call import Array, Scale, run

FP4_RANGE = 448.0 * 6.0  # the largest e4m3 scale times the largest e2m1 value
SMALLEST_AMAX = 1e-12


class SfLayout(enum.IntEnum):
    """Where the bytes of block scales lie.

    layout_128x4: tiles of 128 rows x 4 groups, for tensor cores and every consumer here.
    layout_8x4: tiles of 8 rows x 4 groups. layout_linear: a row after the other.
    docs/format.md has the formulas.
    """

    layout_128x4 = 0
    layout_8x4 = 1
    layout_linear = 2


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
        RuntimeError: no back end for the device.
    """
    op = "nvfp4_quantize"
    for name, value, only in (("do_shuffle", do_shuffle, False), ("sf_vec_size", sf_vec_size, 16),
                              ("per_token_activation", per_token_activation, False),
                              ("expanded_idx_to_permuted_idx", expanded_idx_to_permuted_idx, None)):
        if value is not only and (only is None or value != only):
            raise ValueError(f"{op}: {name}: got {value!r}, expected {only!r}, the one that is supported")
    try:
        layout = SfLayout(sfLayout)
    except ValueError:
        raise ValueError(f"{op}: sfLayout: got {sfLayout!r}, expected a member of SfLayout") from None
    kind = kind_of(a, "nvfp4_quantize: a")
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.quantize(a, a_global_sf, int(layout))
    *leading, columns = tuple(a.shape) or (0,)
    if columns < 16 or columns % 16:
        raise ValueError(f"{op}: a: got shape {tuple(a.shape)}, expected a last dimension that is a multiple of 16")
    codes = kind.empty(a, (*leading, columns // 2), "uint8")
    scales = kind.empty(a, scale_shape(math.prod(leading), columns, layout), "uint8")
    # A view; only heads that were split off a wider projection are no rows of one stride and are copied.
    data, code = exported(op, "a", a.reshape(math.prod(leading), columns) if len(leading) > 1 else a)
    run(op, (data, a_global_sf, int(layout), codes, scales, code, kind.stream(a)), kind, a)
    return kind.finish(codes, a), kind.finish(scales, a)


def scale_shape(rows: int, columns: int, layout: SfLayout = SfLayout.layout_128x4) -> tuple[int, int]:
    """The shape of the scale bytes of (rows, columns) elements, padding included."""
    groups = columns // 16
    if layout == SfLayout.layout_linear:
        return rows, groups
    tile = 128 if layout == SfLayout.layout_128x4 else 8
    return -(-rows // tile) * tile, -(-groups // 4) * 4


def global_scale_of(x: Any) -> Any:
    """The forward global scale of a tensor, 2688 / max|x|, with the maximum clamped at 1e-12.

    NaN is ignored, as in `nvfp4_quantize`; an infinity gives 0, which no operation can use. Consumers take the
    inverse, 1 / global_scale_of(x).

    Args:
        x: float32, float16 or bfloat16, any shape.

    Returns:
        numpy and others: a float. torch: a one-element float32 tensor on x's device, without waiting for it;
        the operations take it as it is.
    """
    kind = kind_of(x, "global_scale_of: x")
    if kind.name == "torch":
        torch = kind.torch  # type: ignore[attr-defined]
        amax = x.detach().abs().nan_to_num(nan=0.0, posinf=float("inf")).float()
        amax = amax.max() if amax.numel() else torch.zeros((), device=x.device)
        return (FP4_RANGE / amax.clamp(min=SMALLEST_AMAX)).reshape(1)
    magnitudes = np.abs(kind.host(x).astype(np.float32))
    amax = np.nanmax(magnitudes) if magnitudes.size and not np.isnan(magnitudes).all() else 0.0
    return float(np.float32(FP4_RANGE) / np.float32(max(amax, SMALLEST_AMAX)))


def msa_index_append_fp4(
    k: Array,
    k_cache_fp4: Array,
    k_cache_scale: Array,
    slot_mapping: Array,
    global_scale: Scale,
) -> None:
    """Quantises new index keys and writes them into a paged NVFP4 cache, in place.

    Bit-equal to nvfp4_quantize of the same rows; slot = page*128 + position. Allocates nothing and waits for
    nothing on a GPU.

    Args:
        k: float32, float16 or bfloat16 (T tokens, Hkv key heads, 128).
        k_cache_fp4: uint8 (P pages, Hkv, 128, 64), any page stride (codes and scales may share a pool).
        k_cache_scale: e4m3 bytes, 1024 contiguous for a (page, key head) in the 128x4 layout: contiguous of
            any shape, or a strided (P, Hkv*1024) view.
        slot_mapping: int64 (N), N <= T. Rows of k beyond N are ignored; negative slots are skipped, as are
            slots beyond the cache. Each slot at most once.
        global_scale: the *forward* scale of the cache, 2688 / amax; its inverse is k_global_scale of the score.

    Raises:
        ValueError: an illegal argument, named with what came and what was expected.
        RuntimeError: no back end for the device.
    """
    op = "msa_index_append_fp4"
    kind = kind_of(k, "msa_index_append_fp4: k")
    if kind.compiling():
        from . import _torch_ops

        return _torch_ops.append(k, k_cache_fp4, k_cache_scale, slot_mapping, global_scale)
    if kind.direct:
        run(op, (k, k_cache_fp4, k_cache_scale, slot_mapping, global_scale), kind, k)
    else:
        data, k_type = exported(op, "k", k)
        run(op, (data, k_cache_fp4, k_cache_scale, slot_mapping, global_scale, k_type, kind.stream(k)), kind, k)
