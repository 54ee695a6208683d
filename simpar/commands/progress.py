"""Progress: a line on standard error that says how many rows are done and how long the rest takes."""

from __future__ import annotations

import os
import sys
from collections import deque
from time import monotonic
from types import TracebackType
from typing import Final

from simpar.units import format_duration

_OFTEN: Final = 0.1
"""Seconds between two lines at least: more often nobody reads it."""
_SELDOM: Final = 10.0
"""Seconds between two lines where there is no terminal: they stay in the file that takes them."""
_RECENT: Final = 64
"""Rows of which the pace is taken: those in processes come faster than the first, which are predicted before."""


class Progress:
    """A line on standard error, which is gone when all are done; without a terminal a line every 10 seconds.

    Arguments: ``what`` is done to each; ``after``, seconds that are short enough to say nothing.
    It has ``done`` and ``of``, how many are done, of how many; both 0 until it is told.
    """

    def __init__(self, what: str = 'predicted', *, after: float = 0.0) -> None:
        self._what = what
        self._silent_until = monotonic() + after
        self.done = self.of = 0
        self._shown = sys.stderr.isatty() and os.environ.get('TERM') != 'dumb'
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        # Without a terminal what is quick says nothing.
        self._told = 0.0 if self._shown else monotonic()
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __call__(self, done: int, of: int) -> None:
        """Take how many are done, of how many; tell it."""
        self.done, self.of = done, of
        now = monotonic()
        self._recent.append((now, done))
        # The last line is left out, for it would be cleared at once.
        if done < of and now >= self._silent_until and now - self._told >= (_OFTEN if self._shown else _SELDOM):
            self._told = now
            text = f'{done} of {of} {self._what}{self._left()}'
            if not self._shown:
                print(text, file=sys.stderr, flush=True)
                return
            # Blanks, so that nothing stays of a longer line before.
            print(f'\r{text.ljust(self._width)}', end='', file=sys.stderr, flush=True)
            self._width = len(text)

    def note(self, text: str) -> None:
        """Say a sentence on a line of its own, on a terminal or not."""
        self._clear()
        print(f'Note: {text}', file=sys.stderr, flush=True)

    def _left(self) -> str:
        """The time that the others take, as the recent ones did; nothing as long as that is not known."""
        (begin, first), (end, last) = self._recent[0], self._recent[-1]
        if last == first:
            return ''
        return f', {format_duration((end - begin) / (last - first) * (self.of - last))} left'

    def _clear(self) -> None:
        if self._shown:
            print('\r\x1b[K', end='', file=sys.stderr, flush=True)
            self._width = 0

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._clear()
