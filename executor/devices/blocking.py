"""The CPU as a device module: every stream does at once what is issued to it, so native collectives run without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stream:
    """What is issued runs before the call returns, so there is nothing to wait for."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        pass

    def wait_event(self, event: Event) -> None:
        """It has passed."""


class Event:
    """A moment of the host's clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.moment = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Mark now."""
        self.moment = time.perf_counter()

    def synchronize(self) -> None:
        """It has passed."""

    def query(self) -> bool:
        """It has passed."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds to a later event."""
        return 1e3 * (end.moment - self.moment)


@contextmanager
def stream(stream: Stream) -> Iterator[None]:
    """There is but one."""
    yield


def is_available() -> bool:
    """Always."""
    return True


def device_count() -> int:
    """The processors are one device."""
    return 1


def set_device(device: object) -> None:
    """There is but one."""


def synchronize(device: object = None) -> None:
    """All has run."""


def install() -> None:
    """Torch knows the CPU."""
