"""A recorded job: when every op of some steps started and ended, worker by worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.recording.kinds import KINDS, Kind

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


class RecordedOp(NamedTuple):
    """One op of one worker, in every step: ``number`` counts the ops of its kind on its worker."""

    data: int
    stage: int
    kind: str
    number: int

    @property
    def of(self) -> Kind:
        """Its kind."""
        return KINDS[self.kind]

    @property
    def text(self) -> str:
        """Its name, as of an op class."""
        return f'data{self.data}.stage{self.stage}.{self.kind}.{self.number}'


@dataclass(frozen=True, eq=False)
class RecordedJob:
    """The ops of some steps of a training job; all steps and all data ranks do the same.

    Arguments:
        ops: the N ops of a step, by worker, kind and number.
        steps: the K numbers of the steps.
        start_KN, end_KN: seconds, shape [steps, ops].
    """

    ops: tuple[RecordedOp, ...]
    steps: tuple[int, ...]
    start_KN: Array
    end_KN: Array

    @cached_property
    def data(self) -> int:
        """Data ranks."""
        return 1 + max(op.data for op in self.ops)

    @cached_property
    def stages(self) -> int:
        """Pipeline stages."""
        return 1 + max(op.stage for op in self.ops)

    @cached_property
    def number(self) -> dict[RecordedOp, int]:
        """Where an op stands among the ops."""
        return {op: number for number, op in enumerate(self.ops)}

    @cached_property
    def step_seconds(self) -> Array:
        """Seconds of each step, from its first start to its last end."""
        return np.asarray(self.end_KN.max(axis=1) - self.start_KN.min(axis=1))

    def of_worker(self, data: int, stage: int) -> list[RecordedOp]:
        """The ops of a worker."""
        return self._by_worker.get((data, stage), [])

    @cached_property
    def _by_worker(self) -> dict[tuple[int, int], list[RecordedOp]]:
        found: dict[tuple[int, int], list[RecordedOp]] = {}
        for op in self.ops:
            found.setdefault((op.data, op.stage), []).append(op)
        return found

    @cached_property
    def meetings(self) -> Ints:
        """Shape [ops]: the first of those that take part in an op; its own number where it is alone."""
        first: dict[tuple[object, ...], int] = {}
        return np.array([first.setdefault(_meeting(op, self.stages), at) for at, op in enumerate(self.ops)])

    def families(self) -> list[str]:
        """The names that answers count kinds under, as they run."""
        names = {op.kind for op in self.ops}
        return list(dict.fromkeys(kind.family for kind in KINDS.values() if kind.name in names))

    def where(self, chosen: Sequence[bool]) -> Ints:
        """The numbers of the chosen ops."""
        return np.flatnonzero(np.asarray(chosen))


def _meeting(op: RecordedOp, stages: int) -> tuple[object, ...]:
    """What is equal for all that take part in an op."""
    takes = op.of.takes
    if takes == 'data':
        return (op.kind, op.number, op.stage)
    if takes == 'world':
        return (op.kind, op.number)
    if takes == 'ends' and stages > 1:
        return (op.kind, op.number, op.data)
    if takes in {'send', 'recv'}:
        # A message is told by its direction, the stage that sends it, and its turn.
        forward = op.kind.startswith('forward')
        sender = op.stage if takes == 'send' else op.stage + (-1 if forward else 1)
        return ('forward' if forward else 'backward', op.number, op.data, sender)
    return (op,)
