"""Kernels over a graph without a clock: its order, and the recurrence of ``replay``."""

from __future__ import annotations

from typing import Final

import numpy as np

from simpar.jit import Array, kernel

HELPERS: Final = 'd08741290bae2600'
"""Of the files without this line, as a test says it: numba's cache on disk looks at a kernel's own file alone."""
LIST: Final = 1 << 31
"""Two steps have fewer nodes."""
_UNKNOWN: Final = LIST - 1


@kernel
def arrange_after(
    node: Array, op: Array, before: Array, carried: Array, left: Array, start: Array, after: Array
) -> None:
    """Write for each node how many it comes after in its step, and which come after it.

    Arguments:
        node: of each op. op, before, carried: edges, as of ``Graph``.
        left: for each number how many its node comes after, zeros at first; -1 where the number is no node's.
        start, after: of each node, the nodes that come after it, in the order of edges; ``start`` is zeros at first.
    """
    for edge in range(len(op)):
        if not carried[edge]:
            left[node[op[edge]]] += 1
            start[before[edge] + 1] += 1
    total = 0
    for number in range(len(node)):
        if node[number] != number:
            left[number] = -1
        count = start[number + 1]
        # From here on where the next of its followers goes, and at last where the next node's begin.
        start[number + 1] = total
        total += count
    for edge in range(len(op)):
        if not carried[edge]:
            after[start[before[edge] + 1]] = node[op[edge]]
            start[before[edge] + 1] += 1


@kernel
def topological(start: Array, after: Array, left: Array, order: Array) -> int:
    """Write nodes so that each stands behind all that it comes after; return how many there are.

    Arguments:
        start, after: of each node, the nodes that come after it.
        left: for each node how many it comes after; -1 where the number is no node's. Is used up.
        order: what is written; as long as there are nodes.
    """
    # What waits for nothing more is kept at the end of the order, on a stack that grows to the front. So a node stands
    # close behind what let it go on, and what is used together is close in memory.
    top = len(order)
    for turned in range(len(left)):
        number = len(left) - 1 - turned
        if left[number] == 0:
            top -= 1
            order[top] = number
    done = 0
    while top < len(order):
        number = order[top]
        top += 1
        order[done] = number
        done += 1
        for edge in range(start[number], start[number + 1]):
            later = after[edge]
            left[later] -= 1
            if left[later] == 0:
                top -= 1
                order[top] = later
    return done


@kernel
def arrange_nodes(
    order: Array, node: Array, op: Array, before: Array, carried: Array, count: Array, first: Array, second: Array,
    more: Array,
) -> None:  # fmt: skip
    """Write what nodes come after: two each, or where the list of them begins.

    Arguments:
        order: nodes, each behind all that it comes after.
        node: of each op. op, before, carried: edges, as of ``Graph``.
        count: of each number, how many edges lead to its node; is used up.
        first, second: of each node in order, what it comes after, among the nodes of two steps: those of the step
            before come first. Where there are more than two, ``second`` is ``LIST`` + the place of their list.
        more: lists of what nodes come after, each behind its length.
    """
    at = 0
    for place in range(len(order)):
        number = order[place]
        first[place] = second[place] = _UNKNOWN
        if count[number] > 2:
            second[place] = LIST + at
            more[at] = 0
            at += count[number] + 1
        # From here on, the place of the node in order.
        count[number] = place
    for edge in range(len(op)):
        place = count[node[op[edge]]]
        number = before[edge] if carried[edge] else len(node) + before[edge]
        if first[place] == _UNKNOWN:
            first[place] = number
        if second[place] < LIST:
            second[place] = number
        else:
            begin = second[place] - LIST
            more[begin] += 1
            more[begin + more[begin]] = number


@kernel
def recurrence(
    order: Array, first: Array, second: Array, more: Array, lasts: Array, per_step: np.uint64, time: Array
) -> None:
    """Write when nodes end, where nothing slows anything; as ``replay``.

    Arguments:
        order, first, second, more: as ``arrange_nodes`` writes them.
        lasts: of each node, at its number, its seconds.
        time: shape [steps · per_step]; when the last host has issued a node; then, when it ends.
    """
    # Before the first step everything has ended.
    begin, known = np.uint64(0), per_step
    while begin < len(time):
        # Unsigned numbers wrap around, so that the step before the first begins where it should.
        before = begin - per_step
        for place in range(len(order)):
            number = begin + order[place]
            latest = time[number]
            one, other = first[place], second[place]
            # `max` also looks for what is not a number, and takes longer.
            if one >= known:
                end = time[before + one]
                latest = end if end > latest else latest  # noqa: FURB136
            if other < LIST:
                if other >= known:
                    end = time[before + other]
                    latest = end if end > latest else latest  # noqa: FURB136
            else:
                at = other - LIST
                for index in range(at + 1, at + 1 + more[at]):
                    if more[index] >= known:
                        latest = max(latest, time[before + more[index]])
            time[number] = latest + lasts[order[place]]
        begin += per_step
        known = np.uint64(0)


@kernel
def arrive(
    node: Array, need_start: Array, need_item: Array, carry_start: Array, carry_item: Array, stream_start: Array,
    stream_item: Array, end: Array, time: Array,
) -> None:  # fmt: skip
    """Write when ops arrive: their hosts have issued them, and all that they come after has ended.

    Arguments: node to stream_item: as of ``Ops`` and ``Graph``; shape [steps, N] of ``end``, when nodes ended, and of
    ``time``, when hosts have issued ops, and then when these arrive.
    """
    for step in range(len(time)):
        now, last = time[step], end[step]
        # Before the first step everything has ended.
        before = end[step - 1] if step else last
        for stream in range(len(stream_start) - 1):
            begin, until = stream_start[stream], stream_start[stream + 1]
            for place in range(begin, until):
                number = stream_item[place]
                latest = now[number]
                # The first op of a stream follows the last one of the step before.
                if place > begin:
                    ended = last[node[stream_item[place - 1]]]
                    # `max` takes longer, see ``recurrence``.
                    latest = ended if ended > latest else latest  # noqa: FURB136
                elif step:
                    latest = max(latest, before[node[stream_item[until - 1]]])
                for index in range(need_start[number], need_start[number + 1]):
                    latest = max(latest, last[node[need_item[index]]])
                if step:
                    for index in range(carry_start[number], carry_start[number + 1]):
                        latest = max(latest, before[node[carry_item[index]]])
                now[number] = latest


@kernel
def list_edges(
    need_start: Array, need_item: Array, carry_start: Array, carry_item: Array, stream_start: Array,
    stream_item: Array, behind: Array, op: Array, before: Array, carried: Array,
) -> int:  # fmt: skip
    """Write what each op comes after, op after op, and whether that is of the step before; return how many there are.

    Arguments: need_start to stream_item: as of ``Ops``. ``behind``, of each op the one before it on its stream.
    op to carried: of edges, those of the step before last.
    """
    for stream in range(len(stream_start) - 1):
        begin, end = stream_start[stream], stream_start[stream + 1]
        for place in range(begin, end):
            # The first op of a stream follows the last one of the step before, marked as below all ops.
            behind[stream_item[place]] = stream_item[place - 1] if place > begin else -1 - stream_item[end - 1]
    count = 0
    for number in range(len(behind)):
        for place in range(need_start[number], need_start[number + 1]):
            op[count], before[count], carried[count] = number, need_item[place], False
            count += 1
        if behind[number] >= 0:
            op[count], before[count], carried[count] = number, behind[number], False
            count += 1
        for place in range(carry_start[number], carry_start[number + 1]):
            op[count], before[count], carried[count] = number, carry_item[place], True
            count += 1
        if behind[number] < 0:
            op[count], before[count], carried[count] = number, -1 - behind[number], True
            count += 1
    return count
