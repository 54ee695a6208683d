"""Lifetimes of tensors on a rank, and the changes of memory that they make."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.errors import ProgramError
from simpar.kernels import Array, kernel, part
from simpar.program import KINDS, PER_RANK, OpClass, Program, Role, Tensor, computes, is_batched, ranges
from simpar.trace import Times

# Lifetimes: from which slot to which a role's tensors live, in the steady state; no seconds.
#
# Issue order is the order of dataflow, and needs hold every machine to it, so lives follow from the list alone. A
# life begins with the first write to a tensor that is not there and ends with the op that frees it. What is written
# after the last free of a step lives on until the first free of the next.

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
ALWAYS: Final = frozenset({'parameter', 'state'})
"""Kinds that a rank holds always, whatever its ops write and free."""
NONE: Final = -1
NEVER: Final = 2**31 - 1
"""A slot behind all, in 32 bits."""
ONE: Final = 1
HELD: Final = 2
GIVEN: Final = 4
VIEW: Final = 8
LOADED: Final = 16
BATCHED: Final = 32
"""What kernels know of a tensor: a rank holds one for all micro-batches and copies; freeing it ends nothing; it is
there unwritten; it is a view; it begins with its micro-batch; copies split it."""


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

    def more(self, size: Ints, begin: Ints, end: Ints, before: Flags) -> Lifetimes:
        """The lives and further ones, of no tensor."""
        nothing = np.full(len(size), NONE, dtype=np.int64)
        own = (getattr(self, column.name) for column in fields(self))
        more = (nothing, nothing, nothing, size, begin, begin, end, before)
        return Lifetimes(*(np.concatenate(both) for both in zip(own, more, strict=True)))


def lifetimes(
    program: Program, role: Role, *, always: Collection[str] = ALWAYS, flattened: bool = False, host: bool = False
) -> Lifetimes:
    """The lives of what a role's ops touch.

    Arguments: ``always``, kinds of tensors that live always; with ``gradient`` among them, gradients stay allocated
    between steps, as Megatron-LM and DDP keep them. ``flattened``: a collective of several tensors copies them into one
    buffer of its bytes while it runs (gloo); without, it works in place.
    ``host``: of what lies there, in place of what the device holds.
    An input lives from the first compute op of its micro-batch, all copies at once, to its last reader. What is never
    freed lives always, and so does a parameter of the role that is only read. A view has no memory of its own.
    Raises ``ProgramError`` where an op reads or frees an activation or gradient that nothing has written.
    Not modelled: workspaces inside of a kernel, tensors that no op of the role touches.
    """
    flags, named = program.tensor_column(_flags(frozenset(always), host), np.uint8), program.named
    start, times = named.start, np.bincount(role.op_class, minlength=len(named) // 4)
    micro_batches, copies = int(role.micro_batch.max(initial=0)) + 1, int(role.copy.max(initial=0)) + 1
    # Each tensor that slots touch has a cell for each instance that a role may have.
    first = 4 * np.flatnonzero(times)
    touched = named.item[ranges(start[first], start[first + 4] - start[first])]
    each = np.zeros(len(flags) + 1, dtype=np.int64)
    each[touched] = np.where(flags[touched] & ONE, 1, micro_batches * copies)
    base, cells = np.where(each, np.cumsum(each) - each, NONE).astype(np.int32), int(each.sum())
    # A life ends with the op that frees it, or is the last one of its cell.
    most = cells + int(times @ (start[4::4] - start[3::4]))
    arguments = role.op_class, role.micro_batch, role.copy, start, named.item, flags, base
    loads, ends = np.full(micro_batches, NONE, dtype=np.int32), np.full((cells, 2), NONE, dtype=np.int32)
    rows, columns = np.empty((most, 5), dtype=np.int32), np.empty((8, most), dtype=np.int64)
    computing = program.op_column(computes, np.bool_)
    count = write_lifetimes(*arguments, copies, computing, loads, ends, rows, program.sizes, columns)
    if count == NONE:
        tensor, slot = columns[:2, 0].tolist()
        name, action = program.tensors[tensor].name, program.action(role, slot)
        raise ProgramError(f'role {role.name}: {action} reads or frees {name}, which nothing has written')
    # The room for lives is twice as large as they are: of many roles it would not be given back.
    tensor, micro_batch, copy, size, writer, begin, end, before = columns[:, :count].copy()
    lives = Lifetimes(tensor, micro_batch, copy, size, writer, begin, end, before > 0)
    return _with_buffers(lives, program, role) if flattened else lives


@cache
def _flags(always: frozenset[str], host: bool) -> Callable[[Tensor], int]:
    """What gives the flags of a tensor: the same function each time, so that columns are kept."""
    sets = {
        ONE: PER_RANK,
        HELD: {*always, 'input'},
        GIVEN: {*ALWAYS, 'input'},
        VIEW: {'view'},
        LOADED: {'input'} - always,
    }
    of = {kind: sum(flag for flag, kinds in sets.items() if kind in kinds) for kind in KINDS}
    return lambda tensor: of[tensor.kind] | BATCHED * is_batched(tensor) | VIEW * (tensor.host != host)


def _fused(op: OpClass) -> int:
    """Bytes of the buffer that a collective of several tensors flattens them into; 0 of all else."""
    # A single tensor is sent from where it is.
    return int(op.bytes) if op.kind == 'collective' and len(op.reads) > 1 else 0


def _with_buffers(lives: Lifetimes, program: Program, role: Role) -> Lifetimes:
    """The lives and those of the buffers of fused collectives."""
    sizes = program.op_column(_fused, np.int64)[role.op_class]
    slots = np.flatnonzero(sizes)
    return lives.more(sizes[slots], slots, slots, np.zeros(len(slots), dtype=bool))


@part
def _live(
    op_class: Array, micro_batch: Array, copy: Array, start: Array, item: Array, flags: Array, base: Array,
    copies: int, computes: Array, loads: Array, ends: Array, lives: Array,
) -> None:  # fmt: skip
    """Write the lives of all cells, in the order in which they begin; arguments as of ``write_lifetimes``."""
    begun = 0
    for slot in range(len(op_class)):
        number = 4 * op_class[slot]
        since, writes, frees, until = start[number], start[number + 1], start[number + 3], start[number + 4]
        # An op without tensors, as a pure barrier, is done wherever it is issued.
        sliced, shift = since == frees, micro_batch[slot] * copies + copy[slot]
        for touch in range(since, until):
            which = item[touch]
            flag = flags[which]
            sliced |= touch < frees and flag & BATCHED != 0
            cell = base[which] if flag & ONE else base[which] + shift
            at = ends[cell, 1]
            if at == NONE or lives[at, 3]:
                if at == NONE:
                    ends[cell, 0] = begun
                else:
                    lives[at, 4] = begun
                at = ends[cell, 1] = begun
                lives[at, 0], lives[at, 2], lives[at, 3], lives[at, 4] = slot, NEVER, 0, NONE
                begun += 1
            lives[at, 1] = slot
            if touch >= frees:
                # Only reads hold on to what lives always or, being an input, until its last reader.
                lives[at, 3] = 0 if flag & HELD else 1
            elif touch >= writes and lives[at, 2] == NEVER:
                lives[at, 2] = slot
        if sliced and loads[micro_batch[slot]] == NONE and computes[op_class[slot]]:
            loads[micro_batch[slot]] = slot


@kernel
def write_lifetimes(
    op_class: Array, micro_batch: Array, copy: Array, start: Array, item: Array, flags: Array, base: Array,
    copies: int, computes: Array, loads: Array, ends: Array, lives: Array, size: Array, columns: Array,
) -> int:  # fmt: skip
    """Write the columns of ``Lifetimes``; return how many rows there are.

    Returns -1 where something was never written, whose tensor and first slot then stand in the first column.

    Arguments:
        op_class to copy: of slots; ``copies``, how many of a micro-batch.
        start, item: what op classes read, write, accumulate to and free, as of ``Program.named``.
        flags: of tensors, as ``ONE`` and so on say.
        base: of each tensor its first cell, -1 where no slot touches it.
        computes: of op classes.
        loads: of each micro-batch the first slot that computes with what is split into micro-batches; -1 at first.
        ends: of each cell its first life and its last one, -1 at first.
        lives: shape [lives, 5]: the first slot, the last, the first that writes or ``NEVER``, whether the last one
            frees it, the next life of the same cell or -1.
        size: bytes of each tensor.
        columns: shape [8, lives].
    """
    _live(op_class, micro_batch, copy, start, item, flags, base, copies, computes, loads, ends, lives)
    count = 0
    for which in range(len(flags)):
        if base[which] == NONE:
            continue
        flag = flags[which]
        for number in range(1 if flag & ONE else len(loads) * copies):
            at, last = ends[base[which] + number, 0], ends[base[which] + number, 1]
            before = 0
            # Written behind the last free of a step: in the steady state this is what the first life of the next step
            # begins with.
            stop = last if at != last and not lives[last, 3] else NONE
            if stop != NONE and lives[stop, 2] != NEVER:
                lives[at, 2], before = lives[stop, 2], 1
            while at != stop:
                first, end, write, freed = lives[at, 0], lives[at, 1], lives[at, 2], lives[at, 3]
                if write == NEVER and (freed or not flag & GIVEN):
                    columns[0, 0], columns[1, 0] = which, first
                    return NONE
                # A view was checked like all tensors, and takes no memory.
                if not flag & VIEW:
                    columns[0, count] = which
                    columns[1, count] = NONE if flag & ONE else number // copies
                    columns[2, count] = NONE if flag & ONE else number % copies
                    columns[3, count] = size[which]
                    columns[4, count] = NONE if write == NEVER else write
                    if flag & LOADED:
                        load = loads[number // copies]
                        columns[5, count] = first if load == NONE else min(load, first)
                        columns[6, count] = end
                    else:
                        # What nobody frees stays allocated through all steps.
                        columns[5, count] = write if freed else NONE
                        columns[6, count] = end if freed else NONE
                    columns[7, count] = before
                    count += 1
                at, before = lives[at, 4], 0
    return count


# Changes: the times of a step at which what a rank holds grows or shrinks, and by how many bytes.


@dataclass(frozen=True, eq=False)
class Window:
    """When the slots of a rank begin and end, and the step that all this is folded into.

    Arguments:
        starts, ends: seconds of the trace, shape [slots].
        earlier: the starts in the step before.
        begin: seconds of the trace at which the step begins, which lasts ``step``.
    """

    starts: Times
    earlier: Times
    ends: Times
    begin: float
    step: float

    @cached_property
    def folded(self) -> tuple[Ints, Times]:
        """Starts, earlier ones and ends, behind one another: in which step, and seconds from its begin."""
        return fold(np.concatenate((self.starts, self.earlier, self.ends)) - self.begin, self.step)


def fold(times: Times, step: float) -> tuple[Ints, Times]:
    """Times as (which step, seconds from its begin)."""
    if step <= 0:
        return np.zeros(times.shape, dtype=np.int64), np.zeros(times.shape)
    which = np.floor(times / step)
    # Rounding of the quotient can put a time into a neighbouring step; the remainder shows it.
    rest = times - which * step
    which += (rest >= step).astype(float) - (rest < 0)
    return which.astype(np.int64), times - which * step


def changes(lives: Lifetimes, size: Ints, window: Window) -> tuple[Times, Ints]:
    """Times, and by how much what is held grows with each; first that of the step's begin, with all that is there then.

    Lives that begin, or end, with one slot are looked at together. Arguments: ``size`` of each life.
    """
    slots, ends = len(window.starts), ~lives.always
    begin, end, mine = (lives.begin + slots * lives.before)[ends], lives.end[ends] + 2 * slots, size[ends]
    sums, there = np.zeros(3 * slots, dtype=np.int64), np.zeros(3 * slots, dtype=bool)
    np.add.at(sums, begin, mine)
    np.subtract.at(sums, end, mine)
    there[begin] = there[end] = True
    at = np.flatnonzero(there)
    which, times = window.folded
    # What lives over the end of the step is there at its begin.
    held = size[~ends].sum() - which[at] @ sums[at]
    return np.append(0.0, times[at]), np.append(held, sums[at])


class Moments(NamedTuple):
    """The moments of a step at which what is held changes.

    Arguments: ``times``, each once; ``change``, as of ``changes``; ``order`` of these by time, and in it the ``last``
    at each of the times.
    """

    times: Times
    change: Ints
    order: Ints
    last: Ints

    @staticmethod
    def of(times: Times, change: Ints) -> Moments:
        """Those of what ``changes`` tells."""
        order = np.argsort(times, kind='stable')
        rising = times.take(order)
        last = np.append(np.flatnonzero(rising[1:] != rising[:-1]), len(rising) - 1)
        return Moments(rising.take(last), change, order, last)

    def held(self, change: Ints) -> Ints:
        """The bytes that are held from each time on, of changes at these times."""
        # Of several changes at one time, what is held behind the last of them counts.
        return change.take(self.order).cumsum().take(self.last)
