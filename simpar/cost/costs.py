"""Costs: what a cluster makes of a program's op classes. The engine sees a program and its costs, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
GRADES = ('measured', 'vendor', 'literature', 'estimate')
"""How a number of a profile is known, best first."""


@dataclass(frozen=True, slots=True)
class Communication:
    """Isolated cost of one collective (or send and recv pair) in one group: it lasts ``alpha`` + ``transfer``.

    Arguments: ``alpha`` in seconds uses no link and is not stretched; while it transfers (``transfer`` seconds alone)
    it demands of each link the share given in ``links``, pairs (link index, demand), 0 < demand ≤ 1, multiples of 2⁻¹⁰.
    """

    alpha: float
    transfer: float
    links: Sequence[tuple[int, float]] = ()


class Keys(Mapping[int, int]):
    """Op classes that communicate, each with the number of its cost key.

    Arguments: ``kind``, of each op class the number of its key; ``communicates``, whether it does.
    """

    def __init__(self, kind: NDArray[np.int64], communicates: NDArray[np.bool_]) -> None:
        self.kind = kind
        self._communicates = communicates

    @cached_property
    def _index(self) -> list[int]:
        found: list[int] = np.flatnonzero(self._communicates).tolist()
        return found

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """Shape [op classes], for each the first of its key."""
        numbers = np.arange(len(self.kind))
        first = np.empty(len(self.kind), dtype=np.int64)
        # Of several assignments to one place numpy keeps the last: reversed, that is the first.
        first[self.kind[::-1]] = numbers[::-1]
        return first[self.kind]

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < len(self.kind) or not self._communicates[index]:
            raise KeyError(index)
        return self.kind.item(index)

    def __iter__(self) -> Iterator[int]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)


class ByKey(Mapping[int, Sequence[Communication]]):
    """The messages of op classes, where all of one cost key have the very same ones.

    Arguments: ``key_of``, the same object for all costs of a program; ``made``, by the number of a cost key.
    """

    def __init__(self, key_of: Keys, made: Mapping[int, Sequence[Communication]]) -> None:
        self.key_of = key_of
        self.made = made

    def __getitem__(self, index: int) -> Sequence[Communication]:
        return self.made[self.key_of[index]]

    def __iter__(self) -> Iterator[int]:
        return iter(self.key_of)

    def __len__(self) -> int:
        return len(self.key_of)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ByKey) and other.key_of is self.key_of:
            return self.made == other.made
        return dict(self) == (dict(other) if isinstance(other, ByKey) else other)

    __hash__ = None  # type: ignore[assignment]


def each_message(communication: Mapping[int, Sequence[Communication]]) -> Collection[Sequence[Communication]]:
    """The messages of all op classes; those that are the very same once, where that is known."""
    return communication.made.values() if isinstance(communication, ByKey) else communication.values()


def entry_of(entries: int, groups: int, group: int, position: int) -> int:
    """Which of an op class's entries is for a group, or for the pair of it whose sender has this position.

    Arguments: ``entries``, how many there are; ``groups`` of the op's partition.
    """
    return group if entries == groups else group * (entries // groups) + position


class Why(Mapping[int, str]):
    """How the seconds of op classes came about; found when somebody asks.

    Arguments: ``kind``, for each op class which of the texts is its own; ``texts`` returns these.
    """

    def __init__(self, kind: NDArray[np.int64], texts: Callable[[], Sequence[str]]) -> None:
        self._kind = kind
        self._make = texts

    @cached_property
    def _texts(self) -> Sequence[str]:
        return self._make()

    def __reduce__(self) -> tuple[type[Why], tuple[NDArray[np.int64], partial[tuple[str, ...]]]]:
        # What makes the texts holds functions of tables, which cannot be sent to other processes.
        return Why, (self._kind, partial(tuple, self._texts))

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise KeyError(index)
        return self._texts[self._kind.item(index)]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._kind)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Costs:
    """Isolated seconds of every op class, and what slows what.

    Arguments (C op classes, indexed as in the program; times in seconds on the grid of 2⁻⁴⁰):
        compute: shape [C], isolated seconds on a device of nominal speed; 0 for communication.
        host: shape [C], seconds that the host takes to issue the op.
        beside_communication: shape [C], speed of a compute op while a collective runs on its device, 0 < speed ≤ 1.
        beside_compute: shape [C], highest speed of a collective while any of its devices computes, 0 < speed ≤ 1.
        communication: op class index → one ``Communication`` for each group of the op's partition; of a send, one for
            each group or one for each of its pairs, (group, position of the sender); see ``entry_of``.
        links: names of the links that ``Communication.links`` indexes.
        rank_speed: shape [world], 1 for a nominal device; compute lasts ``compute / rank_speed``.
        host_step: seconds that the host takes in each step before it issues anything.
        waits: where the host waits for the device, see ``simpar.engine.hosts``; empty: nowhere.
        work_queues: how many a device has, see ``simpar.engine.queues``; 0: one for each stream.
        waiting_slows: whether what waits for its peers already slows compute.
        why: op class index → how its seconds came about, in words.
        grades: grade → seconds of one step's isolated work (a rank's) that rest on numbers of this grade.
    """

    compute: Array
    host: Array
    beside_communication: Array
    beside_compute: Array
    communication: Mapping[int, Sequence[Communication]]
    links: Sequence[str]
    rank_speed: Array
    host_step: float = 0.0
    waits: tuple[str, ...] = ()
    work_queues: int = 0
    waiting_slows: bool = False
    why: Mapping[int, str] = field(default_factory=dict)
    grades: dict[str, float] = field(default_factory=dict)
