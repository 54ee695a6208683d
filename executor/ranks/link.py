"""A paced link: what one rank sends through, shared by the threads of its streams as the simulator shares a link.

Speeds are max-min fair, weighted by demand. Times lie on the engine's grid of 2⁻⁴⁰ s, counted from a whole second near
by: a double holds them to the bit at any uptime. So a transfer ends at the moment that the engine computes, and late
wake-ups of threads do not add up. Receiving is free.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from executor.host import Clock
from simpar.units import quantise

SPAN: Final = 1024.0
"""Seconds from the origin after which it moves; below 4096 s, doubles hold the grid."""


class Progress(NamedTuple):
    """How far a transfer is: ``left`` seconds at full speed at ``since``, at ``speed`` ever since, up to ``end``."""

    left: float
    since: float
    speed: float
    end: float


class Transfer:
    """A message on a link.

    Arguments:
        seconds: what it takes alone, at full speed.
        demand: share of the link that it takes at full speed.
        beside_compute: its highest speed while the device computes.
    """

    __slots__ = ('before', 'beside_compute', 'demand', 'ended', 'now')

    def __init__(self, seconds: float, demand: float, beside_compute: float) -> None:
        self.demand = demand
        self.beside_compute = beside_compute
        # What held up to this instant, and what holds from it on: several changes at one instant count as one.
        self.before = self.now = Progress(seconds, 0.0, 0.0, math.inf)
        self.ended: float | None = None

    def settle(self, at: float, speed: float) -> None:
        """Go on at a speed from ``at`` on; work is settled only where the speed changes, as in the engine."""
        left, since, before, _ = self.before
        if speed == before:
            self.now = self.before
            return
        left = max(left - before * (at - since), 0.0)
        self.now = Progress(left, at, speed, quantise(at + left / speed))

    def move(self, seconds: float) -> None:
        """Count from an origin that lies so many seconds later."""
        self.before, self.now = (
            one._replace(since=one.since - seconds, end=one.end - seconds) for one in (self.before, self.now)
        )


class Sharing:
    """The transfers that share one link, from event to event; it knows neither threads nor a clock.

    Moments that it takes and gives are in seconds of the caller's clock.
    """

    def __init__(self) -> None:
        self._active: list[Transfer] = []
        self._computing = 0
        # Whole seconds: then the grid lies alike for every origin.
        self._origin = 0
        self._at = -math.inf

    def enter(self, due: float, seconds: float, demand: float, beside_compute: float) -> Transfer:
        """Let a message transfer from ``due`` on, or from what has happened last, where that is later."""
        self._pass(due)
        transfer = Transfer(quantise(seconds), demand, beside_compute)
        if transfer.now.left == 0.0:
            # Shorter than the grid: like the engine's, it uses no link.
            transfer.ended = self._origin + self._at
        else:
            self._active.append(transfer)
            self._solve()
        return transfer

    def computing(self, on: bool, at: float) -> None:
        """Say that an op of the rank's device computes from ``at`` on, or no longer."""
        self._pass(at)
        self._computing += 1 if on else -1
        self._solve()

    def end_of(self, transfer: Transfer) -> float:
        """When a transfer has ended, or will if nothing changes."""
        return self._origin + transfer.now.end if transfer.ended is None else transfer.ended

    def finish(self, transfer: Transfer) -> None:
        """Pass on to the end of a transfer; each round ends one at least, so rounds are no more than transfers."""
        while transfer.ended is None:
            self._end_next()

    def _pass(self, moment: float) -> None:
        """Pass on to a moment, and end what is through by then."""
        self._move(moment)
        until = max(self._at, quantise(moment - self._origin))
        # What would end at this very instant waits until all changes of the instant are in.
        while self._active and (end := self._next_end()) <= until and not end == self._at == until:
            self._end_next()
        if until > self._at:
            self._go_to(until)

    def _move(self, moment: float) -> None:
        """Count from a later second, where doubles would soon be too coarse for the grid."""
        # While something transfers, its own time counts: the moment may lie far behind its end.
        latest = self._origin + self._at if self._active else moment
        if self._at == -math.inf or latest - self._origin >= SPAN:
            later = math.floor(latest)
            for transfer in self._active:
                transfer.move(later - self._origin)
            self._at -= later - self._origin
            self._origin = later

    def _next_end(self) -> float:
        return min(transfer.now.end for transfer in self._active)

    def _end_next(self) -> None:
        """Go to the next end, and end all transfers that are through then."""
        self._go_to(self._next_end())
        for transfer in self._active:
            if transfer.now.end <= self._at:
                transfer.ended = self._origin + self._at
        self._active = [transfer for transfer in self._active if transfer.ended is None]
        self._solve()

    def _go_to(self, at: float) -> None:
        """Go on to an instant: what held from the last one on is what held before this one."""
        self._at = at
        for transfer in self._active:
            transfer.before = transfer.now

    def _solve(self) -> None:
        """Set all speeds anew, from this instant on."""
        caps = [transfer.beside_compute if self._computing else 1.0 for transfer in self._active]
        speeds = fair_speeds([transfer.demand for transfer in self._active], caps)
        for transfer, speed in zip(self._active, speeds, strict=True):
            transfer.settle(self._at, speed)


def fair_speeds(demands: list[float], caps: list[float]) -> list[float]:
    """Max-min fair speeds on one link: Σ speed·demand ≤ 1, no speed above its cap, and none can be raised but at the
    cost of one that is no higher.

    Arguments: ``demands``, multiples of 2⁻¹⁰, so that their sums are exact and no order matters.
    """
    speeds = [0.0] * len(demands)
    room, rising = 1.0, list(range(len(demands)))
    # All rise together; each round fixes those at the lowest cap, or everybody where the link is full.
    while rising:
        share = room / sum(demands[index] for index in rising)
        level = min(share, *(caps[index] for index in rising))
        fixed = rising if share <= level else [index for index in rising if caps[index] <= level]
        for index in fixed:
            speeds[index] = level
        room -= level * sum(demands[index] for index in fixed)
        rising = [index for index in rising if index not in fixed]
    return speeds


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
        self._sharing = Sharing()
        self._changed = clock.condition()

    def carry(self, size: int, due: float, demand: float = 1.0, beside_compute: float = 1.0) -> float:
        """Return when a message has gone through the link and its latency has passed: that moment, by the link's clock.

        Arguments:
            size: bytes of the message.
            due: the moment at which the message was there to be sent.
            demand: share of the link that it can use at most.
            beside_compute: its highest speed while the device computes.
        """
        with self._changed:
            transfer = self._sharing.enter(due, size / (self._rate * demand), demand, beside_compute)
            self._changed.notify_all()
            # Another transfer, or the device, may change the speeds while this one sleeps. Every round waits or is the
            # last: nothing here depends on how finely a double tells moments apart.
            while transfer.ended is None:
                end = self._sharing.end_of(transfer)
                if self._clock.now() < end:
                    self._clock.wait(self._changed, end)
                else:
                    # It may have woken up late; the transfer still ends when it was due.
                    self._sharing.finish(transfer)
                    self._changed.notify_all()
            arrival = transfer.ended + self._latency
        # Outside of the lock: latency keeps no link busy, and others may send meanwhile.
        self._clock.sleep_until(arrival)
        return arrival

    def computing(self, on: bool, at: float) -> None:
        """Say that the rank's device computes from ``at`` on, or no longer."""
        with self._changed:
            self._sharing.computing(on, at)
            self._changed.notify_all()
