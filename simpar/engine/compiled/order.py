"""Kernels over a graph without a clock: its order, and the recurrence of ``replay``."""

from __future__ import annotations

from typing import Final

import numpy as np

from simpar.engine.compiled.jit import Array, kernel

HELPERS: Final = '5b4510741f46e84a'
"""Of the files without this line, as a test says it: numba's cache on disk looks at a kernel's own file alone."""


@kernel
def topological(start: Array, after: Array, left: Array, order: Array) -> int:
    """Write nodes so that each stands behind all that it comes after; return how many there are.

    Arguments:
        start, after: of each node, the nodes that come after it.
        left: for each node how many it comes after; -1 where the number is no node's. Is used up.
        order: what is written.
    """
    count = 0
    for number in range(len(left)):
        if left[number] == 0:
            order[count] = number
            count += 1
    # Kahn's order: the list grows while it is walked.
    done = 0
    while done < count:
        number = order[done]
        done += 1
        for edge in range(start[number], start[number + 1]):
            later = after[edge]
            left[later] -= 1
            if left[later] == 0:
                order[count] = later
                count += 1
    return count


@kernel
def recurrence(order: Array, start: Array, before: Array, issued: Array, lasts: Array, end: Array) -> None:
    """Write when nodes end, where nothing slows anything; as ``replay``.

    Arguments:
        order: nodes, each behind all that it comes after.
        start, before: of each node in order, the places of what it comes after; those of the step before come first.
        issued: shape [steps, N], when the last host has issued a node.
        lasts: of each node in order, its seconds.
        end: shape [steps, N], what is written.
    """
    count = len(order)
    ends = np.zeros(2 * count)
    for step in range(len(issued)):
        for place in range(count):
            time = issued[step, order[place]]
            for edge in range(start[place], start[place + 1]):
                other = ends[before[edge]]
                time = max(time, other)
            time += lasts[place]
            ends[count + place] = time
            end[step, order[place]] = time
        ends[:count] = ends[count:]
