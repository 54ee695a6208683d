"""One pipeline's steady step, as boxes on rows: what its picture shows, without any drawing.

A row is a pipeline rank, a box an action, from its first op to its last. In a box stand its parts: stretches in which
the rank computes without a pause to be seen. A part is filled by area: of its height, the share of each kind, stage and
copy. What is recomputed is a kind of its own. Between parts an action waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np

from simpar.interval_sets import Intervals, fold, minus, union
from simpar.metrics import ActionSpan, RankMetrics, action_spans, by_stages, metrics
from simpar.plot.frame import AGAIN, BACKWARD, EXPOSED, FORWARD, HATCH, UPDATE, WEIGHT, Colour, Frame, rgb
from simpar.plot.panel import phase_of, share
from simpar.program import Role
from simpar.trace import RankTimes, Trace

BoxKind = Literal['F', 'R', 'B', 'I', 'W', 'U', 'exposed']
KINDS: Final[tuple[BoxKind, ...]] = ('F', 'R', 'B', 'I', 'W', 'U', 'exposed')
"""What a row can show, from the top of a part; R is recomputed."""
_ZOOMED: Final = 24
"""Boxes of a row in the window that is shown larger."""
_PAUSE: Final = 1 / 400
"""Of the step: computing stops to be one part where it pauses for longer, which is about three points of a picture."""


class Layer(NamedTuple):
    """A share of a part's height: a kind, of which of the rank's stages (from 0) and which copy."""

    kind: BoxKind
    chunk: int
    copy: int
    share: float


class Part(NamedTuple):
    """A stretch of an action that is computed without a pause to be seen; shares of its layers sum to 1."""

    begin: float
    end: float
    layers: tuple[Layer, ...]


class Label(NamedTuple):
    """What is done in a box."""

    stage: int
    kind: BoxKind
    micro_batch: int


class Place(NamedTuple):
    """Where a label stands: seconds, and of a box's height the share above it and its own."""

    begin: float
    end: float
    above: float
    share: float


class Box(NamedTuple):
    """An action on a row, in seconds from the step's begin; labels from its top, parts in order of time."""

    begin: float
    end: float
    labels: tuple[Label, ...]
    parts: tuple[Part, ...]

    def place(self, label: Label) -> Place:
        """The largest area that a label's kind fills; an empty one where it computes nothing."""
        largest = Place(self.begin, self.begin, 0.0, 1.0)
        for part in self.parts:
            shares = [layer.share if layer.kind == label.kind else 0.0 for layer in part.layers]
            above = sum(one.share for one in part.layers[: next((at for at, one in enumerate(shares) if one), 0)])
            here = Place(part.begin, part.end, above, sum(shares))
            largest = max(largest, here, key=lambda one: (one.end - one.begin) * one.share)
        return largest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """A pipeline rank, shown by the one of its ranks that ends last.

    Arguments:
        stages: the stages that the rank holds.
        metrics: the metrics of the rank that is shown.
        boxes: its actions in order of time.
        computing: when it computes, by kind.
        exposed: when it communicates and computes nothing, in boxes and between.
    """

    stages: tuple[int, ...]
    metrics: RankMetrics
    boxes: tuple[Box, ...]
    computing: dict[BoxKind, Intervals]
    exposed: Intervals

    @property
    def between(self) -> Intervals:
        """Exposed communication outside of the parts."""
        parts = [part[:2] for box in self.boxes for part in box.parts]
        return minus(self.exposed, union(np.array(parts, dtype=np.float64).reshape(-1, 2)))

    def begin_of(self, kind: BoxKind, micro_batch: int) -> float | None:
        """When a micro-batch's forward or backward begins on the rank's first stage; None: it is not shown."""
        first = (kind == 'F', micro_batch, self.stages[0])
        return next(
            (box.begin for box in self.boxes for one in box.labels if (one.kind == 'F', *one[::-2]) == first), None
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineView:
    """A pipeline's steady step of ``step`` seconds; ``copies`` of the program."""

    name: str
    step: float
    rows: tuple[Row, ...]
    copies: int

    @property
    def chunks(self) -> int:
        """Stages on the rank that has most."""
        return max(len(row.stages) for row in self.rows)

    @property
    def most_boxes(self) -> int:
        """Boxes on the fullest row."""
        return max(len(row.boxes) for row in self.rows)

    @property
    def kinds(self) -> set[BoxKind]:
        """What is to be seen."""
        seen = {kind for row in self.rows for kind, intervals in row.computing.items() if len(intervals)}
        return seen | {'exposed' for row in self.rows if len(row.exposed)}

    def _middle(self) -> tuple[Box, ...]:
        """Boxes of the fullest row in the middle of the step."""
        fullest = max(self.rows, key=lambda row: len(row.boxes)).boxes
        first = max(0, (len(fullest) - _ZOOMED) // 2)
        return fullest[first : first + _ZOOMED]

    def stretch(self) -> float:
        """How long a zoomed window is."""
        some = self._middle()
        return some[-1].end - some[0].begin

    def most_telling(self, _seconds: float) -> float:
        """Where it begins."""
        return self._middle()[0].begin

    def as_in(self, other: PipelineView, begin: float, seconds: float) -> float:
        """Where the window begins that shows the same micro-batch at the same place as the window of another view."""
        first = self.rows[0]
        for box in other.rows[0].boxes:
            for label in box.labels if box.begin >= begin else ():
                same = first.begin_of(label.kind, label.micro_batch)
                if label.stage == other.rows[0].stages[0] and same is not None:
                    return max(0.0, min(same - (box.begin - begin), self.step - seconds))
        return min(begin, max(0.0, self.step - seconds))


def pipeline_view(trace: Trace, name: str) -> PipelineView:
    """The steady step of a trace, one row for each pipeline rank.

    Actions that began before the step's window are shown at its end, where those of the next step are.
    """
    steady = metrics(trace).steady
    rows = []
    for stages, roles in by_stages(trace.program).items():
        representatives = [
            rank_times for rank_times in trace.representatives if any(trace.role(rank_times) is role for role in roles)
        ]
        # The rank that ends last holds its stage up, so it is the one to look at.
        rank_times = max(representatives, key=lambda rank_times: rank_times.end_KS[-1].max())
        rows.append(_Reader(trace, rank_times, stages).row(steady.rank(rank_times.rank)))
    return PipelineView(name=name, step=trace.step, rows=tuple(rows), copies=trace.program.copies)


class _Reader:
    """Reads the last step of one representative rank, times counted from the window's begin."""

    def __init__(self, trace: Trace, rank_times: RankTimes, stages: tuple[int, ...]) -> None:
        self.trace = trace
        self.rank_times = rank_times
        self.role: Role = trace.role(rank_times)
        self.stages = stages
        self.begin = float(trace.step_ends[-1]) - trace.step
        self.arrive, self.start, self.end = ((times[-1] - self.begin).tolist() for times in rank_times.columns)
        self.ops = [trace.program.op_classes[index] for index in self.role.op_class.tolist()]

    def row(self, figures: RankMetrics) -> Row:
        spans = action_spans(self.trace, self.rank_times.rank)
        return Row(
            stages=self.stages,
            metrics=figures,
            boxes=tuple(sorted(box for span in spans for box in self._boxes(span))),
            computing=self._computing(spans),
            exposed=self._exposed(),
        )

    def _folded(self, pairs: list[tuple[float, float]]) -> Intervals:
        return union(fold(np.array(pairs, dtype=np.float64).reshape(-1, 2), 0.0, self.trace.step))

    def _exposed(self) -> Intervals:
        """As the metrics define it: a collective from its arrival on, a send or receive from its start."""
        computing: list[tuple[float, float]] = []
        communicating: list[tuple[float, float]] = []
        for slot, op in enumerate(self.ops):
            span = (self.arrive[slot] if op.kind == 'collective' else self.start[slot], self.end[slot])
            (computing if op.kind == 'compute' else communicating).append(span)
        return minus(self._folded(communicating), self._folded(computing))

    def _computing(self, spans: list[ActionSpan]) -> dict[BoxKind, Intervals]:
        """When each kind is computed; what belongs to no action is the update, with the sums before it."""
        kinds: dict[int, BoxKind] = {}
        for span in spans:
            kinds.update((slot, self._part(span, slot)) for slot in span.slots)
        pairs: dict[BoxKind, list[tuple[float, float]]] = {kind: [] for kind in KINDS[:-1]}
        for slot, op in enumerate(self.ops):
            if op.kind == 'compute':
                pairs[kinds.get(slot, 'U')].append((self.start[slot], self.end[slot]))
        return {kind: self._folded(mine) for kind, mine in pairs.items()}

    def _part(self, span: ActionSpan, slot: int) -> BoxKind:
        """What a slot of an action does."""
        op = self.ops[slot]
        if phase_of(op) == 'R':
            return 'R'
        return cast('BoxKind', next(part.kind for part in span.action.parts if (part.kind == 'F') == (op.part == 'F')))

    def _boxes(self, span: ActionSpan) -> Iterator[Box]:
        """The box of an action, or its parts at the two ends of the window."""
        labels = tuple(Label(one.stage, cast('BoxKind', one.kind), one.micro_batch or 0) for one in span.action.parts)
        parts = self._parts(span)
        # An action that began before the window appears at its end, in two boxes if it crosses the boundary.
        for turn in (0.0, self.trace.step):
            left, right = self._inside(span.begin - self.begin + turn, span.end - self.begin + turn)
            if left < right:
                moved = ((*self._inside(one.begin + turn, one.end + turn), one.layers) for one in parts)
                yield Box(left, right, labels, tuple(Part(*one) for one in moved if one[0] < one[1]))

    def _inside(self, begin: float, end: float) -> tuple[float, float]:
        return max(begin, 0.0), min(end, self.trace.step)

    def _parts(self, span: ActionSpan) -> list[Part]:
        """What an action computes, stretch by stretch, in seconds from the window's begin."""
        parts: list[Part] = []
        seconds: dict[tuple[BoxKind, int, int], float] = {}
        begin = until = -inf
        slots = [slot for slot in span.slots if self.ops[slot].kind == 'compute']
        for slot in (*sorted(slots, key=lambda slot: self.start[slot]), -1):
            start, end = (self.start[slot], self.end[slot]) if slot >= 0 else (inf, inf)
            if start > until + _PAUSE * self.trace.step:
                if whole := sum(seconds.values()):
                    ranked = sorted(seconds.items(), key=lambda item: (KINDS.index(item[0][0]), *item[0][1:]))
                    layers = tuple(Layer(*key, value / whole) for key, value in ranked if value)
                    parts.append(Part(begin, until, layers))
                seconds, begin = {}, start
            if slot >= 0:
                key = (self._part(span, slot), self.stages.index(self.ops[slot].stage), int(self.role.copy[slot]))
                seconds[key] = seconds.get(key, 0.0) + end - start
            until = max(until, end)
        return parts


# One panel of a pipeline's picture: rows of boxes, or of shares over time where there are too many boxes to see.


COLOURS: Final[dict[BoxKind, str]] = {
    'F': FORWARD, 'R': AGAIN, 'B': BACKWARD, 'I': BACKWARD, 'W': WEIGHT, 'U': UPDATE, 'exposed': EXPOSED,
}  # fmt: skip
CHUNK_WHITE: Final = 0.55
COPY_WHITE: Final = 0.22
"""How much white the last stage of a rank, and the last copy, have in their colour."""
WAITS_WHITE: Final = 0.65
"""How much white the ground of a box has, which is seen where its action waits."""
_MOMENTS: Final = 800
_HALF: Final = 0.42
"""Half the height of a box, in rows."""
LANE: Final = 0.24
"""Height of the lane of exposed communication at the bottom of a row, in rows."""
_HIGH: Final = 2 * _HALF - LANE
"""Height of a box, in rows."""
_SIZES: Final = (8.0, 7.5, 7.0, 6.5, 6.0)
"""Letters, in points, that labels are tried in; smaller ones nobody reads."""
_DIGIT: Final = 0.64
"""Width of a digit, in sizes of the letter."""
_HATCHED: Final = 4.0
"""Points of width from which exposed communication is hatched: narrower, the hatch would hide it."""
_GAP: Final = 0.7
"""Points between boxes."""
_NARROW: Final = 1.5
"""Points: where exposed communication is narrower in the mean, the lane shows its share over time."""
_LANE_MEAN: Final = 8.0
"""Points over which the lane takes that share."""

Rectangle = tuple[float, float, float, float, Colour]
"""Left, right, top, bottom, colour."""


@dataclass(frozen=True, slots=True)
class PipelinePanel:
    """A pipeline in a window of time; ``height``, inches of a row."""

    frame: Frame
    view: PipelineView
    height: float

    def draw(self, heading: str, averaged: float, *, lane_is_shares: bool) -> None:
        """Draw rows and their contents; ``averaged`` over so many seconds, or 0: box by box."""
        self.frame.draw(
            heading, [row_name(self.view, number, self.height) for number in range(len(self.view.rows))], _HALF
        )
        self.frame.axes.tick_params(axis='y', labelsize=8.5 if self.height > 0.3 else 7.5)
        # All boxes of a kind alike, and as large as the numbers of micro-batches fit.
        labels = _labelled(self.view, self.frame.window, self.frame.points(1.0))
        sizes = {kind: _size_of_most(mine, 0.9 * self.height * 72 * _HIGH) for kind, mine in labels.items()}
        for number, row in enumerate(self.view.rows):
            if averaged:
                self._shares(number, row, averaged)
            else:
                self._boxes(number, row)
                self._lane(number, row, shares=lane_is_shares)
                for box in row.boxes:
                    if box.end > self.frame.window[0] and box.begin < self.frame.window[1]:
                        self._labels(number, box, sizes)

    def figures(self) -> None:
        """Bubble and exposed communication of every row, at its right."""
        for column, figure in enumerate(('bubble', 'exposed')):
            right = 1.0 + (0.6 + 0.6 * column) / self.frame.inches
            style: dict[str, Any] = {'ha': 'right', 'fontsize': 8, 'transform': self.frame.axes.get_yaxis_transform()}
            self.frame.axes.text(right, -0.5 - 0.05 / self.height, figure, va='bottom', color='#555555', **style)
            for number, row in enumerate(self.view.rows):
                percent = 100 * getattr(row.metrics, figure) / self.view.step
                self.frame.axes.text(right, number, f'{percent:.0f} %', va='center', **style)

    def _boxes(self, number: int, row: Row) -> None:
        """Boxes and updates."""
        top, floor = number - _HALF, number + _HALF - LANE
        drawn = [rectangle for box in row.boxes for rectangle in self._layers(number, box)]
        drawn += [(left, right, top, floor, rgb(COLOURS['U'])) for left, right in row.computing['U'].tolist()]
        self._rectangles(drawn)

    def lane_is_shares(self) -> bool:
        """Whether most of the exposed communication in the window is too narrow to see piece by piece."""
        widths = [right - left for row in self.view.rows for left, right in self._exposed(row)]
        return bool(widths) and self.frame.points(float(np.mean(widths))) < _NARROW

    def _exposed(self, row: Row) -> list[tuple[float, float]]:
        """Exposed communication of a row that the window shows."""
        begin, end = self.frame.window
        return [(left, right) for left, right in row.exposed.tolist() if right > begin and left < end]

    def _lane(self, number: int, row: Row, *, shares: bool) -> None:
        """When the rank communicates and computes nothing, below the boxes; or its share over time."""
        top, bottom = number + _HALF - LANE + 0.03, number + _HALF
        if shares:
            begin, end = self.frame.window
            times = np.linspace(begin, end, _MOMENTS)
            averaged = _LANE_MEAN / self.frame.points(1.0)
            height = (bottom - top) * share(row.exposed, times, averaged)
            self.frame.axes.fill_between(
                times * self.frame.scale, bottom, bottom - height, color=COLOURS['exposed'], linewidth=0
            )
            return
        bars = [(left, right, top, bottom, rgb(COLOURS['exposed'])) for left, right in self._exposed(row)]
        for hatch in (None, HATCH):
            self._rectangles(
                [bar for bar in bars if (self.frame.points(bar[1] - bar[0]) >= _HATCHED) == (hatch is not None)], hatch
            )

    def _layers(self, number: int, box: Box) -> list[Rectangle]:
        """A box's ground and what its parts compute, from the top, with a gap to its neighbours where it is wide."""
        gap = _GAP / 2 * (box.end - box.begin) / max(self.frame.points(box.end - box.begin), 1e-9)
        # A gap in points would eat up narrow boxes.
        gap = min(gap, 0.06 * (box.end - box.begin))
        begin, end, top = box.begin + gap, box.end - gap, number - _HALF
        ground = rgb(COLOURS[box.labels[-1].kind], WAITS_WHITE)
        layers = [(begin, end, top, top + _HIGH, ground)] if len(box.parts) != 1 else []
        for part in box.parts:
            above = top
            for layer in part.layers:
                below = above + _HIGH * layer.share
                layers.append((max(begin, part.begin), min(end, part.end), above, below, self._colour(layer)))
                above = below
        return layers

    def _rectangles(self, rectangles: list[Rectangle], hatch: str | None = None) -> None:
        from matplotlib.collections import PolyCollection

        scale = self.frame.scale
        corners = [
            ((left * scale, top), (right * scale, top), (right * scale, bottom), (left * scale, bottom))
            for left, right, top, bottom, _ in rectangles
        ]
        colours = [colour for *_, colour in rectangles]
        drawn = PolyCollection(corners, facecolors=colours, edgecolors='white', linewidths=0, hatch=hatch)
        if corners:
            self.frame.axes.add_collection(drawn, autolim=False)

    def _shares(self, number: int, row: Row, averaged: float) -> None:
        """What share of each moment the row spends on what, stacked from the bottom."""
        times = np.linspace(0.0, self.view.step, _MOMENTS)
        floor = np.full(_MOMENTS, number + _HALF)
        for kind, intervals in (*row.computing.items(), ('exposed', row.exposed)):
            top = floor - 2 * _HALF * share(intervals, times, averaged)
            if len(intervals):
                self.frame.axes.fill_between(times * self.frame.scale, floor, top, color=COLOURS[kind], linewidth=0)
            floor = top

    def _labels(self, number: int, box: Box, sizes: dict[BoxKind, float]) -> None:
        """Numbers of micro-batches in their box, or in its parts."""
        for label in box.labels:
            place = box.place(label)
            begin, end = max(place.begin, self.frame.window[0]), min(place.end, self.frame.window[1])
            # All boxes of a kind in one size where possible: mixed sizes look like a message.
            high = min(sizes[label.kind], _HIGH * place.share * self.height * 72 / 0.75)
            if points := _size([label], self.frame.points(end - begin), high):
                first = next(one for part in box.parts for one in part.layers if one.kind == label.kind)
                colour = 'white' if _dark(self._colour(first)) else 'black'
                middle = number - _HALF + _HIGH * (place.above + place.share / 2)
                self.frame.axes.text(
                    (begin + end) / 2 * self.frame.scale, middle, str(label.micro_batch), ha='center',
                    va='center_baseline', fontsize=points, color=colour, clip_on=True,
                )  # fmt: skip

    def _colour(self, layer: Layer) -> Colour:
        """Its kind's colour, the lighter the higher the stage on its rank, and a little the higher the copy."""
        white = CHUNK_WHITE * layer.chunk / max(1, self.view.chunks - 1)
        white += COPY_WHITE * layer.copy / max(1, self.view.copies - 1)
        return rgb(COLOURS[layer.kind], white)


def row_name(view: PipelineView, number: int, height: float) -> str:
    """What a row is called; ``height``, inches of it."""
    held = view.rows[number].stages
    stages = ', '.join(map(str, held)) if len(held) < 4 else f'{held[0]} … {held[-1]}'
    stages = f'stage{"s" if len(held) > 1 else ""} {stages}'
    if len(view.rows) == 1:
        return 'every rank'
    return f'pipeline {number}\n{stages}' if height > 0.3 else f'{number}: {stages}'


def labels_fit(view: PipelineView, points: float) -> bool:
    """Whether forwards and backwards have room for the numbers of micro-batches where a second is so wide."""
    labels = _labelled(view, (0.0, view.step), points)
    return all(_size_of_most(mine, inf) for kind, mine in labels.items() if kind in 'FBI')


def _labelled(
    view: PipelineView, window: tuple[float, float], points: float
) -> dict[BoxKind, list[tuple[float, Label]]]:
    """The labels in a window by kind, each with the width of its box in points; ``points``, width of a second."""
    by_kind: dict[BoxKind, list[tuple[float, Label]]] = {}
    for row in view.rows:
        for box in row.boxes:
            for label in box.labels if box.end > window[0] and box.begin < window[1] else ():
                place = box.place(label)
                by_kind.setdefault(label.kind, []).append(((place.end - place.begin) * points, label))
    return by_kind


def _size_of_most(mine: list[tuple[float, Label]], high: float) -> float:
    """The size of letters for labels that stand in boxes of some widths, at most ``high`` points high."""
    # A tenth may be narrower: a few short actions should not take the labels of all.
    narrow = sorted(width for width, _ in mine)[len(mine) // 10]
    return _size([label for _, label in mine], narrow, high)


def _size(labels: list[Label], width: float, high: float) -> float:
    """The largest size of letters in which numbers of micro-batches fit, with a little air; 0: none does."""
    most = max(len(str(label.micro_batch)) for label in labels)
    fit = (points for points in _SIZES if points <= high and _DIGIT * points * most + 0.8 <= width)
    return next(fit, 0.0)


def _dark(colour: Colour) -> bool:
    """Whether white letters are read better on it (luminance, roughly)."""
    # Weights of the eye's sensitivity to red, green and blue.
    return 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2] < 0.55
