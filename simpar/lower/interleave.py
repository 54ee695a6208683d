"""Interleaving: the copies of a step run segment by segment, so that one's communication hides under another's
computation.

A segment ends where computation must wait for a collective of the same segment. The gradients of weights (W) are
nobody's input until the update, so they fill: each is issued at the head of the segment after its own, while that
segment's collective travels. MindSpore orders the forward alike (``micro_interleaved_order_control``) and leaves the
backward free.
"""

from __future__ import annotations

from collections.abc import Sequence

from simpar.program import OpClass


def segments(ops: Sequence[OpClass]) -> list[list[OpClass]]:
    """Cut one copy's ops where computation waits for communication, and let W fill.

    Arguments: ``ops`` of one copy in order, without gradient reductions and updates.
    """
    cut: list[list[OpClass]] = [[]]
    arriving: set[str] = set()
    for op in ops:
        if op.kind == 'compute' and op.phase != 'W' and not arriving.isdisjoint(op.reads):
            cut.append([])
            arriving = set()
        cut[-1].append(op)
        if op.kind != 'compute':
            arriving.update(op.writes)
    return _fill(cut)


def _fill(cut: list[list[OpClass]]) -> list[list[OpClass]]:
    filled: list[list[OpClass]] = []
    late: list[OpClass] = []
    for index, segment in enumerate(cut):
        last = index == len(cut) - 1
        weights = [] if last else [op for op in segment if op.phase == 'W']
        filled.append([*late, *(op for op in segment if last or op.phase != 'W')])
        late = weights
    return filled


def interleave(ops: Sequence[OpClass], copies: int) -> list[tuple[OpClass, int]]:
    """Issue order of all copies: segment k of every copy before segment k + 1 of any.

    Returns pairs (op class, copy).
    """
    return [(op, copy) for segment in segments(ops) for copy in range(copies) for op in segment]
