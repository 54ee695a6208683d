"""Which channels a group's collective uses, and what it demands of each while it transfers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby, repeat
from operator import eq, itemgetter
from typing import Any, Final, overload

from simpar.hardware import Topology

GRID = 1024
"""Demands are multiples of 1 / GRID, so that sums of them are exact."""


class Demands(Sequence[tuple[Any, Any]]):
    """Pairs (channel, demand), kept as columns: there are as many as ranks, and few of the demands differ.

    Arguments:
        channels: names or numbers.
        parts: what is demanded of the first ``widths[0]`` of them, of the next ``widths[1]``, and so on; neighbours
            differ, so that equal pairs have equal columns.
    """

    __slots__ = ('channels', 'parts', 'widths')

    def __init__(self, channels: tuple[Any, ...], parts: tuple[Any, ...], widths: tuple[int, ...]) -> None:
        self.channels = channels
        self.parts = parts
        self.widths = widths

    @staticmethod
    def of(pairs: Sequence[tuple[Any, Any]]) -> Demands:
        """The same of pairs."""
        if isinstance(pairs, Demands):
            return pairs
        runs = [(part, len(list(run))) for part, run in groupby(pairs, itemgetter(1))]
        return Demands(tuple(map(itemgetter(0), pairs)), *map(tuple, zip(*runs, strict=True) if runs else ((), ())))

    @staticmethod
    def on(channels: tuple[Any, ...], parts: Sequence[Any], widths: Sequence[int]) -> Demands:
        """The same of columns of which neighbours may demand the same."""
        if any(map(eq, parts, parts[1:])):
            both = groupby(zip(parts, widths, strict=True), itemgetter(0))
            parts, widths = zip(*[(part, sum(width for _, width in run)) for part, run in both], strict=True)
        return Demands(channels, tuple(parts), tuple(widths))

    def __len__(self) -> int:
        return len(self.channels)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self.channels, chain.from_iterable(map(repeat, self.parts, self.widths)), strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[Any, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[tuple[Any, Any], ...]: ...

    def __getitem__(self, index: int | slice) -> tuple[Any, Any] | tuple[tuple[Any, Any], ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Demands):
            return (self.channels, self.parts, self.widths) == (other.channels, other.parts, other.widths)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        # As that of the tuple that it equals.
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


NOTHING: Final = Demands((), (), ())
"""What demands of no channel."""


def demand(load: float, transfer: float) -> float:
    """What a collective takes of a channel: bytes over it / its bandwidth / transfer, in 1 / 1024, above 0, at most 1.

    Arguments: ``load``, seconds that the channel needs for the bytes; ``transfer``, seconds that the collective takes
    when alone, more than 0.
    """
    # At least one part: what uses a link at all must be seen by those that share it.
    return min(max(round(load / transfer * GRID), 1), GRID) / GRID


def demands(topology: Topology, loads: Sequence[float], transfer: float) -> tuple[tuple[int, float], ...]:
    """What a collective demands of each channel of a level that it shares: pairs (level, demand).

    Arguments: ``loads``, at each level, seconds of work on each of its channels; ``transfer``, seconds. Links of a
    fatpipe are left out: nobody shares them. Does not model: channels of one level that carry unequal loads.
    """
    # Written so that NaN is refused, too.
    if not transfer > 0:
        return ()
    return tuple(
        [
            (level, demand(load, transfer))
            for level, load in enumerate(loads)
            if load > 0 and topology.links[level].sharing == 'shared'
        ]
    )
