"""A process that a pool has started, and the parent's ends of its pipes."""

from __future__ import annotations

import pickle
import time
from multiprocessing.connection import Connection
from typing import Any

from executor.watchdog import Failure


class Child:
    """A process and our ends of its pipes; it goes when ``held`` is closed."""

    def __init__(self, process: Any, pipe: Connection, held: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.mute = False
        self._held = held

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    @property
    def ends(self) -> tuple[Any, ...]:
        return (self.pipe, self.process.sentinel)

    @property
    def exit_code(self) -> int | None:
        """None or 0 while nothing is wrong."""
        code: int | None = self.process.exitcode
        return code

    def say(self, word: str, what: object = None) -> None:
        try:
            # Pickled here, so that an object that cannot be pickled raises in the caller, not in a feeder thread.
            self.pipe.send_bytes(pickle.dumps((word, what)))
        except OSError:
            self.mute = True

    def hear(self) -> tuple[str, Any]:
        word, what = pickle.loads(self.pipe.recv_bytes())
        return word, what

    def last_failures(self) -> list[Failure]:
        """Failures that the rank still reports."""
        try:
            word, what = self.hear()
        except (EOFError, OSError):
            self.mute = True
            return []
        return list(what) if word == 'failed' else []

    def end(self, until: float) -> None:
        """Wait for the process until then, and kill it if it is still there."""
        # Closing the lifeline makes the kernel signal a child that hangs in C++ code.
        self._held.close()
        self.process.join(max(0.0, until - time.perf_counter()))
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
        self.process.close()
