"""Hosts and work queues: ops, streams and needs of their own, so that machines need not know of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.engine.fold import Representatives
from simpar.engine.ops import NONE, Ints, Ops, ops_of
from simpar.program import Csr, OpClass, Program, Role, ranges, transfers

# Hosts that wait for their devices: each becomes a device of its own, on which issuing an op is an op.
#
# Where a host never waits, when it has issued an op is known beforehand, and no such ops are made. Where it waits,
# what it issues behind that comes later: an op starts when its host's op has ended, and a host's op when those have
# ended that the host waits for. Machines need not know any of this: these are ops, streams and needs like all others.

RECEIVE, GATHER, PASS, BATCH, BALANCE, NORM, STEP = 'receive', 'gather', 'pass', 'batch', 'balance', 'norm', 'step'
"""The host waits until all that it issued has ended, behind a batched exchange of messages and before each gather of
weights; for all but collectives, before and behind each pass, the forward or the backward of a micro-batch; for what
computes where it reads a batch, before a forward on the first and the last stage; behind each sweep of Sinkhorn's
balance, whose error it reads; for what the norm of all gradients or
their overflow is worked out of; at the end of a step until all has ended."""
WAITS: Final = (RECEIVE, GATHER, PASS, BATCH, BALANCE, NORM, STEP)
_JUDGED: Final = frozenset({'square_sum', 'finite_check'})
Pairs = tuple[Ints, Ints]
_EMPTY: Final = np.zeros(0, dtype=np.int32)
_NONE: Final[Pairs] = (_EMPTY, _EMPTY)
_NEEDLESS: Final = Csr.counted(_EMPTY, _EMPTY)
_SHORT: Final = np.zeros(0, dtype=np.uint16)
_HOST: Final = Role('host', ('host',), _EMPTY.astype(np.uint32), _SHORT, _SHORT, _SHORT, _NEEDLESS, _NEEDLESS)


def with_hosts(ops: Ops, program: Program, waits: tuple[str, ...]) -> Ops:
    """The ops with one more of a host behind all others for each: that of op k has the number N + k.

    Arguments: ``waits``, some of ``WAITS``.
    """
    count, devices = len(ops), len(ops.roles)
    issued = np.arange(count)
    needs = [_needs(ops, program, begin, end, waits) for begin, end in pairwise(ops.first.tolist())]
    row, item = (np.concatenate(column) for column in zip(*needs, strict=True))
    carries = _carries(ops) if STEP in waits else _NONE
    need = np.concatenate((issued, row)), np.concatenate((issued + count, item))
    return _behind(ops, [_HOST] * devices, np.diff(ops.first), ops.op_class, ops.representative, need, carries)


def _behind(
    ops: Ops, roles: Sequence[Role], counts: Ints, op_class: Ints, stream: Ints, need: Pairs, carry: Pairs
) -> Ops:
    """The ops, and behind them those of further roles, which meet nobody.

    Arguments: ``counts`` of each role; ``stream``, among those of all these; pairs (op, what it needs) more.
    """
    more, all_of = len(op_class), len(ops) + len(op_class)
    devices = len(ops.roles) + np.repeat(np.arange(len(roles), dtype=np.int32), counts)
    return replace(
        ops,
        roles=(*ops.roles, *roles),
        first=np.concatenate((ops.first, len(ops) + np.cumsum(counts))),
        representative=np.concatenate((ops.representative, devices)),
        op_class=np.concatenate((ops.op_class, op_class)),
        stream=np.concatenate((ops.stream, stream + ops.first_stream[-1])),
        computes=np.concatenate((ops.computes, np.ones(more, dtype=bool))),
        need=ops.need.more(*need, all_of),
        carry=ops.carry.more(*carry, all_of),
        leads=np.concatenate((ops.leads, np.zeros(more, dtype=bool))),
        meetings=ops.meetings.behind(more),
    )


def _needs(ops: Ops, program: Program, begin: int, end: int, waits: tuple[str, ...]) -> Pairs:
    """What the host of a representative waits for: hosts' ops, and the ops that each waits for."""
    kinds = (transfers, _gathers, _updates, _judges, _balances)
    op_class, stream, computes = ops.op_class[begin:end], ops.stream[begin:end], ops.computes[begin:end]
    message, gathers, updates, judges, balances = (program.op_column(kind, np.bool_)[op_class] for kind in kinds)
    # Before which ops it waits already, for as much as any other wait would ask.
    waited = np.zeros(end - begin, dtype=bool)
    pairs: list[Pairs] = []
    # Messages that are issued one by one are waited for on the device alone.
    if RECEIVE in waits and program.batched:
        waited[1:] = message[:-1] & ~message[1:]
    if GATHER in waits:
        waited |= gathers
    if waited.any():
        pairs += _last_on_streams(stream, np.flatnonzero(waited))
    if (PASS in waits or BATCH in waits) and begin < end:
        first, reading = passes_of(program, op_class, ops.roles[ops.representative[begin]].micro_batch)
        # Gradients are summed behind the last pass, and issued before its message: the message does not await them.
        for wait, at, of in ((PASS, first, computes | message), (BATCH, reading, computes)):
            if wait in waits:
                pairs += _last_on_streams(np.where(of, stream, NONE), at[~waited[at]])
                waited[at] = True
    if BALANCE in waits:
        pairs.append((behind := np.flatnonzero(balances[:-1] & ~waited[1:]) + 1, behind - 1))
    if NORM in waits:
        judged = np.flatnonzero(judges[:-1] & updates[1:] & ~waited[1:]) + 1
        pairs.append((judged, judged - 1))
    if not pairs:
        return _NONE
    row, item = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return row + (len(ops) + begin), item + begin


def _last_on_streams(stream: Ints, at: Ints) -> Iterator[Pairs]:
    """The last op on each stream before each of some ops: the latter, and these, stream by stream.

    Arguments: ``stream``, of each op; none of those that do not count.
    """
    for one in np.unique(stream[stream != NONE]).tolist():
        on = np.flatnonzero(stream == one)
        before = np.searchsorted(on, at)
        # A stream that nothing was issued to is not waited for.
        used = before > 0
        yield at[used], on[before[used] - 1]


def _gathers(op: OpClass) -> bool:
    """Whether it gathers weights."""
    return op.kind == 'collective' and any(name.endswith('.gathered') for name in op.writes)


def _balances(op: OpClass) -> bool:
    """Whether it is a sweep whose error the host reads."""
    return op.operator == 'sinkhorn'


def _updates(op: OpClass) -> bool:
    """Whether it may need the norm of gradients, or their overflow."""
    return op.phase == 'U' and op.kind == 'compute' and op.operator not in _JUDGED


def _judges(op: OpClass) -> bool:
    """Whether it works out the norm, or their overflow."""
    return op.phase == 'U' and (op.kind == 'collective' or op.operator in _JUDGED)


def _carries(ops: Ops) -> Pairs:
    """The first op of each host in a step, and the last ops on all streams of its device in the step before."""
    ends = ops.streams.item[ops.streams.start[1:][np.diff(ops.streams.start) > 0] - 1]
    return ops.first[:-1][ops.representative[ends]] + len(ops), ends


# Passes: where a host goes from the forward or the backward of one micro-batch to other work, in issue order.
# Frameworks that time every pass, or read a batch before it, wait for their device there. Collectives count to the work
# that they stand in: which of two neighbours launches one makes no difference to a host that waits between them.

NEITHER, FORWARD, BACKWARD, MESSAGE, UPDATE = range(5)
_KIND: Final = {'F': FORWARD, 'I': BACKWARD, 'W': BACKWARD, 'U': UPDATE}


def passes_of(program: Program, op_class: Ints, micro_batch: NDArray[np.uint16]) -> tuple[Ints, Ints]:
    """Slots of a role: the first op of every pass, of every exchange of messages, and of the update; and those of them
    where a forward begins on the first or the last stage, which read a batch.

    What begins a step has nothing before it, and is none of them. Arguments: columns of shape [slots].
    """
    kind = program.op_column(_kind, np.int8)[op_class]
    stages = program.op_column(_stage, np.int32)
    at = np.flatnonzero(kind != NEITHER)
    kind, stage, micro_batch = kind[at], stages[op_class][at], micro_batch[at]
    # Neighbours in an update, or in an exchange, are one work whatever their stage and micro-batch.
    one_of_many = (kind == FORWARD) | (kind == BACKWARD)
    other = (micro_batch[1:] != micro_batch[:-1]) | (stage[1:] != stage[:-1])
    begins = (kind[1:] != kind[:-1]) | (other & one_of_many[1:])
    first, kind, stage = at[1:][begins], kind[1:][begins], stage[1:][begins]
    ends = (stage == 0) | (stage == stages.max(initial=0))
    return first, first[(kind == FORWARD) & ends]


def _kind(op: OpClass) -> int:
    """Which work it is; of a collective, none by itself."""
    if op.kind == 'compute':
        return _KIND[op.part]
    return NEITHER if op.kind == 'collective' else MESSAGE


def _stage(op: OpClass) -> int:
    """Of the pipeline."""
    return op.stage


# Work queues: a device takes what its host has issued from few of them, each in issue order, whatever the stream.
#
# What is first in a queue leaves it, so that its op arrives, when the op before it on its stream has ended and all
# that it needs. Until then it holds up what stands behind it in the queue. A queue that one stream has for itself
# holds up nothing. Machines need not know any of this: an op that stands behind others in a queue comes after all
# that they come after. These are needs like all others, and so is one op of no length for each queue, which ends when
# all of a step have left it: what comes first on its stream in the next step comes after that.

Numbers = NDArray[np.integer[Any]]


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
        _runs(device, begin, ops.stream[begin:end], shared)
        for device, (begin, end) in enumerate(pairwise(bounds[: devices + 1]))
        for shared in queues_of(ops.stream[begin:end], queues)
    ]
    if not every:
        return ops
    before = _Before(ops, bounds[devices])
    need: list[Ints] = []
    carry: list[Ints] = []
    for number, runs in enumerate(every):
        behind, ahead = runs.behind()
        leaves = np.full(len(runs.on), len(ops) + number)
        op, left = np.concatenate((behind, leaves)), np.concatenate((ahead, runs.last))
        need.append(before.needs(op, left))
        carry += [before.carries(op, left), np.column_stack((runs.first, leaves))]
    return _joined(ops, need, carry, [runs.device for runs in every], devices)


def _runs(device: int, first: int, stream: Ints, shared: Sequence[int]) -> _Runs:
    """The runs of a queue that streams share. Arguments: ``first`` op of a device; ``stream`` of each of its ops."""
    at = np.flatnonzero(np.isin(stream, shared))
    of = stream[at]
    begins = np.append(0, np.flatnonzero(of[1:] != of[:-1]) + 1)
    ends = np.append(begins[1:], len(at)) - 1
    return _Runs(device, first + at[begins], first + at[ends], [np.flatnonzero(of[begins] == one) for one in shared])


class _Runs(NamedTuple):
    """Ops of a queue that stand behind one another on one stream; nothing in a run waits for the queue but its first.

    Arguments: ``begin`` and ``end``, the first and the last op of each run; ``on``, the runs of each stream.
    """

    device: int
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

    def behind(self) -> Pairs:
        """First ops of runs, and the last op on each other stream of those issued since the run before on their own.

        What was issued before that one had left the queue when it did, and ops before the last on a stream had ended.
        """
        before = np.full(len(self.begin), NONE, dtype=np.int64)
        for runs in self.on:
            before[runs[1:]] = runs[:-1]
        pairs = []
        for runs in self.on:
            own = np.zeros(len(before), dtype=bool)
            own[runs] = True
            others = np.flatnonzero(~own)
            place = np.searchsorted(runs, others)
            ahead = np.where(place > 0, runs[place - 1], NONE)
            since = ahead > before[others]
            pairs.append((self.begin[others[since]], self.end[ahead[since]]))
        behind, ahead = (np.concatenate(column) for column in zip(*pairs, strict=True))
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
        mask = (item >= self._hosts) | ((stream == self._ops.stream[item]) & (item < behind if of_step else True))
        # One number for each pair: sorted, they are told apart ten times as quickly as pairs.
        pairs = np.unique(behind[~mask].astype(np.int64) * len(self._ops) + item[~mask])
        return np.column_stack(np.divmod(pairs, len(self._ops)))


def _joined(ops: Ops, need: list[Ints], carry: list[Ints], device: list[int], devices: int) -> Ops:
    """The ops with all needs, and behind them one for each queue, on devices of their own behind all others."""
    each = np.bincount(device, minlength=devices)
    names = tuple(f'queue {number}' for number in range(each.max()))
    roles = tuple(
        Role('queues', names[:several], _EMPTY.astype(np.uint32), _SHORT, _SHORT, _SHORT, _NEEDLESS, _NEEDLESS)
        for several in each.tolist()
    )
    queues = np.arange(len(device), dtype=np.int32)
    needs, carries = (np.concatenate(pairs).T for pairs in (need, carry))
    return _behind(ops, roles, each, np.zeros_like(queues), queues, (needs[0], needs[1]), (carries[0], carries[1]))
