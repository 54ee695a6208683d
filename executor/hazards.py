"""Hazards: whether needs and stream order imply the order of everything that touches one buffer.

Unlike ``program/needs.py``, which derives needs from dataflow, this takes the needs that a program carries: a vector
clock over streams says what each slot knows to have finished, and every access is held against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simpar.program import Program, Role
from simpar.program.needs import Instance, instance

STEPS = 2
GIVEN = frozenset({'parameter', 'state', 'input'})
"""Kinds of tensors that exist before the first op."""
MADE = frozenset({'gathered', 'view'})
"""Kinds of tensors that are made of a parameter, and old when it changes."""


@dataclass(slots=True)
class _Buffer:
    """Who wrote an instance of a tensor last (-1: before the program), who has read it since, whether it exists.

    Arguments: ``old``, who has changed since the parameter that it was gathered from (-1: nobody).
    """

    exists: bool
    writer: int = -1
    readers: list[int] = field(default_factory=list)
    old: int = -1


def hazards(program: Program, role: Role) -> Iterator[str]:
    """Every hazard of a role, in words, over two steps back to back."""
    known = clocks(role)
    buffers: dict[Instance, _Buffer] = {}
    seen: set[str] = set()
    # Two steps, since an access may clash with one of the step before.
    for position in range(STEPS * len(role)):
        if position == len(role):
            _new_inputs(program, buffers)
        for problem in _touch(program, role, position, known, buffers):
            # A hazard within a step shows in both steps.
            if problem not in seen:
                seen.add(problem)
                yield f'role {role.name}: {problem}'


def clocks(role: Role) -> NDArray[np.int64]:
    """Shape [steps × slots, streams]: the last position of each stream that has finished when a slot starts."""
    count, needs, carried = len(role), role.needs(), role.carried()
    known = np.full((STEPS * count, len(role.streams)), -1, dtype=np.int64)
    last = [-1] * len(role.streams)
    for position in range(STEPS * count):
        slot, base = position % count, position - position % count
        stream = int(role.stream[slot])
        before = [base + need for need in needs[slot]]
        before += [base - count + need for need in carried[slot] if base]
        # A stream is in order, so its earlier ops count as needs.
        before += [last[stream]] if last[stream] >= 0 else []
        for other in before:
            # What a need knew to have finished, whoever waits for it knows too.
            np.maximum(known[position], known[other], out=known[position])
            own = int(role.stream[other % count])
            known[position, own] = max(known[position, own], other)
        last[stream] = position
    return known


def _touch(
    program: Program, role: Role, position: int, known: NDArray[np.int64], buffers: dict[Instance, _Buffer]
) -> Iterator[str]:
    """Hold one slot's accesses against what it knows to have finished, then record them."""
    count = len(role)
    slot = position % count
    op, clock = program.op(role, slot), known[position]
    action = program.action(role, slot)

    def late(other: int) -> bool:
        # -1: written before the program. The op itself may read and write one buffer.
        return other not in (-1, position) and int(clock[int(role.stream[other % count])]) < other

    def buffer(name: str) -> _Buffer:
        tensor = program.tensor[name]
        key = instance(tensor, int(role.micro_batch[slot]), int(role.copy[slot]))
        return buffers.setdefault(key, _Buffer(exists=tensor.kind in GIVEN))

    for name in op.reads:
        past = buffer(name)
        if not past.exists:
            yield f'{action} reads {name}, which nothing has written'
        if past.old >= 0:
            yield f'{action} reads {name}, gathered before {_named(program, role, past.old)} changed what it is made of'
        if late(past.writer):
            yield f'{action} reads {name} without waiting for {_named(program, role, past.writer)}, which writes it'
        # Reads never clash with one another; they are kept for the next write.
        past.readers.append(position)
    changed = (*op.writes, *op.accumulates, *op.frees)
    # Recorded only after all checks, or an op's own write would hide a missing need.
    for name in changed:
        past = buffer(name)
        for reader in filter(late, past.readers):
            yield f'{action} changes {name} without waiting for {_named(program, role, reader)}, which reads it'
        if late(past.writer):
            yield f'{action} changes {name} without waiting for {_named(program, role, past.writer)}, which writes it'
    for name in op.frees:
        # An op may free what it writes itself.
        if name not in op.writes + op.accumulates and not buffer(name).exists:
            yield f'{action} frees {name}, which nothing has written'
    for name in changed:
        past = buffer(name)
        past.writer, past.readers, past.exists, past.old = position, [], name not in op.frees, -1
    parameters = {name for name in op.writes if program.tensor[name].kind == 'parameter'}
    for made in _made_of(program, parameters, buffers) if parameters else ():
        made.old = position


def _made_of(program: Program, written: set[str], buffers: dict[Instance, _Buffer]) -> Iterator[_Buffer]:
    """Find the gathered parameters and views that were made of the written parameters or of their members."""
    packed = {member for name in written for member in program.tensor[name].members}
    for key, buffer in buffers.items():
        tensor = program.tensor[key[0]]
        made = tensor.like in written or tensor.name in packed or not written.isdisjoint(tensor.members)
        if tensor.kind in MADE and made and buffer.exists:
            yield buffer


def _named(program: Program, role: Role, position: int) -> str:
    return program.action(role, position % len(role))


def _new_inputs(program: Program, buffers: dict[Instance, _Buffer]) -> None:
    """Give the next step its inputs anew, whatever the step before has freed."""
    for key, buffer in buffers.items():
        if program.tensor[key[0]].kind == 'input':
            buffer.exists, buffer.writer, buffer.readers = True, -1, []
