"""The recurrence of an order, by numba: cases lie side by side, so that a processor does several at once."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar.kernels import Array, kernel, part
from simpar.pipeline.recurrence import Recurrence

BLOCK: Final = 64
"""Cases that are evaluated together: enough to fill vectors, few enough that what is under way stays in a cache."""


def scan(found: Recurrence, given: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """As `simpar.pipeline.scan.scan`, to the bit."""
    seconds = np.empty(given.shape[1])
    # Behind the rows of the recurrence: when ranks end, and when the last one does, in this step and the one before.
    rows = np.zeros((found.rows + len(found.last) + 2, BLOCK))
    _scan(found.code, found.last, given, steps, rows, seconds)
    return seconds


@kernel
def _scan(code: Array, last: Array, given: Array, steps: int, rows: Array, seconds: Array) -> None:
    free, ends = len(given), len(rows) - len(last) - 2
    latest, before = rows[len(rows) - 2], rows[len(rows) - 1]
    for first in range(0, len(seconds), BLOCK):
        # Behind the last case, the last block does cases of the block before once more: nobody reads them.
        width = min(BLOCK, len(seconds) - first)
        for row in range(free):
            for case in range(width):
                rows[row, case] = given[row, first + case]
        for row in range(ends, len(rows)):
            for case in range(BLOCK):
                rows[row, case] = 0.0
        for _ in range(steps):
            for rank in range(len(last)):
                _copy(rows[ends + rank], rows[free + rank])
            _copy(latest, before)
            _step(code, rows)
            for rank in range(len(last)):
                _copy(rows[last[rank]], rows[ends + rank])
                for case in range(BLOCK):
                    latest[case] = max(latest[case], rows[ends + rank, case])
        for case in range(width):
            seconds[first + case] = latest[case] - before[case]


@part
def _copy(given: Array, into: Array) -> None:
    for case in range(BLOCK):
        into[case] = given[case]


@part
def _step(code: Array, rows: Array) -> None:
    for index in range(len(code)):
        task = code[index]
        now, result, travel = rows[task.now], rows[task.result], rows[task.travel]
        lasts, end = rows[task.lasts], rows[task.end]
        for case in range(BLOCK):
            end[case] = max(now[case], result[case] + travel[case]) + lasts[case]
