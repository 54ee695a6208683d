"""Work queues: a device takes what its host has issued from few of them, each in issue order, whatever the stream.

What is first in a queue leaves it, so that its op arrives, when the op before it on its stream has ended and all that
it needs. Until then it holds up what stands behind it in the queue. A queue that one stream has for itself holds up
nothing. Machines need not know any of this: an op that stands behind others in a queue comes after all that they come
after. These are needs like all others, and so is one op of no length for each queue, which ends when all of a step have
left it: what comes first on its stream in the next step comes after that.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.engine.fold import Representatives
from simpar.engine.hosts import with_hosts
from simpar.engine.ops import NONE, Ints, Ops, ops_of
from simpar.program import Csr, Program, Role, ranges

Numbers = NDArray[np.integer[Any]]
_EMPTY: Final = np.zeros(0, dtype=np.int32)
_SHORT: Final = np.zeros(0, dtype=np.uint16)
_NEEDLESS: Final = Csr.counted(_EMPTY, _EMPTY)


def hosted(program: Program, representatives: Representatives, waits: tuple[str, ...], queues: int = 0) -> Ops:
    """The ops of a program's representatives, of their hosts where these wait for anything, and of work queues.

    Arguments: ``waits`` of hosts and ``queues``, as of ``Costs``.
    """
    ops = ops_of(program, representatives)
    devices = len(ops.roles)
    if waits:
        ops = with_hosts(ops, program, waits)
    return with_queues(ops, queues, devices) if queues else ops


def queues_of(streams: Numbers, queues: int) -> list[list[int]]:
    """The streams of each queue that several have together; streams take queues in turns, as they are first used.

    Arguments: ``streams``, the stream of each op in issue order; ``queues``, how many there are.
    """
    used, first = np.unique(streams, return_index=True)
    in_turn = used[np.argsort(first)].tolist()
    every = [in_turn[queue::queues] for queue in range(min(queues, len(in_turn)))]
    return [several for several in every if len(several) > 1]


def before_in_queues(streams: Numbers, queues: int) -> Ints:
    """For each op of a role the one before it in the queue that its stream shares with others, or ``NONE``."""
    before = np.full(len(streams), NONE, dtype=np.int64)
    for shared in queues_of(streams, queues):
        at = np.flatnonzero(np.isin(streams, shared))
        before[at[1:]] = at[:-1]
    return before


def with_queues(ops: Ops, queues: int, devices: int) -> Ops:
    """The ops with the needs of what stands behind others in a queue; the same where no streams share one.

    Arguments: ``devices``, which the first representatives are, before all hosts.
    """
    if max((len(role.streams) for role in ops.roles[:devices]), default=0) <= queues:
        return ops
    bounds = ops.first.tolist()
    every = [
        _Queue(device, begin, ops.stream[begin:end], np.array(shared))
        for device, (begin, end) in enumerate(pairwise(bounds[: devices + 1]))
        for shared in queues_of(ops.stream[begin:end], queues)
    ]
    if not every:
        return ops
    before = _Before(ops, bounds[devices])
    need: list[Ints] = []
    carry: list[Ints] = []
    for number, queue in enumerate(every):
        runs = queue.runs()
        behind, ahead = runs.behind()
        leaves = np.full(len(queue.shared), len(ops) + number)
        op, left = np.concatenate((behind, leaves)), np.concatenate((ahead, runs.last))
        need.append(before.needs(op, left))
        carry += [before.carries(op, left), np.column_stack((runs.first, leaves))]
    return _joined(ops, need, carry, [queue.device for queue in every], devices)


class _Queue(NamedTuple):
    """A queue that some streams share.

    Arguments: ``begin``, the number of its device's first op; ``stream``, of each of the device's ops.
    """

    device: int
    begin: int
    stream: Ints
    shared: Ints

    def runs(self) -> _Runs:
        """What stands behind one another in it on one stream."""
        at = np.flatnonzero(np.isin(self.stream, self.shared))
        of = self.stream[at]
        begins = np.append(0, np.flatnonzero(of[1:] != of[:-1]) + 1)
        ends = np.append(begins[1:], len(at)) - 1
        on = [np.flatnonzero(of[begins] == one) for one in self.shared]
        return _Runs(self.begin + at[begins], self.begin + at[ends], on)


class _Runs(NamedTuple):
    """Ops of a queue that stand behind one another on one stream; nothing in a run waits for the queue but its first.

    Arguments: ``begin`` and ``end``, the first and the last op of each run; ``on``, the runs of each stream.
    """

    begin: Ints
    end: Ints
    on: list[Ints]

    @property
    def first(self) -> Ints:
        """The first op of each stream."""
        return self.begin[[runs[0] for runs in self.on]]

    @property
    def last(self) -> Ints:
        """The last op of each stream."""
        return self.end[[runs[-1] for runs in self.on]]

    def behind(self) -> tuple[Ints, Ints]:
        """First ops of runs, and the last op on each other stream of those issued since the run before on their own.

        What was issued before that one had left the queue when it did, and ops before the last on a stream had ended.
        """
        before = np.full(len(self.begin), NONE, dtype=np.int64)
        for runs in self.on:
            before[runs[1:]] = runs[:-1]
        found = []
        for runs in self.on:
            own = np.zeros(len(before), dtype=bool)
            own[runs] = True
            others = np.flatnonzero(~own)
            place = np.searchsorted(runs, others)
            ahead = np.where(place > 0, runs[place - 1], NONE)
            since = ahead > before[others]
            found.append((self.begin[others[since]], self.end[ahead[since]]))
        behind, ahead = (np.concatenate(column) for column in zip(*found, strict=True))
        return behind, ahead


class _Before:
    """What an op comes after to arrive: its needs, and the op before it on its stream, of its step or the one before.

    Arguments: ``hosts``, the first op of one: what stands behind others is issued behind them anyhow.
    """

    def __init__(self, ops: Ops, hosts: int) -> None:
        self._ops, self._hosts = ops, hosts
        order, stream = ops.streams.item, ops.streams.row
        heads = np.diff(stream, prepend=NONE) != 0
        self._on_stream, self._around = (np.full(len(ops), NONE, dtype=np.int64) for _ in range(2))
        self._on_stream[order[~heads]] = order[np.flatnonzero(~heads) - 1]
        self._around[order[heads]] = order[np.roll(heads, -1)]

    def needs(self, op: Ints, ahead: Ints) -> Ints:
        """Pairs of each op and what the one ahead of it comes after in its step."""
        return self._news(op, ahead, self._ops.need, self._on_stream, of_step=True)

    def carries(self, op: Ints, ahead: Ints) -> Ints:
        """The same of the step before."""
        return self._news(op, ahead, self._ops.carry, self._around, of_step=False)

    def _news(self, op: Ints, ahead: Ints, lists: Csr, before: Ints, *, of_step: bool) -> Ints:
        """Pairs, each once, without those that streams tell: an op comes after those before it."""
        count, other = lists.count[ahead], before[ahead]
        behind = np.concatenate((np.repeat(op, count), op[other != NONE]))
        item = np.concatenate((lists.item[ranges(lists.start[ahead], count)], other[other != NONE]))
        stream = np.append(self._ops.stream, NONE)[np.minimum(behind, len(self._ops))]
        told = (item >= self._hosts) | ((stream == self._ops.stream[item]) & (item < behind if of_step else True))
        # One number for each pair: sorted, they are told apart ten times as quickly as pairs.
        pairs = np.unique(behind[~told].astype(np.int64) * len(self._ops) + item[~told])
        return np.column_stack(np.divmod(pairs, len(self._ops)))


def _more(lists: Csr, pairs: list[Ints], rows: int) -> Csr:
    row, item = np.concatenate(pairs).T
    return lists.more(row, item, rows)


def _joined(ops: Ops, need: list[Ints], carry: list[Ints], device: list[int], devices: int) -> Ops:
    """The ops with all needs, and behind them one for each queue, on devices of their own behind all others."""
    count, more = len(ops), len(device)
    each = np.bincount(device, minlength=devices)
    names = tuple(f'queue {number}' for number in range(each.max()))
    roles = tuple(
        Role('queues', names[:several], _EMPTY.astype(np.uint32), _SHORT, _SHORT, _SHORT, _NEEDLESS, _NEEDLESS)
        for several in each.tolist()
    )
    nothing = np.zeros(more, dtype=np.int32)
    behind = np.int32(len(ops.roles))
    return replace(
        ops,
        roles=(*ops.roles, *roles),
        first=np.concatenate((ops.first, count + np.cumsum(each))),
        representative=np.concatenate((ops.representative, behind + np.array(device, dtype=np.int32))),
        op_class=np.concatenate((ops.op_class, nothing)),
        stream=np.concatenate((ops.stream, np.int32(ops.first_stream[-1]) + np.arange(more, dtype=np.int32))),
        computes=np.concatenate((ops.computes, np.ones(more, dtype=bool))),
        need=_more(ops.need, need, count + more),
        carry=_more(ops.carry, carry, count + more),
        leads=np.concatenate((ops.leads, np.zeros(more, dtype=bool))),
        meet=lambda: ops.meetings.behind(more),
    )
