"""The clock of one rank: monotonic seconds, shifted so that ranks on different hosts agree."""

from __future__ import annotations

import ctypes
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path('/proc/sys/kernel/random/boot_id')
PR_SET_TIMERSLACK: Final = 29


class Clock:
    """Seconds that all ranks of a run share.

    Arguments: ``offset``, seconds to add to this host's monotonic clock; ranks of one host share that clock, so 0.
    """

    __slots__ = ('offset',)

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset

    def now(self) -> float:
        """Seconds since an origin that all ranks share."""
        return time.perf_counter() + self.offset

    def sleep_until(self, moment: float) -> None:
        """Return at ``moment``, or at once if it has passed."""
        # ``sleep`` may return early on some systems.
        while (left := moment - self.now()) > 0:
            time.sleep(left)

    def condition(self) -> threading.Condition:
        """A condition on which threads wait by this clock, see ``wait``."""
        return threading.Condition()

    def wait(self, changed: threading.Condition, moment: float) -> None:
        """Wait on a condition, which is held, until ``moment`` at most."""
        changed.wait(max(0.0, moment - self.now()))


def host_identity() -> str:
    """Equal on two ranks if and only if they share a monotonic clock."""
    # Containers of one host have different names but one kernel, and so one monotonic clock.
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else platform.node()


def sharpen_sleep() -> None:
    """Ask the kernel to wake this thread, and threads it starts, within a microsecond instead of 50 (Linux only)."""
    if platform.system() == 'Linux':
        # Python has no call for it. The default slack of 50 us is as long as the ops that are emulated.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)


def offset_by_ping(ping: Callable[[], tuple[float, float, float]], rounds: int = 16) -> tuple[float, float]:
    """Seconds to add to this clock to get the other's, and how far off that may be.

    Arguments: ``ping`` gives (sent by this clock, stamped by the other, received by this clock). The quickest of
    ``rounds`` is taken and its stamp put half way (Cristian 1989), so half its round trip bounds the error.
    """
    # The quickest ping met no queue, so its two ways are the most alike.
    sent, stamped, received = min((ping() for _ in range(rounds)), key=lambda times: times[2] - times[0])
    return stamped - (sent + received) / 2, (received - sent) / 2
