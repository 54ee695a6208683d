"""Touches: what the slots of a role do to instances of tensors: they read, write and free them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.program import Program, Role
from simpar.program.csr import ranges
from simpar.program.tensor import KINDS, PER_RANK, Tensor, is_batched, kind_number

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
ALWAYS: Final = frozenset({'parameter', 'state'})
"""Kinds that a rank holds always, whatever its ops write and free."""
READ, WRITE, FREE = range(3)
"""In the order in which they happen within an op."""
ONE, HELD, GIVEN, VIEW, LOADED, BATCHED = (1 << bit for bit in range(6))
"""What kernels know of a tensor: a rank holds one for all micro-batches and copies; freeing it ends nothing; it is
there unwritten; it is a view; it begins with its micro-batch; copies split it."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
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
def table_of(program: Program, always: frozenset[str]) -> Table:
    """The table of a program, which all its roles share."""
    # Reads, writes, frees: within an op this is the order in which they happen.
    does = np.array([READ, WRITE, WRITE, FREE])
    kinds = program.tensor_column(kind_number, np.int64)
    return Table(
        start=program.named.start[::4].astype(np.int64),
        tensor=program.named.item.astype(np.int64),
        does=does[program.named.row % 4],
        kinds=kinds,
        one=np.array([kind in PER_RANK for kind in KINDS], dtype=bool)[kinds],
        held=np.array([kind in always or kind == 'input' for kind in KINDS], dtype=bool)[kinds],
    )


def flags_of(program: Program, always: frozenset[str]) -> NDArray[np.uint8]:
    """Shape [tensors]: the flags of each, as ``ONE`` to ``BATCHED`` say. Arguments: ``always``, as of ``lifetimes``."""
    return program.tensor_column(_flags(always), np.uint8)


@lru_cache(maxsize=4)
def _flags(always: frozenset[str]) -> Callable[[Tensor], int]:
    """What gives the flags of a tensor: the same function each time, so that columns are kept."""
    sets = {
        ONE: PER_RANK,
        HELD: {*always, 'input'},
        GIVEN: {*ALWAYS, 'input'},
        VIEW: {'view'},
        LOADED: {'input'} - always,
    }
    of = {kind: sum(flag for flag, kinds in sets.items() if kind in kinds) for kind in KINDS}
    return lambda tensor: of[tensor.kind] | BATCHED * is_batched(tensor)


class Touches(NamedTuple):
    """What slots do to instances, in issue order; ``cell`` is an instance's number among ``cells``."""

    slot: Ints
    cell: Ints
    does: Ints
    cells: Cells

    def some(self, wanted: Flags) -> Touches:
        """Some of the touches."""
        return Touches(self.slot[wanted], self.cell[wanted], self.does[wanted], self.cells)


class Cells(NamedTuple):
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


def touches_of(table: Table, role: Role) -> Touches:
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
    cells = Cells(np.cumsum(each) - each, np.repeat(np.arange(len(each)), each), copies)
    # Weights and gradients exist once on a rank, whatever micro-batch and copy touch them.
    slices = role.micro_batch.astype(np.int64) * copies + role.copy
    cell = cells.base[table.tensor][at] + slices[slot] * (~table.one)[table.tensor][at]
    # Only reads hold on to what lives always or, being an input, until its last reader.
    does = np.where(table.held[table.tensor] & (table.does == FREE), READ, table.does)
    return Touches(slot, cell, does[at], cells)
