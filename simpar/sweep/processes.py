"""Processes of this machine that predict rows: each takes runs of neighbouring rows, and hands back row by row."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

from simpar.errors import RunFailed
from simpar.schedule import Schedule
from simpar.session import Session
from simpar.sweep.outcome import Outcome, predicted

SHARES: Final = 2
"""A process takes what is left over its number and this: first long runs, at the end single rows."""
Place = int
"""Of a schedule among those given, from 0."""
Coming = Generator[tuple[Place, Outcome], None, None]
"""Places and outcomes in the order in which they come."""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def in_processes(schedules: Sequence[Schedule], jobs: int) -> Coming:
    """Yield place and outcome of each schedule as they come.

    Neighbours are mostly predicted by one process, which keeps what they share.
    Arguments: ``jobs``, processes at once. Raises ``RunFailed`` where a process dies.
    """
    runs = _runs(len(schedules), jobs)
    processes = _started(jobs)
    # How many rows of its run each process still has.
    busy = {connection: _give(connection, schedules, runs) for connection in processes}
    try:
        while any(busy.values()):
            for connection in _readable([one for one, left in busy.items() if left]):
                yield _received(connection, jobs)
                busy[connection] -= 1
                if not busy[connection]:
                    busy[connection] = _give(connection, schedules, runs)
    finally:
        for connection, process in processes.items():
            connection.close()
            # It may be in the middle of a row that nobody waits for.
            process.terminate()
        for process in processes.values():
            process.join()


def _runs(rows: int, jobs: int) -> Iterator[range]:
    """Runs of neighbouring rows, ever shorter, so that all processes end at nearly the same time."""
    begin = 0
    while begin < rows:
        end = begin + max(1, (rows - begin) // (SHARES * jobs))
        yield range(begin, end)
        begin = end


def _give(connection: Connection, schedules: Sequence[Schedule], runs: Iterator[range]) -> int:
    """Send a process its next run; returns how many rows that are."""
    run = next(runs, range(0))
    # One that is dead is told when it is read from.
    with suppress(BrokenPipeError):
        connection.send([(place, schedules[place]) for place in run])
    return len(run)


def _readable(connections: list[Connection]) -> list[Connection]:
    return [one for one in wait(connections) if isinstance(one, Connection)]


def _received(connection: Connection, jobs: int) -> tuple[Place, Outcome]:
    try:
        place, outcome = connection.recv()
    except (EOFError, ConnectionResetError):
        raise RunFailed(f'one of {jobs} processes that predict rows died; try fewer --jobs') from None
    if isinstance(outcome, Exception):
        raise outcome
    return place, outcome


def _started(jobs: int) -> dict[Connection, BaseProcess]:
    way = context()
    started: dict[Connection, BaseProcess] = {}
    with uninterrupted():
        for _ in range(jobs):
            mine, other = way.Pipe()
            process = way.Process(target=_work, args=(other, gc.get_threshold()), daemon=True)
            process.start()
            # Only the process has it now, so that its death is the end of what can be read.
            other.close()
            started[mine] = process
    return started


def context() -> Any:
    """Where processes come from; never a fork of this process, which may have threads."""
    if 'forkserver' not in get_all_start_methods():
        return get_context('spawn')
    found = get_context('forkserver')
    # One process imports simpar, and all others are its forks: half a second of work, whatever their number.
    found.set_forkserver_preload([__name__])
    return found


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Processes that are started in it are never interrupted by Ctrl-C; this one is, when all are started."""
    # Ctrl-C reaches all processes of the terminal; tracebacks of workers would hide the parent's message.
    if not hasattr(signal, 'pthread_sigmask'):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, threshold: tuple[int, int, int]) -> None:
    """Predict what comes, until the process that asked closes the connection or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As the process that asked: rows make many objects that live long.
    gc.set_threshold(*threshold)
    session = Session()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            for place, schedule in connection.recv():
                connection.send((place, _attempted(schedule, session)))


def _attempted(schedule: Schedule, session: Session) -> Outcome | Exception:
    try:
        return predicted(schedule, session)
    except Exception as error:
        return error
