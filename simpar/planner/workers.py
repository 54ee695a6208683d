"""Workers: processes that judge nodes and predict plans; what they say does not depend on how many there are."""

from __future__ import annotations

import gc
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Any, Final, cast

from simpar.case import cluster_of
from simpar.errors import RunFailed
from simpar.planner.judge import Judge
from simpar.planner.rules import Judged
from simpar.planner.space import Space
from simpar.schedule import Schedule
from simpar.sweep.outcome import predicted
from simpar.sweep.processes import Coming, context, uninterrupted

Path = tuple[int, ...]
Asked = tuple[Path, int]
"""A node, and how often it was judged before."""
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
        self._started: list[tuple[Connection, BaseProcess]] = []
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
        workers = [_Worker(connection, number) for number, (connection, _) in enumerate(self._started, 1)]
        while True:
            for worker in workers:
                worker.fill(round_)
            mine = round_.group(0)
            if mine is None:
                break
            for number in mine:
                round_.found[number] = self._judge(*asked[number])
                # Between nodes, so that no process waits for more while this one goes on.
                for worker in workers:
                    worker.collect(round_)
                    worker.fill(round_)
        for worker in workers:
            while worker.out:
                worker.collect(round_, wait=True)
        return [round_.found[number] for number in range(len(asked))]

    def _start(self) -> None:
        started = context()
        with uninterrupted():
            for _ in range(self._jobs - 1):
                mine, other = started.Pipe()
                process = started.Process(target=_work, args=(other, self._space, gc.get_threshold()), daemon=True)
                process.start()
                other.close()
                self._started.append((mine, process))

    @property
    def ready(self) -> bool:
        """Whether there are processes beside this one."""
        return bool(self._started)

    def predict(self, schedules: Sequence[Schedule]) -> Coming:
        """Predict schedules here and in the processes that there are; yields place and outcome as they come."""
        left = deque(enumerate(schedules))
        busy: dict[Connection, int] = {}
        while left or busy:
            # The first one here: a single plan is predicted where most of what it shares with others is known.
            here = left.popleft() if left else None
            for idle in [one for one, _ in self._started if one not in busy][: len(left)]:
                busy[idle], schedule = left.popleft()
                with suppress(BrokenPipeError):
                    idle.send(schedule)
            if here:
                yield here[0], predicted(here[1])
            # Where nobody is busy, a wait would have no end.
            ready = wait([*busy], 0.0 if left else None) if busy else []
            for connection in cast(list[Connection], ready):
                yield busy.pop(connection), _received(connection)

    def close(self) -> None:
        """End all processes, also in the middle of nodes that nobody waits for."""
        for connection, process in self._started:
            connection.close()
            process.terminate()
        for _, process in self._started:
            process.join()
        self._started.clear()


class Round:
    """Nodes that are judged at once, in groups that share samples; ``found``, what was said of each.

    A process has the same groups each time, as it has their samples. One that has no more takes what others have left.
    """

    def __init__(self, space: Space, asked: Sequence[Asked], parts: int) -> None:
        self.asked = asked
        self.found: dict[int, Judged] = {}
        groups: dict[int, list[int]] = {}
        for number, (path, _) in enumerate(asked):
            groups.setdefault(_share_of(space, path), []).append(number)
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


class _Worker:
    """A process in a round; ``out``, the groups that it was sent and has not answered."""

    def __init__(self, connection: Connection, part: int) -> None:
        self._connection, self._part = connection, part
        self.out: deque[list[int]] = deque()

    def fill(self, round_: Round) -> None:
        """Send groups, one ahead of what it is at."""
        while len(self.out) < AHEAD and (group := round_.group(self._part)) is not None:
            with suppress(BrokenPipeError):
                self._connection.send([round_.asked[number] for number in group])
            self.out.append(group)

    def collect(self, round_: Round, *, wait: bool = False) -> None:
        """Take what it has answered, and where nothing came yet ``wait`` for the next."""
        while self.out and (wait or self._connection.poll()):
            round_.found |= zip(self.out.popleft(), _received(self._connection), strict=True)
            wait = False


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


def _received(connection: Connection) -> Any:
    try:
        found = connection.recv()
    except (EOFError, ConnectionResetError):
        raise RunFailed('a process that judges nodes died; try fewer --jobs') from None
    if isinstance(found, Exception):
        raise found
    return found


def _work(connection: Connection, space: Space, threshold: tuple[int, int, int]) -> None:
    """Judge or predict what comes, until the process that asked closes the connection or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    # As the process that asked: plans make many objects that live long.
    gc.set_threshold(*threshold)
    judge = Judge(space, cluster_of(space.base))
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            asked = connection.recv()
            try:
                found: Any = predicted(asked) if isinstance(asked, Schedule) else [judge(*one) for one in asked]
            except Exception as error:
                found = error
            connection.send(found)
