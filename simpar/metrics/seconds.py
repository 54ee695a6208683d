"""Seconds: what a rank spends its step on, and the means over ranks; nothing that needs names.

Everything is the length of a union of intervals, see ``step``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeconds:
    """One rank: ``compute`` + ``exposed`` + ``idle`` = the window.

    Arguments:
        rank: the (first) rank; ``ranks``, how many behave like it.
        compute: seconds in which any stream computes.
        communication: seconds in which it communicates: takes part in a collective, the wait for its peers included
            ([arrive, end]), or sends or receives ([start, end]).
        exposed: seconds in which it communicates and computes nothing.
        idle: seconds in which it does neither.
        bubble: seconds in which it neither computes nor transfers: ``idle`` and the exposed waits in collectives.
    """

    rank: int
    ranks: int
    compute: float
    communication: float
    exposed: float
    idle: float
    bubble: float

    @property
    def overlap(self) -> float:
        """1 − exposed / communication, the share of its communication under which it computes; NaN without any."""
        return 1 - self.exposed / self.communication if self.communication else math.nan


Rank = TypeVar('Rank', bound=RankSeconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds(Generic[Rank]):
    """A window of ``step`` seconds; the properties are means over all ranks."""

    step: float
    ranks: Sequence[Rank]

    def mean(self, seconds: Callable[[Rank], float]) -> float:
        """The mean over ranks, each distinct rank counted as often as it occurs."""
        return sum(seconds(rank) * rank.ranks for rank in self.ranks) / sum(rank.ranks for rank in self.ranks)

    @property
    def compute(self) -> float:
        """Seconds of computing."""
        return self.mean(lambda rank: rank.compute)

    @property
    def communication(self) -> float:
        """Seconds of communication."""
        return self.mean(lambda rank: rank.communication)

    @property
    def exposed(self) -> float:
        """Seconds of exposed communication."""
        return self.mean(lambda rank: rank.exposed)

    @property
    def idle(self) -> float:
        """Seconds idle."""
        return self.mean(lambda rank: rank.idle)

    @property
    def bubble(self) -> float:
        """Seconds in which a rank neither computes nor transfers."""
        return self.mean(lambda rank: rank.bubble)

    @property
    def overlap(self) -> float:
        """1 − exposed / communication, both summed over the ranks; NaN without communication."""
        return 1 - self.exposed / self.communication if self.communication else math.nan
