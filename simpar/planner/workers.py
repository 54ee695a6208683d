"""Workers: processes that judge nodes; what they say does not depend on how many there are."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Final

from simpar.case import cluster_of
from simpar.errors import RunFailed
from simpar.planner.judge import Judge, Judged
from simpar.planner.space import Space
from simpar.sweep.processes import context, uninterrupted

Path = tuple[int, ...]
Asked = tuple[Path, int]
"""A node, and how often it was judged before."""
REPAYS: Final = 2.0
"""Seconds of judging here, after which processes are started."""


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
        parts: list[list[int]] = [[] for _ in range(len(self._started) + 1)]
        for number, (path, _) in enumerate(asked):
            parts[_share_of(self._space, path) % len(parts)].append(number)
        found: dict[int, Judged] = {}
        for (connection, _), part in zip(self._started, parts[1:], strict=True):
            if part:
                with suppress(BrokenPipeError):
                    connection.send([asked[number] for number in part])
        for number in parts[0]:
            found[number] = self._judge(*asked[number])
        for (connection, _), part in zip(self._started, parts[1:], strict=True):
            if part:
                found |= zip(part, _received(connection), strict=True)
        return [found[number] for number in range(len(asked))]

    def _start(self) -> None:
        started = context()
        with uninterrupted():
            for _ in range(self._jobs - 1):
                mine, other = started.Pipe()
                process = started.Process(target=_work, args=(other, self._space), daemon=True)
                process.start()
                other.close()
                self._started.append((mine, process))

    def close(self) -> None:
        """End all processes, also in the middle of nodes that nobody waits for."""
        for connection, process in self._started:
            connection.close()
            process.terminate()
        for _, process in self._started:
            process.join()
        self._started.clear()


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


def _received(connection: Connection) -> list[Judged]:
    try:
        found: list[Judged] | Exception = connection.recv()
    except (EOFError, ConnectionResetError):
        raise RunFailed('a process that judges nodes died; try fewer --jobs') from None
    if isinstance(found, Exception):
        raise found
    return found


def _work(connection: Connection, space: Space) -> None:
    """Judge what comes, until the process that asked closes the connection or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    judge = Judge(space, cluster_of(space.base))
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            asked = connection.recv()
            try:
                connection.send([judge(path, turn) for path, turn in asked])
            except ValueError as error:
                connection.send(error)
