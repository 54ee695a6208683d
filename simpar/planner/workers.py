"""Workers: processes that judge nodes and predict plans; what they say does not depend on how many there are."""

from __future__ import annotations

import gc
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, Final, cast

from simpar.case import cluster_of
from simpar.planner.judge import Asked, Judge
from simpar.planner.sample import Made
from simpar.planner.space import Judged, Space
from simpar.schedule import Schedule
from simpar.session import Session
from simpar.sweep.answer import predicted
from simpar.sweep.run import Coming, end, received, start

Path = tuple[int, ...]
DIED: Final = 'a process that judges nodes'
REPAYS: Final = 2.0
"""Seconds of judging here, after which processes are started."""
TOGETHER: Final = 16
"""Nodes of a group at most."""
AHEAD: Final = 2
"""Groups of nodes that a process has at once, the one that it is at among them."""


class Workers:
    """Judges nodes here at first, and in processes once that repays.

    Arguments: ``jobs``, processes at once, this one among them; 1, none is started.
    """

    def __init__(self, space: Space, judge: Judge, jobs: int) -> None:
        self._space, self._judge, self._jobs = space, judge, jobs
        self._started: list[_Worker] = []
        self._processes: dict[Connection, BaseProcess] = {}
        self._spent = 0.0

    def judge(self, asked: Sequence[Asked]) -> list[Judged]:
        """Judge some nodes. Raises ``RunFailed`` where a process dies."""
        if self._spent > REPAYS and self._jobs > 1 and not self._started:
            self._start()
        begin = perf_counter()
        found = self._shared(asked)
        self._spent += perf_counter() - begin
        return found

    def _shared(self, asked: Sequence[Asked]) -> list[Judged]:
        round_ = Round(self._space, asked, len(self._started) + 1)
        while True:
            for worker in self._started:
                worker.fill(round_)
            mine = round_.group(0)
            if mine is None:
                break
            for number in mine:
                round_.found[number] = self._judge(*asked[number])
                # Between nodes, so that no process waits for more while this one goes on.
                for worker in self._started:
                    self._collect(worker, round_)
                    worker.fill(round_)
        for worker in self._started:
            while worker.out:
                self._collect(worker, round_, wait=True)
        return [round_.found[number] for number in range(len(asked))]

    def _collect(self, worker: _Worker, round_: Round, *, wait: bool = False) -> None:
        """Take what a process has answered, and hand on the samples that it has made, and that were made here."""
        made = worker.collect(round_, wait=wait)
        self._judge.samples.take(made)
        own = self._judge.samples.give()
        for other in self._started:
            other.news += own if other is worker else [*own, *made]

    def _start(self) -> None:
        # All that were made before.
        known = self._judge.samples.give()
        self._processes = start(self._jobs - 1, _work, self._space)
        self._started += [_Worker(one, number, [*known]) for number, one in enumerate(self._processes, 1)]

    @property
    def ready(self) -> bool:
        """Whether there are processes beside this one."""
        return bool(self._started)

    def predict(self, schedules: Sequence[Schedule]) -> Coming:
        """Predict schedules here and in the processes that there are; yields place and outcome as they come."""
        left, session = deque(enumerate(schedules)), Session()
        busy: dict[Connection, int] = {}
        while left or busy:
            # The first one here: a single plan is predicted where most of what it shares with others is known.
            here = left.popleft() if left else None
            for idle in [one.connection for one in self._started if one.connection not in busy][: len(left)]:
                busy[idle], schedule = left.popleft()
                with suppress(BrokenPipeError):
                    idle.send(schedule)
            if here:
                yield here[0], predicted(here[1], session)
            # Where nobody is busy, a wait would have no end.
            ready = wait([*busy], 0.0 if left else None) if busy else []
            for connection in cast(list[Connection], ready):
                yield busy.pop(connection), received(connection, DIED)

    def close(self) -> None:
        """End all processes, also in the middle of nodes that nobody waits for."""
        end(self._processes)
        self._started.clear()


class Round:
    """Nodes that are judged at once, in groups that share samples; ``found``, what was said of each.

    A process has the same groups each time, as it has their samples. One that has no more takes what others have left.
    """

    def __init__(self, space: Space, asked: Sequence[Asked], parts: int) -> None:
        self.asked = asked
        self.found: dict[int, Judged] = {}
        groups: dict[int, list[int]] = {}
        for number, one in enumerate(asked):
            groups.setdefault(_share_of(space, one[0]), []).append(number)
        self._left: list[list[list[int]]] = [[] for _ in range(parts)]
        for share, numbers in groups.items():
            # Not all at once, or the others would wait for the last group.
            self._left[share % parts] += [numbers[at : at + TOGETHER] for at in range(0, len(numbers), TOGETHER)]

    def group(self, part: int) -> list[int] | None:
        """The next nodes for a process; None where nothing is left."""
        own = self._left[part]
        if own:
            return own.pop(0)
        longest = max(self._left, key=len)
        return longest.pop() if longest else None


@dataclass(slots=True)
class _Worker:
    """A process.

    Arguments: ``part``, its number in a round; ``news``, samples that it was not given yet; ``out``, the groups that it
    was sent and has not answered.
    """

    connection: Connection
    part: int
    news: list[Made]
    out: deque[list[int]] = field(default_factory=deque)

    def fill(self, round_: Round) -> None:
        """Send groups, one ahead of what it is at."""
        while len(self.out) < AHEAD and (group := round_.group(self.part)) is not None:
            with suppress(BrokenPipeError):
                self.connection.send((self.news, [round_.asked[number] for number in group]))
            self.news = []
            self.out.append(group)

    def collect(self, round_: Round, *, wait: bool) -> list[Made]:
        """Take what it has answered, or ``wait`` for it where nothing came yet; returns the samples that it made."""
        found: list[Made] = []
        while self.out and (wait or self.connection.poll()):
            made, judged = received(self.connection, DIED)
            round_.found |= zip(self.out.popleft(), judged, strict=True)
            found += made
            wait = False
        return found


@contextmanager
def workers(space: Space, judge: Judge, jobs: int) -> Iterator[Workers]:
    """Workers of a space, ended behind."""
    found = Workers(space, judge, jobs)
    try:
        yield found
    finally:
        found.close()


def _share_of(space: Space, path: Path) -> int:
    """Which worker judges a node: each makes samples of its own, which take longest, and orders, too.

    A slice is of as many samples where there are twice the micro-batches and twice the stages.
    """
    place = dict(zip(space.keys, path, strict=False))
    slices = place.get('micro_batches', 0) - place.get('pipeline', 0) if 'micro_batches' in place else 0
    # Not their sum, which is the same for all that are about as fast. Whole numbers hash alike in all processes.
    return hash((*(place.get(key, 0) for key in ('tensor', 'sequence_parallel', 'context', 'expert')), slices))


def _work(connection: Connection, space: Space, threshold: tuple[int, int, int]) -> None:
    """Judge or predict what comes, until the process that asked closes the connection or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(*threshold)
    judge, session = Judge(space, cluster_of(space.base)), Session()
    coming: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_read, args=(connection, coming), daemon=True).start()
    with suppress(BrokenPipeError, ConnectionResetError):
        while (asked := coming.get()) is not None:
            try:
                found: Any = predicted(asked, session) if isinstance(asked, Schedule) else _judged(judge, *asked)
            except Exception as error:
                found = error
            connection.send(found)


def _judged(judge: Judge, news: list[Made], asked: Sequence[Asked]) -> tuple[list[Made], list[Judged]]:
    """Samples that were made for some nodes, and what was said of these. Arguments: ``news``, samples of others."""
    judge.samples.take(news)
    found = [judge(*one) for one in asked]
    return judge.samples.give(), found


def _read(connection: Connection, coming: SimpleQueue[Any]) -> None:
    """Read all that comes; None behind it. Both ends may send more than a pipe holds, so one always reads."""
    with suppress(EOFError, OSError):
        while True:
            coming.put(connection.recv())
    coming.put(None)
