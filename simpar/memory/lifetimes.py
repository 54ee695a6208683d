"""Lifetimes: from which slot to which a role's tensors live, in the steady state; no seconds.

Issue order is the order of dataflow, and needs hold every machine to it, so lives follow from the list alone. A life
begins with the first write to a tensor that is not there and ends with the op that frees it. What is written after the
last free of a step lives on until the first free of the next.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.errors import ProgramError
from simpar.program import OpClass, Program, Role
from simpar.program.csr import ranges
from simpar.program.op import computes
from simpar.program.rows import kept_column
from simpar.program.tensor import KINDS, PER_RANK, kind_number

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
ALWAYS: Final = frozenset({'parameter', 'state'})
"""Kinds that a rank holds always, whatever its ops write and free."""
NONE: Final = -1
_READ, _WRITE, _FREE = range(3)
_NEVER: Final = np.iinfo(np.int64).max


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
    table = _table(program, frozenset(always))
    parts = _Parts.of(_touches(table, role))
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
    lives = Lifetimes(
        tensor=parts.tensor,
        micro_batch=np.where(one, NONE, parts.micro_batch),
        copy=np.where(one, NONE, parts.copy),
        bytes=program.sizes[parts.tensor],
        writer=np.where(parts.write == _NEVER, NONE, parts.write),
        begin=begin,
        end=end,
        before=parts.before,
    )
    return _with_buffers(lives, program, role) if flattened else lives


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """What op classes do to tensors, in CSR form: op class i has the touches from ``start[i]`` to ``start[i + 1]``.

    Arguments:
        tensor, does: shape [touches].
        kinds: of the tensors, by number in ``KINDS``.
        one: of the tensors, whether a rank holds one for all micro-batches and copies.
        held: of the tensors, whether freeing them ends nothing: what lives always, and inputs.
    """

    start: Ints
    tensor: Ints
    does: Ints
    kinds: Ints
    one: Flags
    held: Flags

    def are(self, kinds: Collection[str]) -> Flags:
        """Which tensors are of one of these kinds."""
        return np.array([kind in kinds for kind in KINDS], dtype=bool)[self.kinds]


@lru_cache(maxsize=2)
def _table(program: Program, always: frozenset[str]) -> _Table:
    """The table of a program, which all its roles share."""
    # Reads, writes, frees: within an op this is the order in which they happen.
    does = np.array([_READ, _WRITE, _WRITE, _FREE])
    kinds = kept_column(program.tensors, kind_number, np.int64)
    return _Table(
        start=program.named.start[::4].astype(np.int64),
        tensor=program.named.item.astype(np.int64),
        does=does[program.named.row % 4],
        kinds=kinds,
        one=np.array([kind in PER_RANK for kind in KINDS], dtype=bool)[kinds],
        held=np.array([kind in always or kind == 'input' for kind in KINDS], dtype=bool)[kinds],
    )


class _Touches(NamedTuple):
    """What slots do to instances, in issue order; ``cell`` is an instance's number among ``cells``."""

    slot: Ints
    cell: Ints
    does: Ints
    cells: _Cells

    def some(self, wanted: Flags) -> _Touches:
        """Some of the touches."""
        return _Touches(self.slot[wanted], self.cell[wanted], self.does[wanted], self.cells)


class _Cells(NamedTuple):
    """The instances that a role may have of the tensors that it touches: one, or one for each micro-batch and copy.

    Arguments: ``base``, the first cell of each tensor; ``tensor``, of each cell; ``copies`` of a micro-batch.
    """

    base: Ints
    tensor: Ints
    copies: int

    def __len__(self) -> int:
        return len(self.tensor)

    def names(self, cell: Ints) -> tuple[Ints, Ints, Ints]:
        """Tensor, micro-batch and copy of cells; where there is one for all, micro-batch and copy are 0."""
        tensor = self.tensor[cell]
        micro_batch, copy = np.divmod(cell - self.base[tensor], self.copies)
        return tensor, micro_batch, copy


def _touches(table: _Table, role: Role) -> _Touches:
    """All touches of a role."""
    # Touches once for each op class, then repeated by index arithmetic for all slots.
    first = table.start[role.op_class]
    count = table.start[1:][role.op_class] - first
    slot, at = np.repeat(np.arange(len(role)), count), ranges(first, count)
    used = np.zeros(len(table.start) - 1, dtype=bool)
    used[role.op_class] = True
    touched = np.zeros(len(table.one), dtype=bool)
    touched[table.tensor[np.repeat(used, np.diff(table.start))]] = True
    micro_batches, copies = (int(column.max(initial=0)) + 1 for column in (role.micro_batch, role.copy))
    each = np.where(table.one, 1, micro_batches * copies) * touched
    cells = _Cells(np.cumsum(each) - each, np.repeat(np.arange(len(each)), each), copies)
    # Weights and gradients exist once on a rank, whatever micro-batch and copy touch them.
    slices = role.micro_batch.astype(np.int64) * copies + role.copy
    cell = cells.base[table.tensor][at] + slices[slot] * (~table.one)[table.tensor][at]
    # Only reads hold on to what lives always or, being an input, until its last reader.
    does = np.where(table.held[table.tensor] & (table.does == _FREE), _READ, table.does)
    return _Touches(slot, cell, does[at], cells)


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

    def some(self, wanted: Flags | Ints) -> _Parts:
        """Some of the lives, or all in another order."""
        return _Parts(
            self.tensor[wanted], self.micro_batch[wanted], self.copy[wanted], self.first[wanted], self.last[wanted],
            self.write[wanted], self.freed[wanted], self.before[wanted],
        )  # fmt: skip

    @classmethod
    def of(cls, touches: _Touches) -> _Parts:
        """All lives, by instance and in issue order."""
        slot, cell, does, cells = touches
        count = len(cells)
        frees = does == _FREE
        first, last = _first(slot, cell, count), _last(slot, cell, count)
        freed = _first(slot[frees], cell[frees], count)
        # Nearly every instance has one life, that ends with its last touch or never; the others are split apart.
        several = (freed != _NEVER) & (freed != last)
        writes = does == _WRITE
        write = _first(slot[writes], cell[writes], count)
        one = np.flatnonzero((first != _NEVER) & ~several)
        no = np.zeros(len(one), dtype=bool)
        simple = cls(*cells.names(one), first[one], last[one], write[one], freed[one] != _NEVER, no)
        if not several.any():
            return simple
        cells_of_split, split = cls._split(touches.some(several[cell]))
        both = cls(*(np.concatenate(columns) for columns in zip(simple, split, strict=True)))
        # Cells are numbered by tensor, micro-batch and copy. Stable: the lives of one instance stay in order.
        return both.some(np.argsort(np.append(one, cells_of_split), kind='stable'))

    @classmethod
    def _split(cls, touches: _Touches) -> tuple[Ints, _Parts]:
        """The cell of each life; what a step writes behind an instance's last free is joined to its first part."""
        # Stable: the touches of one instance stay in issue order.
        order = np.argsort(touches.cell, kind='stable')
        slot, cell, does = (column[order] for column in touches[:3])
        instances = np.diff(cell, prepend=NONE) != 0
        frees = does == _FREE
        at = np.flatnonzero(instances | np.concatenate(([False], frees[:-1])))
        last = np.append(at[1:], len(frees)) - 1
        # The first write of each life; ``_NEVER`` is larger than any slot.
        write = np.minimum.reduceat(np.where(does == _WRITE, slot, _NEVER), at)
        freed, opens = frees[last], instances[at]
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
        own = cell[at][kept]
        named = touches.cells.names(own)
        return own, cls(*named, slot[at][kept], slot[last][kept], write[kept], freed[kept], before[kept])


def _summed(key: Ints, size: Ints) -> tuple[Ints, Ints]:
    """The keys that occur, and the sums of the sizes of each."""
    count = int(key.max(initial=NONE)) + 1
    total, there = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    # ``add.at``, not ``+=``, which would count one of several equal keys.
    np.add.at(total, key, size)
    there[key] = True
    return np.flatnonzero(there), total[there]


def _first(slot: Ints, cell: Ints, count: int) -> Ints:
    """The first slot that touches each cell, or ``_NEVER``; slots are in order."""
    found = np.full(count, _NEVER)
    # Of equal places the last one assigned stays.
    found[cell[::-1]] = slot[::-1]
    return found


def _last(slot: Ints, cell: Ints, count: int) -> Ints:
    """The last slot that touches each cell, or -1."""
    found = np.full(count, NONE)
    found[cell] = slot
    return found


def _check(program: Program, role: Role, parts: _Parts, given: Flags) -> None:
    """Refuse what is read or freed and was never there."""
    for part in np.flatnonzero((parts.write == _NEVER) & (parts.freed | ~given[parts.tensor])).tolist():
        name = program.tensors[int(parts.tensor[part])].name
        action = program.action(role, int(parts.first[part]))
        raise ProgramError(f'role {role.name}: {action} reads or frees {name}, which nothing has written')


def _loads(program: Program, role: Role) -> Ints:
    """For each micro-batch the slot of its first compute op."""
    computing = kept_column(program.op_classes, computes, np.bool_)
    slots = np.flatnonzero((computing & program.is_sliced)[role.op_class])
    return _first(slots, role.micro_batch[slots].astype(np.int64), int(role.micro_batch.max(initial=0)) + 1)


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
