"""Rows predicted by the workers of a Dask scheduler, which also gives away again what a worker had that died."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from simpar import __version__, profiles
from simpar.errors import Problem, ProfileError, RunFailed, ScheduleError
from simpar.schedule import Schedule
from simpar.session import Session
from simpar.sweep import answer, journal
from simpar.sweep.run import Coming, Place

if TYPE_CHECKING:
    from distributed import Client, Future

    from simpar.sweep.run import Note

_TIMEOUT: Final = 5.0
"""Seconds in which a scheduler answers."""
_LONE: Final = 5.0
"""Seconds between two looks which workers there are, and without any row after which there may be none."""
_OFTEN: Final = 0.01
"""Seconds between two looks whether a row has come."""
_BYTES: Final = 4 * 2**20
"""Of schedules sent at once; Dask warns of 10 MiB."""
_RETRIES: Final = 2
"""Times that a row is tried again, e.g. where a shared file system failed, or where worker after worker died."""
_ONE: Final = threading.Lock()


def on_scheduler(schedules: Sequence[Schedule], address: str, note: Note | None) -> Coming:
    """Yield place and outcome of each schedule as they come from the workers of a scheduler.

    A row whose outcome has come is not predicted again, whatever becomes of its worker.
    Raises ``ScheduleError`` where there is no such scheduler, or its workers have another simpar or other files,
    ``RunFailed`` where the scheduler goes away, or a row ends worker after worker.
    """
    _check(address)
    from distributed import Client

    try:
        with _quiet(), Client(address, timeout=_TIMEOUT, set_as_default=False) as client:
            threads: dict[str, int] = client.nthreads()
            _tell_of(threads, address, note)
            for place, outcome in _outcomes(client, schedules, sorted(threads), address, note):
                yield place, _as_here(outcome, schedules[place])
    except OSError:
        raise _gone(address) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Dask logs of lost connections, with tracebacks: what matters of it is told as an error."""
    logger = logging.getLogger('distributed.client')
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _check(address: str) -> None:
    """Raise ``ScheduleError`` where Dask is not there, or no scheduler at the address."""
    try:
        import distributed
    except ModuleNotFoundError:
        instead = 'install the extra: pip install "simpar-parallel[cluster]"'
        raise ScheduleError(Problem('--scheduler', 'Dask is not installed', instead)) from None
    try:
        # A client of its own kind: Dask's waits for ever where something else listens at the address.
        identity = asyncio.run(asyncio.wait_for(_identity(address, distributed), _TIMEOUT))
    # Whatever listens there may answer anything; Dask then fails in any way.
    except Exception as failure:
        why = f' ({str(failure)[:100]})' if isinstance(failure, ValueError) else f' within {_TIMEOUT:g} s'
        raise _no_scheduler(f'no scheduler of Dask answers at {address}{why}') from None
    if identity.get('type') != 'Scheduler':
        raise _no_scheduler(f'{address} is no scheduler of Dask, but a {str(identity.get("type"))[:40]}')


async def _identity(address: str, distributed: Any) -> dict[str, Any]:
    """What the process at an address says that it is."""
    arguments = distributed.Security().get_connection_args('client')
    async with distributed.rpc(address, timeout=_TIMEOUT, connection_args=arguments) as peer:
        identity: dict[str, Any] = await peer.identity()
        return identity


def _no_scheduler(what: str) -> ScheduleError:
    instead = 'write the address that `dask scheduler` tells when it starts, e.g. tcp://host:8786'
    return ScheduleError(Problem('--scheduler', what, instead))


def _tell_of(threads: dict[str, int], address: str, note: Note | None) -> None:
    if note is None:
        return
    if not threads:
        note(_no_workers(address, 'yet'))
    if any(count > 1 for count in threads.values()):
        note('a worker predicts one row at a time, whatever its threads; start them with --nworkers -1 --nthreads 1')


def _no_workers(address: str, when: str) -> str:
    start = f'dask worker {address} --nworkers -1 --nthreads 1'
    return f'{address} has no workers {when}; rows wait for some ({start})'


@dataclass(slots=True)
class _Workers:
    """The workers of a scheduler; those that go are named. Arguments: ``known``, at the last look, at ``looked``."""

    client: Client
    address: str
    note: Note | None
    known: set[str]
    looked: float = field(default_factory=monotonic)

    def look(self) -> bool:
        """Whether there are any now."""
        now = set(self.client.sync(self.client.scheduler.ncores))
        if self.note:
            for worker in sorted(self.known - now):
                self.note(f'worker {worker} of {self.address} is gone; what it had goes to others')
        self.known, self.looked = now, monotonic()
        return bool(now)

    def comes(self, coming: Any) -> bool:
        """Wait for a row; whether one comes, and not all workers have gone: Dask would wait in silence."""
        waits = monotonic()
        while not coming.has_ready():
            sleep(_OFTEN)
            if monotonic() - waits > _LONE:
                if not self.look():
                    return False
                waits = monotonic()
        if monotonic() - self.looked > _LONE:
            self.look()
        return True


def _outcomes(
    client: Client, schedules: Sequence[Schedule], workers: Sequence[str], address: str, note: Note | None
) -> Coming:
    from distributed import as_completed

    # A name of this run's own, since schedulers keep results by name; of equal length, since they order by name.
    run = uuid4().hex
    places = {f'simpar-{run}-{place:06}': place for place in range(len(schedules))}
    coming = as_completed(_submitted(client, schedules, [*places]), loop=client.loop)
    tries = dict.fromkeys(places, _RETRIES)
    is_noted, those = not workers, _Workers(client, address, note, set(workers))
    while not coming.is_empty():
        if not those.comes(coming):
            if note and not is_noted:
                note(_no_workers(address, 'any more'))
            is_noted = True
            continue
        is_noted = False
        # No future of a finished row is held here: Dask would predict it again when the worker that has it dies.
        for name, result in _gathered(client, coming.next_batch(), coming, tries):
            if not isinstance(result, answer.Outcome):
                raise _failure(result, places[name], address)
            yield places[name], result
    # All rows are here, so that a scheduler that ends now takes nothing along.
    with suppress(OSError):
        those.look()


def _gathered(client: Client, batch: list[Future[Any]], coming: Any, tries: dict[str, int]) -> list[tuple[str, Any]]:
    """Names and results of futures, or why they have none; what a worker's death ended is tried again.

    Arguments: ``tries``, how often that still is done, by name.
    """
    finished = [future for future in batch if future.status == 'finished']
    outcomes = list(zip([future.key for future in finished], _results(client, finished), strict=True))
    for future in batch:
        error = future.exception() if future.status == 'error' else None
        # Dask gives a row up when four workers died that had it, also if it only waited there.
        if _worker_died(error) and tries[future.key]:
            tries[future.key] -= 1
            future.retry()
            coming.add(future)
        elif future not in finished:
            outcomes.append((future.key, error))
    return outcomes


def _results(client: Client, finished: list[Future[Any]]) -> list[Any]:
    from distributed import CancelledError

    try:
        outcomes: list[Any] = client.gather(finished) if finished else []
    # What a client says of a scheduler that closed between two messages.
    except (CancelledError, RuntimeError) as gone:
        raise ConnectionError(str(gone)) from None
    return outcomes


def _submitted(client: Client, schedules: Sequence[Schedule], names: list[str]) -> list[Future[Any]]:
    """Submit every row, to any worker."""
    # Schedulers unpickle what they give away and need no simpar for it: a row comes as bytes, which are unpickled on a
    # worker. That calls ``_row``.
    session, source = Session(journal.FILES), journal.source_content()
    sent = [pickle.dumps(_Row(_anywhere(one), journal.read_content(one, session), source)) for one in schedules]
    batch = max(2, _BYTES // max(map(len, sent)))
    futures: list[Future[Any]] = client.map(
        pickle.loads, sent, key=names, retries=_RETRIES, pure=False, batch_size=batch
    )
    return futures


@dataclass(frozen=True, slots=True)
class _Row:
    """A call of ``_row`` as an object; see there."""

    schedule: Schedule
    content: str
    source: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _row, (self.schedule, self.content, self.source)


def _row(schedule: Schedule, content: str, source: str) -> answer.Outcome | str:
    """On a worker: the outcome of a schedule, or what of the worker is not as where the sweep was started.

    Arguments: ``content`` and ``source``, the digests of ``read_content`` and ``source_content`` there.
    """
    # Threads of one process would not run side by side in Python, and would share what a row works out.
    with _ONE:
        if journal.source_content() != source:
            return f'have another simpar than here ({__version__}); install the same on both'
        if journal.read_content(schedule) != content:
            return f'read another {schedule.cluster.profile} than here; give both the same files at the same path'
        return answer.predicted(schedule)


def _anywhere(schedule: Schedule) -> Schedule:
    """The schedule with paths that do not depend on the folder where a process was started."""
    cluster = schedule.cluster
    with suppress(ProfileError):
        if not profiles.profile_path(cluster.profile).is_relative_to(profiles.profile_folder()):
            cluster = replace(cluster, profile=str(Path(cluster.profile).absolute()))
    return replace(schedule, cluster=cluster, folder=schedule.folder.absolute())


def _as_here(outcome: answer.Outcome, schedule: Schedule) -> answer.Outcome:
    """The outcome with paths in its messages as the user wrote them."""
    if schedule.folder.is_absolute():
        return outcome
    here = f'{Path.cwd()}/'
    return replace(outcome, reason=outcome.reason.replace(here, ''), detail=outcome.detail.replace(here, ''))


def _worker_died(error: BaseException | None) -> bool:
    from distributed.scheduler import KilledWorker

    return isinstance(error, KilledWorker)


def _failure(result: str | BaseException | None, place: Place, address: str) -> BaseException:
    """What a row failed of. Arguments: ``result``, what the worker said, or its error; None without a scheduler."""
    if result is None:
        return _gone(address)
    if isinstance(result, str):
        return ScheduleError(Problem('--scheduler', f'workers of {address} {result}'))
    if _worker_died(result):
        return RunFailed(f'the workers at {address} that predict row {place + 1} die; look into their logs')
    if isinstance(result, ModuleNotFoundError):
        return ScheduleError(Problem('--scheduler', f'workers of {address} lack {result.name}', 'install simpar there'))
    return result


def _gone(address: str) -> RunFailed:
    return RunFailed(f'the scheduler at {address} is gone')
