"""Devices: one for each lane, with its streams, the work of its role as plain lists, and what runs on it now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from simpy.events import Event

UNSOLVED: Final = 0.0
"""A ceiling that no op has, so that its speed is solved at the next chance."""

Load = tuple[tuple[int, float], ...]
"""Pairs (link, demand)."""
Observer = Callable[[float, Sequence[tuple[int, tuple[int, ...], float]]], None]
"""Told the time and, of everything that transfers, (op class, one entry for each group or pair, speed)."""


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """A compute op of a lane: isolated seconds, and its speed while a collective runs on the device."""

    seconds: float
    beside: float


@dataclass(frozen=True, slots=True)
class CommunicationCost:
    """A communication op of a lane on a stream.

    Arguments: ``groups``, one entry for each group (for each pair) that it stands for; ``alpha`` and ``transfer``,
    isolated seconds; ``links``, what all of those ask of one link of each class; ``beside``, its highest speed while
    one of its devices computes; ``leads``: of the ops that meet, this one has the costs; ``each_step``, how many of its
    kind the lane puts on the channel in a step.
    """

    op_class: int
    groups: tuple[int, ...]
    alpha: float
    transfer: float
    links: Load
    beside: float
    leads: bool
    channel: Channel
    each_step: int


@dataclass(slots=True)
class Channel:
    """Where ops meet by their order: a group of a communicator, or one direction between two ranks of it.

    Arguments: ``expected``, how many ops meet; ``meeting``, those of which some have arrived, by number.
    """

    expected: int
    meeting: dict[int, Rendezvous] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """One step of a role, by slot.

    Arguments: ``needs``, ``carried``: slots of this step and of the step before; ``issued``, seconds; ``period``, how
    much later the slots of the next step are issued; ``sequence``, number of a communication op on its channel.
    """

    needs: list[tuple[int, ...]]
    carried: list[tuple[int, ...]]
    issued: list[float]
    period: float
    sequence: list[int]


class Device:
    """The device that each rank of a lane has.

    Arguments: ``first``, the number of its first op among the ops of all devices and steps; ``costs``, by slot.
    """

    __slots__ = ('communicating', 'computing', 'costs', 'first', 'lane', 'streams', 'transferring', 'work')

    def __init__(self, lane: int, first: int, work: Work, costs: list[ComputeCost | CommunicationCost]) -> None:
        self.lane = lane
        self.first = first
        self.work = work
        self.costs = costs
        self.streams: list[Stream] = []
        self.communicating = 0
        self.computing: dict[Compute, None] = {}
        self.transferring: dict[Rendezvous, None] = {}


class Stream:
    """An in-order queue of a device: its head is slot ``slots[cursor]`` of step ``step``.

    Arguments: ``base``: the number of the head among the ops of all devices and steps is ``base`` + its slot.
    """

    __slots__ = ('base', 'cursor', 'device', 'name', 'slots', 'step')

    def __init__(self, device: Device, name: str, slots: list[int]) -> None:
        self.device = device
        self.name = name
        self.slots = slots
        self.cursor = 0
        self.step = 0
        self.base = device.first

    def pop(self) -> None:
        """Let the next op head the stream."""
        self.cursor += 1
        if self.cursor == len(self.slots):
            self.cursor = 0
            self.step += 1
            self.base += len(self.device.costs)


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
        self.top = UNSOLVED
        self.completion: Event | None = None


class Compute(Running):
    """A compute op in progress."""

    __slots__ = ('beside', 'device')

    def __init__(self, stream: Stream, cost: ComputeCost) -> None:
        super().__init__(cost.seconds, [stream])
        self.device = stream.device
        self.beside = cost.beside

    def ceiling(self) -> float:
        """The speed that its device allows now."""
        return self.beside if self.device.communicating else 1.0


class Rendezvous(Running):
    """A collective, or a send with its receive, from the first arrival on.

    Arguments: ``streams`` and ``devices``: those that have arrived.
    """

    __slots__ = ('cost', 'devices')

    cost: CommunicationCost

    def __init__(self) -> None:
        super().__init__(0.0, [])
        self.devices: list[Device] = []

    def lead(self, cost: CommunicationCost) -> None:
        """Take the costs of the op that leads."""
        self.cost = cost
        self.remaining = cost.transfer

    @property
    def links(self) -> Load:
        """What it asks of each link while it transfers."""
        return self.cost.links

    def ceiling(self) -> float:
        """The highest speed that its devices allow now."""
        for device in self.devices:
            if device.computing:
                return self.cost.beside
        return 1.0
