"""Pieces: least seconds of parts of a stage's forward and backward, from a small program of the same kind."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise
from operator import add, and_, or_
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.program import OpClass, Program, Role

Floats = NDArray[np.float64]
Many = float | Floats
SURELY: Final = 1 - 1e-9
"""Of what was worked out, for each duration of the engine is rounded to its grid."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of what runs beside something else: of products and of other ops beside a message, of it beside them."""

    matrix: float
    memory: float
    collective: float

    @property
    def unstretched(self) -> Speeds:
        """The same with messages that nothing slows."""
        return Speeds(self.matrix, self.memory, 1.0)


def least_beside(seconds: float, slowed: float, idle: float, wire: float, speeds: Speeds) -> float:
    """Least seconds of a step of one rank that computes and sends at once.

    While both go on, computation takes longer and so does the message. So hiding messages has a price: of all ways to
    lay them over idle time and computation, the one that ends first.

    Arguments:
        seconds, slowed: of all computation by itself, and beside messages all the time.
        idle: in which the rank surely computes nothing.
        wire: of all messages of one stream by themselves.
    """
    return float(_beside(seconds, slowed, idle, wire, speeds, _products(seconds, slowed, speeds)))


def _beside(seconds: Many, slowed: Many, idle: Many, wire: Many, speeds: Speeds, matrix: Many) -> Floats:
    fast, slow = speeds.matrix, speeds.memory
    # Idle time is filled first, for it costs nothing. What is left lies over products first, which suffer least.
    over = np.maximum(0.0, (wire - idle) / speeds.collective)
    # All computation is slowed, and the messages still need more time than that.
    longer = np.maximum(idle + slowed, wire + (1 - speeds.collective) * slowed)
    products = np.minimum(over, matrix / fast)
    within = idle + seconds + (1 - fast) * products + (1 - slow) * (over - products)
    return np.where(over >= slowed, longer, within)


def least_hidden(seconds: float, slowed: float, wire: float, speeds: Speeds) -> float:
    """The same for any idle time."""
    return float(each_hidden(seconds, slowed, wire, speeds))


def each_hidden(seconds: Many, slowed: Many, wire: Many, speeds: Speeds) -> Floats:
    """The same of many steps at once."""
    matrix = _products(seconds, slowed, speeds)
    # By idle time it is convex, and in straight pieces: the least is where one ends.
    between = np.minimum(wire, np.maximum(0.0, wire - speeds.collective * matrix / speeds.matrix))
    ends = [_beside(seconds, slowed, idle, wire, speeds, matrix) for idle in (0.0, between, wire)]
    least: Floats = np.minimum(np.minimum(ends[0], ends[1]), ends[2])
    return least


def _products(seconds: Many, slowed: Many, speeds: Speeds) -> Many:
    """Of all computation, that of products, as told by how much messages slow it."""
    fast, slow = speeds.matrix, speeds.memory
    if fast == slow:
        return seconds
    least: Floats = np.minimum(seconds, np.maximum(0.0, seconds - (slowed - seconds / fast) / (1 / slow - 1 / fast)))
    return least


@dataclass(frozen=True, slots=True)
class Work:
    """What ops cost beside each other, by op class.

    Arguments:
        alone, slowed: seconds of computation by itself, and beside messages.
        wire: of collectives, the seconds that surely go by where nothing slows them; what no link is asked for is
            counted as less, so that it takes as long as it does where it is hidden.
        speeds: beside each other.
        loads: of collectives, the seconds for which they have the outermost link to themselves.
        host: seconds in which each is issued; empty: none.
    """

    alone: Sequence[float]
    slowed: Sequence[float]
    wire: Mapping[int, float]
    speeds: Speeds
    loads: Mapping[int, float]
    host: Sequence[float] = ()


BEGINS: Final = 256
"""Ops from which windows of one stream begin, at least where there are twice as many."""


def windows(
    ahead: Sequence[int],
    behind: Sequence[int],
    ops: Sequence[int],
    computes: Sequence[bool],
    streams: Sequence[int],
    work: Work,
) -> dict[int, list[tuple[int, float]]]:
    """Least seconds from the start of one compute op to that of a later one, by the later: (earlier, seconds).

    A message that needs one and is needed by the other is surely sent between them, beside what is computed there or
    while nothing is. All arguments are by place, in issue order: ``ahead`` as of ``last_ahead``, ``behind`` as of
    ``first_behind``; ``ops``, op classes; ``computes``, which of them compute; ``streams``, which stream each is on.
    """
    # Seconds of computation up to each place.
    alone, slowed = (
        np.concatenate([[0.0], np.cumsum(np.array(seconds)[ops] * computes)]) for seconds in (work.alone, work.slowed)
    )
    by_place: dict[int, list[tuple[int, float]]] = {}
    for stream in set(streams):
        sent = sorted(
            (behind[place], work.wire[op], ahead[place])
            for place, op in enumerate(ops)
            if streams[place] == stream and op in work.wire and ahead[place] >= 0 and behind[place] < len(ops)
        )
        end, wire, begin = np.array(sent, dtype=np.float64).reshape(-1, 3).T
        begins = sorted({begin for _, _, begin in sent})
        # A ring of thousands of ranks has as many: fewer windows say less, and nothing wrong.
        for first in begins[:: max(1, len(begins) // BEGINS)]:
            inside = begin >= first
            ends = end[inside].astype(np.int64)
            # Of all that end at a place, the sum behind the last.
            last = np.append(ends[1:] > ends[:-1], True)
            ends, sums = ends[last], np.cumsum(wire[inside])[last]
            least = each_hidden(alone[ends] - alone[first], slowed[ends] - slowed[first], sums, work.speeds) * SURELY
            for place, seconds in zip(ends.tolist(), least.tolist(), strict=True):
                by_place.setdefault(place, []).append((first, seconds))
    return by_place


def last_ahead(before: Sequence[Sequence[int]], computes: Sequence[bool]) -> list[int]:
    """For each place the last compute op that it surely is behind; -1 where there is none."""
    places: list[int] = []
    for needs in before:
        places.append(max((one if computes[one] else places[one] for one in needs), default=-1))
    return places


def first_behind(before: Sequence[Sequence[int]], computes: Sequence[bool]) -> list[int]:
    """For each place the first compute op that is surely behind it; past the end where there is none."""
    places = [len(before)] * len(before)
    for place in range(len(before) - 1, -1, -1):
        reach = place if computes[place] else places[place]
        for need in before[place]:
            places[need] = min(places[need], reach)
    return places


_LAYER: Final = re.compile(r'(?:d:)?layer(\d+)\.(.*)')
_READER: Final = re.compile(r'@layer\d+\.')
"""Of a cast's name, the layer that reads it."""
MIDDLE: Final = 1
"""The micro-batch of three that is neither the first nor the last."""
PARTS: Final = {'F': ('F',), 'B': ('I', 'W'), 'I': ('I',), 'W': ('W',)}
"""What phases the actions of a pipeline do."""


def does_of(name: str) -> tuple[int | None, str]:
    """The layer that an op or tensor belongs to, and what it does there; no layer: an empty name."""
    match = _LAYER.match(name)
    return (int(match[1]), match[2]) if match else (None, '')


def layer_of(name: str) -> int | None:
    """The layer that an op or tensor belongs to."""
    return does_of(name)[0]


_Does = tuple[str, int]
"""What an op does in its layer, and for which copy."""


@dataclass(frozen=True, eq=False)
class Ops:
    """The ops of an action for the middle micro-batch, sends among them, in issue order, each by its place.

    Arguments:
        role: that does it.
        kind: of the action.
        layers: of the stage, in the order in which the action does them.
    """

    program: Program
    role: Role
    kind: str
    layers: Sequence[int]

    @cached_property
    def slots(self) -> list[int]:
        """The slot of each in the role."""
        mine = np.flatnonzero((self.role.micro_batch == MIDDLE) & self.program.is_sliced[self.role.op_class])
        parts, ops = PARTS[self.kind], self.program.op_classes
        classes = self.role.op_class[mine].tolist()
        both = zip(mine.tolist(), classes, strict=True)
        return [slot for slot, index in both if ops[index].part in parts and ops[index].kind != 'recv']

    @cached_property
    def classes(self) -> list[int]:
        """The op class of each."""
        indices: list[int] = self.role.op_class[self.slots].tolist()
        return indices

    @cached_property
    def ops(self) -> list[OpClass]:
        """Each."""
        return [self.program.op_classes[index] for index in self.classes]

    @cached_property
    def streams(self) -> list[int]:
        """The stream that each is on."""
        numbers: list[int] = self.role.stream[self.slots].tolist()
        return numbers

    @cached_property
    def computes(self) -> list[bool]:
        """Which of them compute."""
        return [op.kind == 'compute' for op in self.ops]

    @cached_property
    def computed(self) -> list[int]:
        """The places of those that compute."""
        return [place for place, computes in enumerate(self.computes) if computes]

    @cached_property
    def before(self) -> list[list[int]]:
        """The places of those that each waits for, the one before it in its stream among them."""
        number = {slot: place for place, slot in enumerate(self.slots)}
        needs, latest = self.role.need, dict[int, int]()
        by_place = []
        for place, (slot, stream) in enumerate(zip(self.slots, self.streams, strict=True)):
            waits = [number[need] for need in needs.items(slot) if need in number]
            if stream in latest:
                waits.append(latest[stream])
            latest[stream] = place
            by_place.append(waits)
        return by_place

    @cached_property
    def ahead(self) -> list[int]:
        """The last that computes and that each is surely behind; see ``last_ahead``."""
        return last_ahead(self.before, self.computes)

    @cached_property
    def behind(self) -> list[int]:
        """The first that computes and that is surely behind each; see ``first_behind``."""
        return first_behind(self.before, self.computes)

    @cached_property
    def marks(self) -> dict[str, list[int]]:
        """By what an op does, for each layer the first op that does it; of those that every layer has."""
        by_layer: dict[int, dict[str, int]] = {layer: {} for layer in self.layers}
        for place in self.computed:
            layer, does = does_of(self.ops[place].name)
            if layer in by_layer:
                by_layer[layer].setdefault(does, place)
        every = list(by_layer.values())
        marks = {name: [one[name] for one in every] for name in every[0] if all(name in one for one in every)}
        return {name: each for name, each in marks.items() if each == sorted(each)}

    @cached_property
    def early(self) -> bool:
        """Whether the first op that computes does not wait for what the stage receives."""
        ops = self.program.op_classes
        mine = np.flatnonzero(self.role.micro_batch == MIDDLE)
        phase = 'F' if self.kind == 'F' else 'I'
        both = zip(mine.tolist(), self.role.op_class[mine].tolist(), strict=True)
        received = {slot for slot, index in both if ops[index].kind == 'recv' and ops[index].phase == phase}
        first = self.slots[self.computed[0]]
        # Gradients of weights wait for their own stage alone.
        return bool(received) and self.kind != 'W' and not received.intersection(self.role.need.items(first))

    @cached_property
    def hands_on(self) -> bool:
        """Whether a message waits for the last op that computes."""
        return any(op.kind == 'send' and self.computed[-1] in self.before[at] for at, op in enumerate(self.ops))

    @cached_property
    def _does(self) -> list[tuple[int | None, _Does]]:
        """The layer of each that computes, what it does there, and for which copy."""
        copies = self.role.copy[self.slots].tolist()
        works = [(does_of(self.ops[place].name), copies[place]) for place in self.computed]
        return [(layer, (_READER.sub('@', name), copy)) for (layer, name), copy in works]

    def _own(self, layer: int) -> list[int]:
        """Which of those that compute are a layer's."""
        return [place for place, (one, _) in enumerate(self._does) if one == layer]

    @cached_property
    def _each(self) -> tuple[Counter[_Does], Counter[_Does]]:
        """What every layer does, and what some do."""
        each = [Counter(self._does[place][1] for place in self._own(layer)) for layer in self.layers]
        return reduce(and_, each), reduce(or_, each)

    def in_step(self, marks: Sequence[int], *, alike: bool) -> bool:
        """Whether between two marks each copy does as much as is in a layer."""
        for layer, begin, end in zip(self.layers, marks, marks[1:], strict=False):
            piece = [*range(bisect_left(self.computed, begin), bisect_left(self.computed, end))]
            own = self._own(layer)
            if not alike and piece != own:
                return False
            # Each copy does all of a layer's ops once, and what stands between two layers, which is of neither.
            does = [self._does[place][1] for place in piece]
            copies = {copy for _, copy in does}
            names = {name for name, _ in does}
            whole = len(does) == len(names) * len(copies) == len(set(does))
            if whole and {self._does[place][1] for place in own} <= set(does):
                continue
            if not alike or not self._is_layer(does):
                return False
        return True

    def _is_layer(self, does: Sequence[_Does]) -> bool:
        """Whether what is done is what every layer does, and what some do, by each copy alike: how often, too.

        A stage's last layers do more or less than those between: they pass on, or have no gradient to add to.
        """
        by_copy = [Counter(name for name, one in does if one == copy) for copy in {copy for _, copy in does}]
        if len(by_copy) != int(self.role.copy.max()) + 1 or any(one != by_copy[0] for one in by_copy):
            return False
        least, most = self._each
        return least <= Counter(does) <= most


def mark_of(actions: Sequence[Ops], *, alike: bool) -> str | None:
    """The op with which a layer's piece begins, in all stages; None where copies go apart, so that there is none.

    Between two of them each copy does as much as is in a layer. Where layers are ``alike``, a part of it may be of the
    next layer; else a piece would be of two kinds, and begins with the first op of its own.
    """
    apart = any(one.role.copy.any() for one in actions)
    mark_names: list[list[str]] = []
    for one in actions:
        marks = one.marks if alike else dict(list(one.marks.items())[:1])
        mark_names.append([name for name, each in marks.items() if not apart or one.in_step(each, alike=alike)])
    if not alike:
        return '' if all(mark_names) or not apart else None
    return next((name for name in mark_names[-1] if all(name in names for names in mark_names)), None if apart else '')


UNREACHED: Final = -np.inf


class Span(NamedTuple):
    """Least seconds of a piece.

    Arguments:
        chain: of the longest chain.
        busy: of its computation alone; inputs, of that which is no gradient of weights.
        ready: of the chain to what the neighbouring stage waits for, where it is the last piece.
        wire: of the messages of one stream alone.
        lead: of the chain of the first copy.
        inside: of those messages, the ones that surely have computation of the action before and behind them.
        load: of the outermost link, which all its messages share.
        issued: in which the host issues its ops, one behind the other.
    """

    chain: float = 0.0
    busy: float = 0.0
    ready: float = 0.0
    wire: float = 0.0
    inputs: float = 0.0
    lead: float = 0.0
    inside: float = 0.0
    load: float = 0.0
    issued: float = 0.0

    def __add__(self, other: object) -> Span:
        """One piece behind the other."""
        if not isinstance(other, Span):
            return NotImplemented
        # What is ready is told from the begin of the last piece.
        return Span(*map(add, self, other))._replace(ready=self.lead + other.ready)

    def computed(self) -> Span:
        """By its computation alone."""
        return self._replace(chain=self.busy, ready=0.0, lead=self.busy)

    def in_turn(self, copies: int) -> Span:
        """Of so many copies, one behind the other: what is surely computed; the first is ready before the others."""
        every = Span(*(one * copies for one in self))
        return every._replace(chain=every.busy, ready=self.ready, lead=self.chain)


@dataclass(frozen=True, slots=True)
class Block:
    """An action of one stage for the middle micro-batch, in pieces.

    Arguments: ``before``, up to its first layer; ``layers``, each up to the next, in the order in which they are done;
    ``behind``, from the last layer on; ``single``, the same without what is done there of the layer before, as
    gradients of weights may be. ``early``: it begins before it needs what the neighbouring stage sends, as
    recomputation does. ``hands_on``: what it computes last is sent to a neighbouring stage.
    """

    before: Span
    layers: tuple[Span, ...]
    behind: Span
    single: Span
    early: bool = False
    hands_on: bool = False

    def in_turn(self, copies: int) -> Block:
        """Of so many copies that are done one after the other."""
        layers = tuple(one.in_turn(copies) for one in self.layers)
        behind, single = self.behind.in_turn(copies), self.single.in_turn(copies)
        return replace(self, before=self.before.in_turn(copies), layers=layers, behind=behind, single=single)


def block_of(ops: Ops, wire: str, work: Work, mark: str) -> Block | None:
    """The block of an action; None where it computes nothing.

    Arguments: ``wire``, the partition whose messages are counted; ``work``, what ops cost beside each other; ``mark``,
    the op with which a layer's piece begins; of none, the first of a layer.
    """
    if not ops.computed:
        return None
    marks = ops.marks.get(mark) or next(iter(ops.marks.values()), [])
    walk = _Walk(ops, wire, work)
    first, last = ops.computed[0], ops.computed[-1]
    if not marks:
        return Block(Span(), (), walk.tail(first, last), walk.tail(first, last), early=True)
    of_last = {place for place, op in enumerate(ops.ops) if layer_of(op.name) in (None, ops.layers[-1])}
    return Block(
        walk.between(first, marks[0]),
        tuple(walk.between(one, other) for one, other in pairwise(marks)),
        walk.tail(marks[-1], last),
        _Walk(ops, wire, work, of_last).tail(marks[-1], last),
        early=ops.early,
        hands_on=ops.hands_on,
    )


class _Walk:
    """Longest chains among the ops of an action. Argument: ``among``, places of those that count; None: all."""

    def __init__(self, ops: Ops, wire: str, work: Work, among: set[int] | None = None) -> None:
        counts = [among is None or place in among for place in range(len(ops.classes))]
        both = list(zip(ops.classes, counts, strict=True))
        self._ops = ops
        self._seconds: list[float] = (np.array(work.alone)[ops.classes] * np.array(counts)).tolist()
        self._loads = [work.loads.get(index, 0.0) * counted for index, counted in both]
        # Between two stages of a rank nothing is sent.
        self._issued = [
            work.host[index] if work.host and counted and op.kind != 'send' else 0.0
            for op, (index, counted) in zip(ops.ops, both, strict=True)
        ]
        self._windows: dict[int, list[tuple[int, float]]] = {}
        if among is None:
            self._windows = windows(ops.ahead, ops.behind, ops.classes, ops.computes, ops.streams, work)
        own = [op.kind == 'collective' and op.partition == wire for op in ops.ops]
        every = zip(own, ops.ahead, ops.behind, strict=True)
        # Whether a message counts, and whether it surely has computation before and behind it.
        self._wires = [(one, one and begin >= 0 and end < len(own)) for one, begin, end in every]

    def _starts(self, first: int, end: int) -> list[float]:
        """Seconds from an op's start at which it and those behind it may start, up to place ``end``."""
        before, seconds, starts = self._ops.before, self._seconds, [UNREACHED] * (end + 1)
        starts[first] = 0.0
        for place in range(first + 1, end + 1):
            latest = max([starts[one] + seconds[one] for one in before[place]], default=UNREACHED)
            for one, least in self._windows.get(place, ()):
                latest = max(latest, starts[one] + least)
            starts[place] = latest
        return starts

    def _busy(self, begin: int, end: int, *, inputs: bool = False) -> float:
        ops, computes = self._ops.ops, self._ops.computes
        return sum(
            self._seconds[place]
            for place in range(begin, end)
            if computes[place] and not (inputs and ops[place].part == 'W')
        )

    def _sent(self, begin: int, end: int, *, inner: bool = False) -> float:
        return sum(self._seconds[place] for place in range(begin, end) if self._wires[place][inner])

    def between(self, begin: int, end: int) -> Span:
        """From the start of an op to that of another."""
        chain = self._starts(begin, end)[end]
        return self._span(begin, end, end, chain, chain)

    def _span(self, begin: int, computed: int, end: int, chain: float, ready: float) -> Span:
        """What is done from one place to another, of computation up to ``computed``."""
        return Span(
            chain,
            self._busy(begin, computed),
            ready,
            self._sent(begin, end),
            self._busy(begin, computed, inputs=True),
            chain,
            self._sent(begin, end, inner=True),
            sum(self._loads[begin:end]),
            sum(self._issued[begin:end]),
        )

    def tail(self, begin: int, last: int) -> Span:
        """From the start of an op to the end of the last that computes, and to what is sent on."""
        every = len(self._seconds)
        starts = self._starts(begin, every - 1)
        chain = starts[last] + self._seconds[last]
        sends = [starts[place] for place, op in enumerate(self._ops.ops) if op.kind == 'send']
        # What a backward hands on may be there before its gradients of weights are.
        ready = max(0.0, min(sends)) if sends else 0.0 if self._ops.kind in ('B', 'W') else chain
        return self._span(begin, last + 1, every, chain, ready)
