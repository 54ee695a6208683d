"""Ranks that also say how much CPU time every op took: own ones, or those that a launcher has started.

On a machine that is shared, wall time alone misleads.
"""

from __future__ import annotations

import datetime
import io
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, Union

import numpy as np
import torch
import torch.distributed as dist

from executor import host, state
from executor.bench.items import matmul, program_of
from executor.cluster import Launch, external, meeting
from executor.ranks import pool, watchdog
from executor.state import Compute, Outcome, Request
from simpar.cost.costs import Costs
from simpar.errors import RunFailed, refusal
from simpar.files import read_regular, write_atomically
from simpar.hardware.net import Net
from simpar.program import Program, text
from simpar.trace import Times, Trace


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """A run: its trace, and seconds of CPU time while each op ran, shape [ranks, steps, slots].

    Arguments:
        thread_RKS: CPU seconds of the op's own thread.
        process_RKS: CPU seconds of the whole process, in which gloo's threads do the work of communication.
    """

    trace: Trace
    thread_RKS: Times
    process_RKS: Times


Timer: TypeAlias = Union['TimedPool', 'LaunchedPool', 'Journal']
"""Ranks that run a program and say how long its ops took: own ones, or those that a launcher has started."""


def timed(trace: Trace, ranks: Sequence[Outcome], *, threads: bool) -> Timed:
    """A run of some ranks. Without threads events of devices tell all there is: no processor is shared with others."""
    # Ranks that stand by have fewer slots than others: what they have none of took no time.
    clocks = np.zeros((2, trace.program.world, trace.steps, max(map(len, trace.program.roles))))
    for one, seen in enumerate(ranks):
        times = trace.times_of(one)
        seconds = seen.cpu[2:] - seen.cpu[:2] if threads else times.end_KS - times.start_KS
        clocks[:, one, :, : seconds.shape[-1]] = seconds
    return Timed(trace, *clocks)


class TimedPool(pool.Pool):
    """A pool of ranks with one thread for computation each.

    Arguments: ``request``, device, transport, dtype and scheduling; others as of ``Pool``.
    """

    def __init__(self, world: int, request: Request | None = None, **more: Any) -> None:
        self._request = request or Request()
        super().__init__(world, **more)

    def timed(self, program: Program, steps: int, costs: Costs | None = None, issue: str = 'eager') -> Timed:
        """Run a program for some steps, back to back.

        Arguments: ``costs``, for emulated compute; None: compute is real. ``issue``, as of ``Request``.
        """
        compute: Compute = 'real' if costs is None else 'emulated'
        request = replace(self._request, compute=compute, costs=costs, steps=steps, issue=issue, clocks=True)
        ranks: list[Outcome] = []
        trace = self.perform(program, request, lambda _, outcomes: ranks.extend(outcomes)).trace
        return timed(trace, ranks, threads=request.threads)


# A bench on ranks that a launcher has started, on any number of hosts: rank 0 says what runs, all others follow.

TINY: Final = 8
"""Sizes of the product that stands for a program before there is one."""
LATER: Final = 2.0
"""Seconds in which others may say by themselves why a run broke."""


class LaunchedPool(external.External):
    """Rank 0's end of a bench, and that of every other rank.

    Arguments:
        wanted: what must be equal on all ranks, see ``shake_hands``.
        machine: the kind of this one; where they differ, a note says so.
        request: device, transport, dtype and scheduling.
        timeout: seconds without progress after which a run has failed.
        meet: seconds in which all ranks must come.
    Raises ``RunFailed`` that names who did not come, or which hosts have unlike numbers of ranks.
    """

    def __init__(
        self,
        launch: Launch,
        wanted: Mapping[str, str],
        request: Request,
        net: Net,
        timeout: float,
        meet: float,
        machine: str = '',
    ) -> None:
        host.sharpen_sleep()
        if request.threads:
            torch.set_num_threads(1)
        self._meeting = launch
        nothing = program_of([matmul(TINY, TINY, TINY, 'F')], launch.world)
        with external.errors_of(launch):
            super().__init__(launch, nothing, timeout, wanted, meet)
        self.net = net
        self.world = launch.world
        self._request = request
        places = meeting.places_of(self._cards, [(rank,) for rank in range(self.world)])
        self.per_host = _per_host(places)
        self.hosts = len(places)
        self._place(places)
        self._notes += self._unlike(machine)
        self._jobs = 0
        self._stack = ExitStack()

    def _place(self, places: list[meeting.Place]) -> None:
        """Keep to a core, where this host has enough; know which of its devices is this rank's."""
        mine = next(place for place in places if self._rank in place.ranks)
        self.cores = mine.host.cores
        local = mine.ranks.index(self._rank)
        os.environ.setdefault('LOCAL_RANK', str(local))
        os.environ.setdefault('LOCAL_WORLD_SIZE', str(len(mine.ranks)))
        if self._request.threads and len(mine.ranks) <= mine.host.cores:
            host.pin(local)

    def _unlike(self, machine: str) -> tuple[str, ...]:
        """A note where ranks are on machines of several kinds, whose times a row mixes."""
        self._base.set(f'simpar/machine/{self._rank}', machine)
        machines = dict.fromkeys(self._base.get(f'simpar/machine/{rank}').decode() for rank in range(self.world))
        return (f'hosts are unlike, and rows mix them: {"; ".join(machines)}',) if len(machines) > 1 else ()

    def __enter__(self) -> LaunchedPool:
        again = replace(self._meeting, served=True)

        def connect() -> watchdog.Store:
            return dist.PrefixStore('bench', external.store_of(again))

        # One for the whole bench: between two runs, too, nobody waits for a host that is lost.
        hosts = [card.host.name for card in self._cards]
        self._stack.enter_context(watchdog.Pulse(connect, self._rank, hosts, 'over', when=''))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(RuntimeError):
            reason = '' if error is None else (str(error).splitlines() or [type(error).__name__])[0]
            if self._rank == 0:
                self._say({'stop': reason})
            if reason:
                # Most know why by themselves by then; those that wait for this rank are told by their pulse.
                time.sleep(LATER)
                self._base.set('bench/simpar/lost', f'rank {self._rank} stopped: {reason}')
            else:
                self._base.set(f'bench/simpar/over/{self._rank}', b'1')
                if self._rank == 0 and not self._meeting.served:
                    # The store goes with this rank, and a rank that is not over yet would take it for lost.
                    overs = [f'bench/simpar/over/{rank}' for rank in range(self.world)]
                    self._base.wait(overs, datetime.timedelta(seconds=external.UNANSWERED))
        self._stack.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the times must know."""
        return self._notes

    # rank 0

    def timed(self, program: Program, steps: int, costs: Costs | None = None, issue: str = 'eager') -> Timed:
        """Run a program on all ranks for some steps, back to back; see ``Timer``."""
        assert costs is None
        self._say({'program': text.format_program(program), 'steps': steps, 'issue': issue})
        ranks: list[Outcome] = []
        trace = self._turn(program, steps, issue, lambda _, outcomes: ranks.extend(outcomes))
        return timed(trace, ranks, threads=self._request.threads)

    def _say(self, job: dict[str, Any]) -> None:
        self._base.set(f'simpar/job/{self._jobs}', zlib.compress(json.dumps(job).encode()))
        self._jobs += 1

    # all others

    def follow(self) -> None:
        """Run what rank 0 says until it says stop. Raises ``RunFailed`` with its reason, where it has failed."""
        while True:
            key = f'simpar/job/{self._jobs}'
            self._store = self._base
            self._await([key])
            job = json.loads(zlib.decompress(self._base.get(key)))
            self._jobs += 1
            if 'stop' in job:
                if job['stop']:
                    raise RunFailed(f'rank 0 stopped: {job["stop"]}')
                return
            self._turn(text.parse_program(job['program']), job['steps'], job['issue'], None)

    # all

    def _turn(self, program: Program, steps: int, issue: str, finish: Any) -> Any:
        self._program = program
        with external.errors_of(self._meeting):
            request = replace(self._request, steps=steps, issue=issue, clocks=True)
            execution = self.run(request, self.net, finish)
        return execution.trace if execution else None

    def _part(self) -> None:
        super()._part()
        # A bench has hundreds of runs, and the store keeps all that it is told.
        for one in range(self.world if self._rank == 0 else 0):
            self._store.delete_key(f'simpar/outcome/{one}')

    def _pulse(self, done: str) -> Any:
        del done
        return nullcontext()


def _per_host(places: list[meeting.Place]) -> int:
    """Ranks of a host. Raises ``RunFailed`` where hosts have unlike numbers of them, or ranks lie scattered."""
    counts = {len(place.ranks) for place in places}
    if len(counts) > 1:
        numbers = ', '.join(f'{len(place.ranks)} on {place}' for place in places)
        raise RunFailed(f'hosts have unlike numbers of ranks ({numbers}); a profile has as many on each: start as many')
    (per_host,) = counts
    for place in places:
        first = place.ranks[0]
        if place.ranks != tuple(range(first, first + per_host)):
            raise RunFailed(f'{place} are not neighbours; number the ranks host by host (mpirun --map-by ppr:N:node)')
    return per_host


# The journal of a bench: every finished run in a file of its own, so that a bench that broke goes on where it was.

HEAD: Final = 'bench.json'
MOST: Final = 2**32
"""Bytes of a run, at most."""


class Journal:
    """Ranks whose runs are kept in a folder.

    Arguments:
        of: topic → what the bench is, in words: runs of another bench are of no use.
    Raises ``ScheduleError`` where the folder holds another bench, or cannot be written.
    """

    world: int
    net: Net

    def __init__(self, folder: Path, of: Mapping[str, str]) -> None:
        self.folder = folder
        self._timer: Timer | None = None
        self._next = 0
        head = folder / HEAD
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if head.exists():
                _require_same(folder, json.loads(read_regular(head, MOST)), of)
            # Also where it is there already: what cannot be written now cannot be written later.
            write_atomically(head, json.dumps(dict(of)) + '\n')
        except OSError as error:
            what = f'cannot be written: {error.strerror or error}'
            raise refusal(folder, what, 'name a folder by --journal DIR') from error
        except (ValueError, TypeError, RecursionError) as error:
            raise refusal(head, 'is no head of a journal', 'delete the folder') from error
        self.kept = _run_count(folder)
        """Runs that are there already."""

    def over(self, timer: Timer) -> Journal:
        """Have these ranks run what is not there yet."""
        self._timer, self._next = timer, 0
        self.world, self.net = timer.world, timer.net
        return self

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the times must know."""
        again = (f'the first {self.kept} runs are of an earlier start, which broke off',) if self.kept else ()
        return (*self._timer.notes, *again) if self._timer else again

    def timed(self, program: Program, steps: int, costs: Costs | None = None, issue: str = 'eager') -> Timed:
        """The run, from the journal where it is there; else made now, and kept."""
        path = _path(self.folder, self._next)
        what = f'{program.hash} {steps} {issue}'
        if self._next < self.kept:
            past_run = _read(path, program, what)
            if past_run is not None:
                self._next += 1
                return past_run
            # Times before it decided otherwise this time, or the file is not whole: from here on all is measured anew.
            self.kept = self._next
        assert self._timer is not None
        run = self._timer.timed(program, steps, costs, issue)
        write_atomically(path, _written(run, what))
        self._next += 1
        return run

    def remove(self) -> None:
        """The bench is over, and its record written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def leave(self) -> None:
        """The bench broke: keep what there is; of nothing at all, nothing stays."""
        if not _run_count(self.folder):
            self.remove()


def _require_same(folder: Path, journal: Mapping[str, str], of: Mapping[str, str]) -> None:
    topics = [topic for topic in {**journal, **of} if journal.get(topic) != of.get(topic)]
    if topics:
        apart = ', '.join(f'{topic} ({journal.get(topic, "none")}, now {of.get(topic, "none")})' for topic in topics)
        what = f'holds the runs of another bench: {apart}'
        raise refusal(folder, what, 'delete the folder, or give the flags of then')


def _path(folder: Path, number: int) -> Path:
    return folder / f'{number:05}.npz'


def _run_count(folder: Path) -> int:
    number = 0
    while _path(folder, number).exists():
        number += 1
    return number


def _written(run: Timed, what: str) -> bytes:
    arrays: dict[str, Any] = {'what': np.array(what), 'thread': run.thread_RKS, 'process': run.process_RKS}
    for rank in range(run.trace.program.world):
        times = run.trace.times_of(rank)
        arrays |= {f'arrive{rank}': times.arrive_KS, f'end{rank}': times.end_KS}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _read(path: Path, program: Program, what: str) -> Timed | None:
    """A run; None where the file is not whole, or is of something else."""
    try:
        with np.load(io.BytesIO(read_regular(path, MOST)), allow_pickle=False) as archive:
            if str(archive['what']) != what:
                return None
            take: Callable[[str, int], Any] = lambda name, rank: archive[f'{name}{rank}']  # noqa: E731
            outcomes = [Outcome(take('arrive', rank), take('end', rank)) for rank in range(program.world)]
            return Timed(state.assemble_run(program, outcomes, 'real').trace, archive['thread'], archive['process'])
    # Numpy reads the head of an array as Python: what is not whole fails in any way.
    except Exception:
        return None
