"""One program's steady step on one rank, as bars on rows: what a timeline shows, without any drawing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from simpar import interval_sets, program
from simpar.metrics import RankMetrics, is_communication, metrics, named_streams
from simpar.plot.frame import AGAIN, BACKWARD, EXPOSED, FORWARD, HATCH, HIDDEN, UPDATE, WEIGHT, Colour, Frame, rgb
from simpar.trace import Times, Trace

Kind = Literal['F', 'R', 'I', 'W', 'U', 'hidden', 'exposed']
KINDS: Final[tuple[Kind, ...]] = ('F', 'R', 'I', 'W', 'U', 'hidden', 'exposed')
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
    def computing(self) -> interval_sets.Intervals:
        """When the rank computes."""
        return interval_sets.union(_intervals([bar for bar in self.bars if not bar.communicates]))

    def intervals(self, kind: Kind, row: int) -> interval_sets.Intervals:
        """When a row shows a kind, as disjoint intervals in order."""
        bars = [bar for bar in self.bars if bar.row == row]
        if kind not in ('hidden', 'exposed'):
            return interval_sets.union(_intervals([bar for bar in bars if bar.phase == kind and not bar.communicates]))
        communication = _intervals([bar for bar in bars if bar.communicates])
        exposed = interval_sets.minus(communication, self.computing)
        return exposed if kind == 'exposed' else interval_sets.minus(communication, exposed)

    def middle(self) -> float:
        """The time of the middle of the backward; of the step, if it has none."""
        backward = [bar.arrive for bar in self.bars if bar.phase in ('R', 'I', 'W') and not bar.communicates]
        return float(np.median(backward)) if backward else self.step / 2

    def stretch(self) -> float:
        """How long a zoomed window around the middle must be to hold enough compute ops."""
        times = np.sort([bar.arrive for bar in self.bars if not bar.communicates])
        at = int(np.searchsorted(times, self.middle()))
        low, high = max(0, at - ZOOMED // 2), min(len(times) - 1, at + ZOOMED // 2)
        return float(times[high] - times[low]) if high > low else self.step

    def most_telling(self, seconds: float) -> float:
        """Where the window of so many seconds begins that has most exposed communication and computing at once; the one
        around the middle where none has more."""
        usual = max(0.0, min(self.middle() - seconds / 2, self.step - seconds))
        begins = np.append(np.linspace(0.0, max(self.step - seconds, 0.0), _PLACES), usual)
        rows = (self.intervals('exposed', row) for row in range(len(self.streams)))
        exposed = 0 * begins + sum(_covered(row, begins, begins + seconds) for row in rows)
        # A window without any computing would have blank rows, as of a rank that idles.
        both = exposed * _covered(self.computing, begins, begins + seconds)
        # Windows that are as good are left for the usual one, so that the picture stays where it was.
        return usual if both[-1] >= both.max() * (1 - 1e-3) else float(begins[int(both.argmax())])

    def as_in(self, other: View, begin: float, seconds: float) -> float:
        """Where the window begins that shows the same op at the same place as one of another view."""
        computed = (bar for bar in other.bars if not bar.communicates and bar.start >= begin)
        first = min(computed, key=lambda bar: bar.start, default=None)
        same = [
            bar.start
            for bar in self.bars
            if first and (bar.name, bar.phase, bar.micro_batch) == (first.name, first.phase, first.micro_batch)
        ]
        if first is None or not same:
            return self.most_telling(seconds)
        return max(0.0, min(min(same) - (first.start - begin), self.step - seconds))


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


def share(intervals: interval_sets.Intervals, times: Times, window: float) -> Times:
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


def _covered(intervals: interval_sets.Intervals, left: Times, right: Times) -> Times:
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
        since = span.arrive if communicates and not program.transfers(span.op) else span.start
        for left, right in interval_sets.fold(np.array([[since, span.end]]), begin, end).tolist():
            # A wait lies before the run; where folding has split the bar, the run keeps its end.
            start = right - min(span.end - span.start, right - left)
            sliced = trace.program.sliced(span.op)
            copy = span.copy if sliced else None
            label = _label(span.op.operator if communicates else span.op.name)
            times = (left - begin, start - begin, right - begin)
            marked = (rank, span.slot) in marks
            which = (span.op.name, span.micro_batch if sliced else -1)
            bars.append(
                Bar(rows[stream[span.slot]], phase_of(span.op), communicates, copy, label, *times, marked, *which)
            )
    return [bar for bar in bars if bar.end > bar.arrive]


def phase_of(op: program.OpClass) -> str:
    """An op's phase; R where it is recomputed in the backward."""
    return 'R' if op.phase == 'F' != op.part else op.phase


def _label(name: str) -> str:
    """An op class's name without what place and colour say already."""
    return re.sub(r'^layer\d+\.|\.[FIWU](\.recompute)?$', '', name).replace('_', '-')


def _intervals(bars: list[Bar]) -> interval_sets.Intervals:
    return np.array([(bar.arrive, bar.end) for bar in bars], dtype=np.float64).reshape(-1, 2)


# One panel of a timeline: a program in one window of time, as bars or as shares over time.


COLOURS: Final[dict[Kind, str]] = {
    'F': FORWARD, 'R': AGAIN, 'I': BACKWARD, 'W': WEIGHT, 'U': UPDATE, 'hidden': HIDDEN, 'exposed': EXPOSED,
}  # fmt: skip
_MOMENTS: Final = 800
_LABEL_POINTS: Final = 6.5
MARKED: Final = 0.9
"""Height of the outline of a marked op, a bit more than that of its bar."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A program in a window of time."""

    frame: Frame
    view: View

    def draw(self, heading: str, averaged: float) -> None:
        """Draw rows and their contents; ``averaged`` over so many seconds, or 0: op by op."""
        self.frame.draw(heading, list(self.view.streams), 0.4)
        for row in range(len(self.view.streams)):
            if averaged:
                self._shares(row, averaged)
            else:
                self._bars(row)

    def _shares(self, row: int, averaged: float) -> None:
        """What share of each moment the row spends on what, stacked."""
        times = np.linspace(0.0, self.view.step, _MOMENTS)
        floor = np.full(_MOMENTS, row + 0.4)
        # Stacked in one order in all rows, so that colours line up.
        for kind in KINDS:
            top = floor - 0.8 * share(self.view.intervals(kind, row), times, averaged)
            self.frame.axes.fill_between(times * self.frame.scale, floor, top, color=COLOURS[kind], linewidth=0)
            floor = top
        # Single ops are too narrow for an outline: a line over the row shows where marked ones are.
        marked = [self._span(bar.arrive, bar.end) for bar in self.view.bars if bar.row == row and bar.marked]
        self.frame.axes.broken_barh(marked, (row - MARKED / 2, 0.06), facecolors='black', linewidth=0)

    def _bars(self, row: int) -> None:
        """Every op as a bar; a wait for peers as a thinner one; labels where they fit."""
        begin, end = self.frame.window
        seen = [bar for bar in self.view.bars if bar.row == row and bar.end > begin and bar.arrive < end]
        waited = [bar for bar in seen if bar.start > bar.arrive]
        self._draw([(bar, bar.start, bar.end) for bar in seen], (row - 0.4, 0.8))
        self._draw([(bar, bar.arrive, bar.start) for bar in waited], (row - 0.13, 0.26))
        # Exposed communication over the bars that it is part of.
        exposed = [self._span(*self._clip(*one)) for one in self.view.intervals('exposed', row).tolist()]
        style: dict[str, Any] = {'facecolor': COLOURS['exposed'], 'edgecolor': 'white', 'hatch': HATCH, 'linewidth': 0}
        self.frame.axes.broken_barh([span for span in exposed if span[1] > 0], (row - 0.4, 0.8), **style)
        wide = [bar for bar in seen if self.frame.letters(bar.end - bar.start, _LABEL_POINTS) > 1]
        edges = [time * self.frame.scale for bar in wide for time in (bar.start, bar.end)]
        self.frame.axes.vlines(edges, row - 0.4, row + 0.4, colors='white', linewidth=0.6)
        for bar in seen:
            self._label(bar)
        # A black outline around ops that are pointed out.
        spans = [self._span(*self._clip(bar.arrive, bar.end)) for bar in seen if bar.marked]
        outline: dict[str, Any] = {'facecolors': 'none', 'edgecolors': 'black', 'linewidth': 1.2, 'zorder': 4}
        self.frame.axes.broken_barh(spans, (row - MARKED / 2, MARKED), **outline)

    def _draw(self, spans: list[tuple[Bar, float, float]], height: tuple[float, float]) -> None:
        """Parts of bars, each in its bar's colour."""
        colours = [self._colour(bar) for bar, _, _ in spans]
        places = [self._span(since, until) for _, since, until in spans]
        self.frame.axes.broken_barh(places, height, facecolors=colours, linewidth=0)

    def _label(self, bar: Bar) -> None:
        """The op's name and copy, or one of them, where there is room."""
        since, until = self._clip(bar.start, bar.end)
        room = self.frame.letters(until - since, _LABEL_POINTS) - 1
        copy = f'c{bar.copy}' if self.view.copies > 1 and bar.copy is not None else ''
        texts = (f'{bar.label} {copy}'.strip(), bar.label, copy)
        text = next((text for text in texts if len(text) <= room), '')
        # Blue and green are dark enough for white letters; later copies are lighter.
        dark = not bar.communicates and bar.phase in ('F', 'I') and not bar.copy
        if text:
            # On a hatch letters cannot be read without a ground.
            box = {'facecolor': 'white', 'alpha': 0.75, 'linewidth': 0, 'pad': 0.6} if bar.communicates else None
            self.frame.axes.text(
                (since + until) / 2 * self.frame.scale, bar.row, text, ha='center', va='center', fontsize=_LABEL_POINTS,
                color='white' if dark else 'black', clip_on=True, bbox=box,
            )  # fmt: skip

    def _clip(self, since: float, until: float) -> tuple[float, float]:
        return max(since, self.frame.window[0]), min(until, self.frame.window[1])

    def _span(self, since: float, until: float) -> tuple[float, float]:
        return since * self.frame.scale, (until - since) * self.frame.scale

    def _colour(self, bar: Bar) -> Colour:
        """Its kind's colour, the lighter the higher the copy."""
        kind = next(kind for kind in KINDS if kind == ('hidden' if bar.communicates else bar.phase))
        return rgb(COLOURS[kind], 0.5 * (bar.copy or 0) / max(1, self.view.copies - 1))
