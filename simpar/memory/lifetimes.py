"""Lifetimes: from which slot to which a role's tensors live, in the steady state; no seconds.

Issue order is the order of dataflow, and needs hold every machine to it, so lives follow from the list alone. A life
begins with the first write to a tensor that is not there and ends with the op that frees it. What is written after the
last free of a step lives on until the first free of the next.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from simpar.errors import ProgramError
from simpar.machine_code import is_started
from simpar.memory.parts import NEVER, NONE, Parts, first_of
from simpar.memory.touches import ALWAYS, Flags, Ints, flags_of, table_of, touches_of
from simpar.program import OpClass, Program, Role
from simpar.program.op import computes

_MANY: Final = 2**14
"""Lives from which on room that is left over counts more than the time to copy them."""


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
    kinds = frozenset(always)
    lives = _compiled(program, role, kinds) if is_started() else None
    lives = lives or _lives(program, role, kinds)
    return _with_buffers(lives, program, role) if flattened else lives


def _lives(program: Program, role: Role, always: frozenset[str]) -> Lifetimes:
    """The same without buffers."""
    table = table_of(program, always)
    parts = Parts.of(touches_of(table, role))
    _check(program, role, parts, table.are({*ALWAYS, 'input'}))
    # Views were checked like all tensors, and take no memory.
    held = ~table.are({'view'})[parts.tensor]
    parts = parts.some(held)
    begin, end = parts.write.copy(), parts.last.copy()
    loaded = table.are({'input'} - always)[parts.tensor]
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


def _compiled(program: Program, role: Role, always: frozenset[str]) -> Lifetimes | None:
    """The same by a kernel; None where something is wrong, which numpy tells."""
    from simpar.memory.kernels import count_cells, write_lifetimes

    flags, named = flags_of(program, always), program.named
    base, used = np.full(len(flags) + 1, NONE, dtype=np.int32), np.zeros(len(named) // 4, dtype=bool)
    given = role.op_class, role.micro_batch, role.copy, named.start, named.item, flags, base
    counts = np.empty(3, dtype=np.int64)
    most = count_cells(*given, used, counts)
    micro_batches, copies, cells = counts.tolist()
    loads, ends = np.full(micro_batches, NONE, dtype=np.int32), np.full((cells, 2), NONE, dtype=np.int32)
    lives, columns = np.empty((most, 5), dtype=np.int32), np.empty((8, most), dtype=np.int64)
    computing = program.op_column(computes, np.bool_)
    count = write_lifetimes(*given, copies, computing, loads, ends, lives, program.sizes, columns)
    if count == NONE:
        return None
    found = columns[:, :count]
    # The room for lives is twice as large as they are: of many roles it would not be given back.
    tensor, micro_batch, copy, size, writer, begin, end, before = found.copy() if most > _MANY else found
    return Lifetimes(tensor, micro_batch, copy, size, writer, begin, end, before > 0)


def _check(program: Program, role: Role, parts: Parts, given: Flags) -> None:
    """Refuse what is read or freed and was never there."""
    for part in np.flatnonzero((parts.write == NEVER) & (parts.freed | ~given[parts.tensor])).tolist():
        name = program.tensors[int(parts.tensor[part])].name
        action = program.action(role, int(parts.first[part]))
        raise ProgramError(f'role {role.name}: {action} reads or frees {name}, which nothing has written')


def _loads(program: Program, role: Role) -> Ints:
    """For each micro-batch the slot of its first compute op."""
    computing = program.op_column(computes, np.bool_)
    slots = np.flatnonzero((computing & program.is_sliced)[role.op_class])
    return first_of(slots, role.micro_batch[slots].astype(np.int64), int(role.micro_batch.max(initial=0)) + 1)


def _fused(op: OpClass) -> int:
    """Bytes of the buffer that a collective of several tensors flattens them into; 0 of all else."""
    # A single tensor is sent from where it is.
    return int(op.bytes) if op.kind == 'collective' and len(op.reads) > 1 else 0


def _with_buffers(lives: Lifetimes, program: Program, role: Role) -> Lifetimes:
    """The lives and those of the buffers of fused collectives."""
    sizes = program.op_column(_fused, np.int64)[role.op_class]
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
