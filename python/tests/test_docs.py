"""The code on the pages about Python runs, from top to bottom, as it stands."""

from __future__ import annotations

import re

import pytest

from conftest import HAS_CUDA, NO_CUDA, NO_TORCH, ROOT, torch


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("page", ["python.md", "calibration.md"])
def test_code_of(page, device):
    """On a GPU: with torch's default device set, and not a word changed."""
    if torch is None:
        pytest.skip(NO_TORCH)
    if device == "cuda" and not HAS_CUDA:
        pytest.skip(NO_CUDA)
    torch.manual_seed(0)
    text = (ROOT / "docs" / page).read_text()
    names: dict = {"__name__": page}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert len(blocks) >= 5
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        with torch.device(device):
            exec(compile("\n" * line + block.group(1), str(ROOT / "docs" / page), "exec"), names)


def test_every_link_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")]
    links = [(page, target) for page in pages for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())]
    assert len(links) > 20 and not [(p.name, t) for p, t in links if not (p.parent / t).exists()]


def test_every_path_that_is_named_exists():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")]
    found = [(page.name, path) for page in pages for path in
             re.findall(r"`((?:src|cli|tests|tools|bench|docs|examples|include|python|cmake)/[\w./*-]+)`", page.read_text())]
    assert len(found) > 15 and not [(page, path) for page, path in found if not list(ROOT.glob(path.rstrip("/").replace("smXX", "sm*")))]
