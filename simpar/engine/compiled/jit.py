"""How kernels are compiled."""

from __future__ import annotations

from typing import Any, Final

from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]
kernel: Final = njit(cache=True, nogil=True, error_model='numpy')
# A kernel that allocates nothing need not count who refers to arrays, which would take longer than its work.
walker: Final = njit(cache=True, nogil=True, error_model='numpy', _nrt=False)
# A part of a walker is written into it: a call would pass every array of a world by itself.
part: Final = njit(
    nogil=True, error_model='numpy', _nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
)
