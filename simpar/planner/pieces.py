"""Pieces: least seconds of parts of a stage's forward and backward, from a small program of the same kind.

A stage does a piece before its first layer, a piece for each layer, and a piece behind. A piece lasts from the start of
one compute op to the start of another, at least as long as the longest chain of needs and streams between them. So
pieces of a longer stage add up: a chain behind a chain is a chain.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import pairwise
from operator import and_, or_
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.planner.hiding import Work, first_behind, last_ahead, windows
from simpar.program import OpClass, Program, Role

Floats = NDArray[np.float64]
_LAYER: Final = re.compile(r'(?:d:)?layer(\d+)\.(.*)')
_READER: Final = re.compile(r'@layer\d+\.')
"""Of a cast's name, the layer that reads it."""
NAMES: Final = 65_536
"""Names that are told apart once: samples of a search have the same."""
MIDDLE: Final = 1
"""The micro-batch of three that is neither the first nor the last."""
PARTS: Final = {'F': ('F',), 'B': ('I', 'W'), 'I': ('I',), 'W': ('W',)}
"""What phases the actions of a pipeline do."""
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
    """

    chain: float = 0.0
    busy: float = 0.0
    ready: float = 0.0
    wire: float = 0.0
    inputs: float = 0.0
    lead: float = 0.0
    inside: float = 0.0
    load: float = 0.0

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
        )

    def computed(self) -> Span:
        """By its computation alone."""
        return Span(self.busy, self.busy, 0.0, self.wire, self.inputs, self.busy, self.inside, self.load)

    def in_turn(self, copies: int) -> Span:
        """Of so many copies, one behind the other: what is surely computed; the first is ready before the others."""
        busy = self.busy * copies
        wire, inputs, inside, load = (one * copies for one in (self.wire, self.inputs, self.inside, self.load))
        return Span(busy, busy, self.ready, wire, inputs, self.chain, inside, load)


@dataclass(frozen=True, slots=True)
class Block:
    """An action of one stage for the middle micro-batch, in pieces.

    Arguments: ``before``, up to its first layer; ``layers``, each up to the next, in the order in which they are done;
    ``behind``, from the last layer on. ``early``: it begins before it needs what the neighbouring stage sends, as
    recomputation does.
    """

    before: Span
    layers: tuple[Span, ...]
    behind: Span
    early: bool = False

    def in_turn(self, copies: int) -> Block:
        """Of so many copies that are done one after the other."""
        layers = tuple(one.in_turn(copies) for one in self.layers)
        return Block(self.before.in_turn(copies), layers, self.behind.in_turn(copies), self.early)


@lru_cache(maxsize=NAMES)
def does_of(name: str) -> tuple[int | None, str]:
    """The layer that an op or tensor belongs to, and what it does there; no layer: an empty name."""
    found = _LAYER.match(name)
    return (int(found[1]), found[2]) if found else (None, '')


def layer_of(name: str) -> int | None:
    """The layer that an op or tensor belongs to."""
    return does_of(name)[0]


def block_of(
    program: Program,
    role: Role,
    kind: str,
    seconds: Floats,
    layers: Sequence[int],
    wire: str,
    work: Work,
    mark: str,
) -> Block | None:
    """The block of an action kind of a role; None where it computes nothing.

    Arguments: ``seconds``, of each op class; ``layers``, of the stage, in the order in which the action does them;
    ``wire``, the partition whose messages are counted; ``work``, what ops cost beside each other;
    ``mark``, the op with which a layer's piece begins; of none, the first of a layer.
    """
    slots = _slots(program, role, kind)
    computes = [slot for slot in slots if _op(program, role, slot).kind == 'compute']
    if not computes:
        return None
    every = _marks(program, role, computes, layers)
    marks = every.get(mark) or next(iter(every.values()), [])
    walk = _Walk(program, role, slots, seconds, wire, work)
    first, last = computes[0], computes[-1]
    if not marks:
        return Block(Span(), (), walk.tail(first, last, kind), early=True)
    return Block(
        walk.between(first, marks[0]),
        tuple(walk.between(one, other) for one, other in pairwise(marks)),
        walk.tail(marks[-1], last, kind),
        early=_early(program, role, kind, computes),
    )


def _op(program: Program, role: Role, slot: int) -> OpClass:
    return program.op_classes[role.op_class.item(slot)]


def _slots(program: Program, role: Role, kind: str) -> list[int]:
    """The slots of an action of the middle micro-batch, sends among them, in issue order."""
    parts, sliced = PARTS[kind], program.is_sliced
    mine = np.flatnonzero((role.micro_batch == MIDDLE) & sliced[role.op_class])
    return [slot for slot in mine.tolist() if (op := _op(program, role, slot)).part in parts and op.kind != 'recv']


def _early(program: Program, role: Role, kind: str, computes: Sequence[int]) -> bool:
    """Whether the first op that computes does not wait for what the stage receives."""
    ops = program.op_classes
    mine = np.flatnonzero(role.micro_batch == MIDDLE).tolist()
    phase = 'F' if kind == 'F' else 'I'
    received = {slot for slot in mine if (op := ops[role.op_class.item(slot)]).kind == 'recv' and op.phase == phase}
    # Gradients of weights wait for their own stage alone.
    return bool(received) and kind != 'W' and not received.intersection(role.need.items(computes[0]))


def mark_of(program: Program, stages: Sequence[tuple[Role, Sequence[int]]], kind: str, *, alike: bool) -> str | None:
    """The op with which a layer's piece begins, in all stages; None where copies go apart, so that there is none.

    Between two of them each copy does as much as is in a layer. Where layers are ``alike``, a part of it may be of the
    next layer; else a piece would be of two kinds, and begins with the first op of its own.
    """
    apart = any(role.copy.any() for role, _ in stages)
    found: list[list[str]] = []
    for role, layers in stages:
        computes = [slot for slot in _slots(program, role, kind) if _op(program, role, slot).kind == 'compute']
        marks = _marks(program, role, computes, layers)
        if not alike:
            marks = dict(list(marks.items())[:1])
        done = _Done.of(program, role, computes, layers)
        found.append([name for name, each in marks.items() if not apart or done.in_step(each, alike=alike)])
    if not alike:
        return '' if all(found) or not apart else None
    return next((name for name in found[-1] if all(name in names for names in found)), None if apart else '')


def _marks(program: Program, role: Role, computes: Sequence[int], layers: Sequence[int]) -> dict[str, list[int]]:
    """By what an op does, for each layer the slot of the first op that does it; of those that every layer has."""
    by_layer: dict[int, dict[str, int]] = {layer: {} for layer in layers}
    for slot in computes:
        layer, does = does_of(_op(program, role, slot).name)
        if layer in by_layer:
            by_layer[layer].setdefault(does, slot)
    every = list(by_layer.values())
    marks = {name: [one[name] for one in every] for name in every[0] if all(name in one for one in every)}
    return {name: each for name, each in marks.items() if each == sorted(each)}


_Does = tuple[str, int]
"""What an op does in its layer, and for which copy."""


@dataclass(frozen=True)
class _Done:
    """What a role computes in an action.

    Arguments: ``slots``, in order; ``layers``, of the stage, in the order in which they are done; ``layer``, of each
    slot, ``does``, what it does; ``copies``, how many there are.
    """

    slots: Sequence[int]
    layers: Sequence[int]
    layer: Sequence[int | None]
    does: Sequence[_Does]
    copies: int

    @staticmethod
    def of(program: Program, role: Role, slots: Sequence[int], layers: Sequence[int]) -> _Done:
        told = [does_of(_op(program, role, slot).name) for slot in slots]
        copy = role.copy.tolist()
        does = [(_READER.sub('@', name), copy[slot]) for (_, name), slot in zip(told, slots, strict=True)]
        return _Done(slots, layers, [layer for layer, _ in told], does, int(role.copy.max()) + 1)

    def _own(self, layer: int) -> list[int]:
        """The places of a layer's ops."""
        return [place for place, one in enumerate(self.layer) if one == layer]

    @cached_property
    def _each(self) -> tuple[Counter[_Does], Counter[_Does]]:
        """What every layer does, and what some do."""
        each = [Counter(self.does[place] for place in self._own(layer)) for layer in self.layers]
        return reduce(and_, each), reduce(or_, each)

    def in_step(self, marks: Sequence[int], *, alike: bool) -> bool:
        """Whether between two marks each copy does as much as is in a layer."""
        for layer, begin, end in zip(self.layers, marks, marks[1:], strict=False):
            piece = [*range(bisect_left(self.slots, begin), bisect_left(self.slots, end))]
            own = self._own(layer)
            if not alike and piece != own:
                return False
            # Each copy does all of a layer's ops once, and what stands between two layers, which is of neither.
            does = [self.does[place] for place in piece]
            copies = {copy for _, copy in does}
            names = {name for name, _ in does}
            whole = len(does) == len(names) * len(copies) == len(set(does))
            if whole and {self.does[place] for place in own} <= set(does):
                continue
            if not alike or not self._is_layer(does):
                return False
        return True

    def _is_layer(self, does: Sequence[_Does]) -> bool:
        """Whether what is done is what every layer does, and what some do, by each copy alike: how often, too.

        A stage's last layers do more or less than those between: they pass on, or have no gradient to add to.
        """
        by_copy = [Counter(name for name, one in does if one == copy) for copy in {copy for _, copy in does}]
        if len(by_copy) != self.copies or any(one != by_copy[0] for one in by_copy):
            return False
        least, most = self._each
        return least <= Counter(does) <= most


class _Walk:
    """Longest chains among some slots of a role."""

    def __init__(
        self, program: Program, role: Role, slots: Sequence[int], seconds: Floats, wire: str, work: Work
    ) -> None:
        number = {slot: place for place, slot in enumerate(slots)}
        needs, on = role.need, role.stream.tolist()
        self._number = number
        self._wire = wire
        self._ops = [_op(program, role, slot) for slot in slots]
        self._copy = [role.copy.item(slot) for slot in slots]
        self._seconds = [float(seconds[role.op_class.item(slot)]) for slot in slots]
        self._before: list[list[int]] = []
        latest: dict[int, int] = {}
        for place, slot in enumerate(slots):
            before = [number[need] for need in needs.items(slot) if need in number]
            if on[slot] in latest:
                before.append(latest[on[slot]])
            latest[on[slot]] = place
            self._before.append(before)
        classes = [role.op_class.item(slot) for slot in slots]
        computes = [op.kind == 'compute' for op in self._ops]
        self._loads = [work.loads.get(index, 0.0) for index in classes]
        self._windows = windows(self._before, classes, computes, [on[slot] for slot in slots], work)
        own, after = last_ahead(self._before, computes), first_behind(self._before, computes)
        self._inner = [begin >= 0 and end < len(slots) for begin, end in zip(own, after, strict=True)]

    def _starts(self, slot: int) -> list[float]:
        """Seconds at which the ops behind a slot's start may start."""
        first = self._number[slot]
        starts = [UNREACHED] * len(self._ops)
        starts[first] = 0.0
        for place in range(first + 1, len(starts)):
            for before in self._before[place]:
                starts[place] = max(starts[place], starts[before] + self._seconds[before])
            for before, least in self._windows.get(place, ()):
                starts[place] = max(starts[place], starts[before] + least)
        return starts

    def _busy(self, begin: int, end: int, *, inputs: bool = False) -> float:
        return sum(
            self._seconds[place]
            for place in range(begin, end)
            if self._ops[place].kind == 'compute' and not (inputs and self._ops[place].part == 'W')
        )

    def _sent(self, begin: int, end: int, *, inner: bool = False) -> float:
        return sum(
            self._seconds[place]
            for place in range(begin, end)
            if self._ops[place].kind == 'collective'
            and self._ops[place].partition == self._wire
            and (self._inner[place] or not inner)
        )

    def between(self, one: int, other: int) -> Span:
        """From the start of a slot to that of another."""
        begin, end = self._number[one], self._number[other]
        chain = self._starts(one)[end]
        return Span(
            chain,
            self._busy(begin, end),
            chain,
            self._sent(begin, end),
            self._busy(begin, end, inputs=True),
            chain,
            self._sent(begin, end, inner=True),
            sum(self._loads[begin:end]),
        )

    def tail(self, one: int, last: int, kind: str) -> Span:
        """From the start of a slot to the end of the last that computes, and to what is sent on."""
        starts = self._starts(one)
        end = self._number[last]
        chain = starts[end] + self._seconds[end]
        sends = [starts[place] for place, op in enumerate(self._ops) if op.kind == 'send']
        # What a backward hands on may be there before its gradients of weights are.
        ready = max(0.0, min(sends)) if sends else 0.0 if kind in ('B', 'W') else chain
        begin = self._number[one]
        return Span(
            chain,
            self._busy(begin, end + 1),
            ready,
            self._sent(begin, len(starts)),
            self._busy(begin, end + 1, inputs=True),
            chain,
            self._sent(begin, len(starts), inner=True),
            sum(self._loads[begin:]),
        )
