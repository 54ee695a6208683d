"""The kernels of the machines, by their names; numba is imported only where one must be compiled."""

from __future__ import annotations

from typing import Final

from simpar.machine_code import Kernel

arrange_after: Final = Kernel('simpar.engine.compiled.order', 'arrange_after')
list_edges: Final = Kernel('simpar.engine.compiled.order', 'list_edges')
topological: Final = Kernel('simpar.engine.compiled.order', 'topological')
arrange_nodes: Final = Kernel('simpar.engine.compiled.order', 'arrange_nodes')
arrive: Final = Kernel('simpar.engine.compiled.order', 'arrive')
recurrence: Final = Kernel('simpar.engine.compiled.order', 'recurrence')
arrange: Final = Kernel('simpar.engine.compiled.arrange', 'arrange')
events: Final = Kernel('simpar.engine.compiled.events', 'events')
