"""Groups: the partitions of a program as the engine asks them, who stands where and who meets whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from simpar.cost.costs import entry_of
from simpar.kept import Kept
from simpar.program import Partition, Program

Numbers = NDArray[np.int64]


class Groups:
    """A partition: the members of each group, and each rank's group and position."""

    def __init__(self, partition: Partition) -> None:
        self.ranks = partition.groups_GP
        self.size = partition.size
        count = len(self.ranks)
        self.places = np.empty((2, self.ranks.size), dtype=np.int64)
        self.places[0, self.ranks] = np.arange(count)[:, None]
        self.places[1, self.ranks] = np.arange(self.size)

    @cached_property
    def members(self) -> list[list[int]]:
        """The ranks of each group."""
        return cast('list[list[int]]', self.ranks.tolist())

    def peer(self, rank: int, offset: int) -> int:
        """The rank that stands ``offset`` positions further in the group, around its end."""
        return self.ranks.item(self.places.item(0, rank), (self.places.item(1, rank) + offset) % self.size)

    def entry(self, rank: int, entries: int) -> int:
        """Which of so many costs is for what this rank sends."""
        return entry_of(entries, len(self.ranks), self.places.item(0, rank), self.places.item(1, rank))

    def entries(self, ranks: Sequence[int], entries: int) -> Numbers:
        """The same of many ranks."""
        group, position = self.places[:, ranks]
        found: Numbers = group if entries == len(self.ranks) else group * (entries // len(self.ranks)) + position
        return found

    def kinds(self, of_rank: NDArray[np.int64]) -> Iterator[tuple[tuple[int, ...], Numbers]]:
        """Each set of representatives that meet in some group, and these groups."""
        met = np.sort(of_rank[self.ranks], axis=1)
        # By their columns: equal rows come to stand together.
        order = np.lexsort(met.T[::-1])
        begins = np.flatnonzero((met[order[1:]] != met[order[:-1]]).any(axis=1)) + 1
        found: dict[tuple[int, ...], list[Numbers]] = {}
        for groups in np.split(order, begins):
            # Groups may have the same representatives, and not as many of each.
            found.setdefault(tuple(dict.fromkeys(met[groups[0]].tolist())), []).append(groups)
        return ((among, np.sort(np.concatenate(parts))) for among, parts in found.items())


@lru_cache(maxsize=4)
def groups_of(program: Program) -> dict[str, Groups]:
    """The partitions of a program as plain lists; the same object for programs of a sweep that divide ranks alike."""
    told = [(name, one.groups_GP.shape, one.groups_GP.tobytes()) for name, one in program.partitions.items()]
    return _groups.get(told, lambda: {name: Groups(partition) for name, partition in program.partitions.items()})


_groups: Final[Kept[list[tuple[str, tuple[int, ...], bytes]], dict[str, Groups]]] = Kept(4)
