"""Touches: which tensors slots read and change, and which pairs of slots must keep their order for that.

A slot must come after the last change of what it reads, and after the readers and the last change of what it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar.kept import Facts
from simpar.program.csr import Csr, ranges
from simpar.program.op import OpClass
from simpar.program.tensor import PER_RANK, Tensor, is_per_rank

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
NONE = -1
Instance = tuple[str, int, int]


def instance(tensor: Tensor, micro_batch: int, copy: int) -> Instance:
    """The key of the buffer that a slot of this micro-batch and copy uses."""
    return (tensor.name, -1, -1) if tensor.kind in PER_RANK else (tensor.name, micro_batch, copy)


@dataclass(frozen=True, eq=False)
class Touches:
    """What op classes do to tensors, in CSR form: op class i has the touches from ``start[i]`` to ``start[i + 1]``.

    Arguments:
        named: as of ``named_by``.
        per_rank: by tensor: whether a rank has one of it, for all micro-batches and copies.
    """

    named: Csr
    per_rank: Flags

    @cached_property
    def start(self) -> Ints:
        """Shape [op classes + 1]."""
        return self.named.start[::4].astype(np.int64)

    @cached_property
    def tensor(self) -> Ints:
        """Shape [touches], number of the touched tensor."""
        return self.named.item.astype(np.int64)

    @cached_property
    def changes(self) -> Ints:
        """Shape [touches], 1 where the tensor is written, accumulated to or freed, behind all reads."""
        return (self.named.row % 4 > 0).astype(np.int64)

    def of(self, op_class: Ints) -> tuple[Ints, Ints]:
        """The touches of slots in issue order: the place of the slot, and the number of the touch."""
        first = self.start[op_class]
        count = self.start[op_class + 1] - first
        return np.repeat(np.arange(len(op_class)), count), ranges(first, count)


def _numbers(tensors: Sequence[Tensor]) -> dict[str, int]:
    return dict(zip([tensor.name for tensor in tensors], count()))


_known: Final[Facts[tuple[Tensor, ...], dict[str, int]]] = Facts(_numbers, 4)
"""Of a table its tensors by their names: programs of a sweep often have the very table."""


def numbers_of(tensors: Sequence[Tensor]) -> dict[str, int]:
    """The tensors of a table by their names; of two with one name the last."""
    # Of a list somebody might change the rows.
    return _known(tensors) if isinstance(tensors, tuple) else _numbers(tensors)


def named_by(op_classes: Iterable[OpClass], tensors: Sequence[Tensor]) -> Csr:
    """For each op class four lists: the numbers of the tensors that it reads, writes, accumulates to and frees."""
    number = numbers_of(tensors)
    lists = [names for op in op_classes for names in (op.reads, op.writes, op.accumulates, op.frees)]
    item = np.array(list(map(number.__getitem__, chain.from_iterable(lists))), dtype=np.int64)
    return Csr.counted(np.array(list(map(len, lists)), dtype=np.int64), item)


def touches_of(named: Csr, tensors: Sequence[Tensor]) -> Touches:
    """The touches of op classes. Arguments: ``named``, as of ``named_by`` with these tensors."""
    return Touches(named, np.array([is_per_rank(tensor) for tensor in tensors], dtype=bool))


def dataflow(slot: Ints, key: Ints, changes: Ints) -> tuple[Ints, Ints]:
    """All pairs (slot, slot that it must come after) of touches.

    Arguments: shape [touches], in issue order; ``key``, from 0, equal where the same buffer is touched.
    """
    order = np.argsort(key, kind='stable')
    # Behind the last touch stands one of no buffer, for those that have no change before or behind them.
    slot, key, changes = slot[order], np.append(key[order], NONE), changes[order]
    # The last entry is the touch of no buffer behind all others.
    change = np.append(np.flatnonzero(changes), len(slot))
    done = np.cumsum(changes)
    # The change before a touch and the one behind it; index -1, where none is before, is the touch of no buffer too.
    last, following = change[done - changes - 1], change[done]
    changed = key[:-1] == key[last]
    # A read must be over before the next change; of two changes the first pair above tells the order already.
    read = (key[:-1] == key[following]) & (changes == 0)
    return (
        np.concatenate((slot[changed], slot[following[read]])),
        np.concatenate((slot[last[changed]], slot[read])),
    )
