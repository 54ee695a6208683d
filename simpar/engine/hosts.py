"""Hosts that wait for their devices: each becomes a device of its own, on which issuing an op is an op.

Where a host never waits, when it has issued an op is known beforehand, and no such ops are made. Where it waits, what
it issues behind that comes later: an op starts when its host's op has ended, and a host's op when those have ended that
the host waits for. Machines need not know any of this: these are ops, streams and needs like all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.engine.ops import NONE, Ints, Ops
from simpar.program import Csr, OpClass, Program, Role

RECEIVE, PASS, BATCH, NORM, STEP = 'receive', 'pass', 'batch', 'norm', 'step'
"""The host waits until all that it issued has ended, behind a batched exchange of messages; for all but collectives,
before and behind each pass, the forward or the backward of a micro-batch; for what computes where it reads a batch,
before a forward on the first and the last stage; for what the norm of all gradients or their overflow is worked out of;
at the end of a step until all has ended."""
WAITS: Final = (RECEIVE, PASS, BATCH, NORM, STEP)
_JUDGED: Final = frozenset({'square_sum', 'finite_check'})
_EMPTY: Final = np.zeros(0, dtype=np.int32)
_NONE: Final[tuple[Ints, Ints]] = (_EMPTY, _EMPTY)
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
    return replace(
        ops,
        roles=(*ops.roles, *[_HOST] * devices),
        first=np.concatenate((ops.first, ops.first[1:] + count)),
        representative=np.concatenate((ops.representative, ops.representative + np.int32(devices))),
        op_class=np.concatenate((ops.op_class, ops.op_class)),
        stream=np.concatenate((ops.stream, ops.representative + np.int32(ops.first_stream[-1]))),
        computes=np.concatenate((ops.computes, np.ones(count, dtype=bool))),
        need=_more(ops.need, count, np.concatenate((issued, row)), np.concatenate((issued + count, item))),
        carry=_more(ops.carry, count, *carries),
        leads=np.concatenate((ops.leads, np.zeros(count, dtype=bool))),
        meet=lambda: ops.meetings.behind(count),
    )


def _more(needs: Csr, count: int, row: Ints, item: Ints) -> Csr:
    """Needs of twice as many ops, with some more pairs (op, what it needs)."""
    return needs.more(row, item, 2 * count)


def _needs(ops: Ops, program: Program, begin: int, end: int, waits: tuple[str, ...]) -> tuple[Ints, Ints]:
    """What the host of a representative waits for: hosts' ops, and the ops that each waits for."""
    kinds = (_is_message, _updates, _judges)
    op_class, stream, computes = ops.op_class[begin:end], ops.stream[begin:end], ops.computes[begin:end]
    message, updates, judges = (program.op_column(kind, np.bool_)[op_class] for kind in kinds)
    # Before which ops it waits already, for as much as any other wait would ask.
    waited = np.zeros(end - begin, dtype=bool)
    found: list[tuple[Ints, Ints]] = []
    # Messages that are issued one by one are waited for on the device alone.
    if RECEIVE in waits and program.batched:
        waited[1:] = message[:-1] & ~message[1:]
        found += _last_on_streams(stream, np.flatnonzero(waited))
    if (PASS in waits or BATCH in waits) and begin < end:
        passes = passes_of(program, op_class, ops.roles[ops.representative[begin]].micro_batch)
        # Gradients are summed behind the last pass, and issued before its message: the message does not await them.
        for wait, at, of in ((PASS, passes.first, computes | message), (BATCH, passes.reading, computes)):
            if wait in waits:
                found += _last_on_streams(np.where(of, stream, NONE), at[~waited[at]])
                waited[at] = True
    if NORM in waits:
        judged = np.flatnonzero(judges[:-1] & updates[1:] & ~waited[1:]) + 1
        found.append((judged, judged - 1))
    if not found:
        return _NONE
    row, item = (np.concatenate(column) for column in zip(*found, strict=True))
    return row + (len(ops) + begin), item + begin


def _last_on_streams(stream: Ints, at: Ints) -> Iterator[tuple[Ints, Ints]]:
    """The last op on each stream before each of some ops: the latter, and these, stream by stream.

    Arguments: ``stream``, of each op; none of those that do not count.
    """
    for one in np.unique(stream[stream != NONE]).tolist():
        on = np.flatnonzero(stream == one)
        before = np.searchsorted(on, at)
        # A stream that nothing was issued to is not waited for.
        used = before > 0
        yield at[used], on[before[used] - 1]


def _is_message(op: OpClass) -> bool:
    """Whether an exchange of messages goes on with it."""
    return op.kind in ('send', 'recv')


def _updates(op: OpClass) -> bool:
    """Whether it may need the norm of gradients, or their overflow."""
    return op.phase == 'U' and op.kind == 'compute' and op.operator not in _JUDGED


def _judges(op: OpClass) -> bool:
    """Whether it works out the norm, or their overflow."""
    return op.phase == 'U' and (op.kind == 'collective' or op.operator in _JUDGED)


def _carries(ops: Ops) -> tuple[Ints, Ints]:
    """The first op of each host in a step, and the last ops on all streams of its device in the step before."""
    ends = ops.streams.item[ops.streams.start[1:][np.diff(ops.streams.start) > 0] - 1]
    return ops.first[:-1][ops.representative[ends]] + len(ops), ends


# Passes: where a host goes from the forward or the backward of one micro-batch to other work, in issue order.
# Frameworks that time every pass, or read a batch before it, wait for their device there. Collectives count to the work
# that they stand in: which of two neighbours launches one makes no difference to a host that waits between them.

NEITHER, FORWARD, BACKWARD, MESSAGE, UPDATE = range(5)
_KIND: Final = {'F': FORWARD, 'I': BACKWARD, 'W': BACKWARD, 'U': UPDATE}


class Passes(NamedTuple):
    """Slots of a role.

    Arguments:
        first: the first op of every pass, of every exchange of messages, and of the update.
        reading: of these, where a forward begins on the first or the last stage, which read a batch.
    """

    first: Ints
    reading: Ints


def passes_of(program: Program, op_class: Ints, micro_batch: NDArray[np.uint16]) -> Passes:
    """The passes of a role; what begins a step has nothing before it, and is none of them.

    Arguments: ``op_class``, ``micro_batch``, shape [slots], those of the role.
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
    return Passes(first, first[(kind == FORWARD) & ends])


def _kind(op: OpClass) -> int:
    """Which work it is; of a collective, none by itself."""
    if op.kind == 'compute':
        return _KIND[op.part]
    return NEITHER if op.kind == 'collective' else MESSAGE


def _stage(op: OpClass) -> int:
    """Of the pipeline."""
    return op.stage
