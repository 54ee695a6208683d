"""run: all rows predicted, each once: taken from a journal, here, in processes apart, or on a cluster."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

from simpar.schedule import Schedule
from simpar.session import Session
from simpar.sweep.journal import Journal, Wanted
from simpar.sweep.outcome import Outcome, predicted
from simpar.sweep.processes import Coming, Place, cores, in_processes

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
