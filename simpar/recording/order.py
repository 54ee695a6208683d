"""What a recorded op waits for on its own worker, by the rules of training with 1F1B."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Final

from simpar.recording.job import RecordedJob, RecordedOp
from simpar.recording.kinds import TAIL

COMPUTES: Final = ('forward-compute', 'backward-compute')
_Before = dict[RecordedOp, list[RecordedOp]]


def issue_order(job: RecordedJob, stage: int) -> tuple[list[RecordedOp], _Before]:
    """The ops of a stage's first worker as they are issued, and what each waits for besides its stream.

    Ops are taken as they started in the first step, but never before what they wait for: clocks of hosts differ.
    """
    ops = job.of_worker(0, stage)
    started = {op: float(job.start_KN[0, job.number[op]]) for op in ops}
    ops.sort(key=lambda op: (_rank_of_tail(op), started[op], op.number))
    before = _before(ops)
    chained = {op: list(waits) for op, waits in before.items()}
    for stream in _streams(ops):
        for one, behind in itertools.pairwise(stream):
            chained[behind].append(one)
    return list(_sorted(ops, chained)), before


def _rank_of_tail(op: RecordedOp) -> int:
    """0 before the last backward, then the turn in the tail."""
    return 1 + TAIL.index(op.kind) if op.kind in TAIL else 0


def _streams(ops: list[RecordedOp]) -> list[list[RecordedOp]]:
    """Ops that run one after the other: compute and the tail, and each direction of messages."""
    streams: dict[str, list[RecordedOp]] = {}
    for op in ops:
        streams.setdefault('compute' if op.kind in {*COMPUTES, *TAIL} else op.kind, []).append(op)
    return list(streams.values())


def _before(ops: list[RecordedOp]) -> _Before:
    """What each op waits for besides its stream."""
    known = set(ops)
    before: _Before = {op: [] for op in ops}
    for op in ops:
        before[op] += [one for one in _needs(op) if one in known]
    computes = [op for op in ops if op.kind in COMPUTES]
    _first_backward(computes, before)
    gathers = [op for op in ops if op.kind == 'params-all-gather']
    if gathers and computes:
        before[computes[0]].append(gathers[-1])
    return before


def _needs(op: RecordedOp) -> Iterator[RecordedOp]:
    """A compute waits for its message, a message for its compute, and a receive is posted behind the compute before."""
    direction = op.kind.partition('-')[0]
    if op.kind in COMPUTES:
        yield op._replace(kind=f'{direction}-recv')
    elif op.of.takes == 'send':
        yield op._replace(kind=f'{direction}-compute')
    elif op.of.takes == 'recv':
        yield op._replace(kind=f'{direction}-compute', number=op.number - 1)


def _first_backward(computes: list[RecordedOp], before: _Before) -> None:
    """The first message of the backward is posted while the last forward before it runs."""
    first = next((at for at, op in enumerate(computes) if op.kind == 'backward-compute'), 0)
    if first < 2:
        return
    for kind in ('backward-recv', 'backward-send'):
        message = computes[first]._replace(kind=kind, number=0)
        if message in before:
            before[message].append(computes[first - 2])


def _sorted(ops: list[RecordedOp], before: _Before) -> Iterator[RecordedOp]:
    """Each op behind what it waits for, else in the order given."""
    place = {op: at for at, op in enumerate(ops)}
    behind: dict[RecordedOp, list[RecordedOp]] = {op: [] for op in ops}
    left = {op: len(before[op]) for op in ops}
    for op in ops:
        for one in before[op]:
            behind[one].append(op)
    ready = [place[op] for op in ops if not left[op]]
    heapq.heapify(ready)
    while ready:
        op = ops[heapq.heappop(ready)]
        yield op
        for one in behind[op]:
            left[one] -= 1
            if not left[one]:
                heapq.heappush(ready, place[one])
