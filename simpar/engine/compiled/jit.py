"""How kernels are compiled."""

from __future__ import annotations

from typing import Any, Final

from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]
kernel: Final = njit(cache=True, nogil=True, error_model='numpy')
# Without wrappers that nobody calls, and checks of divisions by zero, it compiles in half the time.
inner: Final = njit(cache=True, nogil=True, error_model='numpy', no_cpython_wrapper=True, no_cfunc_wrapper=True)
