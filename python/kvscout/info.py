"""What was built, and what runs here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import _library as library


@dataclass(frozen=True)
class Backend:
    """A back end, in the order in which calls ask them; KVSCOUT_BACKEND=name forces one.

    name: what KVSCOUT_BACKEND takes.
    built_for: what its code was compiled for.
    available: whether it runs on this machine.
    status: the device, or why it does not run here.
    """

    name: str
    built_for: str
    available: bool
    status: str


def backends() -> list[Backend]:
    """Every back end that was built, with an answer to "does it run here"."""
    text = np.zeros(library.backends(None), np.uint8)
    library.backends(text)
    rows = [line.split("\t") for line in bytes(text).decode().splitlines()]
    return [Backend(name, built_for, available == "1", status) for name, built_for, available, status in rows]
