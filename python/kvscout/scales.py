"""Global scales: which one number a tensor or a growing cache is quantised with."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._arrays import kind_of

FP4_RANGE = 448.0 * 6.0  # the largest e4m3 scale times the largest e2m1 value
SMALLEST_AMAX = 1e-12


def global_scale_of(x: Any) -> Any:
    """The forward global scale of a tensor, 2688 / max|x|, with the maximum clamped at 1e-12.

    NaN is ignored, as in `nvfp4_quantize`. Consumers take the inverse, 1 / global_scale_of(x).

    Args:
        x: float32, float16 or bfloat16, any shape.

    Returns:
        numpy and others: a float. torch: a one-element float32 tensor on x's device, without waiting for it;
        the operations take it as it is.
    """
    kind = kind_of(x)
    if kind.name == "torch":
        torch = kind.torch  # type: ignore[attr-defined]
        amax = x.detach().abs().nan_to_num(nan=0.0, posinf=float("inf")).float()
        amax = amax.max() if amax.numel() else torch.zeros((), device=x.device)
        return (FP4_RANGE / amax.clamp(min=SMALLEST_AMAX)).reshape(1)
    magnitudes = np.abs(kind.host(x).astype(np.float32))
    amax = np.nanmax(magnitudes) if magnitudes.size and not np.isnan(magnitudes).all() else 0.0
    return float(np.float32(FP4_RANGE) / np.float32(max(amax, SMALLEST_AMAX)))
