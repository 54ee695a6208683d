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

from simpar.engine.ops import NONE, Ints, Ops
from simpar.program import Csr, Role
from simpar.program.csr import ranges

Numbers = NDArray[np.integer[Any]]
_EMPTY: Final = np.zeros(0, dtype=np.int32)
_SHORT: Final = np.zeros(0, dtype=np.uint16)
_NEEDLESS: Final = Csr.of(_EMPTY, _EMPTY, 0)


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
        _Queue(device, begin, ops.stream[begin:end], shared)
        for device, (begin, end) in enumerate(pairwise(bounds[: devices + 1]))
        for shared in queues_of(ops.stream[begin:end], queues)
    ]
    if not every:
        return ops
    count, own = len(ops), _Arrivals(ops)
    need, carry = [ops.need.pairs()], [ops.carry.pairs()]
    for number, queue in enumerate(every):
        behind, ahead = queue.behind()
        leaves = np.full(len(queue.shared), count + number)
        ends = np.concatenate((behind, leaves)), np.concatenate((ahead, queue.last))
        need.append(_news(ops, *_expanded(*ends, own.need), bounds[devices], of_step=True))
        carry.append(_news(ops, *_expanded(*ends, own.carry), bounds[devices], of_step=False))
        carry.append(np.column_stack((queue.first, leaves)))
    return _joined(ops, need, carry, [queue.device for queue in every], devices)


class _Queue(NamedTuple):
    """A queue that some streams share.

    Arguments: ``begin``, the number of its device's first op; ``stream``, of each of the device's ops.
    """

    device: int
    begin: int
    stream: Ints
    shared: list[int]

    @property
    def first(self) -> Ints:
        """The first op of each stream."""
        return self.begin + np.array([np.argmax(self.stream == one) for one in self.shared])

    @property
    def last(self) -> Ints:
        """The last op of each stream."""
        back = self.stream[::-1]
        return self.begin + len(back) - 1 - np.array([np.argmax(back == one) for one in self.shared])

    def behind(self) -> tuple[Ints, Ints]:
        """Ops, and the last op on each other stream of those issued since the op before on their own stream.

        Ops issued before that one had left the queue when it did, and those before the last on their stream had ended.
        """
        before = np.full(len(self.stream), NONE, dtype=np.int64)
        on = [np.flatnonzero(self.stream == one) for one in self.shared]
        for slots in on:
            before[slots[1:]] = slots[:-1]
        pairs = [self._since(before, np.setdiff1d(np.concatenate(on), slots), slots) for slots in on]
        behind, ahead = (self.begin + np.concatenate(column) for column in zip(*pairs, strict=True))
        return behind, ahead

    @staticmethod
    def _since(before: Ints, others: Ints, on: Ints) -> tuple[Ints, Ints]:
        """Those of other streams that have ops of this one since the op before them, and the last of these ops."""
        place = np.searchsorted(on, others)
        ahead = np.where(place > 0, on[place - 1], NONE)
        since = ahead > before[others]
        return others[since], ahead[since]


class _Arrivals:
    """What each op comes after to arrive: the op before on its stream and its needs, ``carry`` of the step before."""

    def __init__(self, ops: Ops) -> None:
        order, stream = ops.streams.item, ops.streams.row
        heads = np.diff(stream, prepend=NONE) != 0
        inside = np.column_stack((order[~heads], order[np.flatnonzero(~heads) - 1]))
        around = np.column_stack((order[heads], order[np.roll(heads, -1)]))
        self.need = _lists([ops.need.pairs(), inside], len(ops))
        self.carry = _lists([ops.carry.pairs(), around], len(ops))


def _lists(pairs: list[Ints], rows: int) -> Csr:
    row, item = np.concatenate(pairs).T
    return Csr.of(row, item, rows)


def _expanded(op: Ints, ahead: Ints, lists: Csr) -> tuple[Ints, Ints]:
    """For each pair of ops the first with all that stands in the list of the second."""
    count = lists.count[ahead]
    return np.repeat(op, count), lists.item[ranges(lists.start[ahead], count)]


def _news(ops: Ops, op: Ints, item: Ints, hosts: int, *, of_step: bool) -> Ints:
    """Pairs of what comes after what, each once, without those that streams tell: an op comes after those before it.

    Arguments: ``hosts``, the first op of one; what stands behind others is issued behind them anyhow.
    """
    stream = np.append(ops.stream, NONE)[np.minimum(op, len(ops))]
    told = (item >= hosts) | ((stream == ops.stream[item]) & (item < op if of_step else True))
    return np.unique(np.column_stack((op[~told], item[~told])), axis=0)


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
        need=_lists(need, count + more),
        carry=_lists(carry, count + more),
        channel=np.concatenate((ops.channel, np.full(more, NONE, dtype=ops.channel.dtype))),
        turn=np.concatenate((ops.turn, nothing.astype(ops.turn.dtype))),
        turns=np.concatenate((ops.turns, nothing.astype(ops.turns.dtype))),
        leads=np.concatenate((ops.leads, np.zeros(more, dtype=bool))),
    )
