"""The kernels of lowering, by their names; numba is imported only where one must be compiled."""

from __future__ import annotations

from typing import Final

from simpar.machine_code import Kernel

grow: Final = Kernel('simpar.lower.compiled.grow', 'grow')
look: Final = Kernel('simpar.lower.compiled.name', 'look')
stamp: Final = Kernel('simpar.lower.compiled.name', 'stamp')
