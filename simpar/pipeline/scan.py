"""The recurrence of an order, by numpy."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar.pipeline.recurrence import Recurrence

Floats = NDArray[np.float64]
BLOCK: Final = 1_024
"""Cases that are evaluated together: rows of 8 KiB, so that what is under way stays in a cache."""


def scan(found: Recurrence, given: Floats, steps: int) -> Floats:
    """Seconds of step ``steps`` for each case, shape [cases].

    Arguments: ``given``, the seconds that the recurrence is given, shape [given, cases].
    """
    seconds = np.empty(given.shape[1])
    for first in range(0, len(seconds), BLOCK):
        seconds[first : first + BLOCK] = _block(found, given[:, first : first + BLOCK], steps)
    return seconds


def _block(found: Recurrence, given: Floats, steps: int) -> Floats:
    # A list: to take a row of an array takes as long as an addition.
    rows = [*given, *np.zeros((found.rows - found.given, given.shape[1]))]
    code = found.code.tolist()
    latest = before = np.zeros(given.shape[1])
    ends = np.zeros((len(found.last), given.shape[1]))
    for _ in range(steps):
        for rank, end in enumerate(ends):
            rows[found.given + rank][:] = end
        for now, result, travel, lasts, end in code:
            into = np.add(rows[result], rows[travel], out=rows[end])
            np.maximum(into, rows[now], out=into)
            np.add(into, rows[lasts], out=into)
        ends = np.array([rows[row] for row in found.last.tolist()])
        before, latest = latest, ends.max(axis=0)
    return latest - before
