"""Sites: every op of every rank, in one numbering, so that times of a prediction and of a measurement are arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simpar.program import Program
from simpar.program.turns import NONE, Kind
from simpar.trace import Times

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Sites:
    """The N sites of a program: rank by rank, and on a rank in issue order.

    Arguments:
        first: shape [world + 1], the first site of each rank, and at last N.
        rank, slot, op: shape [N]; ``op`` indexes the program's op classes.
        share: shape [N], 1 over how many sites tell the same: all members of a collective see it last equally long.
    """

    program: Program
    first: Ints
    rank: Ints
    slot: Ints
    op: Ints
    share: Times

    def __len__(self) -> int:
        return len(self.rank)

    @cached_property
    def computes(self) -> Mask:
        """Shape [N], whether a site computes."""
        kinds = np.array([op.kind == 'compute' for op in self.program.op_classes], dtype=bool)
        return np.asarray(kinds[self.op])

    @cached_property
    def stream(self) -> Ints:
        """Shape [N], the number of a site's stream in ``streams``."""
        number = {name: index for index, name in enumerate(self.streams)}
        of_role = [np.array([number[name] for name in role.streams]) for role in self.program.roles]
        roles = [int(role) for role in self.program.role_of_rank]
        return np.concatenate([of_role[role][self.program.roles[role].stream] for role in roles])

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """The names of all streams, in the order of first use."""
        return tuple(dict.fromkeys(name for role in self.program.roles for name in role.streams))

    @cached_property
    def channel(self) -> Ints:
        """Shape [N], the number of what a site communicates on, in ``channels``; -1 where it computes."""
        return self._channels[0]

    @cached_property
    def channels(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that meet on each channel: a group, or a sender and its receiver."""
        return self._channels[1]

    @cached_property
    def _channels(self) -> tuple[Ints, tuple[tuple[int, ...], ...]]:
        numbers: dict[tuple[object, ...], int] = {}
        met: list[tuple[int, ...]] = []
        found = []
        for rank in range(self.program.world):
            turns = self.program.turns[int(self.program.role_of_rank[rank])]
            # Behind the numbers of all kinds stands that of what computes, which index -1 reads.
            mine = [_channel(self.program, kind, rank) for kind in turns.kinds]
            for name, ranks in mine:
                if numbers.setdefault(name, len(met)) == len(met):
                    met.append(ranks)
            found.append(np.array([*(numbers[name] for name, _ in mine), NONE])[turns.kind])
        return np.concatenate(found), tuple(met)

    def on(self, ranks: tuple[int, ...]) -> Mask:
        """Shape [N], whether a site is on one of these ranks; on any where none is named."""
        return np.isin(self.rank, ranks) if ranks else np.ones(len(self), dtype=bool)


def sites_of(program: Program) -> Sites:
    """The sites of a program."""
    roles = [program.role(rank) for rank in range(program.world)]
    first = np.cumsum([0, *map(len, roles)])
    op = np.concatenate([role.op_class for role in roles]).astype(np.int64)
    slot = np.arange(first[-1]) - np.repeat(first[:-1], np.diff(first))
    return Sites(program, first, np.repeat(np.arange(len(roles)), np.diff(first)), slot, op, _told(program)[op])


def _channel(program: Program, kind: Kind, rank: int) -> tuple[tuple[object, ...], tuple[int, ...]]:
    """A name that is equal for all who meet there, and these ranks."""
    members = program.partitions[kind.partition].members(rank)
    if kind.kind == 'collective':
        return (kind.partition, kind.stream, members), members
    peer = members[(members.index(rank) + kind.peer) % len(members)]
    ranks = (rank, peer) if kind.kind == 'send' else (peer, rank)
    return (kind.partition, kind.stream, *ranks), ranks


def _told(program: Program) -> Times:
    """For each op class, 1 over how many sites tell of one such op."""
    meet = {'compute': 1, 'send': 2, 'recv': 2}
    sizes = [meet.get(op.kind) or program.partitions[op.partition].size for op in program.op_classes]
    return 1.0 / np.array(sizes, dtype=np.float64)
