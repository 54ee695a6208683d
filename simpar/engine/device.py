"""Devices: one for each representative rank, its streams, and what runs on it now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from simpy.events import Event

UNSOLVED: Final = 0.0
"""A ceiling that no op has, so that its speed is solved at the next chance."""

Load = tuple[tuple[int, float], ...]
"""Pairs (link, demand)."""
Observer = Callable[[float, Sequence[tuple[int, tuple[int, ...], float]]], None]
"""Told the time and, of everything that transfers, (op class, one entry for each group or pair, speed)."""


class Device:
    """The device of a representative rank, and what goes on there."""

    __slots__ = ('communicating', 'computing', 'representative', 'transferring')

    def __init__(self, representative: int) -> None:
        self.representative = representative
        self.communicating = 0
        # Dicts are sets that keep their order: what is touched together is solved in one order, whatever the hash seed.
        self.computing: dict[Compute, None] = {}
        self.transferring: dict[Rendezvous, None] = {}


class Stream:
    """An in-order queue of a device: its head is op ``ops[cursor]`` of step ``step``.

    Arguments: ``ops``, their numbers in a step; ``every``, how many ops of all devices a step has; ``base``: the number
    of the head among the ops of all steps is ``base`` + its own.
    """

    __slots__ = ('base', 'cursor', 'device', 'every', 'ops', 'step')

    def __init__(self, device: Device, ops: list[int], every: int) -> None:
        self.device = device
        self.ops = ops
        self.every = every
        self.cursor = 0
        self.step = 0
        self.base = 0

    @property
    def head(self) -> int:
        """The number of the head in its step."""
        return self.ops[self.cursor]

    def pop(self) -> None:
        """Let the next op head the stream."""
        self.cursor += 1
        if self.cursor == len(self.ops):
            self.cursor = 0
            self.step += 1
            self.base += self.every


class Running:
    """An op in progress: it had ``remaining`` isolated seconds at ``since`` and goes on at ``speed`` ever since.

    Arguments: ``streams``, those that it heads; ``top``, the ceiling when its speed was last solved; ``completion``,
    the event that ends it unless its speed changes.
    """

    __slots__ = ('completion', 'remaining', 'since', 'speed', 'streams', 'top')

    def __init__(self, remaining: float, streams: list[Stream]) -> None:
        self.remaining = remaining
        self.streams = streams
        self.since = 0.0
        self.speed = 0.0
        # No ceiling is 0, so that the first look at the op always solves its speed.
        self.top = UNSOLVED
        self.completion: Event | None = None


class Compute(Running):
    """A compute op in progress; ``beside``, its speed while a collective runs on the device."""

    __slots__ = ('beside', 'device')

    def __init__(self, stream: Stream, seconds: float, beside: float) -> None:
        super().__init__(seconds, [stream])
        self.device = stream.device
        self.beside = beside

    def ceiling(self) -> float:
        """The speed that its device allows now."""
        # One collective slows as much as several: what is measured is compute beside any communication.
        return self.beside if self.device.communicating else 1.0


class Rendezvous(Running):
    """A collective, or a send with its receive, from the first arrival on.

    Arguments: ``streams`` and ``devices``: those that have arrived; ``op``, the one that has the costs; ``links``, what
    it asks of each link while it transfers; ``beside``, its highest speed while one of its devices computes.
    """

    __slots__ = ('beside', 'devices', 'links', 'op')

    def __init__(self) -> None:
        super().__init__(0.0, [])
        self.devices: list[Device] = []
        self.op = 0
        self.links: Load = ()
        self.beside = 1.0

    def ceiling(self) -> float:
        """The highest speed that its devices allow now."""
        for device in self.devices:
            if device.computing:
                return self.beside
        return 1.0
