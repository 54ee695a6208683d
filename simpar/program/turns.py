"""Turns: what communicates meets by its order, the k-th op of a kind with the k-th of the kind that faces it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.program.csr import Csr
from simpar.program.op import OpClass, OpKind, computes
from simpar.program.partition import Partition
from simpar.program.role import Role
from simpar.program.rows import kept_column, like_of, stand

Ints = NDArray[np.int32]
NONE: Final = -1


class Kind(NamedTuple):
    """What is counted apart, as ops of a kind meet in their order.

    Arguments: ``peer``, how many positions further in the group the peer of a send or receive stands, from 0.
    """

    kind: OpKind
    partition: str
    peer: int
    stream: str

    def facing(self, size: int) -> Kind:
        """The kind of what this one meets, in groups of a size."""
        if self.kind == 'collective':
            return self
        # Modulo the size: from 0 to 1 of a group of two, +1 and −1 are one offset.
        return self._replace(kind='recv' if self.kind == 'send' else 'send', peer=-self.peer % size)


@dataclass(frozen=True, eq=False)
class Turns:
    """The communication ops of a role, counted.

    Arguments:
        kinds: those that the role has.
        kind: shape [slots], the number of a slot's kind; -1 where it computes.
        turn: shape [slots], how many slots of its kind stand before it.
    """

    kinds: tuple[Kind, ...]
    kind: Ints
    turn: Ints

    @cached_property
    def slots(self) -> Csr:
        """For each kind its slots, in their order."""
        meets = np.flatnonzero(self.kind != NONE)
        return Csr.of(self.kind[meets], meets, len(self.kinds))

    @cached_property
    def of_kind(self) -> dict[Kind, tuple[int, ...]]:
        """The same by kind."""
        return dict(zip(self.kinds, self.slots.rows(), strict=True))


def turns_of(role: Role, op_classes: Sequence[OpClass], partitions: dict[str, Partition]) -> Turns:
    """The turns of a role's slots."""
    communicates = ~kept_column(op_classes, computes, np.bool_)
    slots = np.flatnonzero(communicates[role.op_class])
    streams = len(role.streams)
    # Kinds are worked out once for each op class and stream, not once for each slot.
    key = like_of(op_classes)[role.op_class[slots]] * streams + role.stream[slots]
    numbers: dict[Kind, int] = {}
    of_key = np.full(len(op_classes) * streams, NONE, dtype=np.int64)
    for one in np.flatnonzero(np.bincount(key, minlength=1)).tolist():
        op, stream = stand(op_classes, one // streams), role.streams[one % streams]
        kind = Kind(op.kind, op.partition, op.peer % partitions[op.partition].size, stream)
        of_key[one] = numbers.setdefault(kind, len(numbers))
    mine = of_key[key]
    # Stable, so that turns of a kind count in issue order.
    order = np.argsort(mine, kind='stable')
    count = np.bincount(mine, minlength=1)
    of_slot, turn = np.full(len(role), NONE, dtype=np.int32), np.zeros(len(role), dtype=np.int32)
    of_slot[slots] = mine
    turn[slots[order]] = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    return Turns(tuple(numbers), of_slot, turn)
