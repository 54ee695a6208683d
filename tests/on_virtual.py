"""A plugin that trains on virtual accelerators whatever a test trains in process: ``pytest -p on_virtual``.

Every test of numerics then holds the figures of virtual accelerators against autograd's. The order is another one each
time, and a race, a number that the host reads or an operation that is missing fails the test.
"""

import itertools

import torch

from executor import numerics
from executor.result import Result
from executor.virtual.world import VirtualWorld

MOST = 6
orders = itertools.count()


class OnVirtual:
    """What ``InProcess`` is to those who train step by step."""

    def __init__(self, program, seed=0, dtype=torch.float64, **_):
        self._world = VirtualWorld(program, steps=MOST, seed=seed, dtype=dtype, order=next(orders))
        self._done = 0

    def run(self, steps=1):
        """Train more steps."""
        found = self._world.train(self._done, steps)
        self._done += steps
        return Result(found.losses, found.parameters, found.gradients)


numerics.InProcess = OnVirtual
