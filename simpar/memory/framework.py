"""Framework: what a stack holds beside a program's tensors, as further lives of a role; no seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import numpy as np

from simpar.hardware import Beside, Cluster, StackMemory
from simpar.memory.lifetimes import NONE, Flags, Lifetimes
from simpar.program import BYTES, OpClass, Program, Role, Tensor

HALF: Final = ('fp16', 'bf16')
_BACKWARD: Final = dict.fromkeys(('ce_max', 'ce_sum', 'ce_loss'), 'cross_entropy')
"""Of a kernel of a sharded loss, the one whose backward is that of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A stack's memory on a device, with the options that a run has.

    Arguments: ``without``, names of facts to leave out: of workspaces, of what is beside operators, or ``gradients``,
    ``gradient_copies``, ``boundary``.
    """

    facts: StackMemory
    device: str
    options: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()

    def told(self, name: str, when: str, unless: str) -> bool:
        """Whether a fact holds here."""
        return name not in self.without and (not when or when in self.options) and unless not in {*self.options} - {''}

    @property
    def contiguous(self) -> bool:
        """Whether gradients lie in one buffer that is never given back."""
        return self.facts.gradients == 'contiguous' and 'gradients' not in self.without

    @property
    def reserved(self) -> int:
        """Bytes of workspaces."""
        device = self.device.lower()
        total = 0.0
        for name, one in self.facts.workspaces.items():
            if self.told(name, one.when, one.unless):
                sizes = [size for pattern, size in one.on.items() if fnmatchcase(device, pattern)]
                total += one.count * (sizes or [one.bytes])[0]
        return int(total)

    def beside(self) -> Iterator[Beside]:
        """What is held beside operators here."""
        device = self.device.lower()
        for name, one in self.facts.beside.items():
            on = not one.on or any(fnmatchcase(device, pattern) for pattern in one.on)
            if on and self.told(name, one.when, one.unless):
                yield one


def framework_of(cluster: Cluster) -> Framework | None:
    """What the stack of a cluster holds on its devices, with the options that the stack takes for granted."""
    facts = cluster.stack.memory if cluster.stack else None
    if facts is None:
        return None
    return Framework(facts=facts, device=cluster.profile.device.name, options=frozenset(facts.options))


class _Life(NamedTuple):
    bytes: int
    begin: int = NONE
    end: int = NONE
    before: bool = False


def with_framework(lives: Lifetimes, program: Program, role: Role, framework: Framework) -> Lifetimes:
    """The lives as a framework has them: what it allocates in place takes no memory, what it adds are further lives."""
    names = {tensor.name for tensor in program.tensors}
    gathered = {name.removesuffix('.gathered') for name in names if name.endswith('.gathered')}
    cast = framework.facts.weights == 'cast' and framework.told('weights', '', '')

    def is_nothing(one: Tensor) -> bool:
        if one.kind == 'parameter':
            return cast and one.name in gathered and f'master:{one.name}' in names
        return framework.contiguous and one.kind == 'gradient' and f'{one.name}.whole' in names and not shards(one)

    def shards(one: Tensor) -> bool:
        # Of gathered weights the buffer is of shards, and full gradients come and go.
        return one.kind == 'gradient' and one.name.removeprefix('d:') in gathered

    nothing, standing = (
        _of(lives, np.array([of(one) for one in program.tensors], dtype=bool)) for of in (is_nothing, shards)
    )
    standing &= framework.contiguous
    begin, end = (np.where(standing, NONE, side) for side in (lives.begin, lives.end))
    lives = replace(lives, bytes=np.where(nothing, 0, lives.bytes), begin=begin, end=end)
    return _and(lives, list(_added(lives, program, role, framework)))


def lasting(framework: Framework | None, program: Program) -> frozenset[str]:
    """Kinds of tensors that a framework never gives back."""
    sharded = any(tensor.kind == 'gathered' and tensor.name.endswith('.gathered') for tensor in program.tensors)
    return frozenset({'gradient'} if framework and framework.contiguous and not sharded else ())


def _of(lives: Lifetimes, wanted: Flags) -> Flags:
    """Which lives are of wanted tensors; those of no tensor are not."""
    return np.asarray(np.append(wanted, False)[lives.tensor])


def _added(lives: Lifetimes, program: Program, role: Role, framework: Framework) -> Iterator[_Life]:
    facts = framework.facts
    yield _Life(framework.reserved)
    if 'boundary' not in framework.without:
        yield _Life(facts.boundary * _received(program, role))
    if facts.gradient_copies and 'gradient_copies' not in framework.without:
        yield from _copies(facts.gradient_copies * _half_gradients(lives, program), program, role)
    if facts.update and framework.told('update', '', ''):
        yield from _updating(facts.update * _numbers(lives, program), program, role)
    if facts.mask and framework.told('mask', '', 'no-mask'):
        yield _Life(facts.mask * _pairs(program))
    for one in framework.beside():
        yield from _of_operators(program, role, one)


def _updates(op: OpClass) -> bool:
    return op.kind == 'compute' and op.phase == 'U'


def _copies(size: int, program: Program, role: Role) -> Iterator[_Life]:
    """What the update makes and the next step's begin gives back."""
    updates = program.op_column(_updates, np.bool_)[role.op_class]
    if size and updates.any():
        yield _Life(size, int(np.argmax(updates)), 0, before=True)


def _updating(size: int, program: Program, role: Role) -> Iterator[_Life]:
    """What the update of all weights holds while it runs."""
    slots = np.flatnonzero(program.op_column(_updates, np.bool_)[role.op_class]).tolist()
    if slots:
        yield _Life(size, slots[0], slots[-1])


def _numbers(lives: Lifetimes, program: Program) -> int:
    """How many numbers the fp32 weights have that a role updates."""
    own = {program.tensors[index].name for index in np.unique(lives.tensor[lives.tensor != NONE]).tolist()}
    return sum(
        int(size) // BYTES[tensor.dtype]
        for tensor, size in zip(program.tensors, program.sizes.tolist(), strict=True)
        if tensor.name in own and tensor.kind == 'state' and tensor.name.startswith('m:')
    )


def _pairs(program: Program) -> int:
    """Pairs of tokens of a micro-batch: samples × a rank's tokens × sequence, of its integers [samples, sequence]."""
    found = [
        (*tensor.local_shape(program.partitions, program.copies), tensor.shape[1])
        for tensor in program.tensors
        if tensor.kind == 'input' and tensor.dtype.startswith('int') and len(tensor.shape) == 2
    ]
    return max((samples * tokens * sequence for samples, tokens, sequence in found), default=0)


def _received(program: Program, role: Role) -> int:
    """Bytes of what a role receives in forwards, of one micro-batch, all chunks together."""
    used = {index: program.op_classes[index] for index in np.unique(role.op_class).tolist()}
    receives = [op for op in used.values() if op.kind == 'recv' and op.phase == 'F']
    return sum(int(op.bytes) for op in receives)


def _half_gradients(lives: Lifetimes, program: Program) -> int:
    """How many gradients of 16 bits the role updates: those of its shards, where it has them."""
    count = 0
    for index in np.unique(lives.tensor[lives.tensor != NONE]).tolist():
        tensor = program.tensors[index]
        if tensor.kind == 'gradient' and tensor.dtype in HALF and not tensor.name.endswith('.whole'):
            count += int(program.sizes[index]) // BYTES[tensor.dtype]
    return count


def _of_operators(program: Program, role: Role, beside: Beside) -> Iterator[_Life]:
    """Lives of what a framework holds beside operators: pairs of a forward and a backward, and each of them alone."""
    numbers = {tensor.name: index for index, tensor in enumerate(program.tensors)}
    open_: dict[tuple[str, int, int], tuple[int, int]] = {}
    backward = {_BACKWARD.get(operator, operator) for operator in beside.operators}
    largest = 0

    def named(op: OpClass) -> bool:
        own = beside.operators if op.phase == 'F' else backward
        return op.operator in own and op.kind == 'compute' and fnmatchcase(op.name, beside.named)

    # Of millions of slots a few hundred are of such an operator.
    of = np.array([named(op) for op in program.op_classes], dtype=bool)
    for slot in np.flatnonzero(of[role.op_class]).tolist():
        op = program.op_classes[role.op_class[slot]]
        micro_batch, copy = int(role.micro_batch[slot]), int(role.copy[slot])
        key = (_layer(op), micro_batch, copy)
        if op.phase == 'F':
            tensor = numbers[(op.reads if beside.of == 'read' else op.writes)[0]]
            size = int(program.sizes[tensor]) // BYTES[program.tensors[tensor].dtype]
            largest = max(largest, size)
            yield _Life(int(beside.forward * size), slot, slot)
            open_.setdefault(key, (slot, size))
        elif op.phase == 'I' and key in open_:
            begin, size = open_.pop(key)
            yield _Life(int(beside.kept * size) * (not beside.standing), begin, slot)
            yield _Life(int(beside.backward * size), slot, slot)
    if beside.standing:
        yield _Life(int(beside.kept * largest))


def _layer(op: OpClass) -> str:
    """What forward and backward of an operator have in common: the layer's name, or ``loss``."""
    return op.name.partition('.')[0]


def _and(lives: Lifetimes, added: list[_Life]) -> Lifetimes:
    """The lives and further ones, of no tensor."""
    added = [one for one in added if one.bytes]

    def of(value: Callable[[_Life], int]) -> np.ndarray:
        return np.array([value(one) for one in added], dtype=np.int64)

    nothing = np.full(len(added), NONE, dtype=np.int64)
    return Lifetimes(
        tensor=np.concatenate((lives.tensor, nothing)),
        micro_batch=np.concatenate((lives.micro_batch, nothing)),
        copy=np.concatenate((lives.copy, nothing)),
        bytes=np.concatenate((lives.bytes, of(lambda one: one.bytes))),
        writer=np.concatenate((lives.writer, of(lambda one: one.begin))),
        begin=np.concatenate((lives.begin, of(lambda one: one.begin))),
        end=np.concatenate((lives.end, of(lambda one: one.end))),
        before=np.concatenate((lives.before, np.array([one.before for one in added], dtype=bool))),
    )


__all__ = ['Framework', 'framework_of', 'lasting', 'with_framework']
