"""The kernels of programs, by their names; numba is imported only where one must be compiled."""

from __future__ import annotations

from typing import Final

from simpar.machine_code import Kernel

find_needs: Final = Kernel('simpar.program.compiled.needs', 'find_needs')
