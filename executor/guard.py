"""Questions to the ranks' store that nobody answers: a network that is cut closes no connection, and torch waits on."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from simpar.errors import RunFailed

PERIOD: Final = 0.5


class Guard:
    """While it is entered, the process ends where that takes longer than ``patience`` seconds.

    Arguments:
        reason: told then, in words; called in a thread of its own, for the one that asks is in torch's C++.
        end: what ends the process, given the reason.
    """

    def __init__(self, patience: float, reason: Callable[[], str], end: Callable[[str], None] | None = None) -> None:
        self._patience = patience
        self._reason = reason
        self._end = end or leave
        self._since: float | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._since = time.perf_counter()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._since = None

    def _look(self) -> None:
        while True:
            time.sleep(PERIOD)
            since = self._since
            if since is not None and time.perf_counter() - since > self._patience:
                self._end(self._reason())
                return


def leave(reason: str) -> None:
    """End the process: its main thread is in torch's C++, which cannot be called back."""
    print(RunFailed(reason), file=sys.stderr, flush=True)
    os._exit(RunFailed.exit_code)
