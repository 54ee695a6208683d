"""Distinct values of an array, sorted."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar('T', bound=np.generic)


def distinct(values: NDArray[T]) -> NDArray[T]:
    """Return the values that occur, each once, in order."""
    # ``np.unique`` with nothing but the values imports numpy.ma first, which takes longer than a small prediction.
    found: tuple[NDArray[T], Any] = np.unique(values, return_counts=True)
    return found[0]
