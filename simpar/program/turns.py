"""Turns: what communicates meets by its order, the k-th op of a kind with the k-th of the kind that faces it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.program.csr import Csr
from simpar.program.op import OpClass, OpKind
from simpar.program.role import Role
from simpar.program.tensor import Partition

if TYPE_CHECKING:
    from simpar.program.program import Program

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


def turns_of(
    role: Role, op_classes: Sequence[OpClass], partitions: dict[str, Partition], computing: NDArray[np.bool_]
) -> Turns:
    """The turns of a role's slots. Arguments: ``computing``, shape [op classes], whether each is no communication."""
    slots = np.flatnonzero(~computing[role.op_class])
    streams = len(role.streams)
    # Kinds are worked out once for each op class and stream, not once for each slot.
    key = role.op_class[slots].astype(np.int64) * streams + role.stream[slots]
    numbers: dict[Kind, int] = {}
    of_key = np.full(len(op_classes) * streams, NONE, dtype=np.int64)
    for one in np.flatnonzero(np.bincount(key, minlength=1)).tolist():
        op, stream = op_classes[one // streams], role.streams[one % streams]
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


def unlike(program: Program) -> str:
    """Which two ops meet in a collective and do other work than one another; empty: none do.

    What meets is one collective, with one duration: so all its ops must have one cost key.
    """
    # Ranks of one role call the same.
    if len(program.roles) == 1:
        return ''
    kinds, ops = program.cost_kinds
    asked = dict.fromkeys(op.partition for op in ops if op.kind == 'collective')
    for partition in asked:
        of_group = program.role_of_rank[program.partitions[partition].groups_GP]
        # Ranks of one role call the same: only groups of several roles are looked at.
        several = of_group[(of_group != of_group[:, :1]).any(axis=1)]
        pairs = {pair for group in several.tolist() for pair in pairwise(dict.fromkeys(group))}
        for one, other in sorted(pairs):
            called = [_called(program, role, partition) for role in (one, other)]
            for stream in called[0].keys() & called[1].keys():
                slots = [of[stream][: min(len(own[stream]) for own in called)] for of in called]
                mine, theirs = (program.roles[role].op_class[of] for role, of in zip((one, other), slots, strict=True))
                differ = np.flatnonzero(kinds[mine] != kinds[theirs])
                if len(differ):
                    found = [program.op_classes[int(of[differ[0]])].name for of in (mine, theirs)]
                    names = [program.roles[role].name for role in (one, other)]
                    return f'{found[0]} of role {names[0]} meets {found[1]} of role {names[1]} on partition {partition}'
    return ''


def _called(program: Program, role: int, partition: str) -> dict[str, Ints]:
    """By stream the slots of a role's collectives on a partition, in their order."""
    turns = program.turns[role]
    return {
        kind.stream: turns.slots.item[turns.slots.start[number] : turns.slots.start[number + 1]]
        for number, kind in enumerate(turns.kinds)
        if kind.kind == 'collective' and kind.partition == partition
    }
