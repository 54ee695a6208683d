"""The kernels of memory, by their names; numba is imported only where one must be compiled."""

from __future__ import annotations

from typing import Final

from simpar.machine_code import Kernel

count_cells: Final = Kernel('simpar.memory.compiled.lives', 'count_cells')
write_lifetimes: Final = Kernel('simpar.memory.compiled.lives', 'write_lifetimes')
write_changes: Final = Kernel('simpar.memory.compiled.lives', 'write_changes')
