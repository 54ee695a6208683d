"""Distinct values of an array, sorted."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar('T', bound=np.generic)


def distinct(values: NDArray[T]) -> NDArray[T]:
    """Return the values that occur, each once, in order."""
    # ``np.unique`` with nothing but the values imports numpy.ma first, which takes longer than a small prediction.
    ordered = np.sort(values, axis=None)
    new = np.ones(len(ordered), dtype=np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]
