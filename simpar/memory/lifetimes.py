"""Lifetimes: from which slot to which a role's tensors live, in the steady state; no seconds.

Issue order is the order of dataflow, and needs hold every machine to it, so lives follow from the list alone. A life
begins with the first write to a tensor that is not there and ends with the op that frees it. What is written after the
last free of a step lives on until the first free of the next.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from simpar.errors import ProgramError
from simpar.machine_code import is_started
from simpar.memory.parts import NEVER, NONE, Parts, first_of, parts_of
from simpar.memory.touches import Flags, Ints, Table, table_of
from simpar.program import OpClass, Program, Role
from simpar.program.op import computes
from simpar.program.rows import kept_column

ALWAYS: Final = frozenset({'parameter', 'state'})
"""Kinds that a rank holds always, whatever its ops write and free."""


class BySlot(NamedTuple):
    """What lives begin and end at slots, those that live always left out.

    Arguments: ``begin``, the slots at which lives begin, each once, or twice where some begin there in the step
    ``before``; bytes that have ``begun`` at each. ``end`` and ``ended``, the same of ends. ``always``, the bytes of
    what lives always.
    """

    begin: Ints
    before: Flags
    begun: Ints
    end: Ints
    ended: Ints
    always: int


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """One row for each life of a tensor in a step; all columns of shape [lives].

    Arguments:
        tensor: index into the program's tensors; -1 for the buffer that a fused collective flattens into.
        micro_batch, copy: of the instance; -1 where a rank holds one for all.
        bytes: of the shard that one rank holds.
        writer: the slot that first wrote it, or -1.
        begin, end: the slots from whose start to whose end it lives; both -1 for what lives always.
        before: whether ``begin`` is a slot of the step before.
    """

    tensor: Ints
    micro_batch: Ints
    copy: Ints
    bytes: Ints
    writer: Ints
    begin: Ints
    end: Ints
    before: Flags

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def always(self) -> Flags:
        """Which lives never end."""
        return np.asarray(self.end == NONE)

    @cached_property
    def by_slot(self) -> BySlot:
        """The lives by the slots at which they begin and end: these are few beside them."""
        if is_started() and len(self):
            return _by_slot(self)
        ends = np.flatnonzero(~self.always)
        # One number for a slot of this step, the next for the same one of the step before.
        begin, begun = _summed(2 * self.begin[ends] + self.before[ends], self.bytes[ends])
        end, ended = _summed(self.end[ends], self.bytes[ends])
        return BySlot(begin // 2, begin % 2 > 0, begun, end, ended, int(self.bytes[self.always].sum()))


def lifetimes(program: Program, role: Role, *, always: Collection[str] = ALWAYS, flattened: bool = False) -> Lifetimes:
    """The lives of what a role's ops touch.

    Arguments: ``always``, kinds of tensors that live always; with ``gradient`` among them, gradients stay allocated
    between steps, as Megatron-LM and DDP keep them. ``flattened``: a collective of several tensors copies them into one
    buffer of its bytes while it runs (gloo); without, it works in place.
    An input lives from the first compute op of its micro-batch, all copies at once, to its last reader. What is never
    freed lives always, and so does a parameter of the role that is only read. A view has no memory of its own.
    Raises ``ProgramError`` where an op reads or frees an activation or gradient that nothing has written.
    Not modelled: workspaces inside of a kernel, tensors that no op of the role touches.
    """
    table = table_of(program, frozenset(always))
    parts = parts_of(table, role)
    lives = _compiled(program, role, table, parts, always) if is_started() else None
    lives = lives or _lives(program, role, table, parts, always)
    return _with_buffers(lives, program, role) if flattened else lives


def _lives(program: Program, role: Role, table: Table, parts: Parts, always: Collection[str]) -> Lifetimes:
    """The same without buffers. Arguments: ``table`` and ``parts`` of the role."""
    _check(program, role, parts, table.are({*ALWAYS, 'input'}))
    # Views were checked like all tensors, and take no memory.
    held = ~table.are({'view'})[parts.tensor]
    parts = parts.some(held)
    begin, end = parts.write.copy(), parts.last.copy()
    loaded = table.are({'input'} - {*always})[parts.tensor]
    # Something other than a compute op, such as a gather, may read an input before its micro-batch begins.
    begin[loaded] = np.minimum(_loads(program, role)[parts.micro_batch[loaded]], parts.first[loaded])
    endless = ~parts.freed & ~loaded
    # What nobody frees stays allocated through all steps.
    begin[endless] = end[endless] = NONE
    one = table.one[parts.tensor]
    return Lifetimes(
        tensor=parts.tensor,
        micro_batch=np.where(one, NONE, parts.micro_batch),
        copy=np.where(one, NONE, parts.copy),
        bytes=program.sizes[parts.tensor],
        writer=np.where(parts.write == NEVER, NONE, parts.write),
        begin=begin,
        end=end,
        before=parts.before,
    )


def _compiled(program: Program, role: Role, table: Table, parts: Parts, always: Collection[str]) -> Lifetimes | None:
    """The same by a kernel; None where something is wrong, which numpy tells."""
    from simpar.memory.kernels import write_lifetimes

    columns, before = np.empty((7, len(parts.tensor)), dtype=np.int64), np.empty(len(parts.tensor), dtype=bool)
    kinds = table.are({*ALWAYS, 'input'}), table.are({'view'}), table.are({'input'} - {*always})
    count = write_lifetimes(*parts, *kinds, table.one, program.sizes, _loads(program, role), columns, before, NEVER)
    if count == NONE:
        return None
    tensor, micro_batch, copy, size, writer, begin, end = columns[:, :count]
    return Lifetimes(tensor, micro_batch, copy, size, writer, begin, end, before[:count])


def _by_slot(lives: Lifetimes) -> BySlot:
    """The same as ``Lifetimes.by_slot``, by a kernel."""
    from simpar.memory.kernels import sum_by_slot

    slots = max(int(lives.begin.max()), int(lives.end.max())) + 1
    sums, there = np.zeros((3, slots), dtype=np.int64), np.zeros((3, slots), dtype=bool)
    always = sum_by_slot(lives.bytes, lives.begin, lives.end, lives.before, sums, there)
    # A slot of this step stands before the same one of the step before.
    begin = np.flatnonzero(there[:2].T)
    end = np.flatnonzero(there[2])
    return BySlot(begin // 2, begin % 2 > 0, sums[:2].T.ravel()[begin], end, sums[2, end], always)


def _summed(key: Ints, size: Ints) -> tuple[Ints, Ints]:
    """The keys that occur, and the sums of the sizes of each."""
    count = int(key.max(initial=NONE)) + 1
    total, there = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    # ``add.at``, not ``+=``, which would count one of several equal keys.
    np.add.at(total, key, size)
    there[key] = True
    return np.flatnonzero(there), total[there]


def _check(program: Program, role: Role, parts: Parts, given: Flags) -> None:
    """Refuse what is read or freed and was never there."""
    for part in np.flatnonzero((parts.write == NEVER) & (parts.freed | ~given[parts.tensor])).tolist():
        name = program.tensors[int(parts.tensor[part])].name
        action = program.action(role, int(parts.first[part]))
        raise ProgramError(f'role {role.name}: {action} reads or frees {name}, which nothing has written')


def _loads(program: Program, role: Role) -> Ints:
    """For each micro-batch the slot of its first compute op."""
    computing = kept_column(program.op_classes, computes, np.bool_)
    slots = np.flatnonzero((computing & program.is_sliced)[role.op_class])
    return first_of(slots, role.micro_batch[slots].astype(np.int64), int(role.micro_batch.max(initial=0)) + 1)


def _fused(op: OpClass) -> int:
    """Bytes of the buffer that a collective of several tensors flattens them into; 0 of all else."""
    # A single tensor is sent from where it is.
    return int(op.bytes) if op.kind == 'collective' and len(op.reads) > 1 else 0


def _with_buffers(lives: Lifetimes, program: Program, role: Role) -> Lifetimes:
    """The lives and those of the buffers of fused collectives."""
    sizes = kept_column(program.op_classes, _fused, np.int64)[role.op_class]
    slots = np.flatnonzero(sizes)
    nothing = np.full(len(slots), NONE, dtype=np.int64)
    return Lifetimes(
        tensor=np.concatenate((lives.tensor, nothing)),
        micro_batch=np.concatenate((lives.micro_batch, nothing)),
        copy=np.concatenate((lives.copy, nothing)),
        bytes=np.concatenate((lives.bytes, sizes[slots])),
        writer=np.concatenate((lives.writer, slots)),
        begin=np.concatenate((lives.begin, slots)),
        end=np.concatenate((lives.end, slots)),
        before=np.concatenate((lives.before, np.zeros(len(slots), dtype=bool))),
    )
