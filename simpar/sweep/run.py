"""run: all rows predicted, each once: taken from a journal, here, in processes apart, or on a cluster."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter
from typing import Any, Final, cast

from simpar.errors import RunFailed
from simpar.schedule import Schedule
from simpar.session import Session
from simpar.sweep.answer import Outcome, predicted
from simpar.sweep.journal import Journal, Wanted

# Processes of this machine: each takes runs of neighbouring rows, and hands back row by row.


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
    processes = start(jobs, _work)
    # How many rows of its run each process still has.
    busy = {connection: _give(connection, schedules, runs) for connection in processes}
    try:
        while any(busy.values()):
            for connection in cast(list[Connection], wait([one for one, left in busy.items() if left])):
                yield received(connection, f'one of {jobs} processes that predict rows')
                busy[connection] -= 1
                if not busy[connection]:
                    busy[connection] = _give(connection, schedules, runs)
    finally:
        end(processes)


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


def received(connection: Connection, which: str) -> Any:
    """What a process has sent; an error is raised. Argument: ``which``, for ``RunFailed`` where it died."""
    try:
        found = connection.recv()
    except (EOFError, ConnectionResetError):
        raise RunFailed(f'{which} died; try fewer --jobs') from None
    if isinstance(found, Exception):
        raise found
    return found


def start(jobs: int, work: Callable[..., None], *others: Any) -> dict[Connection, BaseProcess]:
    """Processes that do ``work(connection, *others, threshold)``, the garbage collector's as it is here."""
    way = context()
    started: dict[Connection, BaseProcess] = {}
    with uninterrupted():
        for _ in range(jobs):
            mine, other = way.Pipe()
            # As the process that asked: rows make many objects that live long.
            process = way.Process(target=work, args=(other, *others, gc.get_threshold()), daemon=True)
            process.start()
            # Only the process has it now, so that its death is the end of what can be read.
            other.close()
            started[mine] = process
    return started


def end(processes: Mapping[Connection, BaseProcess]) -> None:
    """End processes, also in the middle of what nobody waits for."""
    for connection, process in processes.items():
        connection.close()
        process.terminate()
    for process in processes.values():
        process.join()


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
    gc.set_threshold(*threshold)
    session = Session()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            for place, schedule in connection.recv():
                connection.send(_attempted(place, schedule, session))


def _attempted(place: Place, schedule: Schedule, session: Session) -> tuple[Place, Outcome] | Exception:
    try:
        return place, predicted(schedule, session)
    except Exception as error:
        return error


Progress = Callable[[int, int], None]
"""Is told how many are done, of how many."""
Note = Callable[[str], None]
"""Is told what the user should know beforehand."""
_START: Final = 0.5
"""Seconds until processes are ready; measured on two cores."""
_GARBAGE: Final = 100_000
"""Objects made before garbage is looked for."""
_LONG: Final = 5.0
"""Seconds of a first row that cannot be for what is done but once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How schedules are predicted, which changes no outcome.

    Arguments:
        jobs: processes at once; None, as many as there are cores, where they repay their start.
        journal: a file of finished rows. Rows that it has are not predicted again, and others are added as they come.
        scheduler: the address of a Dask scheduler whose workers predict; empty where they are predicted here.
        processes: predicts in processes that are there already; None, where there are none.
    """

    jobs: int | None = 1
    progress: Progress | None = None
    journal: Path | None = None
    scheduler: str = ''
    processes: Callable[[Sequence[Schedule]], Coming] | None = None
    note: Note | None = None


def predict_all(schedules: Sequence[Schedule], way: Way, wanted: Sequence[Wanted] = ()) -> list[Outcome]:
    """Predict schedules, all of them different, in their order.

    Arguments: ``wanted``, what a journal knows each by.
    Raises ``RunFailed`` where a process dies, ``ScheduleError`` where journal or scheduler are none.
    """
    done: dict[Place, Outcome] = {}
    with ExitStack() as stack:
        stack.enter_context(rare_collections())
        rows = stack.enter_context(Journal(way.journal)) if way.journal else None
        if rows is not None:
            kept = rows.take(wanted)
            done = {place: kept[row.key] for place, row in enumerate(wanted) if row.key in kept}
            _tell_of(rows, len(done), way)
        if way.progress and done:
            way.progress(len(done), len(schedules))
        left = [place for place in range(len(schedules)) if place not in done]
        # Closed at once, also where a row cannot be written: nobody else would end the processes.
        coming = stack.enter_context(closing(_coming([schedules[place] for place in left], way)))
        for place, outcome in coming:
            if rows is not None:
                rows.write(wanted[left[place]], outcome)
            done[left[place]] = outcome
            if way.progress:
                way.progress(len(done), len(schedules))
    return [done[place] for place in range(len(schedules))]


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let garbage be looked for rarely: rows make many objects that live long, and little garbage in circles."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _GARBAGE), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        # What has been made counts as old now, or all of it would be looked through at once. Who froze objects keeps
        # them frozen.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()


def _tell_of(journal: Journal, taken: int, way: Way) -> None:
    others = len(journal) - taken
    if way.note and taken:
        way.note(f'{taken} rows are finished in {journal.path}')
    if way.note and others:
        way.note(f'{others} rows in {journal.path} are left out: of another schedule, profile or simpar')


def _coming(schedules: Sequence[Schedule], way: Way) -> Coming:
    """Place and outcome of each schedule as they come."""
    if way.scheduler and schedules:
        from simpar.sweep.dask import on_scheduler

        return on_scheduler(schedules, way.scheduler, way.note)
    if way.processes:
        return way.processes(schedules)
    if way.jobs is None:
        return _where_it_repays(schedules, cores())
    if min(way.jobs, len(schedules)) < 2:
        return _here(schedules)
    return in_processes(schedules, min(way.jobs, len(schedules)))


def _here(schedules: Sequence[Schedule]) -> Coming:
    session = Session()
    for place, schedule in enumerate(schedules):
        yield place, predicted(schedule, session)


def _where_it_repays(schedules: Sequence[Schedule], jobs: int) -> Coming:
    """Predict here until it is known that processes apart would end sooner, then the rest there."""
    begin, first = perf_counter(), 0.0
    for place, outcome in _here(schedules):
        yield place, outcome
        done, left = place + 1, len(schedules) - place - 1
        seconds = perf_counter() - begin
        first = first or seconds
        # What is imported and worked out but once makes the first row longer than others, here and in every process.
        each = (seconds - first) / (done - 1) if done > 1 else first if first > _LONG else 0.0
        count = min(jobs, left)
        if count > 1 and each * left * (1 - 1 / count) > 2 * (_START + max(0.0, first - each)):
            with closing(in_processes(schedules[done:], count)) as apart:
                yield from ((done + later, one) for later, one in apart)
            return
