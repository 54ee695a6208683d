"""Levels: what an op takes in an undisturbed step, and by how much steps vary; medians that weigh by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simpar.diagnosis.own import Own
from simpar.diagnosis.sites import Mask, Sites
from simpar.trace import Times

QUIET: Final = 0.2
"""Quantile over the steps that counts as undisturbed: what else a machine does only ever lengthens an op."""
EVEN: Final = 0.03
"""Share up to which variation counts as an op's own. Ops that vary by more are disturbed, and most of their mean is
not their own."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The steps of a measurement taken together; shape [N], seconds.

    Arguments:
        delay, run: of an undisturbed step, as the mean would be with the variation that most sites have.
        varies: what the mean of the steps is beyond that, delay and run together; of compute alone.
        noise: by which share the mean of most compute sites exceeds their quiet time.
        disturbed: by which time the mean run of a site exceeds its level.
        quickest: the same with the shortest run of all steps, site by site.
    """

    delay: Times
    run: Times
    varies: Times
    noise: float
    disturbed: Times
    quickest: Own


def level(own: Own, sites: Sites) -> Level:
    """The level of some steps; arguments: ``own`` of shape [steps, N]."""
    quiet, mean = (Own(*(take(times) for times in (own.delay, own.run))) for take in (_quiet, _mean))
    rises = np.divide(mean.run, quiet.run, out=np.ones_like(quiet.run), where=quiet.run > 0) - 1
    noise = [weighted_median(rises[mask], quiet.run[mask]) for mask in (sites.computes, ~sites.computes)]
    run = quiet.run * (1 + np.minimum(np.where(sites.computes, *noise), EVEN))
    late = np.maximum(mean.delay - quiet.delay, 0.0)
    disturbed = np.maximum(mean.run - run, 0.0)
    varies = np.where(sites.computes, disturbed + late, 0.0)
    return Level(quiet.delay, run, varies, noise[0], disturbed, Own(quiet.delay, own.run.min(axis=0)))


def weighted_median(values: Times, weights: Times) -> float:
    """The value at which half of the weight is reached; 0 where there is no weight."""
    total = float(weights.sum())
    if total <= 0:
        return 0.0
    order = np.argsort(values, kind='stable')
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), total / 2)])


def joined(own: Level | Own) -> Times:
    """Runs and delays as one array, shape [2 N]."""
    return np.concatenate((own.run, own.delay))


def scale(seen: Level | Own, told: Own, changed: Own, share: Times) -> float:
    """How much of a change there is in what was seen: 0, as told; 1, as changed; the median, weighed by time."""
    moved, asked = joined(changed) - joined(told), joined(seen) - joined(told)
    ratio = np.divide(asked, moved, out=np.zeros_like(asked), where=moved != 0)
    return weighted_median(ratio, np.abs(moved) * np.concatenate((share, share)))


def misfit(seen: Level | Own, told: Own, sites: Sites, mask: Mask | None = None) -> float:
    """Seconds by which own times differ, what several sites tell counted once."""
    apart = (np.abs(seen.run - told.run) + np.abs(seen.delay - told.delay)) * sites.share
    return float(apart.sum() if mask is None else apart[mask].sum())


def _quiet(times: Times) -> Times:
    return np.asarray(np.quantile(times, QUIET, axis=0))


def _mean(times: Times) -> Times:
    return np.asarray(times.mean(axis=0))
