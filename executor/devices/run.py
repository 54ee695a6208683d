"""A rank's run on a device: the host thread that issues all steps, watched as the threads of streams are."""

from __future__ import annotations

import threading
import time
from typing import Final

from executor.devices.issue import Issuer
from executor.status import RUNNING, THROUGH, Beat, Status
from executor.streams import failure_of
from executor.watchdog import Failure
from simpar.program import Program
from simpar.trace import Times

LOOK: Final = 0.05
"""Seconds between two looks at what the device has finished."""


class DeviceRun:
    """One run of a rank's role; has what ``Streams`` has for those that watch it."""

    def __init__(self, program: Program, rank: int, steps: int, issuer: Issuer, status: Status) -> None:
        self._issuer = issuer
        self._rank = rank
        self._steps = steps
        self._status = status
        self._slots = [list(row) for row in program.role(rank).by_stream().rows()]
        self._thread = threading.Thread(target=self._run, name='host', daemon=True)
        self._step = 0
        self.failures: list[Failure] = []

    @property
    def arrive_KS(self) -> Times:
        """When ops arrived, shape [steps, slots]."""
        return self._issuer.arrive_KS

    @property
    def end_KS(self) -> Times:
        """When they ended."""
        return self._issuer.end_KS

    def start(self, begin: float) -> None:
        """Start to issue."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; return whether all is through or something has failed."""
        until = time.perf_counter() + seconds
        while self._thread.is_alive() and not self.failures:
            self._thread.join(min(LOOK, max(0.0, until - time.perf_counter())))
            self._report(RUNNING)
            if time.perf_counter() >= until:
                break
        over = not self._thread.is_alive()
        if over and not self.failures:
            self._report(THROUGH)
        return over or bool(self.failures)

    def _run(self) -> None:
        try:
            self._issuer.take_thread()
            for step in range(self._steps):
                self._issuer.keep_near(step)
                self._step = step
                self._issuer.issue(step)
            self._issuer.finish()
        except Exception as error:
            self.failures.append(failure_of(self._rank, self._step, self._issuer.at, error))

    def _report(self, state: int) -> None:
        """Tell the watchdog how far the device is: for each stream its first op that is not over."""
        for stream, slots in enumerate(self._slots):
            step, place = self._issuer.progress(stream, slots)
            finished = step * len(slots) + place
            slot = slots[min(place, len(slots) - 1)] if len(slots) else -1
            now = time.perf_counter_ns()
            before = self._status.get(self._rank, stream)
            since = before.since if before.finished == finished and before.since else now
            self._status.set(self._rank, stream, Beat(finished, state, min(step, self._steps - 1), slot, since))
