"""Ops: what one step of all lanes does, as arrays that every machine walks.

Streams are in order, and what communicates meets by its order: on a channel, the k-th op of each side is of one
meeting, over all steps. Costs are by op, too: see ``node_costs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.engine.lanes import Lanes, groups_of
from simpar.program import Csr, OpClass, Program, Role

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
NONE: Final = -1


@dataclass(frozen=True, eq=False)
class Ops:
    """One step of all lanes; its N ops are numbered lane by lane, in issue order.

    Arguments:
        roles: of each lane.
        first: shape [lanes + 1], the number of each lane's first op, and at last N.
        lane, op_class: shape [N].
        stream: shape [N], the number of an op's stream among those of all lanes.
        computes: shape [N].
        need, carry: for each op the ops that must have ended before it, of its step and of the step before.
        channel: shape [N], where an op meets others; -1 where it computes.
        turn: shape [N], how many ops its lane puts on the channel before it in a step, on its side.
        turns: shape [N], how many in all.
        leads: shape [N], whether an op has the costs of its meeting; a receive and all but one of a collective have not.
        expected: shape [channels], how many ops meet there.
    """

    roles: tuple[Role, ...]
    first: Ints
    lane: Ints
    op_class: Ints
    stream: Ints
    computes: Flags
    need: Csr
    carry: Csr
    channel: Ints
    turn: Ints
    turns: Ints
    leads: Flags
    expected: Ints

    def __len__(self) -> int:
        return len(self.lane)

    @cached_property
    def streams(self) -> Csr:
        """For each stream its ops in issue order; streams without ops have no entries."""
        order = np.argsort(self.stream, kind='stable')
        return Csr.counted(np.bincount(self.stream), order)


@lru_cache(maxsize=4)
def ops_of(program: Program, of_rank: tuple[int, ...]) -> Ops:
    """The ops of a program's lanes.

    Arguments: ``of_rank``, the lane of each rank.
    """
    lanes = Lanes(groups_of(program), list(of_rank))
    roles = tuple(program.role(ranks[0]) for ranks in lanes.ranks)
    first = np.cumsum([0, *map(len, roles)])
    streams = np.cumsum([0, *(len(role.streams) for role in roles)])
    op_class = np.concatenate([role.op_class for role in roles]).astype(np.int64)
    stream = np.concatenate(
        [role.stream.astype(np.int64) + begin for role, begin in zip(roles, streams.tolist(), strict=False)]
    )
    return Ops(
        roles,
        first,
        np.repeat(np.arange(len(roles)), np.diff(first)),
        op_class,
        stream,
        ~_communicates(program)[op_class],
        _joined([role.need for role in roles], first),
        _joined([role.carry for role in roles], first),
        *_meetings(program, lanes, roles, first),
    )


def _communicates(program: Program) -> Flags:
    return np.array([op.kind != 'compute' for op in program.op_classes], dtype=bool)


def _joined(parts: list[Csr], first: Ints) -> Csr:
    """The needs of all lanes, by the numbers of their ops."""
    item = [part.item + begin for part, begin in zip(parts, first.tolist(), strict=False)]
    return Csr.counted(np.concatenate([np.diff(part.start) for part in parts]), np.concatenate(item))


class _Channel(NamedTuple):
    """Where ops of a lane meet others by their order.

    Arguments: ``name``, equal for those that meet; ``expected``, how many meet; ``leads``: the lane's op has the costs.
    """

    name: tuple[object, ...]
    expected: int
    leads: bool


def _channel(lanes: Lanes, lane: int, op: OpClass, stream: str) -> _Channel:
    if op.kind == 'collective':
        among = lanes.among(op.partition, lane)
        return _Channel((op.partition, stream, among), len(among), lane == among[0])
    peer, size = lanes.peer(op.partition, lane, op.peer), lanes.groups[op.partition].size
    sends = op.kind == 'send'
    ends = (lane, peer, op.peer % size) if sends else (peer, lane, -op.peer % size)
    return _Channel((op.partition, stream, *ends), 2, sends)


def _meetings(
    program: Program, lanes: Lanes, roles: tuple[Role, ...], first: Ints
) -> tuple[Ints, Ints, Ints, Flags, Ints]:
    """Channel, turn, turns and whether it leads, of each op; and how many meet on each channel."""
    channel, turn, turns = (np.full(first[-1], value) for value in (NONE, 0, 0))
    leads = np.zeros(first[-1], dtype=bool)
    numbers: dict[tuple[object, ...], int] = {}
    expected: list[int] = []
    communicates = _communicates(program)
    for lane, role in enumerate(roles):
        slots = np.flatnonzero(communicates[role.op_class])
        kinds = role.op_class[slots].astype(np.int64) * len(role.streams) + role.stream[slots]
        present, kind = np.unique(kinds, return_inverse=True)
        of_kind = [
            _channel(lanes, lane, program.op_classes[index], role.streams[on])
            for index, on in (divmod(one, len(role.streams)) for one in present.tolist())
        ]
        for one in of_kind:
            if numbers.setdefault(one.name, len(numbers)) == len(expected):
                expected.append(one.expected)
        number = np.array([numbers[one.name] for one in of_kind], dtype=np.int64)[kind]
        leading = np.array([one.leads for one in of_kind], dtype=bool)[kind]
        at = slots + first[lane]
        channel[at], leads[at] = number, leading
        turn[at], turns[at] = _turns(2 * number + leading)
    return channel, turn, turns, leads, np.array(expected, dtype=np.int64)


def _turns(keys: Ints) -> tuple[Ints, Ints]:
    """How many equal ones stand before each, and how many there are."""
    order = np.argsort(keys, kind='stable')
    heads = np.flatnonzero(np.diff(keys[order], prepend=NONE))
    lengths = np.diff(heads, append=len(keys))
    turn, turns = np.empty_like(keys), np.empty_like(keys)
    turn[order] = np.arange(len(keys)) - np.repeat(heads, lengths)
    turns[order] = np.repeat(lengths, lengths)
    return turn, turns
