"""Moments: what a rank's stages hold at its actions, in whole micro-batches; equal ones once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.pipeline.arrays import KINDS
from simpar.planner.clock import Timed

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """When a rank begins its actions; M of them differ, and it has S stages.

    Arguments:
        kind: shape [M], of the action, as it stands in ``KINDS``.
        own: shape [M], its stage, among those of the rank.
        joined: shape [M], whether a forward and its backward are done as one.
        live: shape [S, M], how many micro-batches are between forward and backward.
        later: shape [S, M], between gradients of inputs and of weights.
        gradients: shape [S, M], whether gradients of weights are surely there: between a stage's first backward and
            its last.
        casts: shape [S, M], whether what is cast of weights is: from the first forward's end to the last gradient of
            inputs' begin.
    """

    kind: Ints
    own: Ints
    joined: Bools
    live: Ints
    later: Ints
    gradients: Bools
    casts: Bools


def moments_of(timed: Timed, rank: int) -> Moments:
    """The moments of a rank, worked out once for all plans of an order."""
    if rank not in timed.known:
        timed.known[rank] = _moments(timed, rank)
    known: Moments = timed.known[rank]
    return known


def _moments(timed: Timed, rank: int) -> Moments:
    row = timed.rows[rank]
    mine = [stage for stage, holder in enumerate(timed.placement) if holder == rank]
    kind, own = row.kind, np.searchsorted(mine, row.stage)
    columns = [kind, own, row.joined.astype(np.int64)]
    for stage in range(len(mine)):
        columns += _of_stage(*((own == stage) & (kind == number) for number in range(len(KINDS))))
    found = np.unique(np.stack(columns), axis=1)
    of_stages = [found[3 + each :: 4] for each in range(4)]
    return Moments(
        found[0], found[1], found[2] > 0, of_stages[0], of_stages[1], of_stages[2] > 0, of_stages[3] > 0
    )  # fmt: skip


def _of_stage(forward: Bools, backward: Bools, inputs: Bools, weights: Bools) -> list[Ints]:
    """What a stage holds at each action of its rank. Arguments: which of them are its own, by kind."""
    live = _before(forward.astype(np.int64) - backward - inputs)
    later = np.maximum(_before(inputs.astype(np.int64) - weights), 0)
    gradients, casts = backward | weights, backward | inputs
    done, turned = _before(gradients.astype(np.int64)), np.cumsum(casts)
    return [
        live,
        later,
        ((done > 0) & (done < gradients.sum())).astype(np.int64),
        ((np.cumsum(forward) > 0) & (turned < casts.sum())).astype(np.int64),
    ]


def _before(change: Ints) -> Ints:
    """The sum of all changes before each action."""
    return np.cumsum(change) - change
