"""How kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]
F = TypeVar('F', bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a function that may allocate, and keep it on the disk."""
    compiled: F = njit(cache=True, nogil=True, error_model='numpy')(function)
    return compiled


def walker(function: F) -> F:
    """Compile a function that allocates nothing: to count who refers to arrays would take longer than its work."""
    compiled: F = njit(cache=True, nogil=True, error_model='numpy', _nrt=False)(function)
    return compiled


def part(function: F) -> F:
    """Compile a function that is written into the walkers which call it.

    A call would pass every array of a world by itself. Nothing else calls it, so it needs no wrappers.
    """
    compiled: F = njit(
        nogil=True, error_model='numpy', _nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return compiled
