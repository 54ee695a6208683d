"""Entries: the messages of an op class in thousands of groups, as arrays; groups that lie alike cost the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from simpar.cost.costs import Communication
from simpar.cost.model import CollectiveCost

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """Groups that lie alike, and what a message costs in each of them.

    Arguments (n groups, each over k channels):
        rows: shape [n], which groups.
        cost: without its links.
        channels: shape [n, k], numbers as of ``ClusterCollectives.name``.
        parts: what is demanded of the first ``widths[0]`` of the k, of the next ``widths[1]``, and so on.
    """

    rows: Ints
    cost: CollectiveCost
    channels: Ints
    parts: tuple[float, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Groups in which a message lasts equally long, and demands the same of as many links.

    Arguments: ``rows``, shape [n]; ``links``, shape [n, k]; ``parts`` and ``widths`` as of ``Alike``.
    """

    rows: Ints
    alpha: float
    transfer: float
    links: Ints
    parts: tuple[float, ...]
    widths: tuple[int, ...]

    @property
    def demands(self) -> NDArray[np.float64]:
        """Of each of the k."""
        return np.repeat(np.array(self.parts, dtype=np.float64), self.widths)

    def tells_as(self, other: Block) -> bool:
        """Whether it has the same groups, links and widths, and equal demands where the other has."""
        return (
            self.widths == other.widths
            and [self.parts.index(part) for part in self.parts] == [other.parts.index(part) for part in other.parts]
            and bool(np.array_equal(self.rows, other.rows) and np.array_equal(self.links, other.links))
        )


class Entries(Sequence[Communication]):
    """One ``Communication`` for each group, or pair, made when it is asked for.

    Arguments: ``blocks``, which have every group once.
    """

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self.blocks = blocks

    @cached_property
    def place(self) -> tuple[Ints, Ints]:
        """For each group the number of its block, and its place there."""
        count = len(self)
        block, row = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        for number, one in enumerate(self.blocks):
            block[one.rows], row[one.rows] = number, np.arange(len(one.rows))
        return block, row

    @cached_property
    def _count(self) -> int:
        return sum(len(block.rows) for block in self.blocks)

    def __len__(self) -> int:
        # Of thousands of groups that lie unlike, counting them takes long, and answers ask for every op class.
        return self._count

    @overload
    def __getitem__(self, index: int) -> Communication: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Communication, ...]: ...
    def __getitem__(self, index: int | slice) -> Communication | tuple[Communication, ...]:
        if isinstance(index, slice):
            return tuple([self[one] for one in range(len(self))[index]])
        number, row = (numbers.item(range(len(self))[index]) for numbers in self.place)
        block = self.blocks[number]
        # Sorted, so that equal costs are equal whatever order their links were found in.
        links = tuple(sorted(zip(block.links[row].tolist(), block.demands.tolist(), strict=True)))
        return Communication(block.alpha, block.transfer, links)

    def lasts(self, group: int) -> tuple[float, float]:
        """Latency and transfer in a group."""
        block = self.blocks[self.place[0].item(group)]
        return block.alpha, block.transfer

    def __iter__(self) -> Iterator[Communication]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Entries):
            return isinstance(other, tuple) and tuple(self) == tuple(other)
        if len(self) != len(other):
            return False
        if len(self.blocks) == len(other.blocks) and all(map(_same, self.blocks, other.blocks)):
            return True
        # Of thousands of groups the first tells most often already that they differ.
        return self[0] == other[0] and all(map(np.array_equal, self._flat(), other._flat()))

    def __hash__(self) -> int:
        return hash((len(self), self[0]))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _flat(self) -> tuple[NDArray[Any], ...]:
        """By group its latency and transfer; and all groups, links and demands, sorted: equal where all entries are."""
        lasts = np.array([(block.alpha, block.transfer) for block in self.blocks])[self.place[0]]
        each = [
            (np.repeat(block.rows, block.links.shape[1]), block.links.ravel(), np.tile(block.demands, len(block.rows)))
            for block in self.blocks
        ]
        groups, links, demands = (np.concatenate(column) for column in zip(*each, strict=True))
        order = np.lexsort((demands, links, groups))
        return lasts, groups[order], links[order], demands[order]

    def touching(self, among: NDArray[np.bool_]) -> tuple[Ints, Ints, NDArray[np.float64]]:
        """Groups, links and demands, wherever a group uses one of some links.

        Arguments: ``among``, of each link whether it is one of them.
        """
        found = []
        for block in self.blocks:
            row, column = np.nonzero(among[block.links])
            found.append((block.rows[row], block.links[row, column], block.demands[column]))
        groups, links, demands = (np.concatenate(each) for each in zip(*found, strict=True))
        return groups, links, demands


class LinkNames(Sequence[str]):
    """Names of links, made when they are asked for.

    Arguments: ``channels``, the number of each link's channel; ``name``, of a channel.
    """

    def __init__(self, channels: Ints, name: Any) -> None:
        self._channels = channels
        self._name = name

    def __len__(self) -> int:
        return len(self._channels)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(map(self._name, self._channels[index].tolist()))
        found: str = self._name(self._channels.item(index))
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (LinkNames, tuple)) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def lasts(entries: Sequence[Communication], group: int) -> tuple[float, float]:
    """Latency and transfer of a message in a group."""
    if isinstance(entries, Entries):
        return entries.lasts(group)
    return entries[group].alpha, entries[group].transfer


def _same(one: Block, other: Block) -> bool:
    """Whether two blocks are equal as they stand."""
    return (one.alpha, one.transfer, one.parts) == (other.alpha, other.transfer, other.parts) and one.tells_as(other)
