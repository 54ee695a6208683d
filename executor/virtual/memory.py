"""Memory of a virtual accelerator: blocks that go back to the stream that they were allocated on, as CUDA's do.

A block is free as soon as the host drops its last tensor, whatever the device still does with it. A later allocation
on the same stream gets it at once. So memory that another stream still reads is overwritten, as it is on real devices.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import torch

from executor.virtual.engine import Queue, Touch

GRAIN: Final = 512
"""Sizes are rounded up to a multiple of this, in bytes."""
GARBAGE: Final = 0xFF
"""What new memory holds: NaN in every floating dtype."""


class Block:
    """Some bytes of a device, and the stream to which they return."""

    __slots__ = ('memory', 'queue', 'size')

    def __init__(self, size: int, queue: Queue) -> None:
        self.size = size
        self.queue = queue
        self.memory = torch.full((size,), GARBAGE, dtype=torch.uint8)


class Lease:
    """A block in use, by all tensors that share it; its end gives the block back."""

    __slots__ = ('block', 'pool')

    def __init__(self, pool: Pool, block: Block) -> None:
        self.pool = pool
        self.block = block

    @property
    def _cdata(self) -> int:
        # As a torch storage tells who it is.
        return id(self.block)

    def __del__(self) -> None:
        self.pool.give_back(self.block)


class Pool:
    """The memory of one device."""

    def __init__(self) -> None:
        self.allocated = 0
        self.peak = 0
        self.reserved = 0
        self._free: dict[tuple[int, int], list[Block]] = defaultdict(list)

    def lease(self, size: int, queue: Queue) -> Lease:
        """Memory for a tensor that a task on this stream makes; it holds garbage."""
        size = max(1, -(-size // GRAIN)) * GRAIN
        free = self._free[queue.number, size]
        if free:
            block = free.pop()
        else:
            block = Block(size, queue)
            self.reserved += size
        # Whoever still reads it must be waited for, so this counts as a write, and spoils what was there.
        touches = (Touch(id(block), 0, size, True),)
        queue.issue('an allocation', lambda: block.memory.fill_(GARBAGE), touches)
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        return Lease(self, block)

    def give_back(self, block: Block) -> None:
        """The host has dropped the last tensor."""
        self.allocated -= block.size
        self._free[block.queue.number, block.size].append(block)
