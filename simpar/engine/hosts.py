"""Hosts that wait for their devices: each becomes a device of its own, on which issuing an op is an op.

Where a host never waits, when it has issued an op is known beforehand, and no such ops are made. Where it waits, what
it issues behind that comes later: an op starts when its host's op has ended, and a host's op when those have ended that
the host waits for. Machines need not know any of this: these are ops, streams and needs like all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from simpar.engine.ops import NONE, Ints, Ops
from simpar.program import Csr, OpClass, Program, Role

RECEIVE, NORM, STEP = 'receive', 'norm', 'step'
"""The host waits until all that it issued has ended, behind an exchange of messages; for what the norm of all gradients
or their overflow is worked out of; at the end of a step until all has ended."""
WAITS: Final = (RECEIVE, NORM, STEP)
_JUDGED: Final = frozenset({'square_sum', 'finite_check'})
_EMPTY: Final = np.zeros(0, dtype=np.int32)
_NEEDLESS: Final = Csr.of(_EMPTY, _EMPTY, 0)
_SHORT: Final = np.zeros(0, dtype=np.uint16)
_HOST: Final = Role('host', ('host',), _EMPTY.astype(np.uint32), _SHORT, _SHORT, _SHORT, _NEEDLESS, _NEEDLESS)


def with_hosts(ops: Ops, program: Program, waits: tuple[str, ...]) -> Ops:
    """The ops with one more of a host behind all others for each: that of op k has the number N + k.

    Arguments: ``waits``, some of ``WAITS``.
    """
    count, devices = len(ops), len(ops.roles)
    hosts = np.arange(count, dtype=np.int32) + np.int32(count)
    needs = [pair for begin, end in pairwise(ops.first.tolist()) for pair in _needs(ops, program, begin, end, waits)]
    carries = _carries(ops) if STEP in waits else []
    return replace(
        ops,
        roles=(*ops.roles, *[_HOST] * devices),
        first=np.concatenate((ops.first, ops.first[1:] + count)),
        representative=np.concatenate((ops.representative, ops.representative + np.int32(devices))),
        op_class=np.concatenate((ops.op_class, ops.op_class)),
        stream=np.concatenate((ops.stream, ops.representative + np.int32(ops.first_stream[-1]))),
        computes=np.concatenate((ops.computes, np.ones(count, dtype=bool))),
        need=_more(ops.need, count, [*zip(range(count), hosts.tolist(), strict=True), *needs]),
        carry=_more(ops.carry, count, carries),
        channel=np.concatenate((ops.channel, np.full(count, NONE, dtype=ops.channel.dtype))),
        turn=np.concatenate((ops.turn, np.zeros(count, dtype=ops.turn.dtype))),
        turns=np.concatenate((ops.turns, np.zeros(count, dtype=ops.turns.dtype))),
        leads=np.concatenate((ops.leads, np.zeros(count, dtype=bool))),
    )


def _more(needs: Csr, count: int, pairs: list[tuple[int, int]]) -> Csr:
    """Needs of twice as many ops, with some more pairs (op, what it needs)."""
    row, item = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True)) if pairs else (_EMPTY, _EMPTY)
    return Csr.of(np.concatenate((needs.row, row)), np.concatenate((needs.item, item)), 2 * count)


def _needs(ops: Ops, program: Program, begin: int, end: int, waits: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """What the host of a representative waits for: pairs (host's op, op)."""
    count, before = len(ops), None
    last: dict[int, int] = {}
    streams, classes = ops.stream[begin:end].tolist(), ops.op_class[begin:end].tolist()
    for number, (stream, index) in enumerate(zip(streams, classes, strict=True), begin):
        op = program.op_classes[index]
        if before is not None and RECEIVE in waits and _exchanged(before, op):
            yield from ((count + number, other) for other in last.values())
        elif before is not None and NORM in waits and _judged(before, op):
            yield count + number, number - 1
        last[stream], before = number, op


def _exchanged(before: OpClass, op: OpClass) -> bool:
    """Whether an exchange of messages has just been issued."""
    return before.kind in ('send', 'recv') and op.kind not in ('send', 'recv')


def _judged(before: OpClass, op: OpClass) -> bool:
    """Whether an update begins that the norm of gradients, or their overflow, must be known for."""
    updates = op.phase == 'U' and op.kind == 'compute' and op.operator not in _JUDGED
    return updates and before.phase == 'U' and (before.kind == 'collective' or before.operator in _JUDGED)


def _carries(ops: Ops) -> list[tuple[int, int]]:
    """The first op of each host in a step, and the last ops on all streams of its device in the step before."""
    ends = ops.streams.item[ops.streams.start[1:][np.diff(ops.streams.start) > 0] - 1]
    firsts: Ints = ops.first[:-1]
    return [(len(ops) + int(firsts[ops.representative[end]]), int(end)) for end in ends.tolist()]
