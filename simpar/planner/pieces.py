"""Pieces: least seconds of parts of a stage's forward and backward, from a small program of the same kind.

A stage does a piece before its first layer, a piece for each layer, and a piece behind. A piece lasts from the start of
one compute op to the start of another, at least as long as the longest chain of needs and streams between them. So
pieces of a longer stage add up: a chain behind a chain is a chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.planner.hiding import Work, windows
from simpar.planner.ops import Ops, layer_of

Floats = NDArray[np.float64]
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
        return Span(
            self.chain + other.chain,
            self.busy + other.busy,
            self.lead + other.ready,
            self.wire + other.wire,
            self.inputs + other.inputs,
            self.lead + other.lead,
            self.inside + other.inside,
            self.load + other.load,
            self.issued + other.issued,
        )

    def computed(self) -> Span:
        """By its computation alone."""
        return self._replace(chain=self.busy, ready=0.0, lead=self.busy)

    def in_turn(self, copies: int) -> Span:
        """Of so many copies, one behind the other: what is surely computed; the first is ready before the others."""
        busy = self.busy * copies
        sums = (self.wire, self.inputs, self.inside, self.load, self.issued)
        wire, inputs, inside, load, issued = (one * copies for one in sums)
        return Span(busy, busy, self.ready, wire, inputs, self.chain, inside, load, issued)


@dataclass(frozen=True, slots=True)
class Block:
    """An action of one stage for the middle micro-batch, in pieces.

    Arguments: ``before``, up to its first layer; ``layers``, each up to the next, in the order in which they are done;
    ``behind``, from the last layer on; ``single``, the same without what is done there of the layer before, as
    gradients of weights may be. ``early``: it begins before it needs what the neighbouring stage sends, as
    recomputation does.
    """

    before: Span
    layers: tuple[Span, ...]
    behind: Span
    single: Span
    early: bool = False

    def in_turn(self, copies: int) -> Block:
        """Of so many copies that are done one after the other."""
        layers = tuple(one.in_turn(copies) for one in self.layers)
        behind, single = self.behind.in_turn(copies), self.single.in_turn(copies)
        return Block(self.before.in_turn(copies), layers, behind, single, self.early)


def block_of(ops: Ops, seconds: Floats, wire: str, work: Work, mark: str) -> Block | None:
    """The block of an action; None where it computes nothing.

    Arguments: ``seconds``, of each op class; ``wire``, the partition whose messages are counted; ``work``, what ops
    cost beside each other; ``mark``, the op with which a layer's piece begins; of none, the first of a layer.
    """
    if not ops.computed:
        return None
    marks = ops.marks.get(mark) or next(iter(ops.marks.values()), [])
    walk = _Walk(ops, seconds, wire, work)
    first, last = ops.computed[0], ops.computed[-1]
    if not marks:
        return Block(Span(), (), walk.tail(first, last), walk.tail(first, last), early=True)
    of_last = {place for place, op in enumerate(ops.ops) if layer_of(op.name) in (None, ops.layers[-1])}
    return Block(
        walk.between(first, marks[0]),
        tuple(walk.between(one, other) for one, other in pairwise(marks)),
        walk.tail(marks[-1], last),
        _Walk(ops, seconds, wire, work, of_last).tail(marks[-1], last),
        early=ops.early,
    )


class _Walk:
    """Longest chains among the ops of an action. Argument: ``among``, places of those that count; None: all."""

    def __init__(self, ops: Ops, seconds: Floats, wire: str, work: Work, among: set[int] | None = None) -> None:
        counts = [among is None or place in among for place in range(len(ops.classes))]
        both = list(zip(ops.classes, counts, strict=True))
        self._ops = ops
        self._seconds: list[float] = (seconds[ops.classes] * np.array(counts)).tolist()
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
        return Span(
            chain,
            self._busy(begin, end),
            chain,
            self._sent(begin, end),
            self._busy(begin, end, inputs=True),
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
        return Span(
            chain,
            self._busy(begin, last + 1),
            ready,
            self._sent(begin, every),
            self._busy(begin, last + 1, inputs=True),
            chain,
            self._sent(begin, every, inner=True),
            sum(self._loads[begin:]),
            sum(self._issued[begin:]),
        )
