"""Ops of representatives as arrays, and what each of them costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar import errors, trace, units
from simpar.cost.costs import Costs, lasts
from simpar.engine.fold import Load, Representatives
from simpar.program import Csr, Kind, Program, Role, Turns, unlike
from simpar.program import computes as op_computes

# Ops: what one step of all representatives does, as arrays that every machine walks.
#
# Streams are in order, and what communicates meets by its order: on a channel, the k-th op of each side is of one
# meeting, over all steps. Costs are by op, too: see ``node_costs``.

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
        meetings: which ops meet.
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
    meetings: Meetings

    def __len__(self) -> int:
        return len(self.representative)

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
    if wrong := unlike(program):
        raise errors.ProgramError(f'{wrong}, and they do unlike work; ops that meet in a collective must be alike')
    numbers = [int(program.role_of_rank[ranks[0]]) for ranks in representatives.ranks]
    roles = tuple(program.roles[number] for number in numbers)
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
        meetings,
    )


def _joined(parts: list[Csr], first: Ints) -> Csr:
    """The needs of all representatives, by the numbers of their ops."""
    item = [part.item + np.int32(begin) for part, begin in zip(parts, first.tolist(), strict=False)]
    return Csr.counted(np.concatenate([part.count for part in parts]), np.concatenate(item))


def _channel(representatives: Representatives, representative: int, kind: Kind) -> tuple[tuple[object, ...], int, bool]:
    """Where ops of a representative meet others: a name, how many meet, and whether this one has the costs."""
    if kind.kind == 'collective':
        among = representatives.among(kind.partition, representative)
        return (kind.partition, kind.stream, among), len(among), representative == among[0]
    peer = representatives.peer(kind.partition, representative, kind.peer)
    # Both sides must name one channel: it is named by the sender, the receiver and the sender's offset.
    sends = kind.kind == 'send'
    offset = kind.peer if sends else kind.facing(representatives.groups[kind.partition].size).peer
    ends = (representative, peer) if sends else (peer, representative)
    return (kind.partition, kind.stream, *ends, offset), 2, sends


def _meetings(turns: list[Turns], representatives: Representatives) -> tuple[Meetings, Flags]:
    """Which ops meet, and of each whether it leads."""
    numbers: dict[tuple[object, ...], int] = {}
    expected: list[int] = []
    parts = []
    for representative, of in enumerate(turns):
        channels = [_channel(representatives, representative, kind) for kind in of.kinds]
        for name, several, _ in channels:
            if numbers.setdefault(name, len(numbers)) == len(expected):
                expected.append(several)
        # Behind those of all kinds stand those of what computes.
        # Index −1, the kind of what computes, reads the entry behind all others.
        number = np.array([*(numbers[name] for name, *_ in channels), NONE], dtype=np.int32)
        leads = np.array([*(leading for *_, leading in channels), False], dtype=bool)
        each = np.append(of.slots.count, np.int32(0))
        parts.append((number[of.kind], of.turn, each[of.kind], leads[of.kind]))
    on, turn, each, leading = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Meetings(on, turn, each, np.array(expected, dtype=np.int64)), leading.astype(bool)


def nodes_of(ops: Ops) -> Ints | None:
    """For each op the number of its node, that of the op that has the costs; None where not all meet that should.

    A node is a compute op, or all the ops that meet in a communication.
    """
    node = np.arange(len(ops), dtype=np.int32)
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


# What the nodes of a graph cost, as arrays.


class Rows(NamedTuple):
    """What nodes cost, each way of it once; shape [rows], of ``beside`` [kinds, rows].

    Arguments:
        seconds: isolated; of a communication, of its transfer.
        alpha: latency; 0 of a compute op.
        beside: of a compute op, its speeds while a communication of each kind runs on its device; of a communication
            the first is its highest while one of its devices computes.
        kind: of a communication with links, the row of ``loads``; -1 of all else.
        taking: of a communication its kind, by what it takes of its devices; 0 of all else.
    """

    seconds: trace.Times
    alpha: trace.Times
    beside: trace.Times
    kind: Ints
    taking: Ints


@dataclass(frozen=True, eq=False)
class NodeCosts:
    """What each node costs.

    Arguments:
        row: of each node, shape [N], the row of ``rows`` that has its costs: of a million ranks' ops few differ.
        loads: what a communication asks of one link of each class, in all groups that it stands for.
        issued: seconds, when the host has issued an op; shape [steps, N].
        launches: whether hosts issue ops at times of their own; those that wait are ops themselves.
        waiting_slows: of each kind of communication, as of ``Costs``.
    """

    row: Ints
    rows: Rows
    loads: list[Load]
    issued: trace.Times
    launches: bool
    waiting_slows: tuple[bool, ...]


def node_costs(ops: Ops, program: Program, costs: Costs, representatives: Representatives, steps: int) -> NodeCosts:
    """The costs of the ops of a program's representatives."""
    count, devices = len(program.op_classes), len(representatives.ranks)
    # Rows of op classes at each speed of a device; of hosts, and of the first that a host does in a step.
    speed_of = [costs.rank_speed.item(ranks[0]) for ranks in representatives.ranks]
    speeds = sorted(set(speed_of))
    hosts = devices * (2 if costs.waits else 1)
    computes = program.op_column(op_computes, np.bool_)
    # For a compute op these are its speeds beside communication, for a communication its ceiling beside compute.
    beside = [np.where(computes, costs.speeds, 1.0)] * len(speeds)
    ones = np.ones_like(beside[0])
    seconds = [costs.compute / speed for speed in speeds]
    row, own = ops.op_class.copy(), int(ops.first[devices])
    if len(speeds) > 1:
        speed = np.searchsorted(speeds, speed_of)
        row[:own] += (speed * count).astype(np.int32)[ops.representative[:own]]
    if costs.waits:
        # Behind the devices stand hosts that wait for them.
        row[own:] += np.int32(len(seconds) * count)
        # A rank may have nothing to issue.
        first = ops.first[devices : hosts + 1]
        row[first[:-1][np.diff(first) > 0]] += np.int32(count)
        seconds += [costs.host, costs.host + costs.host_step]
        beside += [ones] * 2
    if len(ops.roles) > hosts:
        # And behind all of these work queues, which take no time.
        row[ops.first[hosts] :] = len(seconds) * count
        seconds.append(np.zeros(count))
        beside.append(ones)
    before = len(seconds) * count
    nodes = np.flatnonzero(ops.leads)
    # Ops of one class on one representative cost the same, so each kind is worked out once.
    numbers = ops.representative[nodes].astype(np.int64) * count + _same(program, costs)[ops.op_class[nodes]]
    kinds, kind_of = np.unique(numbers, return_inverse=True)
    row[nodes] = before + kind_of
    messages = [_message(program, costs, representatives, *divmod(kind, count)) for kind in kinds.tolist()]
    loads = [load for _, _, load in messages]
    nothing = np.zeros(before)
    rows = Rows(
        seconds=_quantise(np.concatenate((*seconds, [transfer for _, transfer, _ in messages]))),
        alpha=_quantise(np.concatenate((nothing, [latency for latency, _, _ in messages]))),
        beside=np.concatenate(
            (*beside, np.repeat(costs.beside_compute[None, kinds % count], len(ones), axis=0)), axis=1
        ),
        kind=np.concatenate((nothing + NONE, np.where(list(map(bool, loads)), np.arange(len(loads)), NONE))).astype(
            np.int32
        ),
        taking=np.concatenate((nothing.astype(np.int64), costs.taking[kinds % count])),
    )
    issued = _issued(ops, costs, steps, devices)
    return NodeCosts(row, rows, loads, issued, not costs.waits, costs.waiting)


def _same(program: Program, costs: Costs) -> Ints:
    """For each op class one that meets the same ranks at the same costs, as far as that is plain."""
    kinds, messages = program.cost_kinds[0], map(costs.communication.get, range(len(program.op_classes)))
    # All of a cost key meet alike, and cost the same but for what somebody has changed since they were priced.
    each = zip(kinds.tolist(), costs.taking.tolist(), costs.beside_compute.tolist(), map(id, messages), strict=True)
    first: dict[tuple[int, int, float, int], int] = {}
    return np.array([first.setdefault(key, number) for number, key in enumerate(each)])


def _message(
    program: Program, costs: Costs, representatives: Representatives, representative: int, index: int
) -> tuple[float, float, Load]:
    """Latency, transfer and links of an op class on a representative that leads."""
    by_group = costs.communication[index]
    groups = representatives.together(representative, program.op_classes[index], len(by_group))
    # Groups that fold together last equally long; any of them tells.
    return *lasts(by_group, groups.item(0)), representatives.load(by_group, groups)


def _issued(ops: Ops, costs: Costs, steps: int, devices: int) -> trace.Times:
    """Each device's host issues its ops one after the other, over all steps; devices stand before all others."""
    # Hosts that wait are ops themselves.
    if costs.waits:
        return np.broadcast_to(np.zeros(1), (steps, len(ops)))
    host, before = _quantise(costs.host).take(ops.op_class), units.quantise(costs.host_step)
    issued = np.zeros((steps, len(ops)))
    for begin, end in pairwise(ops.first[: devices + 1].tolist()):
        issued[:, begin:end] = _issued_by_one(host[begin:end], before, steps)
    return issued


def _issued_by_one(host: trace.Times, before: float, steps: int) -> trace.Times:
    """The same of one device. Arguments: ``host``, seconds for each op; ``before``, those before any of a step."""
    # The host launches in issue order, whatever the stream, and never waits for the device.
    one = host.cumsum() + before
    return np.asarray(np.arange(steps)[:, None] * one[-1:] + one)


def _quantise(times: trace.Times) -> trace.Times:
    # On a grid of 2⁻⁴⁰ s sums of doubles are exact below 2¹² s: ties are ties in every machine.
    return np.rint(times * units.GRID) / units.GRID
