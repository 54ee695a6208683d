"""Kernels: functions over arrays that numba compiles, and whose machine code numba keeps on the disk.

A kernel stands in one file with the parts that it calls and the constants that they read: numba compiles a kernel anew
when its own file has changed, and looks at no other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import numpy as np
from numba import njit
from numba.core import cgutils, types
from numba.core.event import Event, Listener, register, unregister
from numba.extending import intrinsic, register_jitable
from numpy.typing import NDArray

Array = NDArray[Any]
F = TypeVar('F', bound=Callable[..., Any])
_COMPILES: Final = 'numba:compile'
# Without a home numba would make a folder of the name "~" where the process runs.
_HAS_FOLDER: Final = (
    any(name in os.environ for name in ('NUMBA_CACHE_DIR', 'XDG_CACHE_HOME'))
    or os.path.expanduser('~') != '~'
    or os.access(os.path.dirname(__file__), os.W_OK)
)


def kernel(function: F) -> F:
    """Let numba compile a function when it is first called, once for arguments of the same types.

    Numba keeps its machine code in NUMBA_CACHE_DIR, beside the source or in the user's cache; where none of them can be
    written, each process compiles it.
    """
    try:
        compiled: F = njit(cache=_HAS_FOLDER, nogil=True, error_model='numpy')(function)
    # Numba can write none of them.
    except RuntimeError:
        compiled = njit(nogil=True, error_model='numpy')(function)
    return compiled


def part(function: F) -> F:
    """Let kernels of the same file call a function; Python calls it as it is."""
    registered: F = register_jitable(error_model='numpy', forceinline=True)(function)
    return registered


@intrinsic  # type: ignore[untyped-decorator]
def uncounted(typing: Any, arrays: Any) -> Any:
    """A tuple of arrays without the counts of who refers to them, which would take longer than the work.

    The caller of the kernel holds the arrays while it runs.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = []
        for place, kind in enumerate(arrays):
            value = builder.extract_value(arguments[0], place)
            if isinstance(kind, types.Array):
                array = cgutils.create_struct_proxy(kind)(context, builder, value=value)
                array.meminfo = cgutils.get_null_value(array.meminfo.type)
                value = array._getvalue()
            values.append(value)
        return context.make_tuple(builder, signature.return_type, values)

    return arrays(arrays), code


def is_kept(function: Any) -> bool:
    """Whether numba has a folder for the machine code of a kernel."""
    return function.stats.cache_path is not None


def interpreted(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a part returns where Python runs it; it writes to the same arrays.

    Lists stand for arrays of one dimension, and objects for records, in which Python looks up faster.
    """
    pairs: list[tuple[Array, list[Any]]] = []
    result = function(*(_plain(argument, pairs) for argument in arguments))
    for array, values in pairs:
        array[:] = values
    return result


def _plain(value: Any, pairs: list[tuple[Array, list[Any]]]) -> Any:
    """An argument as Python reads it. Arguments: ``pairs``, arrays of numbers and their lists; grows."""
    if isinstance(value, tuple):
        return type(value)(*(_plain(one, pairs) for one in value))
    if not isinstance(value, np.ndarray):
        return value.item() if isinstance(value, np.generic) else value
    if value.dtype.names:
        return [SimpleNamespace(**dict(zip(value.dtype.names, row, strict=True))) for row in value.tolist()]
    pairs.append((value, value.tolist()))
    return pairs[-1][1]


class _Note(Listener):  # type: ignore[misc]
    """Says once, when a kernel is compiled, why an answer takes longer than the next one."""

    def on_start(self, event: Event) -> None:
        """Numba begins to compile something, perhaps of somebody else."""
        dispatcher = event.data['dispatcher']
        if dispatcher.py_func.__module__.startswith('simpar.'):
            unregister(_COMPILES, self)
            once = 'once, about 20 s' if is_kept(dispatcher) else f'about 20 s; {_NOWHERE}'
            print(f'compiling the engine ({once})', file=sys.stderr, flush=True)

    def on_end(self, event: Event) -> None:
        """Numba has compiled it."""


_NOWHERE: Final = 'no folder keeps it: NUMBA_CACHE_DIR=DIR names one'
register(_COMPILES, _Note())
