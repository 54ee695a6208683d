"""Interleaving: threads of ops run segment by segment, so that one's communication hides under another's computation.

A thread is one copy's ops in an action, or those of one of two overlapped actions. A segment ends where compute must
wait for a collective of the same segment. The gradients of weights (W) are nobody's input until the update, so they
fill: each is issued at the head of the segment after its own, while that segment's collective travels. MindSpore orders
the forward alike (``micro_interleaved_order_control``) and leaves the backward free.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import TypeVar

from simpar.lower.update_shards import layer_of
from simpar.program import OpClass

Item = TypeVar('Item')


def segments(ops: Sequence[OpClass], gathered: Collection[str] = (), *, fill: bool = True) -> list[list[OpClass]]:
    """Split one thread's ops where computation waits for communication, and let W fill.

    Arguments: ``ops`` in order, without gradient reductions and updates; ``gathered``, weights that all threads share
    and that are soon freed again: a segment reads those of one layer; without ``fill`` W stays where it is.
    """
    found: list[list[OpClass]] = [[]]
    arriving: set[str] = set()
    layer = ''
    for op in ops:
        used = next((layer_of(name) for name in op.reads if name in gathered), layer) if gathered else layer
        # A W is no reason to stop: it fills.
        waits = op.kind == 'compute' and op.phase != 'W' and not arriving.isdisjoint(op.reads)
        # Also where another layer's weights begin: threads would else hold two layers' at once.
        if waits or (used != layer and layer):
            found.append([])
            arriving = set()
        layer = used
        found[-1].append(op)
        if op.kind != 'compute':
            arriving.update(op.writes)
    return _fill(found) if fill else found


def _fill(found: list[list[OpClass]]) -> list[list[OpClass]]:
    filled: list[list[OpClass]] = []
    late: list[OpClass] = []
    for segment in found[:-1]:
        filled.append([*late, *(op for op in segment if not _fills(op))])
        # W is held over to the next segment's head, where the collective of this one travels.
        late = [op for op in segment if _fills(op)]
    return [*filled, [*late, *found[-1]]]


def _fills(op: OpClass) -> bool:
    return op.kind == 'compute' and op.phase == 'W'


def interleave(threads: Sequence[Sequence[Sequence[Item]]]) -> list[Item]:
    """Issue order of threads, each a list of segments: segment k of every thread before segment k + 1 of any."""
    # Threads need not be equally long: a forward overlaps a longer backward.
    rounds = zip_longest(*threads, fillvalue=())
    return [item for together in rounds for segment in together for item in segment]
