"""Ops: what a role of a small program does in an action of a pipeline, and where its layers begin."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from operator import and_, or_
from typing import Final

import numpy as np

from simpar.planner.hiding import first_behind, last_ahead
from simpar.program import OpClass, Program, Role

_LAYER: Final = re.compile(r'(?:d:)?layer(\d+)\.(.*)')
_READER: Final = re.compile(r'@layer\d+\.')
"""Of a cast's name, the layer that reads it."""
NAMES: Final = 65_536
"""Names that are told apart once: samples of a search have the same."""
MIDDLE: Final = 1
"""The micro-batch of three that is neither the first nor the last."""
PARTS: Final = {'F': ('F',), 'B': ('I', 'W'), 'I': ('I',), 'W': ('W',)}
"""What phases the actions of a pipeline do."""


@lru_cache(maxsize=NAMES)
def does_of(name: str) -> tuple[int | None, str]:
    """The layer that an op or tensor belongs to, and what it does there; no layer: an empty name."""
    found = _LAYER.match(name)
    return (int(found[1]), found[2]) if found else (None, '')


def layer_of(name: str) -> int | None:
    """The layer that an op or tensor belongs to."""
    return does_of(name)[0]


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
        found: list[int] = self.role.op_class[self.slots].tolist()
        return found

    @cached_property
    def ops(self) -> list[OpClass]:
        """Each."""
        return [self.program.op_classes[index] for index in self.classes]

    @cached_property
    def copies(self) -> list[int]:
        """The copy that each is of."""
        found: list[int] = self.role.copy[self.slots].tolist()
        return found

    @cached_property
    def streams(self) -> list[int]:
        """The stream that each is on."""
        found: list[int] = self.role.stream[self.slots].tolist()
        return found

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
        found = []
        for place, (slot, stream) in enumerate(zip(self.slots, self.streams, strict=True)):
            waits = [number[need] for need in needs.items(slot) if need in number]
            if stream in latest:
                waits.append(latest[stream])
            latest[stream] = place
            found.append(waits)
        return found

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


def mark_of(actions: Sequence[Ops], *, alike: bool) -> str | None:
    """The op with which a layer's piece begins, in all stages; None where copies go apart, so that there is none.

    Between two of them each copy does as much as is in a layer. Where layers are ``alike``, a part of it may be of the
    next layer; else a piece would be of two kinds, and begins with the first op of its own.
    """
    apart = any(one.role.copy.any() for one in actions)
    found: list[list[str]] = []
    for one in actions:
        marks = one.marks if alike else dict(list(one.marks.items())[:1])
        if apart:
            done = _Done.of(one)
            found.append([name for name, each in marks.items() if done.in_step(each, alike=alike)])
        else:
            found.append(list(marks))
    if not alike:
        return '' if all(found) or not apart else None
    return next((name for name in found[-1] if all(name in names for names in found)), None if apart else '')


_Does = tuple[str, int]
"""What an op does in its layer, and for which copy."""


@dataclass(frozen=True)
class _Done:
    """What a role computes in an action.

    Arguments: ``places``, in order; ``layers``, of the stage, in the order in which they are done; ``layer``, of each
    of them, ``does``, what it does; ``copies``, how many there are.
    """

    places: Sequence[int]
    layers: Sequence[int]
    layer: Sequence[int | None]
    does: Sequence[_Does]
    copies: int

    @staticmethod
    def of(ops: Ops) -> _Done:
        told = [does_of(ops.ops[place].name) for place in ops.computed]
        both = zip(told, ops.computed, strict=True)
        does = [(_READER.sub('@', name), ops.copies[place]) for (_, name), place in both]
        return _Done(ops.computed, ops.layers, [layer for layer, _ in told], does, int(ops.role.copy.max()) + 1)

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
            piece = [*range(bisect_left(self.places, begin), bisect_left(self.places, end))]
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
