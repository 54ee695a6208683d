"""Moments: what a rank's stages hold at its actions, in whole micro-batches; those alone at which it may hold most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simpar.planner.clock import Timed


class Moment(NamedTuple):
    """What a rank holds when it begins an action; each tuple by its stages.

    Arguments:
        kind, stage, joined: of the action; joined, a forward and its backward are done as one.
        live: how many micro-batches are between forward and backward; later, between gradients of inputs and weights.
        gradients: whether gradients of weights are surely there: between a stage's first backward and its last.
        casts: whether what is cast of weights is: from the first forward's end to the last gradient of inputs' begin.
    """

    kind: str
    stage: int
    joined: bool
    live: tuple[int, ...]
    later: tuple[int, ...]
    gradients: tuple[bool, ...]
    casts: tuple[bool, ...]

    def within(self, other: Moment) -> bool:
        """Whether another moment of an equal action holds no less of anything."""
        pairs = zip(self[3:], other[3:], strict=True)
        return all(one <= more for mine, its in pairs for one, more in zip(mine, its, strict=True))


def moments_of(timed: Timed, rank: int) -> list[Moment]:
    """The moments of a rank at which it may hold most."""
    if rank not in timed.known:
        found: dict[tuple[str, int, bool], list[Moment]] = {}
        for one in dict.fromkeys(moments(timed, rank)):
            others = found.setdefault(one[:3], [])
            if not any(one.within(other) for other in others):
                others[:] = [other for other in others if not other.within(one)] + [one]
        timed.known[rank] = [one for some in found.values() for one in some]
    known: list[Moment] = timed.known[rank]
    return known


def moments(timed: Timed, rank: int) -> Iterator[Moment]:
    """A moment for each action of a rank, in order."""
    row = timed.rows[rank]
    mine = [stage for stage, holder in enumerate(timed.placement) if holder == rank]
    live, later = dict.fromkeys(mine, 0), dict.fromkeys(mine, 0)
    # How many backwards, and gradients of inputs, a stage has still to do.
    left = {stage: sum(one == stage and kind[0] in 'BW' for kind, one in row) for stage in mine}
    inputs = {stage: sum(one == stage and kind[0] in 'BI' for kind, one in row) for stage in mine}
    forward, backward = dict.fromkeys(mine, False), dict.fromkeys(mine, False)
    for kind, stage in row:
        gradients = tuple(backward[one] and left[one] > 0 for one in mine)
        if kind[0] == 'F':
            forward[stage] = True
        elif kind[0] in 'BI':
            inputs[stage] -= 1
        casts = tuple(forward[one] and inputs[one] > 0 for one in mine)
        counts = tuple(live.values()), tuple(later.values())
        yield Moment(kind[0], stage, kind.endswith('+'), *counts, gradients, casts)
        if kind[0] == 'F':
            live[stage] += 1
        elif kind[0] in 'BI':
            live[stage] -= 1
        if kind[0] == 'I':
            later[stage] += 1
        elif kind[0] == 'W' and later[stage]:
            later[stage] -= 1
        if kind[0] in 'BW':
            backward[stage] = True
            left[stage] -= 1
