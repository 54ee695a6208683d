"""A bench on ranks that a launcher has started, on any number of hosts: rank 0 says what runs, all others follow."""

from __future__ import annotations

import json
import os
import tempfile
import time
import zlib
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from executor.allocator import keep_memory
from executor.bench.compute import matmul
from executor.bench.item import program_of
from executor.bench.ranks import Timed, cpu_times, on_clock, use_timed_machines, with_cpu
from executor.clock import sharpen_sleep
from executor.external import External, of_rank
from executor.handshake import Store
from executor.launch import Launch
from executor.preflight import Place, places_of
from executor.pulse import Pulse
from executor.rank import Outcome, Request
from executor.scheduling import pin
from executor.store import store_of
from simpar.cost.costs import Costs
from simpar.errors import RunFailed
from simpar.hardware.net import Net
from simpar.janitor import remove_at_the_end
from simpar.program import Program
from simpar.program.text import format_program, parse_program
from simpar.trace import Times

TINY: Final = 8
"""Sizes of the product that stands for a program before there is one."""
LATER: Final = 2.0
"""Seconds in which others may say by themselves why a run broke."""
LEFT: Final = ('outcome', 'cpu')
"""Keys of each rank that rank 0 deletes behind every run, for they are large."""


class LaunchedPool(External):
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
        sharpen_sleep()
        if request.threads:
            torch.set_num_threads(1)
        self._meeting = launch
        nothing = program_of([matmul(TINY, TINY, TINY, 'F')], launch.world)
        try:
            super().__init__(launch, nothing, timeout, wanted, meet)
        except RuntimeError as error:
            raise of_rank(launch, error) from error
        self.net = net
        self.world = launch.world
        self._request = request
        places = places_of(self._cards, [(rank,) for rank in range(self.world)])
        self.per_host = _per_host(places)
        self.hosts = len(places)
        self._folder = Path(tempfile.mkdtemp(prefix='simpar-'))
        remove_at_the_end(self._folder)
        use_timed_machines(self._folder, self._rank)
        self._place(places)
        self._notes += self._unlike(machine)
        self._jobs = 0
        self._stack = ExitStack()

    def _place(self, places: list[Place]) -> None:
        """Keep to a core, where this host has enough; know which of its devices is this rank's."""
        mine = next(place for place in places if self._rank in place.ranks)
        self.cores = mine.host.cores
        local = mine.ranks.index(self._rank)
        os.environ.setdefault('LOCAL_RANK', str(local))
        os.environ.setdefault('LOCAL_WORLD_SIZE', str(len(mine.ranks)))
        if self._request.threads and len(mine.ranks) <= mine.host.cores:
            pin(local)
        keep_memory()

    def _unlike(self, machine: str) -> tuple[str, ...]:
        """A note where ranks are on machines of several kinds, whose times a row mixes."""
        self._base.set(f'simpar/machine/{self._rank}', machine)
        found = dict.fromkeys(self._base.get(f'simpar/machine/{rank}').decode() for rank in range(self.world))
        return (f'hosts are unlike, and rows mix them: {"; ".join(found)}',) if len(found) > 1 else ()

    def __enter__(self) -> LaunchedPool:
        again = replace(self._meeting, served=True)

        def connect() -> Store:
            return dist.PrefixStore('bench', store_of(again))

        # One for the whole bench: between two runs, too, nobody waits for a host that is lost.
        self._stack.enter_context(Pulse(connect, self._rank, self._cards, 'over', when=''))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(RuntimeError):
            told = '' if kind is None else (str(error).splitlines() or [kind.__name__])[0]
            if self._rank == 0:
                self._say({'stop': told})
            if told:
                # Most know why by themselves by then; those that wait for this rank are told by their pulse.
                time.sleep(LATER)
                self._base.set('bench/simpar/lost', f'rank {self._rank} stopped: {told}')
            else:
                self._base.set(f'bench/simpar/over/{self._rank}', b'1')
        self._stack.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the times must know."""
        return self._notes

    # rank 0

    def timed(self, program: Program, steps: int, costs: Costs | None = None, issue: str = 'eager') -> Timed:
        """Run a program on all ranks for some steps, back to back; see ``Timer``."""
        assert costs is None
        self._say({'program': format_program(program), 'steps': steps, 'issue': issue})
        found: list[Times] = []

        def read(execution: object, outcomes: object) -> None:
            del execution, outcomes
            if self._request.threads:
                found.extend(self._cpu_of(program, one, steps) for one in range(self.world))

        trace = self._turn(program, steps, issue, read)
        return with_cpu(trace, found) if self._request.threads else on_clock(trace)

    def _say(self, job: dict[str, Any]) -> None:
        self._base.set(f'simpar/job/{self._jobs}', zlib.compress(json.dumps(job).encode()))
        self._jobs += 1

    def _cpu_of(self, program: Program, one: int, steps: int) -> Times:
        told = np.frombuffer(self._store.get(f'simpar/cpu/{one}'))
        return told.reshape(2, -1, max(len(program.role(one)), 1)) if len(told) else np.zeros((2, steps, 0))

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
            self._turn(parse_program(job['program']), job['steps'], job['issue'], None)

    # all

    def _turn(self, program: Program, steps: int, issue: str, finish: Any) -> Any:
        self._program = program
        try:
            execution = self.run(replace(self._request, steps=steps, issue=issue), self.net, finish)
        except RuntimeError as error:
            raise of_rank(self._meeting, error) from error
        return execution.trace if execution else None

    def _finish(self, outcome: Outcome, request: Request, finish: Any) -> Any:
        if request.threads:
            # Before the outcome: who reads that finds this, too.
            self._store.set(f'simpar/cpu/{self._rank}', cpu_times(self._folder, self._rank, self._program).tobytes())
        return super()._finish(outcome, request, finish)

    def _part(self) -> None:
        super()._part()
        # A bench has hundreds of runs, and the store keeps all that it is told.
        for rank in range(self.world if self._rank == 0 else 0):
            for key in LEFT:
                self._store.delete_key(f'simpar/{key}/{rank}')

    def _pulse(self, done: str) -> Any:
        del done
        return nullcontext()


def _per_host(places: list[Place]) -> int:
    """Ranks of a host. Raises ``RunFailed`` where hosts have unlike numbers of them, or ranks lie scattered."""
    counts = {len(place.ranks) for place in places}
    if len(counts) > 1:
        told = ', '.join(f'{len(place.ranks)} on {place}' for place in places)
        raise RunFailed(f'hosts have unlike numbers of ranks ({told}); a profile has as many on each: start as many')
    (per_host,) = counts
    for place in places:
        first = place.ranks[0]
        if place.ranks != tuple(range(first, first + per_host)):
            raise RunFailed(f'{place} are not neighbours; number the ranks host by host (mpirun --map-by ppr:N:node)')
    return per_host
