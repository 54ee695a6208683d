"""Room: least bytes of the fullest device, from what the stages of a small program hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.pipeline.messages import KINDS
from simpar.planner.clock import Moments, Timed, moments_of
from simpar.planner.sample import STANDING, Sample, Standing


@dataclass(frozen=True, slots=True)
class Shares:
    """Over how many ranks each kind of standing bytes may be shared out, of experts and of all else.

    Infinite: they need not be anywhere. Arguments: ``experts``, ranks that hold the same experts: experts' own bytes
    are shared out over no more of them; ``contiguous``, whether gradients lie in a buffer that is always there.
    """

    parameter: int = 1
    state: int = 1
    gradient: int = 1
    experts: int = 1
    gathered: float = 1
    contiguous: bool = False

    def bytes(self, dense: Standing, experts: Standing) -> Standing:
        """Least bytes of a rank."""
        found = {}
        for kind in STANDING:
            share = getattr(self, kind)
            few = share if isinf(share) else min(share, self.experts)
            found[kind] = getattr(dense, kind) / share + getattr(experts, kind) / few
        return Standing(**found)

    def at_most(self, other: Shares) -> Shares:
        """What holds no more than either of them."""
        return Shares(
            max(self.parameter, other.parameter),
            max(self.state, other.state),
            max(self.gradient, other.gradient),
            max(self.experts, other.experts),
            max(self.gathered, other.gathered),
            self.contiguous and other.contiguous,
        )


def least_bytes(
    sample: Sample,
    stages: list[list[int]],
    timed: Timed,
    shares: Shares,
    *,
    peaks: bool = True,
    copies: int = 1,
    enough: float = inf,
) -> float:
    """Least bytes of the fullest rank at its peak.

    Arguments: ``peaks``, whether what a stage holds at the peak of one micro-batch counts, or what it keeps alone;
    ``copies``, at most, where that is open: more than the sample has; ``enough``, bytes of a rank beyond which others
    need not be looked at.
    """
    most = 0.0
    for rank in range(timed.ranks):
        most = max(most, _of_rank(sample, stages, timed, rank, shares, peaks=peaks, copies=copies))
        if most > enough:
            break
    return most


def least_standing(sample: Sample, stages: list[list[int]], placement: Sequence[int], shares: Shares) -> float:
    """Least bytes of the fullest rank without any activation; gradients may be gone, but for a buffer of them."""
    total = dict.fromkeys(placement, sample.held[0].fixed)
    for stage, rank in enumerate(placement):
        held = shares.bytes(*standing_of(sample, stages, stage))
        # A micro-batch comes to all stages of a rank before it goes back through one of them.
        total[rank] += held.parameter + held.state + held.gathered + held.gradient * shares.contiguous
    return max(total.values())


def _of_rank(
    sample: Sample, stages: list[list[int]], timed: Timed, rank: int, shares: Shares, *, peaks: bool, copies: int
) -> float:
    mine = [stage for stage, holder in enumerate(timed.placement) if holder == rank]
    standing = {stage: shares.bytes(*standing_of(sample, stages, stage)) for stage in mine}
    kept = {stage: _kept(sample, stages, stage, copies) for stage in mine}
    fixed = sample.held[0].fixed + sum(one.parameter + one.state for one in standing.values())
    if len(mine) > 1 and 0 in mine and len(stages) - 1 in mine:
        both = shares.bytes(twice(sample), Standing())
        fixed -= both.total
    # In whole numbers of what stages hold, so that it is worked out once for all plans of an order.
    found = moments_of(timed, rank)
    activations, gradients, casts = (np.zeros(len(found.kind)) for _ in range(3))
    for place, stage in enumerate(mine):
        activations += found.live[place] * kept[stage].total + found.later[place] * kept[stage].waits
        gradients += (found.gradients[place] | shares.contiguous) * standing[stage].gradient
        casts += found.casts[place] * standing[stage].gathered
    return float((fixed + activations + gradients + casts + _more(found, mine, kept, sample, peaks=peaks)).max())


def _more(
    found: Moments, mine: Sequence[int], kept: Mapping[int, _Kept], sample: Sample, *, peaks: bool
) -> NDArray[np.float64]:
    """What each action holds more than there is when it begins."""
    total, most, joined, waits, part, head = np.array([kept[stage] for stage in mine], dtype=np.float64).T[:, found.own]
    # Behind its own forward a backward makes the last layer again when it comes to it, not before all else.
    peak = np.where(found.joined & sample.again, total, most) if peaks else total
    back = np.where(found.joined, joined + (peak - total) * part, peak) - total
    # At its loss a last stage holds what comes of logits, of one copy at least, whatever is made again.
    keeps = np.where(found.joined, joined, total)
    back = np.maximum(back, keeps + head * part - total)
    forward, _, inputs, weights = (found.kind == KINDS.index(kind) for kind in 'FBIW')
    more: NDArray[np.float64] = np.where(forward, keeps + head * part, back)
    # What waits for gradients of weights stays.
    more[inputs] = np.maximum(back, waits - total)[inputs]
    # Gradients of weights need nothing new: what there is counts at the action behind.
    more[weights] = -np.inf
    return more


class _Kept(NamedTuple):
    """Bytes of a micro-batch's activations in a stage.

    Arguments:
        total: between its forward and its backward.
        most: at the peak of both.
        joined: at the end of a forward that its backward follows at once; part, of all copies, one.
        waits: between the gradients of inputs and those of weights.
        head: beside ``total`` at the fullest op behind all layers.
    """

    total: float = 0.0
    most: float = 0.0
    joined: float = 0.0
    waits: float = 0.0
    part: float = 1.0
    head: float = 0.0


def _kept(sample: Sample, stages: list[list[int]], stage: int, copies: int) -> _Kept:
    """What a micro-batch keeps in a stage; stages of as many layers of each kind share it."""
    layers = stages[stage]
    ends = (stage == 0, stage == len(stages) - 1)
    key = ('kept', ends, len(layers), sum(layer < sample.few.edge for layer in layers), copies)
    if key not in sample.known:
        sample.known[key] = _kept_by(sample, stages, stage, copies)
    found: _Kept = sample.known[key]
    return found


def _kept_by(sample: Sample, stages: list[list[int]], stage: int, copies: int) -> _Kept:
    layers, edge, end = stages[stage], sample.few.edge, sample.stages - 1
    if not layers:
        return _Kept()

    def of(layer: int) -> int:
        return 0 if layer < edge else sample.stages - 2 if layer != layers[-1] or stage != len(stages) - 1 else end

    outer = sample.held[0].others if stage == 0 else sample.held[1].received if sample.stages > 1 else 0.0
    if stage == len(stages) - 1:
        outer += sample.held[end].others
    inner = sum(sample.held[of(layer)].inner for layer in layers[:-1])
    total = outer + inner + sample.held[of(layers[-1])].end
    like = sample.held[end if stage == len(stages) - 1 else of(layers[-1])]
    # Copies that go one after the other hold less at the peak of a single layer than at that of two, as in the sample.
    known = len(layers) > 1 or sample.copies == 1
    part = 1 / max(sample.copies, copies)
    # Copies of a forward and of its backward interleave: in step, one is ahead of others in the last layer alone.
    in_step = sample.in_step and sample.copies >= copies
    joined = inner + (total - inner) * part if in_step else total * part
    waits = sum(sample.held[of(layer)].waits[0] for layer in layers[:-1]) + sample.held[of(layers[-1])].waits[1]
    most = total + (max(0.0, like.most - like.kept) if known else 0.0)
    head = max(0.0, like.head - like.kept) if stage == len(stages) - 1 else 0.0
    return _Kept(total, most, joined, waits, part, head)


def standing_of(sample: Sample, stages: list[list[int]], stage: int) -> tuple[Standing, Standing]:
    """Bytes of a stage's weights, states and gradients, of experts and of all else."""
    layers, edge, end = stages[stage], sample.few.edge, sample.stages - 1
    first, last = stage == 0, stage == len(stages) - 1
    early = sum(layer < edge for layer in layers)
    key = ('standing', first, last, early, len(layers))
    if key not in sample.known:
        found = [Standing(), Standing()]
        own = (0, early), (max(0, end - 1), len(layers) - early)
        rest = [sample.held[here].rest for here, there in ((0, first), (end, last)) if there]
        parts = [(next(iter(sample.held[here].layers.values())), count) for here, count in own]
        for pair, count in [*parts, *((pair, 1) for pair in rest)]:
            found = [one.plus(more, count) for one, more in zip(found, pair, strict=True)]
        if first and last:
            found[0] = found[0].plus(twice(sample), -1)
        sample.known[key] = found[0], found[1]
    standing: tuple[Standing, Standing] = sample.known[key]
    return standing


def twice(sample: Sample) -> Standing:
    """Bytes of what the first and the last stage both hold, once where one rank holds both: tied weights."""
    if 'twice' not in sample.known:
        first, last = sample.held[0].alone, sample.held[-1].alone
        sums = dict.fromkeys(STANDING, 0.0)
        for (name, kind), size in first.items():
            if (name, kind) in last:
                sums[kind] += min(size, last[name, kind])
        sample.known['twice'] = Standing(**sums)
    found: Standing = sample.known['twice']
    return found
