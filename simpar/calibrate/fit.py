"""Fits: non-negative coefficients with the least relative errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Coefficients, the relative errors of what they say, and which of them came out negative and were set to zero."""

    values: tuple[float, ...]
    residuals: NDArray[np.float64]
    negative: tuple[int, ...]

    @property
    def typical(self) -> float:
        """The median size of the relative errors."""
        return float(np.median(np.abs(self.residuals)))

    @property
    def worst(self) -> float:
        """The largest size of the relative errors."""
        return float(np.max(np.abs(self.residuals)))


def relative_fit(terms: ArrayLike, seconds: ArrayLike) -> Fit:
    """Coefficients x ≥ 0 that make Σ ((terms · x − seconds) / seconds)² small.

    Arguments:
        terms: shape [rows, coefficients].
        seconds: shape [rows], positive.
    Of the negative coefficients of a free fit the one with the largest part in the sum is left out, until there are
    none (an active set without second thoughts: not always the very least sum, always non-negative).
    """
    y = np.asarray(seconds, dtype=np.float64)
    # Divided by the seconds, all rows aim at 1, and residuals are relative errors.
    scaled = np.asarray(terms, dtype=np.float64) / y[:, None]
    size = np.linalg.norm(scaled, axis=0)
    # Columns are scaled to one length, as FLOPs and constants differ by many orders; an empty column stays empty.
    size[size == 0] = 1.0
    scaled = scaled / size
    kept = list(range(scaled.shape[1]))
    values = np.zeros(len(kept))
    negative: list[int] = []
    while kept:
        found = np.linalg.lstsq(scaled[:, kept], np.ones(len(y)), rcond=None)[0]
        # After scaling, the most negative coefficient has the largest part in the sum.
        lowest = int(np.argmin(found))
        if found[lowest] >= 0:
            values[kept] = found
            break
        negative.append(kept.pop(lowest))
    return Fit(tuple((values / size).tolist()), scaled @ values - 1.0, tuple(sorted(negative)))
