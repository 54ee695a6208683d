"""How kernels are compiled."""

from __future__ import annotations

from typing import Any, Final

from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]
kernel: Final = njit(cache=True, nogil=True, error_model='numpy')
# Kernels that allocate nothing need not count who refers to arrays, which would take longer than their work.
counts_no_references: Final = njit(cache=True, nogil=True, error_model='numpy', _nrt=False)
# Without wrappers that nobody calls, it compiles in half the time; the cache of its callers holds it.
inner: Final = njit(nogil=True, error_model='numpy', no_cpython_wrapper=True, no_cfunc_wrapper=True)
# Written into its caller before types are known: a call would pass every array of a world by itself.
part: Final = njit(error_model='numpy', inline='always')
