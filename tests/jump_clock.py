"""A clock that jumps: threads of production code take turns, and time passes only when all of them wait."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from executor.host import Clock


class _Task:
    """A thread of production code, and what it waits for: a moment, and a condition if any."""

    def __init__(self) -> None:
        self.turn = threading.Semaphore(0)
        self.until = math.inf
        self.condition: _Condition | None = None


class _Condition:
    """What production code uses of a condition; no lock, for one thread runs at a time."""

    def __init__(self, clock: JumpClock, number: int) -> None:
        self._clock = clock
        self.number = number

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def notify_all(self) -> None:
        self._clock.wake(self)


class JumpClock(Clock):
    """Begins at ``now``; it jumps to the next moment that a thread waits for, and past it by up to ``late`` seconds."""

    __slots__ = (
        '_conditions',
        '_errors',
        '_late',
        '_main',
        '_now',
        '_random',
        '_ready',
        '_running',
        '_waiting',
        'jumps',
    )

    def __init__(self, now: float, late: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self._now = now
        self._late = late
        self._random = Random(seed)
        self._ready: deque[_Task] = deque()
        self._waiting: list[_Task] = []
        self._running: _Task | None = None
        self._main = threading.Semaphore(0)
        self._errors: list[BaseException] = []
        self._conditions = 0
        self.jumps = 0

    def now(self) -> float:
        return self._now

    def sleep_until(self, moment: float) -> None:
        if moment > self._now:
            self._block(moment, None)

    def condition(self) -> _Condition:  # type: ignore[override]
        self._conditions += 1
        return _Condition(self, self._conditions)

    def wait(self, changed: _Condition, moment: float) -> None:  # type: ignore[override]
        self._block(moment, changed)

    def wake(self, condition: _Condition) -> None:
        """Let all go on that wait on a condition."""
        woken = [task for task in self._waiting if task.condition is condition]
        self._waiting = [task for task in self._waiting if task.condition is not condition]
        self._ready.extend(woken)

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run each body in a thread of its own until all have returned; raises what one of them raised."""
        tasks = [_Task() for _ in bodies]
        self._ready.extend(tasks)
        for task, body in zip(tasks, bodies, strict=True):
            threading.Thread(target=self._serve, args=(task, body), daemon=True).start()
        self._next()
        self._main.acquire()
        for error in self._errors:
            raise error

    def _serve(self, task: _Task, body: Callable[[], None]) -> None:
        task.turn.acquire()
        self._running = task
        try:
            body()
        except BaseException as error:
            self._errors.append(error)
        self._next()

    def _block(self, moment: float, condition: _Condition | None) -> None:
        task = self._running
        assert task is not None
        task.until, task.condition = moment, condition
        self._waiting.append(task)
        self._next()
        task.turn.acquire()
        self._running = task

    def _next(self) -> None:
        """Give the turn to who may go on; where nobody may, jump."""
        if not self._ready and self._waiting:
            self.jumps += 1
            self._now = max(self._now, min(task.until for task in self._waiting))
            # A kernel wakes threads up late, but in the order of their moments.
            if self._late:
                self._now += self._random.uniform(0.0, self._late)
            due = sorted((task for task in self._waiting if task.until <= self._now), key=_turn)
            self._waiting = [task for task in self._waiting if task.until > self._now]
            self._ready.extend(due)
        (self._ready.popleft().turn if self._ready else self._main).release()


def _turn(task: _Task) -> tuple[float, bool, int]:
    """Who sleeps goes before who waits on a condition, and that on the last one made first: on a device's, which tells
    its link of changes, before the link's."""
    return task.until, task.condition is not None, -task.condition.number if task.condition else 0
