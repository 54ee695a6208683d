"""How kernels are compiled by numba, and loaded once they are on the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from numba import njit, typeof
from numba.core.caching import FunctionCache
from numpy.typing import NDArray

Array = NDArray[Any]
F = TypeVar('F', bound=Callable[..., Any])
# Kernels allocate nothing, so nothing need be counted: to count who refers to arrays would take longer than the work.
_OPTIONS: Final = {'nogil': True, 'error_model': 'numpy', '_nrt': False}
_BARE: Final = {**_OPTIONS, 'no_cpython_wrapper': True, 'no_cfunc_wrapper': True}
_PART: Final = {**_BARE, 'forceinline': True}


# Both are numba's own affair: a version without them loads as numba does, which only takes longer.
_QUICK: Final = all(hasattr(FunctionCache, name) for name in ('_load_overload', '_guard_against_spurious_io_errors'))


class _Kept(FunctionCache):  # type: ignore[misc]
    """Numba's cache on the disk, read without what only compiling needs.

    Numba initialises all that it could compile before it loads what it has compiled, which takes four times as long as
    the loading. Its compiler initialises that by itself. It is for functions that allocate nothing: others need it.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function of a signature; None where there is none."""
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


def kernel(function: F) -> F:
    """Compile a function that allocates nothing, and keep it on the disk, where any folder can be written."""
    try:
        compiled: Any = njit(cache=True, **_OPTIONS)(function)
    # Numba found no folder for it.
    except RuntimeError:
        return cast('F', njit(**_OPTIONS)(function))
    if _QUICK:
        compiled._cache = _Kept(function)
    found: F = compiled
    return found


def part(function: F) -> F:
    """Compile a function that is written into the kernels which call it.

    A call would pass every array of a world by itself. Nothing else calls it, so it needs no wrappers.
    """
    compiled: F = njit(**_PART)(function)
    return compiled


def object_of(function: Any, arguments: tuple[Any, ...]) -> tuple[str, str, bytes] | None:
    """The machine code of a kernel for arguments like these, without wrappers, which only numba itself can load.

    Its symbol, the type of its result, and an object file; None where this version of numba does not tell them.
    """
    if not hasattr(function, 'py_func'):
        return None
    bare: Any = njit(**_BARE)(function.py_func)
    bare.compile(tuple(map(typeof, arguments)))
    (made,) = bare.overloads.values()
    try:
        return made.fndesc.llvm_func_name, str(made.signature.return_type), bytes(made.library._get_compiled_object())
    except AttributeError:
        return None
