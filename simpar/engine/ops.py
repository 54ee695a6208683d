"""Ops: what one step of all representatives does, as arrays that every machine walks.

Streams are in order, and what communicates meets by its order: on a channel, the k-th op of each side is of one
meeting, over all steps. Costs are by op, too: see ``node_costs``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.engine.fold import Representatives
from simpar.errors import ProgramError
from simpar.program import Csr, Kind, Program, Role, Turns, transfers, unlike
from simpar.program import computes as op_computes

Ints = NDArray[np.signedinteger[Any]]
Flags = NDArray[np.bool_]
NONE: Final = -1


class Meetings(NamedTuple):
    """Which ops meet.

    Arguments:
        channel: shape [N], where an op meets others; -1 where it computes.
        turn: shape [N], how many ops its representative puts on the channel before it in a step, on its side.
        turns: shape [N], how many in all.
        expected: shape [channels], how many ops meet there.
    """

    channel: Ints
    turn: Ints
    turns: Ints
    expected: Ints

    def behind(self, count: int) -> Meetings:
        """The same with so many ops more, behind all others, that meet nobody."""
        nobody, nothing = (np.full(count, value, dtype=np.int32) for value in (NONE, 0))
        joined = ((self.channel, nobody), (self.turn, nothing), (self.turns, nothing))
        channel, turn, turns = map(np.concatenate, joined)
        return Meetings(channel, turn, turns, self.expected)


@dataclass(frozen=True, eq=False)
class Ops:
    """One step of all representatives; its N ops are numbered by representative, and then in issue order.

    Arguments:
        roles: of each representative.
        first: shape [representatives + 1], the number of each representative's first op, and at last N.
        representative, op_class: shape [N].
        stream: shape [N], the number of an op's stream among those of all representatives.
        computes: shape [N].
        need, carry: for each op the ops that must have ended before it, of its step and of the step before.
        leads: shape [N], whether an op has the costs of its meeting: sends have, and one op of a collective.
        alone: whether one rank stands for all and no op meets another.
        meet: what works out ``meetings``.
    """

    roles: tuple[Role, ...]
    first: Ints
    representative: Ints
    op_class: Ints
    stream: Ints
    computes: Flags
    need: Csr
    carry: Csr
    leads: Flags
    alone: bool
    meet: Callable[[], Meetings]

    def __len__(self) -> int:
        return len(self.representative)

    @cached_property
    def meetings(self) -> Meetings:
        """Which ops meet; of ops alone few machines ask."""
        return self.meet()

    @cached_property
    def first_stream(self) -> NDArray[np.int32]:
        """Shape [representatives + 1], the number of each representative's first stream, and at last how many."""
        return np.cumsum([0, *(len(role.streams) for role in self.roles)], dtype=np.int32)

    @cached_property
    def streams(self) -> Csr:
        """For each stream its ops in issue order; streams without ops have no entries."""
        few = int(self.first_stream[-1]) < 2**15
        # Numbers so short are sorted without comparing them.
        order = np.argsort(self.stream.astype(np.int16) if few else self.stream, kind='stable')
        return Csr.counted(np.bincount(self.stream), order)


def ops_of(program: Program, representatives: Representatives) -> Ops:
    """The ops of a program's representatives; raise ``ProgramError`` where unlike ops meet in a collective."""
    _check_meetings(program)
    numbers = [int(program.role_of_rank[ranks[0]]) for ranks in representatives.ranks]
    roles = tuple(program.roles[number] for number in numbers)
    if len(roles) == 1 and not program.op_column(transfers, np.bool_).any():
        return _alone(program, numbers[0], representatives)
    first = np.cumsum([0, *map(len, roles)])
    streams = np.cumsum([0, *(len(role.streams) for role in roles)])
    # Half as wide as numpy's own: with a million of them, what they take in memory is what time goes into.
    op_class = np.concatenate([role.op_class.astype(np.int32) for role in roles])
    stream = np.concatenate(
        [role.stream + np.int32(begin) for role, begin in zip(roles, streams.tolist(), strict=False)]
    )
    meetings, leads = _meetings([program.turns[number] for number in numbers], representatives)
    return Ops(
        roles,
        first,
        np.repeat(np.arange(len(roles), dtype=np.int32), np.diff(first)),
        op_class,
        stream,
        program.op_column(op_computes, np.bool_)[op_class],
        _joined([role.need for role in roles], first),
        _joined([role.carry for role in roles], first),
        leads,
        alone=False,
        meet=lambda: meetings,
    )


def _alone(program: Program, number: int, representatives: Representatives) -> Ops:
    """The ops of the one rank that stands for all: its role's, as they are."""
    role = program.roles[number]
    op_class = role.op_class.astype(np.int32)
    computes = program.op_column(op_computes, np.bool_)[op_class]
    return Ops(
        (role,),
        np.array([0, len(role)]),
        np.zeros(len(role), dtype=np.int32),
        op_class,
        role.stream.astype(np.int32),
        computes,
        role.need,
        role.carry,
        ~computes,
        alone=True,
        meet=lambda: _meetings([program.turns[number]], representatives)[0],
    )


def _check_meetings(program: Program) -> None:
    wrong = unlike(program)
    if wrong:
        raise ProgramError(f'{wrong}, and they do unlike work; ops that meet in a collective must be alike')


def _joined(parts: list[Csr], first: Ints) -> Csr:
    """The needs of all representatives, by the numbers of their ops."""
    item = [part.item + np.int32(begin) for part, begin in zip(parts, first.tolist(), strict=False)]
    return Csr.counted(np.concatenate([part.count for part in parts]), np.concatenate(item))


class _Channel(NamedTuple):
    """Where ops of a representative meet others by their order.

    Arguments:
        name: equal for those that meet.
        expected: how many meet.
        leads: this op has the costs.
    """

    name: tuple[object, ...]
    expected: int
    leads: bool


def _channel(representatives: Representatives, representative: int, kind: Kind) -> _Channel:
    if kind.kind == 'collective':
        among = representatives.among(kind.partition, representative)
        return _Channel((kind.partition, kind.stream, among), len(among), representative == among[0])
    peer = representatives.peer(kind.partition, representative, kind.peer)
    # Both sides must name one channel: it is named by the sender, the receiver and the sender's offset.
    sends = kind.kind == 'send'
    offset = kind.peer if sends else kind.facing(representatives.groups[kind.partition].size).peer
    return _Channel(
        (kind.partition, kind.stream, *((representative, peer) if sends else (peer, representative)), offset), 2, sends
    )


def _meetings(turns: list[Turns], representatives: Representatives) -> tuple[Meetings, Flags]:
    """Which ops meet, and of each whether it leads."""
    numbers: dict[tuple[object, ...], int] = {}
    expected: list[int] = []
    found = []
    for representative, of in enumerate(turns):
        channels = [_channel(representatives, representative, kind) for kind in of.kinds]
        for channel in channels:
            if numbers.setdefault(channel.name, len(numbers)) == len(expected):
                expected.append(channel.expected)
        # Behind those of all kinds stand those of what computes.
        # Index −1, the kind of what computes, reads the entry behind all others.
        number = np.array([*(numbers[channel.name] for channel in channels), NONE], dtype=np.int32)
        leads = np.array([*(channel.leads for channel in channels), False], dtype=bool)
        each = np.append(of.slots.count, np.int32(0))
        found.append((number[of.kind], of.turn, each[of.kind], leads[of.kind]))
    on, turn, each, leading = (np.concatenate(column) for column in zip(*found, strict=True))
    return Meetings(on, turn, each, np.array(expected, dtype=np.int64)), leading.astype(bool)


def nodes_of(ops: Ops) -> Ints | None:
    """For each op the number of its node, that of the op that has the costs; None where not all meet that should.

    A node is a compute op, or all the ops that meet in a communication.
    """
    node = np.arange(len(ops), dtype=np.int32)
    if ops.alone:
        return node
    channel, turn, _, expected = ops.meetings
    meets = np.flatnonzero(~ops.computes)
    on = channel[meets]
    _, one, meeting, count = np.unique(
        on.astype(np.int64) * len(ops) + turn[meets], return_index=True, return_inverse=True, return_counts=True
    )
    # Someone waits for a peer that never comes.
    if (count != expected[on[one]]).any():
        return None
    leads = ops.leads[meets]
    leader = np.zeros(len(one), dtype=np.int64)
    leader[meeting[leads]] = meets[leads]
    node[meets] = leader[meeting]
    return node
