"""The tail of many devices: the slowest of them, for which all others wait."""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

BLOM: Final = 0.375
"""Blom's constant: what makes the quantile of a rank near its expectation, for samples of any size."""


def slowest(count: int, spread: float) -> float:
    """How many times as long as the mean device the slowest of so many is expected to take.

    Arguments:
        count: devices.
        spread: standard deviation of what devices take for the same work, as a share of its mean.

    The largest of n normal numbers is expected at the quantile (n − 3/8) / (n + 1/4), to 5 %: G. Blom, Statistical
    Estimates and Transformed Beta-Variables, 1958. All ranks are taken to wait for it. So where some of them hardly
    wait for one another it is too slow. Does not model devices that are slow for a while, nor broken ones.

    Example:
        >>> round(slowest(1024, 0.015), 3)
        1.049
    """
    return 1.0 + spread * NormalDist().inv_cdf((count - BLOM) / (count + 1.0 - 2.0 * BLOM))
