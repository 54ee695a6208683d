"""Lifetimes: from which slot to which a role's tensors live, in the steady state; no seconds.

Issue order is the order of dataflow, and needs hold every machine to it, so lives follow from the list alone. A life
begins with the first write to a tensor that is not there and ends with the op that frees it. What is written after the
last free of a step lives on until the first free of the next.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.errors import ProgramError
from simpar.program import OpClass, Program, Role
from simpar.program.tensor import PER_RANK

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
ALWAYS: Final = frozenset({'parameter', 'state'})
"""Kinds that a rank holds always, whatever its ops write and free."""
NONE: Final = -1
_READ, _WRITE, _FREE = range(3)
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
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
    touches = _touches(program, role, frozenset(always))
    parts = _Parts.of(touches)
    tensors = program.tensors
    kinds = np.array([tensor.kind for tensor in tensors])
    given = np.isin(kinds, [*ALWAYS, 'input'])
    _check(program, role, parts, given)
    # Views were checked like all tensors, and take no memory.
    parts = _Parts(*(column[kinds[parts.tensor] != 'view'] for column in parts))
    begin, end = parts.write.copy(), parts.last.copy()
    loaded = (kinds[parts.tensor] == 'input') & ~np.isin('input', list(always))
    # Something other than a compute op, such as a gather, may read an input before its micro-batch begins.
    begin[loaded] = np.minimum(_loads(program, role)[parts.micro_batch[loaded]], parts.first[loaded])
    endless = ~parts.freed & ~loaded
    # What nobody frees stays allocated through all steps.
    begin[endless] = end[endless] = NONE
    one = np.isin(kinds, list(PER_RANK))[parts.tensor]
    # Sizes once for each tensor: shapes are worked out in Python, lives may be hundreds of thousands.
    held, which = np.unique(parts.tensor, return_inverse=True)
    sizes = np.array([program.local_bytes(tensors[index]) for index in held.tolist()], dtype=np.int64)
    lives = Lifetimes(
        tensor=parts.tensor,
        micro_batch=np.where(one, NONE, parts.micro_batch),
        copy=np.where(one, NONE, parts.copy),
        bytes=sizes[which],
        writer=np.where(parts.write == _NEVER, NONE, parts.write),
        begin=begin,
        end=end,
        before=parts.before,
    )
    return _with_buffers(lives, program, role) if flattened else lives


class _Touches(NamedTuple):
    """What slots do to instances, instance by instance, each in issue order."""

    slot: Ints
    tensor: Ints
    micro_batch: Ints
    copy: Ints
    does: Ints
    opens: Flags


def _touches(program: Program, role: Role, always: frozenset[str]) -> _Touches:
    number = {tensor.name: index for index, tensor in enumerate(program.tensors)}
    # Touches once for each op class, then repeated by index arithmetic for all slots.
    used, kind_of = np.unique(role.op_class, return_inverse=True)
    rows = [_row(program.op_classes[index], number) for index in used.tolist()]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    count = lengths[kind_of]
    slot = np.repeat(np.arange(len(role)), count)
    within = np.arange(len(slot)) - np.repeat(np.cumsum(count) - count, count)
    at = np.repeat((np.cumsum(lengths) - lengths)[kind_of], count) + within
    flat = np.array([touch for row in rows for touch in row], dtype=np.int64).reshape(-1, 2)
    tensor, does = flat[at].T
    # Weights and gradients exist once on a rank, whatever micro-batch and copy touch them.
    one = np.array([t.kind in PER_RANK for t in program.tensors], dtype=bool)[tensor]
    micro_batch = np.where(one, 0, role.micro_batch[slot].astype(np.int64))
    copy = np.where(one, 0, role.copy[slot].astype(np.int64))
    # Only reads hold on to what lives always or, being an input, until its last reader.
    held = np.array([t.kind in always or t.kind == 'input' for t in program.tensors], dtype=bool)[tensor]
    does = np.where(held & (does == _FREE), _READ, does)
    key = (tensor * (micro_batch.max(initial=0) + 1) + micro_batch) * (copy.max(initial=0) + 1) + copy
    # Stable: the touches of one instance stay in issue order.
    order = np.argsort(key, kind='stable')
    opens = np.diff(key[order], prepend=NONE) != 0
    return _Touches(slot[order], tensor[order], micro_batch[order], copy[order], does[order], opens)


def _row(op: OpClass, number: dict[str, int]) -> list[tuple[int, int]]:
    """What an op class does to which tensors."""
    # Reads, writes, frees: within an op this is the order in which they happen.
    groups = ((_READ, op.reads), (_WRITE, op.writes + op.accumulates), (_FREE, op.frees))
    return [(number[name], does) for does, names in groups for name in names]


class _Parts(NamedTuple):
    """The touches of an instance, split behind its frees: one row a life.

    ``write`` is its first write, ``_NEVER`` without; ``before``: that write is of the step before.
    """

    tensor: Ints
    micro_batch: Ints
    copy: Ints
    first: Ints
    last: Ints
    write: Ints
    freed: Flags
    before: Flags

    @classmethod
    def of(cls, touches: _Touches) -> _Parts:
        """Join what a step writes behind an instance's last free to its first part."""
        if not len(touches.slot):
            none, no = np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
            return cls(none, none, none, none, none, none, no, no)
        frees = touches.does == _FREE
        at = np.flatnonzero(touches.opens | np.concatenate(([False], frees[:-1])))
        last = np.append(at[1:], len(frees)) - 1
        # The first write of each life; ``_NEVER`` is larger than any slot.
        write = np.minimum.reduceat(np.where(touches.does == _WRITE, touches.slot, _NEVER), at)
        freed, opens = frees[last], touches.opens[at]
        # For each life the first life of the same instance.
        head = np.maximum.accumulate(np.where(opens, np.arange(len(at)), 0))
        tails = np.flatnonzero(~freed & ~opens)
        before = np.zeros(len(at), dtype=bool)
        # Written behind the last free of a step: in the steady state this is what the first life of the next step
        # begins with.
        carried = tails[write[tails] != _NEVER]
        write[head[carried]] = write[carried]
        before[head[carried]] = True
        kept = np.ones(len(at), dtype=bool)
        kept[tails] = False
        return cls(
            tensor=touches.tensor[at][kept],
            micro_batch=touches.micro_batch[at][kept],
            copy=touches.copy[at][kept],
            first=touches.slot[at][kept],
            last=touches.slot[last][kept],
            write=write[kept],
            freed=freed[kept],
            before=before[kept],
        )


def _check(program: Program, role: Role, parts: _Parts, given: Flags) -> None:
    """Refuse what is read or freed and was never there."""
    for part in np.flatnonzero((parts.write == _NEVER) & (parts.freed | ~given[parts.tensor])).tolist():
        name = program.tensors[int(parts.tensor[part])].name
        action = program.action(role, int(parts.first[part]))
        raise ProgramError(f'role {role.name}: {action} reads or frees {name}, which nothing has written')


def _loads(program: Program, role: Role) -> Ints:
    """For each micro-batch the slot of its first compute op."""
    used, kind_of = np.unique(role.op_class, return_inverse=True)
    ops = [program.op_classes[index] for index in used.tolist()]
    computes = np.array([op.kind == 'compute' and program.sliced(op) for op in ops], dtype=bool)
    slots = np.flatnonzero(computes[kind_of])
    first = np.full(int(role.micro_batch.max(initial=0)) + 1, _NEVER)
    np.minimum.at(first, role.micro_batch[slots], slots)
    return first


def _with_buffers(lives: Lifetimes, program: Program, role: Role) -> Lifetimes:
    """The lives and those of the buffers of fused collectives."""
    # A single tensor is sent from where it is.
    size = [int(op.bytes) if op.kind == 'collective' and len(op.reads) > 1 else 0 for op in program.op_classes]
    sizes = np.array(size, dtype=np.int64)[role.op_class]
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
