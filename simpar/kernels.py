"""Kernels: functions over arrays. Python runs their source where little is to be done; else numba compiles it.

To import numba and to load machine code takes longer than all kernels of a small prediction. Which of both runs a
kernel follows from the arrays of the call alone, and no result depends on it, to the bit.
"""

from collections.abc import Callable
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
F = TypeVar('F', bound=Callable[..., Any])
P = ParamSpec('P')
R = TypeVar('R')
SMALL: Final = 2**11 if int(np.__version__.split('.')[0]) > 1 else -1
"""So many numbers and records a call has at most that Python runs: some milliseconds, where numba takes half a second
to come and then some microseconds. Numpy 1 makes a float of an unsigned index and an integer: numba runs all there."""


class Kernel(Generic[P, R]):
    """A function over arrays that writes to them. Arguments: ``source``, the function."""

    def __init__(self, source: Callable[P, R]) -> None:
        self.source = source
        self.__name__, self.__doc__ = source.__name__, source.__doc__

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """What the kernel returns for arguments; a call of few numbers is run by Python."""
        run = self.interpreted if _size(arguments) <= SMALL else self.compiled
        return run(*arguments, **named)

    @cached_property
    def compiled(self) -> Callable[P, R]:
        """The kernel as numba compiles it; for one whose work grows faster than its arrays."""
        # Numba is imported only where it runs.
        from simpar.compiler import compiled

        return compiled(self.source, uncounted)

    def interpreted(self, *arguments: P.args, **named: P.kwargs) -> R:
        """What the kernel returns where Python runs it; it writes to the same arrays, of which no two may overlap.

        Lists stand for arrays of one dimension, and objects for records, in which Python looks up faster.
        """
        lists: list[tuple[Array, list[Any]]] = []
        plain: Any = [_plain(argument, lists) for argument in arguments]
        result = self.source(*plain, **named)
        for array, values in lists:
            if array.flags.writeable:
                array[:] = [tuple(vars(one).values()) for one in values] if array.dtype.names else values
        return result


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """Make a kernel of a function.

    It stands in one file with the parts that it calls and the constants that they read: numba compiles a kernel anew
    when its own file has changed, and looks at no other.
    """
    return Kernel(function)


def part(function: F) -> F:
    """Mark a function that kernels of the same file call."""
    return function


def uncounted(arrays: Any) -> Any:
    """A tuple of arrays without the counts of who refers to them, which would take machine code longer than the work.

    The caller of the kernel holds the arrays while it runs.
    """
    return arrays


def _size(value: Any) -> int:
    """How many numbers and records there are in arrays."""
    if isinstance(value, tuple):
        return sum(map(_size, value))
    return value.size if isinstance(value, np.ndarray) else 0


def _plain(value: Any, lists: list[tuple[Array, list[Any]]]) -> Any:
    """An argument as Python reads it. Arguments: ``lists``, arrays of one dimension and what stands for them; grows."""
    if isinstance(value, tuple):
        # Tuples with names take their fields one by one.
        return type(value)(*(_plain(one, lists) for one in value))
    if not isinstance(value, np.ndarray):
        return value.item() if isinstance(value, np.generic) else value
    if value.ndim > 1:
        return value
    values = value.tolist()
    if value.dtype.names:
        values = [SimpleNamespace(**dict(zip(value.dtype.names, row, strict=True))) for row in values]
    lists.append((value, values))
    return values
