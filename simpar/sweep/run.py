"""Runs of a sweep: its rows one by one, in processes, or on Dask."""

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter
from typing import Any, Final, cast

from simpar import case, errors
from simpar.document import one_screen
from simpar.schedule import Row, Schedule, contents, load_rows
from simpar.session import Session
from simpar.sweep.answer import Outcome, Result, SweepAnswer, infeasible, predicted
from simpar.sweep.journal import FILES, Journal, Wanted, identity, wanted_of

# run: all rows predicted, each once: taken from a journal, here, in processes apart, or on a cluster.

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
    """Yield place and outcome of each schedule as they come. Arguments: ``jobs``, processes at once.

    Raises ``RunFailed`` where a process dies.
    """
    processes = start(jobs, predicting)
    try:
        yield from spread(schedules, [*processes], f'one of {jobs} processes that predict rows')
    finally:
        end(processes)


def spread(schedules: Sequence[Schedule], processes: Sequence[Connection], which: str) -> Coming:
    """The same in processes that are there. Arguments: ``which``, as of ``received``.

    Neighbours are mostly predicted by one process, which keeps what they share.
    """
    runs = _runs(len(schedules), len(processes))
    # How many rows of its run each process still has.
    busy = {connection: _give(connection, schedules, runs) for connection in processes}
    while any(busy.values()):
        for connection in cast(list[Connection], wait([one for one, left in busy.items() if left])):
            yield received(connection, which)
            busy[connection] -= 1
            if not busy[connection]:
                busy[connection] = _give(connection, schedules, runs)


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
        message = connection.recv()
    except (EOFError, ConnectionResetError):
        raise errors.RunFailed(f'{which} died; try fewer --jobs') from None
    if isinstance(message, Exception):
        raise message
    return message


def start(jobs: int, answering: Callable[[], Callable[[Any], Any]]) -> dict[Connection, BaseProcess]:
    """Processes, each of which answers lists of questions one by one. Arguments: ``answering`` makes what answers."""
    way = context()
    started: dict[Connection, BaseProcess] = {}
    with uninterrupted():
        for _ in range(jobs):
            mine, other = way.Pipe()
            # As the process that asked: rows make many objects that live long.
            process = way.Process(target=_work, args=(other, answering, gc.get_threshold()), daemon=True)
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
    forkserver = get_context('forkserver')
    # One process imports simpar, and all others are its forks: half a second of work, whatever their number.
    forkserver.set_forkserver_preload([__name__])
    return forkserver


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


def _work(
    connection: Connection, answering: Callable[[], Callable[[Any], Any]], threshold: tuple[int, int, int]
) -> None:
    """Answer what comes, until the process that asked closes the connection or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(*threshold)
    answer = answering()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            for question in connection.recv():
                try:
                    reply = answer(question)
                except Exception as error:
                    reply = error
                connection.send(reply)


def predicting() -> Callable[[tuple[Place, Schedule]], tuple[Place, Outcome]]:
    """What predicts schedules one after the other, each with its place."""
    session = Session()
    return lambda one: (one[0], predicted(one[1], session))


Progress = Callable[[int, int], None]
"""Is told how many are done, of how many."""
Note = Callable[[str], None]
"""Is told what the user should know beforehand."""
_START: Final = 0.5
"""Seconds until processes are ready; measured on two cores."""
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
        rows = stack.enter_context(Journal(way.journal)) if way.journal else None
        if rows is not None:
            outcomes = rows.take(wanted)
            done = {place: outcomes[row.key] for place, row in enumerate(wanted) if row.key in outcomes}
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


def _tell_of(journal: Journal, count: int, way: Way) -> None:
    others = len(journal) - count
    if way.note and count:
        way.note(f'{count} rows are finished in {journal.path}')
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


# Sweep: the rows of a schedule file, which become an answer when they are predicted.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is to be predicted: rows of well-formed values; ``keys``, all that any row sets, in the order given."""

    keys: tuple[str, ...]
    rows: tuple[Row, ...]

    def __repr__(self) -> str:
        return f'Sweep(rows={len(self.rows)}, keys={list(self.keys)})'

    @property
    def against(self) -> Mapping[str, Any]:
        """The differences of every row's own baseline; empty where none is given."""
        return self.rows[0].schedule.against or {}

    def predict(
        self,
        jobs: int | None = 1,
        progress: Progress | None = None,
        *,
        journal: str | os.PathLike[str] | None = None,
        scheduler: str = '',
        note: Note | None = None,
    ) -> SweepAnswer:
        """Predict every row, and every row's baseline, each of them once.

        Arguments:
            jobs: processes at once, which change no figure; None, as many as there are cores, where that repays.
            progress: is told how many rows are done, of how many.
            journal: a file that takes finished rows as they come; those that it has are not predicted again.
            scheduler: address of a Dask scheduler whose workers predict.
            note: is told in a sentence what of journal and scheduler the user should know.
        Raises ``ScheduleError`` where no row has the baseline that ``against`` asks for, or journal or scheduler are
        none; ``RunFailed`` where a process dies.
        """
        baselines = self._baselines()
        every = (*self._fitting(), *(other for other in baselines if isinstance(other, Schedule)))
        place = Path(journal) if journal else None
        way = Way(jobs=jobs, progress=progress, journal=place, scheduler=scheduler, note=note)
        done = self._outcomes(every, way)
        results = [
            Result(
                settings=row.settings,
                batch=row.schedule.workload.batch,
                outcome=infeasible(errors.ScheduleError([*row.problems])) if row.problems else done[id(row.schedule)],
            )
            for row in self.rows
        ]
        if self.against:
            results = [_measured(*pair, done) for pair in zip(results, baselines, strict=True)]
        answer = SweepAnswer(
            keys=self.keys,
            results=tuple(results),
            against=self.against,
            changed_links=any(set(row.schedule.cluster.links.values()) - {1} for row in self.rows),
            framework=contents.run_as(schedule.cluster for schedule in self._fitting()),
        )
        if self.against or answer.first is None:
            return answer
        first = answer.results[answer.first]
        return replace(answer, results=tuple(_over(first, result) for result in results))

    def _outcomes(self, schedules: Sequence[Schedule], way: Way) -> dict[int, Outcome]:
        """The outcome of each schedule, by the schedule's ``id``."""
        names = [identity(schedule) for schedule in schedules]
        # By identity, so that a baseline that is also a row is predicted once: as the row, which comes first.
        different: dict[str, Schedule] = {}
        for name, schedule in zip(names, schedules, strict=True):
            different.setdefault(name, schedule)
        different = _together(different)
        settings, session = {id(row.schedule): row.settings for row in self.rows}, Session(FILES)
        # Only a journal asks, and profiles are read for it.
        rows = different.values() if way.journal else ()
        wanted = [wanted_of(schedule, settings.get(id(schedule)), session) for schedule in rows]
        by_name = dict(zip(different, predict_all(list(different.values()), way, wanted), strict=True))
        return {id(schedule): by_name[name] for name, schedule in zip(names, schedules, strict=True)}

    def _fitting(self) -> list[Schedule]:
        return [row.schedule for row in self.rows if not row.problems]

    def _baselines(self) -> list[Schedule | errors.ScheduleError | None]:
        """Return each row's baseline, why that is no schedule, or None where the row needs none."""
        flags = [bool(self.against) and not row.problems for row in self.rows]
        baselines = [_baseline(row.schedule) if ask else None for row, ask in zip(self.rows, flags, strict=True)]
        refused = [one for one in baselines if isinstance(one, errors.ScheduleError)]
        # If some rows have a baseline, the others only lack a gain; if none has, ``against`` itself is wrong.
        if refused and len(refused) == sum(flags):
            raise errors.ScheduleError(one_screen([problem for wrong in refused for problem in wrong.problems]))
        return baselines


def _together(schedules: Mapping[str, Schedule]) -> dict[str, Schedule]:
    """The same, ordered so that schedules of one workload and plan are neighbours: they have one program."""
    number: dict[str, int] = {}
    # Rows that differ in prices share the very objects, which are written out once.
    texts: dict[tuple[int, int], str] = {}
    group = {}
    for name, one in schedules.items():
        both = (id(one.workload), id(one.plan))
        if both not in texts:
            texts[both] = repr((one.workload, one.plan))
        group[name] = number.setdefault(texts[both], len(number))
    return dict(sorted(schedules.items(), key=lambda item: group[item[0]]))


def load_sweep(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), sweeps: Sequence[str] = (), *, module: str = ''
) -> Sweep:
    """Read the sweep of a schedule file.

    Arguments:
        overrides: ``a.b=value`` as of `--set`.
        sweeps: ``a.b=1,2,4`` as of `--sweep`, which take the place of the file's.
        module: the graph of a torch module, which is the file's model.
    Raises ``ScheduleError`` with file:line of every unknown key, value, profile or link.
    """
    rows = load_rows(path, overrides, sweeps, module=module)
    _check_clusters(rows)
    return Sweep(keys=tuple(dict.fromkeys(key for row in rows for key in row.settings)), rows=rows)


def _check_clusters(rows: Sequence[Row]) -> None:
    """Profiles and links that do not exist are wrong, not infeasible."""
    problems: list[errors.Problem] = []
    seen: list[tuple[str, Mapping[str, float]]] = []
    for row in rows:
        cluster = row.schedule.cluster
        # Rows mostly share a profile; each is read once.
        if (cluster.profile, cluster.links) in seen:
            continue
        seen.append((cluster.profile, cluster.links))
        try:
            # One node and nothing slow: only profile and links are checked here.
            case.cluster_of(replace(row.schedule, cluster=replace(cluster, nodes=1, devices=0, slow={})))
        except errors.ScheduleError as wrong:
            problems += wrong.problems
    errors.refuse(one_screen(problems))


def _baseline(schedule: Schedule) -> Schedule | errors.ScheduleError | None:
    try:
        return schedule.baseline()
    except errors.ScheduleError as wrong:
        return wrong


def _measured(result: Result, baseline: Schedule | errors.ScheduleError | None, done: Mapping[int, Outcome]) -> Result:
    """A row with its gain over a baseline of its own, as `simpar run` has it."""
    if result.step is None:
        return result
    if baseline is None:
        return replace(result, baseline=result.step, gain=0.0, is_baseline=True)
    if isinstance(baseline, errors.ScheduleError):
        return replace(result, why_no_gain=infeasible(baseline).reason)
    outcome = done[id(baseline)]
    if outcome.figures is None:
        return replace(result, why_no_gain=f'against: {outcome.reason}')
    step = outcome.figures.step
    return replace(result, baseline=step, gain=step / result.step - 1)


def _over(first: Result, result: Result) -> Result:
    """A row with its gain over the first feasible one."""
    if first.step is None or result.step is None:
        return result
    ratio = first.step / result.step
    # Of as many samples; only where they differ, so that the gain is that of `simpar run` to the bit.
    ratio = ratio if first.batch == result.batch else ratio * result.batch / first.batch
    return replace(result, baseline=first.step, gain=ratio - 1, is_baseline=result is first)
