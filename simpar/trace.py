"""Trace: when every op of a few steps arrived, started and ended; what every machine returns and all answers read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.program import OpClass, Program, Role

Times = NDArray[np.float64]
PERCENTILE: Final = 10.0
"""Of the measured steps: the one statistic of every screen, picture and file. Others only ever lengthen a step."""


def warm_steps(steps: int, first: int, *, alone: bool) -> slice:
    """The steps of a run that count: at least one of them.

    Arguments: ``first``, how many at its begin do not; ``alone``, whether the last one is shorter than the others, as
    no further step begins beside it.
    """
    end = steps - 1 if alone and steps > first + 1 else steps
    return slice(min(first, steps - 1), end)


def step_that_counts(step_times: Times, counted: slice, percentile: float = PERCENTILE) -> int:
    """The number of the step at a percentile of those that count: a real step, so that its seconds add up."""
    warm = step_times[counted]
    seconds = np.percentile(warm, percentile, method='inverted_cdf')
    return int(counted.start) + int(np.flatnonzero(warm == seconds)[0])


def stream_order(stream: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each slot the one before it on its stream, or -1, and the last one there; of the stream of each."""
    before = np.full(len(stream), -1, dtype=np.int64)
    order = np.argsort(stream, kind='stable')
    # Streams lie behind one another: where the number changes, one ends and another begins.
    ends = np.append(np.diff(stream[order]) != 0, True)
    before[order[1:][~ends[:-1]]] = order[:-1][~ends[:-1]]
    last = order[ends]
    return before, last[np.searchsorted(stream[last], stream)]


class Span(NamedTuple):
    """One op of one step on one rank; times in seconds."""

    slot: int
    op: OpClass
    stream: str
    micro_batch: int
    copy: int
    arrive: float
    start: float
    end: float


@dataclass(frozen=True, slots=True, eq=False)
class RankTimes:
    """The times of one simulated or measured rank, which may stand for others that behave alike.

    A simulated collective starts when its last participant has arrived.
    Arguments:
        rank: the (first) rank whose times these are.
        arrive_KS, start_KS, end_KS: seconds, shape [steps, slots of the rank's role].
    """

    rank: int
    arrive_KS: Times
    start_KS: Times
    end_KS: Times

    @property
    def columns(self) -> tuple[Times, Times, Times]:
        """When ops arrived, started and ended."""
        return self.arrive_KS, self.start_KS, self.end_KS


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """All spans of some steps, run back to back.

    Arguments:
        program: what was run.
        origin: whether times were simulated, emulated or measured.
        representatives: the times of ranks that stand for all; ranks that behave alike share one.
        representative_of_rank: shape [world], index into ``representatives``.
    """

    program: Program
    origin: Literal['simulated', 'emulated', 'measured']
    representatives: tuple[RankTimes, ...]
    representative_of_rank: NDArray[np.int32]

    def __repr__(self) -> str:
        return f'Trace({self.origin}, steps={self.steps}, step={self.step!r}, ranks={len(self.representative_of_rank)})'

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.representatives[0].end_KS.shape[0])

    @cached_property
    def step_ends(self) -> Times:
        """Shape [steps]: when the last op of each step ended, over all ranks."""
        ends = [rank_times.end_KS.max(axis=1) for rank_times in self.representatives]
        return np.asarray(ends[0] if len(ends) == 1 else np.max(ends, axis=0), dtype=np.float64)

    @cached_property
    def step_times(self) -> Times:
        """Shape [steps]: end(k) − end(k−1); the first is the cold step."""
        # As np.diff, which takes ten times as long for so few.
        times = self.step_ends.copy()
        times[1:] -= self.step_ends[:-1]
        return times

    @property
    def step(self) -> float:
        """Seconds of the last step, end(k) − end(k−1)."""
        ends: list[float] = self.step_ends[-2:].tolist()
        return ends[-1] - (ends[0] if len(ends) > 1 else 0.0)

    @property
    def cold_step(self) -> float:
        """Seconds until the first step has ended."""
        return float(self.step_ends[0])

    def warm(self, first: int = 1) -> slice:
        """The steps that count, behind so many ``first`` ones; see ``warm_steps``."""
        return warm_steps(self.steps, first, alone=self.origin != 'simulated' and self.program.followed)

    @property
    def that_counts(self) -> int:
        """The number of the step that tells how long one takes: of a simulation the last, else ``step_that_counts``."""
        return self.steps - 1 if self.origin == 'simulated' else step_that_counts(self.step_times, self.warm())

    def first(self, steps: int) -> Trace:
        """The trace without what comes after so many steps."""
        return self._part(slice(None, steps))

    def last(self, steps: int) -> Trace:
        """The trace without what comes before so many steps at its end; times stay as they are."""
        return self._part(slice(-steps, None))

    def _part(self, steps: slice) -> Trace:
        return self._with(lambda times: times[steps])

    def later(self, seconds: float) -> Trace:
        """The trace with all times so much later."""
        return self._with(lambda times: times + seconds)

    def _with(self, change: Callable[[Times], Times]) -> Trace:
        changed = (RankTimes(one.rank, *map(change, one.columns)) for one in self.representatives)
        return replace(self, representatives=tuple(changed))

    # The names before these, which scripts still read.
    @property
    def lanes(self) -> tuple[RankTimes, ...]:
        """The same as ``representatives``."""
        return self.representatives

    @property
    def lane_of_rank(self) -> NDArray[np.int32]:
        """The same as ``representative_of_rank``."""
        return self.representative_of_rank

    def times_of(self, rank: int) -> RankTimes:
        """Return the times of a rank, or of the rank that stands for it."""
        return self.representatives[int(self.representative_of_rank[rank])]

    def role(self, rank_times: RankTimes) -> Role:
        """Return the role whose slots the columns are."""
        return self.program.role(rank_times.rank)

    def spans(self, rank: int, step: int = -1) -> Iterator[Span]:
        """The spans of a rank in one step, in issue order."""
        rank_times = self.times_of(rank)
        role = self.role(rank_times)
        times = zip(*(column[step].tolist() for column in rank_times.columns), strict=True)
        # From lists: single numbers of arrays are slow to read.
        for slot, (arrive, start, end) in enumerate(times):
            yield Span(
                slot=slot,
                op=self.program.op(role, slot),
                stream=role.streams[int(role.stream[slot])],
                micro_batch=int(role.micro_batch[slot]),
                copy=int(role.copy[slot]),
                arrive=arrive,
                start=start,
                end=end,
            )


def joined(runs: Sequence[Trace], first: int) -> Trace:
    """One trace of several runs of a program: the first run's cold step, then the steps of each run that count.

    Arguments: ``first``, how many steps at the begin of each run do not count. Where the last step has no follower to
    run into, that of the last run stays, so that ``warm`` leaves it out as of any run.
    """
    pieces = [runs[0].first(1)]
    end = pieces[0].step_ends[-1]
    for run in runs:
        counted = run.warm(first)
        until = run.steps if run is runs[-1] else counted.stop
        # A run goes on where the one before ended: only distances count.
        begin = run.step_ends[counted.start - 1] if counted.start else 0.0
        pieces.append(run._part(slice(counted.start, until)).later(end - begin))
        end = pieces[-1].step_ends[-1]
    representatives = (
        RankTimes(same[0].rank, *map(np.concatenate, zip(*(times.columns for times in same), strict=True)))
        for same in zip(*(piece.representatives for piece in pieces), strict=True)
    )
    return replace(runs[0], representatives=tuple(representatives))
