"""The virtual device of emulated compute: an op takes its isolated time, longer beside collectives, and burns no CPU.

A rank's compute op runs from its arrival at speed 1, and slower in the intervals in which a collective runs on the
rank. The end is worked out afresh whenever an interval opens or closes, from the op's start on, so that neither late
wake-ups nor late news add up: spans are those that the device would have had; the thread sleeps towards their ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from executor.clock import Clock
from executor.link import Link


@dataclass(slots=True, eq=False)
class Busy:
    """An interval in which a collective runs on the rank; open while ``end`` is infinite."""

    start: float
    end: float = math.inf


class VirtualDevice:
    """One rank's device; threads of compute streams run ops on it, those of communication streams open intervals.

    Arguments: ``link`` is told when the device computes (for collectives that computing slows), None where none are.
    """

    def __init__(self, clock: Clock, link: Link | None = None) -> None:
        self._clock = clock
        self._link = link
        self._busy: list[Busy] = []
        self._running: list[float] = []
        self._changed = clock.condition()

    def compute(self, start: float, seconds: float, beside_communication: float) -> float:
        """Run an op and return when it has ended.

        Arguments:
            start: the moment at which the op arrived.
            seconds: what the op takes alone.
            beside_communication: its speed while a collective runs on the rank.
        """
        if self._link is not None:
            self._link.computing(True, start)
        with self._changed:
            self._running.append(start)
            while True:
                # From the start each time, not from the last look: errors of wake-ups would add up.
                end = stretched_end(start, seconds, beside_communication, self._busy)
                if self._clock.now() >= end:
                    break
                # Woken early by an interval that opens or closes, for then the end moves.
                self._clock.wait(self._changed, end)
            self._running.remove(start)
        if self._link is not None:
            self._link.computing(False, end)
        return end

    def open(self, start: float) -> Busy:
        """A collective runs on the rank from ``start`` on."""
        interval = Busy(start)
        with self._changed:
            # Intervals that ended before the oldest running op started can move no end any more.
            oldest = min(self._running, default=start)
            self._busy = [busy for busy in self._busy if busy.end > oldest]
            self._busy.append(interval)
            self._changed.notify_all()
        return interval

    def close(self, interval: Busy, end: float) -> None:
        """The collective has ended."""
        with self._changed:
            interval.end = end
            self._changed.notify_all()


def stretched_end(start: float, seconds: float, speed: float, busy: list[Busy]) -> float:
    """When an op ends that does ``seconds`` of work at speed 1, but at ``speed`` inside of the union of intervals."""
    at, left = start, seconds
    # Intervals of different streams may overlap; ``at`` never moves back, so each moment counts once.
    for interval in sorted(busy, key=lambda interval: interval.start):
        if interval.end <= at:
            continue
        if interval.start - at >= left:
            break
        # Work at full speed until the interval begins, then at reduced speed inside of it.
        free = max(0.0, interval.start - at)
        at, left = at + free, left - free
        inside = interval.end - at
        if inside * speed >= left:
            return at + left / speed
        at, left = interval.end, left - inside * speed
    return at + left
