"""Balanced stages: consecutive layers split so that the slowest stage is as fast as can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def balanced(seconds: Sequence[float], stages: int) -> tuple[int, ...]:
    """Count the layers of each stage, at least one, so that the largest sum of seconds is the smallest.

    Arguments:
        seconds: of every layer, shape [layers]; at least as many layers as stages.
        stages: how many.

    Among equals the first stages have the most layers. Dynamic programming over (layers, stages): exact.
    """
    sums = [0.0, *accumulate(seconds)]
    layers = len(seconds)
    # With one stage the first layers, however many, are all in it.
    best = sums[:]
    begins: list[list[int]] = []
    for stage in range(2, stages + 1):
        now, chosen = [float('inf')] * (layers + 1), [0] * (layers + 1)
        for end in range(stage, layers + 1):
            for begin in range(stage - 1, end):
                worst = max(best[begin], sums[end] - sums[begin])
                # ``<=`` keeps the latest begin of equals, which gives the stages before it the most layers.
                if worst <= now[end]:
                    now[end], chosen[end] = worst, begin
        best = now
        begins.append(chosen)
    edges = [layers]
    for chosen in reversed(begins):
        edges.append(chosen[edges[-1]])
    edges.append(0)
    edges.reverse()
    return tuple(end - begin for begin, end in pairwise(edges))
