"""Compiler: numba makes machine code of kernels, and keeps it on the disk."""

import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Final, TypeVar

from numba import njit
from numba.core import cgutils, types
from numba.core.event import Event, Listener, register, unregister
from numba.extending import intrinsic, overload, register_jitable

F = TypeVar('F', bound=Callable[..., Any])
_COMPILES: Final = 'numba:compile'
# Without a home numba would make a folder of the name "~" where the process runs.
_HAS_FOLDER: Final = (
    any(name in os.environ for name in ('NUMBA_CACHE_DIR', 'XDG_CACHE_HOME'))
    or os.path.expanduser('~') != '~'
    or os.access(os.path.dirname(__file__), os.W_OK)
)


def compiled(function: F, uncounted: Callable[[Any], Any]) -> F:
    """Let numba compile a function when it is first called, once for arguments of the same types.

    Arguments: ``uncounted``, a function that gives back a tuple of arrays; in machine code it drops their counts, too.
    Numba keeps its machine code in NUMBA_CACHE_DIR, beside the source or in the user's cache; where none of them can be
    written, each process compiles it.
    """
    for part in dict.fromkeys(_functions(function)):
        if part is uncounted:
            overload(uncounted, jit_options={'forceinline': True})(_without_counts)
        else:
            register_jitable(error_model='numpy', forceinline=True)(part)
    try:
        dispatcher: F = njit(cache=_HAS_FOLDER, nogil=True, error_model='numpy')(function)
    # Numba can write none of them.
    except RuntimeError:
        dispatcher = njit(nogil=True, error_model='numpy')(function)
    return dispatcher


def _functions(function: Any) -> Iterator[Any]:
    """The functions that a function names, and those that these name."""
    for name in function.__code__.co_names:
        named = function.__globals__.get(name)
        if isinstance(named, FunctionType):
            yield named
            yield from _functions(named)


@intrinsic  # type: ignore[untyped-decorator]
def _uncounted(typing: Any, arrays: Any) -> Any:
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


def _without_counts(arrays: Any) -> Any:
    """What numba calls for ``uncounted``."""

    def code(arrays: Any) -> Any:
        return _uncounted(arrays)

    return code


def is_kept(dispatcher: Any) -> bool:
    """Whether numba has a folder for the machine code of a kernel that it has compiled."""
    return dispatcher.stats.cache_path is not None


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
