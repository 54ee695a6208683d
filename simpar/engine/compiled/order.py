"""Kernels over a graph without a clock: its order, and the recurrence of ``replay``."""

from __future__ import annotations

from typing import Final

from simpar.engine.compiled.jit import Array, kernel, walker

HELPERS: Final = '95a527b815f4cb12'
"""Of the files without this line, as a test says it: numba's cache on disk looks at a kernel's own file alone."""
LIST: Final = 1 << 30
"""No node has this number or a greater one."""
_UNKNOWN: Final = LIST - 1


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
        first, second: of each node in order, what it comes after; less the number of all ops where of the step before.
            Where there are more than two, ``second`` is ``LIST`` + the place of their list.
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
        number = before[edge] - len(node) if carried[edge] else before[edge]
        if first[place] == _UNKNOWN:
            first[place] = number
        if second[place] < LIST:
            second[place] = number
        else:
            begin = second[place] - LIST
            more[begin] += 1
            more[begin + more[begin]] = number


@walker
def recurrence(
    order: Array, first: Array, second: Array, more: Array, lasts: Array, per_step: int, time: Array
) -> None:
    """Write when nodes end, where nothing slows anything; as ``replay``.

    Arguments:
        order, first, second, more: as ``arrange_nodes`` writes them.
        lasts: of each node, at its number, its seconds.
        time: shape [steps · per_step]; when the last host has issued a node; then, when it ends.
    """
    for base in range(0, len(time), per_step):
        for place in range(len(order)):
            number = base + order[place]
            latest = time[number]
            # Before the first step everything has ended.
            one = base + first[place]
            if one >= 0:
                latest = max(latest, time[one])
            other = base + second[place]
            if second[place] < LIST:
                if other >= 0:
                    latest = max(latest, time[other])
            else:
                begin = second[place] - LIST
                for index in range(begin + 1, begin + 1 + more[begin]):
                    other = base + more[index]
                    if other >= 0:
                        latest = max(latest, time[other])
            time[number] = latest + lasts[order[place]]
