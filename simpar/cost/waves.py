"""Waves: how much of its time a product's tiles fill a device, for several sizes of tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from simpar.hardware import Device

TILES: Final = ((128, 128), (256, 128), (128, 256))
"""Rows and columns of a result that one multiprocessor works on: those of cuBLAS and CUTLASS for large products."""


def waves(device: Device) -> Callable[..., tuple[float, ...]]:
    """m, n, k → for each size of tiles log(slots in its waves / tiles that the result's area needs).

    A wave is one tile on each multiprocessor. Its slots stay empty where tiles reach beyond the result, and in the last
    wave. Which tile a library takes is not told; two products that fill a device alike by all of them cost alike.
    """
    if device.multiprocessors is None:
        return lambda m, n, k: ()
    at_once = device.multiprocessors.value

    def unfilled(m: float, n: float, k: float) -> Iterator[float]:
        for rows, columns in TILES:
            slots = math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / at_once) * at_once
            yield math.log(slots * rows * columns / (m * n))

    return lambda m, n, k: tuple(unfilled(m, n, k))
