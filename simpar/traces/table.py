"""What every recording becomes: a rank's kernels as columns, and its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

COMPUTE: Final = 0
COMMUNICATION: Final = 1
COPY: Final = 2
"""Kinds of kernels."""
NO_STEP: Final = -1
Ints = NDArray[np.int64]
Texts = NDArray[np.object_]
NANOSECOND: Final = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernels:
    """What ran on a device, a row a kernel, in the order of their begins.

    Arguments:
        begin, end: nanoseconds on the recording's clock.
        kind: ``COMPUTE``, ``COMMUNICATION`` or ``COPY``.
        step: an index into the steps of the rank; ``NO_STEP`` for none.
        name, type: as recorded; ``type`` is empty where a profiler tells no operator.
        stream: of the device. group: of a collective, its ranks or its communicator.
        shapes, results: of what is read and written, as recorded.
    """

    begin: Ints
    end: Ints
    kind: Ints
    step: Ints
    name: Texts
    type: Texts
    stream: Texts
    group: Texts
    shapes: Texts
    results: Texts

    def __len__(self) -> int:
        return len(self.begin)

    def of(self, rows: NDArray[Any]) -> Kernels:
        """Some of the rows: a mask, or their indices."""
        return Kernels(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})


def kernels_of(rows: Sequence[tuple[int, int, int, int, str, str, str, str, str, str]]) -> Kernels:
    """Kernels of rows in the order of the columns above, sorted by begin."""
    ordered = sorted(rows, key=lambda row: (row[0], row[1]))
    columns: list[Any] = list(zip(*ordered, strict=True)) or [()] * 10
    columns = [np.array(column, dtype=np.int64) for column in columns[:4]] + [_texts(column) for column in columns[4:]]
    return Kernels(**dict(zip((one.name for one in fields(Kernels)), columns, strict=True)))


def _texts(column: Sequence[str]) -> Texts:
    found = np.empty(len(column), dtype=np.object_)
    found[:] = column
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class RankTrace:
    """What a profiler wrote of one rank.

    Arguments:
        source: the file. format: what wrote it.
        world: ranks of the job; 0 where the file does not say.
        device: its name; empty where the file does not say.
        kernels: None where the profiler's totals alone were written.
        steps: names of the marked steps; empty for a recording without marks.
        cut: the index of a step that the profiler cut off, ``NO_STEP`` for none.
        totals: the profiler's own figures by step, where the file has them: name of the figure → nanoseconds.
        notes: what the reader took for granted.
    """

    source: str
    format: str
    rank: int
    world: int = 0
    device: str = ''
    kernels: Kernels | None = None
    steps: tuple[str, ...] = ()
    cut: int = NO_STEP
    totals: tuple[dict[str, float], ...] = ()
    notes: tuple[str, ...] = ()
