"""The C++ reference: compiled when it is asked for, and called on exactly the arrays that the kernels get."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from simpar.engine.compiled.records import World
from simpar.engine.compiled.steps import Steps
from simpar.errors import SimparError

FLAGS: Final = ('-std=c++17', '-O3', '-march=native', '-ffp-contract=off', '-shared', '-fPIC')
"""Fast, but no multiplication is fused with an addition: that would change bits."""
Arrays = TypeVar('Arrays', World, Steps)


@dataclass(frozen=True, slots=True)
class Reference:
    """Both machines in C++.

    Arguments: ``compiler``, its name and version.
    """

    compiler: str
    events: ctypes.CDLL
    replay: ctypes.CDLL

    def run_events(self, world: World) -> int:
        """As ``compiled.events.events``, on the same arrays."""
        fields = (ctypes.c_int64 * len(world))(*map(_word, world))
        over: int = self.events.events(ctypes.byref(fields))
        return over

    def run_replay(self, steps: Steps) -> None:
        """As ``compiled.order.recurrence``, on the same arrays."""
        self.replay.recurrence(
            ctypes.c_int64(len(steps.order)),
            *(ctypes.c_int64(_word(field)) for field in steps[:-1]),
            ctypes.c_int64(len(steps.time) // int(steps.per_step)),
            ctypes.c_int64(_word(steps.time)),
        )


def compiler() -> str | None:
    """The C++ compiler: that of ``CXX``, or g++, or c++."""
    return next(filter(None, map(shutil.which, filter(None, (os.environ.get('CXX'), 'g++', 'c++')))), None)


@cache
def reference() -> Reference:
    """Compile the reference; raise ``SimparError`` where no compiler is there."""
    found = compiler()
    if found is None:
        raise SimparError('the C++ reference needs a compiler: neither $CXX, g++ nor c++ is there; install g++')
    version = subprocess.run([found, '--version'], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    # Loaded libraries outlive their files.
    with tempfile.TemporaryDirectory() as folder:
        events, replay = (_load(found, name, Path(folder)) for name in ('events', 'replay'))
    events.events.restype = ctypes.c_int64
    replay.recurrence.restype = None
    return Reference(version, events, replay)


def fresh(arrays: Arrays) -> Arrays:
    """A copy, as a run uses arrays up."""
    return deepcopy(arrays)


def _load(found: str, name: str, folder: Path) -> ctypes.CDLL:
    library = folder / f'{name}.so'
    subprocess.run([found, *FLAGS, '-o', str(library), str(Path(__file__).parent / f'{name}.cpp')], check=True)
    return ctypes.CDLL(str(library))


def _word(field: object) -> int:
    """A field as C++ has it: a number, or where an array lies."""
    return field.ctypes.data if isinstance(field, np.ndarray) else int(field)  # type: ignore[call-overload]
