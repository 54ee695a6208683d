"""One program's steady step on one rank, as bars on rows: what a timeline shows, without any drawing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np

from simpar.interval_sets import Intervals, fold, minus, union
from simpar.metrics import RankMetrics, is_communication, metrics, named_streams
from simpar.program.op import transfers as is_transfer
from simpar.trace import Times, Trace

Kind = Literal['F', 'I', 'W', 'U', 'hidden', 'exposed']
KINDS: Final[tuple[Kind, ...]] = ('F', 'I', 'W', 'U', 'hidden', 'exposed')
"""What a row can show: computing by phase, communication that computation hides, and exposed communication."""

EASY: Final = 120
"""Ops on a row beyond which single ops are too narrow for their names."""
VISIBLE: Final = 320
"""Ops on a row beyond which single ops are too narrow to see."""
_PLACES: Final = 200
"""Windows that are tried."""
ZOOMED: Final = 50
"""Compute ops in the window that is drawn op by op."""


class Bar(NamedTuple):
    """One op on a row, in seconds from the step's begin.

    ``start`` is later than ``arrive`` where it waited in a collective; ``copy`` is None for what is done once for all;
    ``marked`` bars are outlined. ``name`` of the op class; ``micro_batch`` -1 for what is done once for all.
    """

    row: int
    phase: str
    communicates: bool
    copy: int | None
    label: str
    arrive: float
    start: float
    end: float
    marked: bool = False
    name: str = ''
    micro_batch: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """One program's steady step on one rank.

    Arguments:
        step: seconds of the step.
        streams: one for each row.
        copies: how many copies the program has.
    """

    name: str
    rank: int
    step: float
    streams: tuple[str, ...]
    metrics: RankMetrics
    bars: tuple[Bar, ...]
    copies: int

    @property
    def most_bars(self) -> int:
        """Ops on the fullest row."""
        return int(np.bincount([bar.row for bar in self.bars], minlength=1).max())

    @cached_property
    def computing(self) -> Intervals:
        """When the rank computes."""
        return union(_intervals([bar for bar in self.bars if not bar.communicates]))

    def intervals(self, kind: Kind, row: int) -> Intervals:
        """When a row shows a kind, as disjoint intervals in order."""
        bars = [bar for bar in self.bars if bar.row == row]
        if kind not in ('hidden', 'exposed'):
            return union(_intervals([bar for bar in bars if bar.phase == kind and not bar.communicates]))
        communication = _intervals([bar for bar in bars if bar.communicates])
        exposed = minus(communication, self.computing)
        return exposed if kind == 'exposed' else minus(communication, exposed)

    def middle(self) -> float:
        """The time of the middle of the backward; of the step, if it has none."""
        backward = [bar.arrive for bar in self.bars if bar.phase in ('I', 'W') and not bar.communicates]
        return float(np.median(backward)) if backward else self.step / 2

    def busy_stretch(self) -> float:
        """Return how long a zoomed window around the middle must be to hold enough compute ops."""
        times = np.sort([bar.arrive for bar in self.bars if not bar.communicates])
        at = int(np.searchsorted(times, self.middle()))
        low, high = max(0, at - ZOOMED // 2), min(len(times) - 1, at + ZOOMED // 2)
        return float(times[high] - times[low]) if high > low else self.step

    def most_exposed(self, seconds: float) -> float:
        """Where the window of so many seconds begins that has most exposed communication."""
        rows = range(len(self.streams))
        return busiest([self.intervals('exposed', row) for row in rows], seconds, self.step, self.middle())


def busiest(rows: list[Intervals], seconds: float, step: float, middle: float | None = None) -> float:
    """The begin of the window of so many seconds that intervals cover most; around the middle where all are equal.

    Arguments: ``rows`` of intervals; ``step``, in which the window lies; ``middle``, of the step unless given.
    """
    around = step / 2 if middle is None else middle
    usual = max(0.0, min(around - seconds / 2, step - seconds))
    begins = np.append(np.linspace(0.0, max(step - seconds, 0.0), _PLACES), usual)
    covered = 0 * begins + sum(_covered(row, begins, begins + seconds) for row in rows)
    # Windows that are as good are left for the usual one, so that the picture stays where it was.
    return usual if covered[-1] >= covered.max() * (1 - 1e-3) else float(begins[int(covered.argmax())])


def view(trace: Trace, name: str, rank: int | None = None, marks: frozenset[tuple[int, int]] = frozenset()) -> View:
    """The steady step of a trace.

    Arguments:
        rank: unless given the one that ends last.
        marks: (rank, slot) of the ops to be marked.
    Ops that ran before the window are shown at its end, as ``metrics`` counts them.
    """
    if rank is None:
        rank = trace.representatives[
            int(np.argmax([rank_times.end_KS[-1].max() for rank_times in trace.representatives]))
        ].rank
    named = named_streams(trace.program, trace.role(trace.times_of(rank)))
    # Compute on top; sorting is stable, so the others stay in order.
    streams = sorted(named, key=lambda stream: stream != 'compute')
    representative = int(trace.representative_of_rank[rank])
    return View(
        name=name,
        rank=rank,
        step=trace.step,
        streams=tuple(streams),
        metrics=metrics(trace).steady.rank(trace.representatives[representative].rank),
        bars=tuple(
            _bars(trace, rank, {index: row for row, name in enumerate(streams) for index in named[name]}, marks)
        ),
        copies=trace.program.copies,
    )


def share(intervals: Intervals, times: Times, window: float) -> Times:
    """Return which share of the time around each moment disjoint intervals cover.

    Arguments:
        times: rising, shape [n].
        window: seconds around a moment, less where it would leave ``times``.
    """
    if not len(intervals):
        return np.zeros(len(times))
    left, right = (np.clip(times + side * window / 2, times[0], times[-1]) for side in (-1, 1))
    covered = _covered(intervals, left, right)
    return np.asarray(covered / (right - left))


def _covered(intervals: Intervals, left: Times, right: Times) -> Times:
    """Seconds between two times that disjoint intervals cover."""
    if not len(intervals):
        return np.zeros(len(left))
    # The covered time up to a moment is linear between edges, so interpolation gives it exactly.
    until = np.repeat(np.concatenate(([0.0], np.cumsum(intervals[:, 1] - intervals[:, 0]))), 2)[1:-1]
    edges = intervals.ravel()
    return np.asarray(np.interp(right, edges, until) - np.interp(left, edges, until))


def _bars(trace: Trace, rank: int, rows: dict[int, int], marks: frozenset[tuple[int, int]]) -> list[Bar]:
    """The bars of the last step, times counted from its window's begin; ``rows``, stream → row."""
    end = float(trace.step_ends[-1])
    begin = end - trace.step
    bars = []
    stream = trace.role(trace.times_of(rank)).stream.tolist()
    for span in trace.spans(rank):
        communicates = is_communication(span.op)
        since = span.arrive if communicates and not is_transfer(span.op) else span.start
        for left, right in fold(np.array([[since, span.end]]), begin, end).tolist():
            # A wait lies before the run; where folding has split the bar, the run keeps its end.
            start = right - min(span.end - span.start, right - left)
            sliced = trace.program.sliced(span.op)
            copy = span.copy if sliced else None
            label = _label(span.op.operator if communicates else span.op.name)
            times = (left - begin, start - begin, right - begin)
            marked = (rank, span.slot) in marks
            which = (span.op.name, span.micro_batch if sliced else -1)
            bars.append(Bar(rows[stream[span.slot]], span.op.phase, communicates, copy, label, *times, marked, *which))
    return [bar for bar in bars if bar.end > bar.arrive]


def _label(name: str) -> str:
    """An op class's name without what place and colour say already."""
    return re.sub(r'^layer\d+\.|\.[FIWU]$', '', name).replace('_', '-')


def _intervals(bars: list[Bar]) -> Intervals:
    return np.array([(bar.arrive, bar.end) for bar in bars], dtype=np.float64).reshape(-1, 2)
