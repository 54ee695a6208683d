"""One pipeline's steady step, as boxes on rows: what its picture shows, without any drawing.

A row is a pipeline rank, a box an action. What a box is filled with is told by area: of its height, the share of its
time in which the rank computes each part and copy, and in which its communication is exposed; the rest stays blank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from simpar.interval_sets import Intervals, fold, length, minus, union
from simpar.metrics import ActionSpan, RankMetrics, action_spans, by_stages, metrics
from simpar.pipeline.order import Action
from simpar.plot.view import busiest
from simpar.program import Program, Role
from simpar.trace import RankTimes, Trace

BoxKind = Literal['F', 'B', 'I', 'W', 'U', 'exposed']
KINDS: Final[tuple[BoxKind, ...]] = ('F', 'B', 'I', 'W', 'U', 'exposed')
"""What a row can show, from the top of a box."""


class Layer(NamedTuple):
    """A share of a box's height: a kind, of which of the rank's stages (from 0) and which copy."""

    kind: BoxKind
    chunk: int
    copy: int
    share: float


class Label(NamedTuple):
    """What is done in a box, or in a part of it that has a share of its height."""

    stage: int
    kind: BoxKind
    micro_batch: int
    share: float


class Box(NamedTuple):
    """An action on a row, in seconds from the step's begin; labels and layers from its top."""

    begin: float
    end: float
    labels: tuple[Label, ...]
    layers: tuple[Layer, ...]


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
        """Exposed communication outside of the boxes."""
        return minus(self.exposed, np.array([(box.begin, box.end) for box in self.boxes]).reshape(-1, 2))


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

    def stretch(self, boxes: int) -> float:
        """How long so many boxes of the fullest row take in the middle of the step."""
        fullest = max(self.rows, key=lambda row: len(row.boxes)).boxes
        first = max(0, (len(fullest) - boxes) // 2)
        some = fullest[first : first + boxes]
        return some[-1].end - some[0].begin

    def most_exposed(self, seconds: float) -> float:
        """Where the window of so many seconds begins that has most exposed communication over all rows."""
        return busiest([row.exposed for row in self.rows], seconds, self.step)


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
        begin = float(trace.step_ends[-1]) - trace.step
        self.trace = trace
        self.program: Program = trace.program
        self.rank_times = rank_times
        self.role: Role = trace.role(rank_times)
        self.stages = stages
        self.begin = begin
        self.arrive, self.start, self.end = (
            (times[-1] - begin).tolist() for times in (rank_times.arrive_KS, rank_times.start_KS, rank_times.end_KS)
        )
        self.ops = [self.program.op_classes[index] for index in self.role.op_class.tolist()]
        self.exposed = self._exposed()

    def row(self, figures: RankMetrics) -> Row:
        spans = action_spans(self.trace, self.rank_times.rank)
        return Row(
            stages=self.stages,
            metrics=figures,
            boxes=tuple(sorted(box for span in spans for box in self._boxes(span))),
            computing=self._computing(spans),
            exposed=self.exposed,
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
        forward = self.ops[slot].part == 'F'
        return _kind(next(part.kind for part in span.action.parts if (part.kind == 'F') == forward))

    def _boxes(self, span: ActionSpan) -> Iterator[Box]:
        """The box of an action, or its parts at the two ends of the window."""
        computing = self._layers(span)
        done = sum(layer.share for layer in computing)
        labels = tuple(_label(part, computing) for part in span.action.parts)
        unfolded = np.array([[span.begin - self.begin, span.end - self.begin]])
        # An action that began before the window appears at its end, in two parts if it crosses the boundary.
        parts = [(left, right) for left, right in fold(unfolded, 0.0, self.trace.step).tolist() if right > left]
        bare = sum(length(np.clip(self.exposed, left, right)) for left, right in parts) / (span.end - span.begin or 1.0)
        # Other streams' exposed time may add up to more than the box has room for.
        bare = min(bare, 1.0 - done)
        exposed = (Layer('exposed', 0, 0, bare),) if bare > 0 else ()
        for left, right in parts:
            yield Box(left, right, labels, (*computing, *exposed))

    def _layers(self, span: ActionSpan) -> tuple[Layer, ...]:
        """Shares of an action's time that it computes, by part and copy."""
        seconds: dict[tuple[BoxKind, int, int], float] = {}
        for slot in span.slots:
            chunk = self.stages.index(self.ops[slot].stage)
            key = (self._part(span, slot), chunk, int(self.role.copy[slot]))
            seconds[key] = seconds.get(key, 0.0) + self.end[slot] - self.start[slot]
        # Two streams that compute at once can exceed the span.
        whole = max(span.end - span.begin, sum(seconds.values()))
        ranked = sorted(seconds.items(), key=lambda item: (KINDS.index(item[0][0]), *item[0][1:]))
        return tuple(Layer(*key, value / whole) for key, value in ranked if value > 0)


def _label(part: Action, layers: tuple[Layer, ...]) -> Label:
    kind = _kind(part.kind)
    return Label(part.stage, kind, part.micro_batch or 0, sum(layer.share for layer in layers if layer.kind == kind))


def _kind(kind: str) -> BoxKind:
    return next(known for known in KINDS if known == kind)
