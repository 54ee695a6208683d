"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from executor.bench.bench import Reporter


class Lines:
    """One line when a part begins."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def part(self, name: str, turns: int) -> None:
        """A part of so many turns begins."""
        del turns
        print(f'bench: {time.monotonic() - self._begin:4.0f} s: {name}', file=sys.stderr, flush=True)

    def turn(self) -> None:
        """Nothing is said of it."""


class Bars:
    """A bar for each part."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._task: TaskID | None = None

    def part(self, name: str, turns: int) -> None:
        """A part of so many turns begins."""
        self._task = self._shown.add_task(name, total=turns)

    def turn(self) -> None:
        """One turn of it is done."""
        if self._task is not None:
            self._shown.advance(self._task)


@contextmanager
def progress() -> Iterator[Reporter]:
    """Says how far a bench has come while it is entered."""
    # A bar's control characters would fill a log file.
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn('{task.description}'), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown:
        yield Bars(shown)
