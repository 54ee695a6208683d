"""The virtual accelerators of this process: their engine, memory and streams, and which stream is current."""

from __future__ import annotations

from typing import Final

import torch

from executor.virtual.engine import Engine, Queue
from executor.virtual.memory import Pool

DEVICES: Final = 64
engine = Engine()
pools: dict[int, Pool] = {}
of_graphs: dict[int, list[Pool]] = {}
defaults: dict[int, Queue] = {}
current: dict[int, Queue] = {}
libraries: list[torch.library.Library] = []
device = 0
issuing = False


def reset(seed: int | None = None) -> Engine:
    """Begin anew, with devices that are empty; a seed picks the order in which streams run."""
    global engine, device, issuing
    engine, device, issuing = Engine(seed), 0, False
    for table in (pools, of_graphs, defaults, current):
        table.clear()
    return engine


def with_index(where: torch.device) -> torch.device:
    """A device by its number, that of the current device where it has none."""
    return where if where.index is not None else torch.device(where.type, device)


def pool(where: torch.device) -> Pool:
    """The memory of a device."""
    return pools.setdefault(with_index(where).index, Pool())


def pools_of(index: int) -> list[Pool]:
    """All memory of a device: that of its graphs, too."""
    return [pool(torch.device('virtual', index)), *of_graphs.get(index, ())]


def pool_of(where: torch.device, queue: Queue) -> Pool:
    """The memory from which a stream allocates: that of its graph while it is captured."""
    return pool(where) if queue.capture is None else queue.capture.pool


def default_queue(index: int) -> Queue:
    """The stream of a device that is current when no other is."""
    if index not in defaults:
        defaults[index] = engine.queue(index, 'default')
    return defaults[index]


def current_queue(where: torch.device) -> Queue:
    """The current stream of a device."""
    index = with_index(where).index
    return current.get(index) or default_queue(index)
