"""Touches: which tensors slots read and change, and which pairs of slots must keep their order for that.

A slot must come after the last change of what it reads, and after the readers and the last change of what it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.program.csr import ranges
from simpar.program.op import OpClass
from simpar.program.tensor import PER_RANK, Tensor

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
NONE = -1
Instance = tuple[str, int, int]


def instance(tensor: Tensor, micro_batch: int, copy: int) -> Instance:
    """The key of the buffer that a slot of this micro-batch and copy uses."""
    return (tensor.name, -1, -1) if tensor.kind in PER_RANK else (tensor.name, micro_batch, copy)


@dataclass(frozen=True, slots=True, eq=False)
class Touches:
    """What op classes do to tensors, in CSR form: op class i has the touches from ``start[i]`` to ``start[i + 1]``.

    Arguments:
        tensor: number of the touched tensor.
        changes: 1 where the tensor is written, accumulated to or freed, behind all reads.
        per_rank: by tensor: whether a rank has one of it, for all micro-batches and copies.
    """

    start: Ints
    tensor: Ints
    changes: Ints
    per_rank: Flags

    def of(self, op_class: Ints) -> tuple[Ints, Ints]:
        """The touches of slots in issue order: the place of the slot, and the number of the touch."""
        first = self.start[op_class]
        count = self.start[op_class + 1] - first
        return np.repeat(np.arange(len(op_class)), count), ranges(first, count)


def touches_of(op_classes: Sequence[OpClass], tensors: Mapping[str, Tensor]) -> Touches:
    """The touches of a table of op classes."""
    number: dict[str, int] = {}
    tensor: list[int] = []
    reads, lengths = [], []
    for op in op_classes:
        names = (*op.reads, *op.writes, *op.accumulates, *op.frees)
        tensor += [number.setdefault(name, len(number)) for name in names]
        reads.append(len(op.reads))
        lengths.append(len(names))
    start = np.append(0, np.cumsum(np.array(lengths, dtype=np.int64)))
    place = np.arange(len(tensor)) - np.repeat(start[:-1], lengths)
    return Touches(
        start=start,
        tensor=np.array(tensor, dtype=np.int64),
        changes=(place >= np.repeat(np.array(reads, dtype=np.int64), lengths)).astype(np.int64),
        per_rank=np.array([tensors[name].kind in PER_RANK for name in number], dtype=bool),
    )


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
