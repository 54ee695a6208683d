"""The network of a run: as it is, paced in the executor's own sends, or shaped for real in network namespaces.

``paced`` gives every rank one link of its own, for what it sends. Transfers of several streams share it as the
simulator shares links: max-min fair, equal relative speeds weighted by demand, on a virtual clock of the link, so that
late wake-ups of sleeping threads do not add up. Receiving is free.
"""

from __future__ import annotations

import math
import re
import threading
from dataclasses import dataclass
from typing import Literal

from executor.clock import Clock
from simpar.units import format_rate, format_time, parse

NetKind = Literal['none', 'paced', 'netns']
_BITS = re.compile(r'([0-9.]+)\s*([kmg])bit')
USAGE = 'none, paced:RATE,LATENCY (paced:1Gbit/s,50us) or netns:RATE (netns:1Gbit/s)'


@dataclass(frozen=True, slots=True)
class Net:
    """What ``--net`` says.

    Arguments:
        rate: bytes/s of each rank's link.
        latency: seconds that are added to every message; they keep no link busy.
    """

    kind: NetKind = 'none'
    rate: float = math.inf
    latency: float = 0.0

    def __str__(self) -> str:
        if self.kind == 'none':
            return 'as it is'
        latency = f' with {format_time(self.latency)} a message' if self.latency else ''
        return f'{self.kind} at {format_rate(self.rate)}{latency}'


def parse_net(text: str) -> Net:
    """Read ``none``, ``paced:RATE,LATENCY`` or ``netns:RATE``; raises ``ValueError`` saying what to write.

    Rates are written as everywhere (``125 MB/s``, ``1Gbit/s``) or as tc writes them (``1gbit``).
    """
    kind, _, rest = text.partition(':')
    parts = [part for part in rest.split(',') if part]
    if kind == 'none' and not parts:
        return Net()
    if kind == 'paced' and len(parts) in (1, 2):
        return Net('paced', _rate(parts[0]), parse(parts[1], 'time') if len(parts) == 2 else 0.0)
    # ``lab`` is what ``netns`` was called before; scripts and documents still write it.
    if kind in ('netns', 'lab') and len(parts) == 1:
        return Net('netns', _rate(parts[0]))
    raise ValueError(f'not a network: {text!r}; write {USAGE}')


def _rate(text: str) -> float:
    match = _BITS.fullmatch(text.strip())
    rate = parse(f'{match[1]} {match[2].upper()}bit/s' if match else text, 'rate')
    if rate <= 0:
        raise ValueError(f'a rate of {text} carries nothing; write e.g. 1Gbit/s')
    return rate


@dataclass(slots=True, eq=False)
class _Transfer:
    """Seconds of transfer that are left at full speed, the share of the link it takes then, and its highest speed
    while the device computes."""

    left: float
    demand: float
    beside_compute: float
    end: float | None = None


class Link:
    """What one rank sends through: threads of several streams share it.

    Arguments:
        rate: bytes/s.
        latency: seconds a message.
    """

    def __init__(self, clock: Clock, rate: float, latency: float) -> None:
        self._clock = clock
        self._rate = rate
        self._latency = latency
        self._active: list[_Transfer] = []
        self._at = 0.0
        self._computing = False
        self._changed = threading.Condition()

    def carry(self, size: int, due: float, demand: float = 1.0, beside_compute: float = 1.0) -> float:
        """Return when a message has gone through the link and its latency has passed: that moment, by the link's clock.

        Arguments:
            size: bytes of the message.
            due: the moment at which the message was there to be sent.
            demand: share of the link that it can use at most.
            beside_compute: its highest speed while the device computes.
        """
        transfer = _Transfer(size / (self._rate * demand), demand, beside_compute)
        with self._changed:
            self._advance(due)
            self._active.append(transfer)
            self._changed.notify_all()
            # Another transfer, or the device, may change the speeds while this one sleeps.
            while transfer.end is None:
                end = self._end_of(transfer)
                if (left := end - self._clock.now()) > 0:
                    self._changed.wait(left)
                else:
                    # It woke up late; the link's clock still ends the transfer when it was due.
                    self._advance(end)
        # Outside of the lock: latency keeps no link busy, and others may send meanwhile.
        self._clock.sleep_until(transfer.end + self._latency)
        return transfer.end + self._latency

    def computing(self, on: bool, at: float) -> None:
        """Say that the rank's device computes from ``at`` on, or no longer."""
        with self._changed:
            self._advance(at)
            self._computing = on
            self._changed.notify_all()

    def _end_of(self, transfer: _Transfer) -> float:
        """When a transfer ends if nothing changes."""
        return self._at + transfer.left / self._speeds()[self._active.index(transfer)]

    def _speeds(self) -> list[float]:
        caps = [transfer.beside_compute if self._computing else 1.0 for transfer in self._active]
        return fair_speeds([transfer.demand for transfer in self._active], caps)

    def _advance(self, until: float) -> None:
        """Move the link's clock, which stands at what happened last, and end transfers when they are through."""
        while self._active and self._at < until:
            speeds = self._speeds()
            ends = [self._at + transfer.left / speed for transfer, speed in zip(self._active, speeds, strict=True)]
            # Speeds are constant until the next end, so the clock jumps from end to end.
            moment = min(*ends, until)
            for transfer, speed, end in zip(self._active, speeds, ends, strict=True):
                transfer.left -= (moment - self._at) * speed
                # Compared with the computed end, not with what is left, which rounding may keep above zero.
                if end <= moment:
                    transfer.end = moment
            self._at = moment
            if any(transfer.end is not None for transfer in self._active):
                self._active = [transfer for transfer in self._active if transfer.end is None]
                self._changed.notify_all()
        self._at = max(self._at, until)


def fair_speeds(demands: list[float], caps: list[float]) -> list[float]:
    """Max-min fair speeds on one link: Σ speed·demand ≤ 1, no speed above its cap, and none can be raised but at the
    cost of one that is no higher."""
    speeds = [0.0] * len(demands)
    room, asked = 1.0, sum(demands)
    # Lowest cap first: what it cannot use is shared by the others (water-filling).
    for index in sorted(range(len(demands)), key=caps.__getitem__):
        speeds[index] = min(caps[index], room / asked)
        room -= speeds[index] * demands[index]
        asked -= demands[index]
    return speeds
