"""Held: least bytes of parts of a stage, from the same small program: weights, states, gradients, activations.

Counted is what is surely there while a compute op runs: compute is in order, so no clock is needed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from simpar.lower.passes.recompute import is_recomputed
from simpar.memory.framework import Framework, with_framework
from simpar.memory.lifetimes import NONE, Lifetimes, lifetimes
from simpar.planner.ops import MIDDLE, PARTS, layer_of
from simpar.program import Program, Role

STANDING: Final = ('parameter', 'state', 'gradient', 'gathered')
EXPERT: Final = 'expert'
_LAYERS: Final = re.compile(r'layer\d+\.')


@dataclass(frozen=True, slots=True)
class Standing:
    """Bytes of weights by kind; ``gathered``, what is cast of them once a step, for all of its micro-batches."""

    parameter: float = 0.0
    state: float = 0.0
    gradient: float = 0.0
    gathered: float = 0.0

    @property
    def total(self) -> float:
        """What is there all the time, or could be."""
        return self.parameter + self.state + self.gradient

    def plus(self, other: Standing, times: int = 1) -> Standing:
        """Both together, the other so many times."""
        return Standing(*(getattr(self, kind) + times * getattr(other, kind) for kind in STANDING))


@dataclass(frozen=True, slots=True)
class Held:
    """What a stage of the small program holds.

    Arguments:
        layers: standing bytes of each layer, dense and of experts; rest: of all that is in no layer; alone: the same by
            name and kind of each tensor.
        inner, end: bytes of activations that a layer, and the stage's last layer, keep from forward to backward.
        received, others: the same of what is received, and of what is in no layer.
        most: bytes of one micro-batch's activations at the peak of its forward's end and its backward's begin.
        head: the same at the fullest op of no layer there, such as the loss, without what is made again.
        fixed: bytes of what a framework reserves.
        waits: bytes of what is kept for the gradients of weights, where these are done apart: of an inner layer, of the
            last layer that goes back, and of all else.
    """

    layers: dict[int, tuple[Standing, Standing]] = field(default_factory=dict)
    rest: tuple[Standing, Standing] = (Standing(), Standing())
    alone: dict[tuple[str, str], float] = field(default_factory=dict)
    inner: float = 0.0
    end: float = 0.0
    received: float = 0.0
    others: float = 0.0
    most: float = 0.0
    head: float = 0.0
    fixed: float = 0.0
    waits: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def kept(self) -> float:
        """Bytes that a micro-batch keeps between forward and backward."""
        return self.inner + self.end + self.received + self.others


def held_by(program: Program, role: Role, layers: Sequence[int], framework: Framework | None) -> Held:
    """What a role holds, with what its framework holds beside it; ``layers`` of its stage, two of them."""
    lives = lifetimes(program, role)
    known = [row for row in range(len(lives)) if lives.tensor[row] != NONE]
    standing = _standing(program, lives, known, layers)
    alone = _alone(program, lives, known)
    fixed = 0.0
    if framework:
        lives = with_framework(lives, program, role, framework)
        fixed = float(lives.bytes[(lives.tensor == NONE) & lives.always].sum())
    forward, backward = _parts(program, role)
    mine = _of_middle(program, role, lives)
    sums = {'inner': 0.0, 'end': 0.0, 'received': 0.0, 'others': 0.0}
    for row in mine:
        if lives.begin[row] <= forward[-1] and lives.end[row] >= backward[0] and lives.writer[row] != NONE:
            sums[_place(program, role, int(lives.writer[row]), layers)] += float(lives.bytes[row])
    most, head = _peaks(program, role, lives, mine, forward, backward, layers)
    return Held(
        layers=standing[0],
        rest=standing[1],
        alone=alone,
        inner=sums['inner'],
        end=sums['end'],
        received=sums['received'],
        others=sums['others'],
        most=max(most, sum(sums.values())),
        head=max(head, sum(sums.values())),
        fixed=fixed,
    )


def _of_middle(program: Program, role: Role, lives: Lifetimes) -> list[int]:
    """The lives of the middle micro-batch's activations, and of what a framework holds beside its operators."""
    found = []
    for row in np.flatnonzero(~lives.always & ~lives.before).tolist():
        tensor = int(lives.tensor[row])
        micro_batch = role.micro_batch[lives.begin[row]] if tensor == NONE else lives.micro_batch[row]
        if micro_batch == MIDDLE and (tensor == NONE or program.tensors[tensor].kind == 'activation'):
            found.append(row)
    return found


def waits_of(program: Program, role: Role, layers: Sequence[int]) -> tuple[float, float, float]:
    """Bytes of activations that the middle micro-batch keeps between its gradients of inputs and those of weights."""
    lives = lifetimes(program, role)
    inputs, weights = _done(program, role, 'I'), _done(program, role, 'W')
    sums = {'inner': 0.0, 'end': 0.0, 'received': 0.0, 'others': 0.0}
    if not inputs or not weights or inputs[-1] > weights[0]:
        return 0.0, 0.0, 0.0
    for row in range(len(lives)):
        tensor, writer = int(lives.tensor[row]), int(lives.writer[row])
        own = lives.micro_batch[row] == MIDDLE and not lives.always[row] and not lives.before[row]
        if NONE in (tensor, writer) or not own:
            continue
        if program.tensors[tensor].kind != 'activation' or lives.begin[row] > inputs[-1] or lives.end[row] < weights[0]:
            continue
        sums[_place(program, role, writer, layers)] += float(lives.bytes[row])
    return sums['inner'], sums['end'], sums['received'] + sums['others']


def _done(program: Program, role: Role, part: str) -> list[int]:
    """The compute slots of a part of the middle micro-batch."""
    mine = np.flatnonzero((role.micro_batch == MIDDLE) & program.is_sliced[role.op_class]).tolist()
    ops = [(slot, program.op_classes[role.op_class.item(slot)]) for slot in mine]
    return [slot for slot, op in ops if op.kind == 'compute' and op.part == part]


def _standing(
    program: Program, lives: Lifetimes, known: Sequence[int], layers: Sequence[int]
) -> tuple[dict[int, tuple[Standing, Standing]], tuple[Standing, Standing]]:
    sums = {(layer, expert): dict.fromkeys(STANDING, 0.0) for layer in (*layers, NONE) for expert in (False, True)}
    for row in known:
        tensor = program.tensors[int(lives.tensor[row])]
        if tensor.kind in STANDING:
            layer = next((one for one in layers if f'layer{one}.' in tensor.name), NONE)
            sums[layer, EXPERT in tensor.name][tensor.kind] += float(lives.bytes[row])
    both = {layer: (Standing(**sums[layer, False]), Standing(**sums[layer, True])) for layer in (*layers, NONE)}
    return {layer: both[layer] for layer in layers}, both[NONE]


def _alone(program: Program, lives: Lifetimes, known: Sequence[int]) -> dict[tuple[str, str], float]:
    """Standing bytes of what is in no layer, by name and kind."""
    tensors = [(program.tensors[int(lives.tensor[row])], float(lives.bytes[row])) for row in known]
    return {
        (one.name, one.kind): size for one, size in tensors if one.kind in STANDING and not _LAYERS.search(one.name)
    }


def _parts(program: Program, role: Role) -> tuple[list[int], list[int]]:
    """The compute slots of the middle micro-batch, of its forward and of its backward."""
    found: tuple[list[int], list[int]] = ([], [])
    mine = np.flatnonzero((role.micro_batch == MIDDLE) & program.is_sliced[role.op_class])
    for slot in mine.tolist():
        op = program.op_classes[role.op_class.item(slot)]
        if op.kind == 'compute':
            found[op.part not in PARTS['F']].append(slot)
    return found


def _place(program: Program, role: Role, slot: int, layers: Sequence[int]) -> str:
    op = program.op_classes[role.op_class.item(slot)]
    if op.kind == 'recv':
        return 'received'
    layer = layer_of(op.name)
    return 'others' if layer not in layers else 'end' if layer == layers[-1] else 'inner'


def _peaks(
    program: Program,
    role: Role,
    lives: Lifetimes,
    mine: Sequence[int],
    forward: Sequence[int],
    backward: Sequence[int],
    layers: Sequence[int],
) -> tuple[float, float]:
    """Bytes of the middle micro-batch at the fullest compute op between its last layer's begin and end.

    The second number is that of ops of no layer alone, without what is made again.
    """
    ops = program.op_classes
    layer = {slot: layer_of(ops[role.op_class.item(slot)].name) for slot in (*forward, *backward)}
    last = [slot for slot in forward if layer[slot] == layers[-1]]
    first = [slot for slot in backward if layer[slot] == layers[0]]
    # Behind it layers of the stage are given back already, and a longer stage has more of them.
    seen = [slot for slot in forward if last and slot >= last[0]]
    seen += [slot for slot in backward if not first or slot < first[0]]
    held, lasting = dict.fromkeys(seen, 0.0), {slot: 0.0 for slot in seen if layer[slot] is None}
    needs = role.need
    compute = {*forward, *backward}
    waited: dict[int, int] = {}
    for slot in sorted(compute, reverse=True):
        waited.update(dict.fromkeys(needs.items(slot), slot))
    for row in mine:
        begin, end, size = int(lives.begin[row]), int(lives.end[row]), float(lives.bytes[row])
        writer = int(lives.writer[row])
        again = writer != NONE and is_recomputed(ops[role.op_class.item(writer)])
        if end not in compute:
            before = [need for need in needs.items(end) if need in compute]
            end = max(before, default=NONE)
        if begin not in compute:
            # What a message brings is surely there for the first that waits for it.
            begin = waited.get(begin, int(end) + 1)
        for slot in seen:
            if begin <= slot <= end:
                held[slot] += size
                if slot in lasting and not again:
                    lasting[slot] += size
    return max(held.values(), default=0.0), max(lasting.values(), default=0.0)
