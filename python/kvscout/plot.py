"""Pictures of scores and selections (needs matplotlib: pip install kvscout[plot])."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._arrays import kind_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def heatmap(scores: Any, selected: Any = None, *, head: int = 0, ax: "Axes | None" = None,
            title: str | None = None) -> "Axes":
    """Block scores of one head as colours, the chosen blocks framed.

    Args:
        scores: float32 (H, blocks, Tq), as msa_proxy_score_fp4 returns them. -inf (not visible) stays grey.
        selected: int32 (Tq, H or 1, k) block ids, -1 pads; None draws scores only.
        head: which head of both to draw.
        ax: matplotlib axes; None makes a figure.
        title: text above; None writes the head and the sizes.

    Returns:
        The axes: queries from top to bottom, blocks of 128 keys from left to right.
    """
    import matplotlib.pyplot as plt
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

    values = kind_of(scores, "heatmap: scores").host(scores)
    if values.ndim != 3 or not 0 <= head < values.shape[0]:
        raise ValueError(f"heatmap: scores: got shape {values.shape} and head {head}, expected (heads, blocks, queries)")
    image = values[head].T
    tokens, blocks = image.shape
    if ax is None:
        _, ax = plt.subplots(figsize=(min(16, 4 + blocks * 0.16), min(12, 2.5 + tokens * 0.16)), layout="constrained")
    colours = plt.get_cmap("viridis").with_extremes(bad="0.88")
    drawn = ax.imshow(np.ma.masked_invalid(image), aspect="auto", cmap=colours, interpolation="nearest")
    ax.figure.colorbar(drawn, ax=ax, label="largest logit of the block")
    if selected is not None:
        ids = kind_of(selected, "heatmap: selected").host(selected)
        if ids.ndim != 3 or len(ids) != tokens:
            raise ValueError(f"heatmap: selected: got shape {ids.shape}, expected ({tokens}, heads, k)")
        chosen = ids[:, min(head, ids.shape[1] - 1)]
        # A little inside the cell: a block between chosen ones must not look framed by their lines.
        frames = [Rectangle((b - 0.42, t - 0.42), 0.84, 0.84) for t, row in enumerate(chosen) for b in row if b >= 0]
        thin = 1.4 if max(tokens, blocks) <= 64 else 0.7
        ax.add_collection(PatchCollection(frames, facecolor="none", edgecolor="#ff3b30", linewidth=thin))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlabel("block of 128 keys")
    ax.set_ylabel("query")
    framed = "" if selected is None else ", chosen blocks framed"
    ax.set_title(title if title is not None else f"head {head}, queries: {tokens}, blocks: {blocks}{framed}")
    return ax
