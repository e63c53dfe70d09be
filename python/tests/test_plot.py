from __future__ import annotations

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib", reason="not run: matplotlib is not installed")
matplotlib.use("Agg")

from kvscout.plot import heatmap  # noqa: E402


def test_heatmap_draws_scores_and_frames(tmp_path):
    scores = np.full((2, 10, 6), -np.inf, np.float32)
    scores[:, :4] = np.arange(48, dtype=np.float32).reshape(2, 4, 6)
    ids = np.full((6, 2, 3), -1, np.int32)
    ids[:, :, 0] = 1
    ids[2, 1, 1] = 3
    ax = heatmap(scores, ids, head=1)
    image = ax.images[0].get_array()
    assert image.shape == (6, 10) and image.mask[:, 4:].all() and not image.mask[:, :4].any()
    assert image[0, 0] == 24
    frames = ax.collections[0].get_paths()
    assert len(frames) == 7
    corners = {tuple(np.round(f.vertices[0] + 0.5).astype(int)) for f in frames}
    assert corners == {(1, t) for t in range(6)} | {(3, 2)}
    for f in frames:  # inside their cells: neighbours share no line
        assert (np.abs(f.vertices - np.round(f.vertices.mean(0))) < 0.5).all()
    one = heatmap(scores[:, :, :1], ids[:1])
    one.figure.canvas.draw()
    assert [t.get_text() for t in one.get_yticklabels() if -0.5 <= t.get_position()[1] <= 0.5] == ["0"]
    ax.figure.savefig(tmp_path / "heatmap.png")
    assert (tmp_path / "heatmap.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="heatmap: scores"):
        heatmap(scores, head=2)
    with pytest.raises(ValueError, match="heatmap: selected"):
        heatmap(scores, ids[:3])
