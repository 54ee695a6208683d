"""Lines on standard error while something works: how many parts are done, or that the work goes on."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Final

from simpar.units import format_duration

if TYPE_CHECKING:
    from typing_extensions import Self

SHORT: Final = 2.0
"""Seconds of which nothing is told."""
_OFTEN: Final = 0.1
"""Seconds between two lines of parts at least: more often nobody reads it."""
_ALIVE: Final = 0.5
"""Seconds between two lines of a work that goes on."""
_SELDOM: Final = 10.0
"""Seconds between two lines where there is no terminal: they stay in the file that takes them."""
_RECENT: Final = 64
"""Rows of which the pace is taken: those in processes come faster than the first, which are predicted before."""


def _is_terminal() -> bool:
    """Whether a line on standard error can be written over."""
    return sys.stderr.isatty() and os.environ.get('TERM') != 'dumb'


class Line:
    """A line on standard error that is written over, and gone in the end; without a terminal lines stay."""

    def __init__(self) -> None:
        self._shown = _is_terminal()
        # Without a terminal what is quick says nothing.
        self._told = 0.0 if self._shown else monotonic()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def say(self, text: str, now: float) -> None:
        """Write the line anew, at a time."""
        self._told = now
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

    def _clear(self) -> None:
        if self._shown:
            print('\r\x1b[K', end='', file=sys.stderr, flush=True)
            self._width = 0

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._clear()


class Progress(Line):
    """How many are done; without a terminal a line every 10 seconds.

    Arguments: ``what`` is done to each; ``after``, seconds that are short enough to say nothing.
    It has ``done`` and ``of``, how many are done, of how many; both 0 until it is told.
    """

    def __init__(self, what: str = 'predicted', *, after: float = 0.0) -> None:
        self._what = what
        self._silent_until = monotonic() + after
        super().__init__()
        self.done = self.of = 0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)

    def __call__(self, done: int, of: int) -> None:
        """Take how many are done, of how many; tell it."""
        self.done, self.of = done, of
        now = monotonic()
        self._recent.append((now, done))
        # The last line is left out, for it would be cleared at once.
        if done < of and now >= self._silent_until and now - self._told >= (_OFTEN if self._shown else _SELDOM):
            self.say(f'{done} of {of} {self._what}{self._left()}', now)

    def _left(self) -> str:
        """The time that the others take, as the recent ones did; nothing as long as that is not known."""
        (begin, first), (end, last) = self._recent[0], self._recent[-1]
        if last == first:
            return ''
        return f', {format_duration((end - begin) / (last - first) * (self.of - last))} left'


@dataclass(slots=True)
class Waiting:
    """What is told of a work that goes on, of which nobody can count the parts, as lowering.

    Arguments: ``most``, seconds that it takes at most, from its begin; 0: nobody knows.
    """

    what: str
    most: float = 0.0

    def text(self, passed: float) -> str:
        """The line after so many seconds."""
        left = self.most - passed
        known = f', {format_duration(left)} left at most' if left > 0 else ''
        return f'{self.what}: {format_duration(passed)} so far{known}'


@contextmanager
def waiting(what: str, *, after: float = SHORT) -> Iterator[Waiting]:
    """Tell from ``after`` seconds on that the body still works; on a terminal the line is gone in the end."""
    told, done = Waiting(what), Event()
    # A thread, since the work itself has no place to tell it from. It sleeps, and never touches the work.
    teller = Thread(target=_tell, args=(told, done, _is_terminal(), after), daemon=True)
    teller.start()
    try:
        yield told
    finally:
        done.set()
        teller.join()


def _tell(told: Waiting, done: Event, terminal: bool, after: float) -> None:
    began = monotonic()
    shown = False
    # Without a terminal lines stay, and what is quick says nothing, as of other progress.
    pause = after if terminal else _SELDOM / SHORT * after
    while not done.wait(pause):
        text = told.text(monotonic() - began)
        print(f'\r{text}\x1b[K' if terminal else text, end='' if terminal else '\n', file=sys.stderr, flush=True)
        shown, pause = True, _ALIVE if terminal else _SELDOM
    if shown and terminal:
        print('\r\x1b[K', end='', file=sys.stderr, flush=True)
