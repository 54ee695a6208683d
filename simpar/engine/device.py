"""Devices and links: what runs on them now, as objects of the reference, and the fair speeds of what shares links."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from simpar.engine.fold import Load

if TYPE_CHECKING:
    from simpy.events import Event

UNSOLVED: Final = 0.0
"""A ceiling that no op has, so that its speed is solved at the next chance."""

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

    Arguments:
        ops: numbers of the stream's ops in a step.
        every: how many ops of all devices a step has.
        base: what is added to the head's number to count it among the ops of all steps.
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

    Arguments:
        streams: the streams that it heads.
        top: the ceiling when its speed was last solved.
        completion: the event that ends it unless its speed changes.
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

    Arguments:
        streams, devices: the ones that have arrived.
        op: number of the op that has the costs.
        links: what it asks of each link while it transfers.
        beside: its highest speed while one of its devices computes.
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


class Flow(Protocol):
    """What transfers: at speed s it takes the share s · demand of each of its links.

    Demands are multiples of 2⁻¹⁰, so their sums are exact, and a link's remainder changes once a level: no result
    depends on the order of flows, on whether other components are solved along, or on folding.
    """

    @property
    def links(self) -> tuple[tuple[int, float], ...]:
        """Pairs (link, demand)."""
        ...

    @property
    def top(self) -> float:
        """The highest speed that it may have."""
        ...


F = TypeVar('F', bound=Flow)


class Links(Generic[F]):
    """The flows that are now on each link."""

    def __init__(self, count: int) -> None:
        self._flows: list[dict[F, None]] = [{} for _ in range(count)]

    def add(self, flow: F) -> None:
        """Let a flow transfer."""
        for link, _ in flow.links:
            self._flows[link][flow] = None

    def remove(self, flow: F) -> dict[F, None]:
        """End a flow; returns its neighbours, whose speeds may change."""
        neighbours: dict[F, None] = {}
        for link, _ in flow.links:
            flows = self._flows[link]
            del flows[flow]
            if flows:
                neighbours.update(flows)
        return neighbours

    def component(self, seeds: Iterable[F]) -> dict[F, None]:
        """The seeds and the flows that share links with them, directly or through others."""
        found = list(seeds)
        seen: set[int] = set()
        # The list grows while it is walked: a breadth-first search.
        for flow in found:
            for link, _ in flow.links:
                if link not in seen:
                    seen.add(link)
                    found += self._flows[link]
        return dict.fromkeys(found)


def fair_speeds(flows: Iterable[F]) -> dict[F, float]:
    """Max-min fair speeds under Σ speed · demand ≤ 1 on each link and speed ≤ top for each flow.

    Arguments: ``flows``, one or more full components. All speeds rise together until a link saturates or a flow meets
    its top; those flows are fixed, the others rise on (progressive filling; Bertsekas and Gallager, Data Networks,
    section 6.5.2). Does not model what a protocol needs to get there: speeds change at once.
    """
    # Progressive filling; every round fixes one flow at least, so there are at most as many rounds as flows.
    rising = {flow: flow.top for flow in flows}
    left = {link: 1.0 for flow in rising for link, _ in flow.links}
    speeds: dict[F, float] = {}
    while rising:
        shares = {link: left[link] / demand for link, demand in _demands(rising).items()}
        level = min(chain(rising.values(), shares.values()))
        # No tolerance: the level is one of these shares, to the bit.
        fixed = [f for f, top in rising.items() if top <= level or any(shares[link] <= level for link, _ in f.links)]
        for link, demand in _demands(fixed).items():
            left[link] -= level * demand
        for flow in fixed:
            speeds[flow] = level
            del rising[flow]
    return speeds


def _demands(flows: Iterable[F]) -> dict[int, float]:
    total: dict[int, float] = {}
    for flow in flows:
        for link, demand in flow.links:
            total[link] = total.get(link, 0.0) + demand
    return total
