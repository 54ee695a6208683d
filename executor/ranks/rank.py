"""One rank: its store, its process groups (kept from program to program), and the runs of programs on it."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast

import torch
import torch.distributed as dist

from executor import host, validate
from executor.checkpoint import write_rank
from executor.devices import KINDS, issue
from executor.devices.open import open_device
from executor.ranks.collectives import LATE, Channel, Link
from executor.ranks.emulated import EmulatedMachine
from executor.ranks.real import Computation, Groups, RealMachine, Start, device_transports
from executor.ranks.streams import Streams, set_queues
from executor.ranks.watchdog import Status
from executor.state import INIT_TIMEOUT, Outcome, Request, Stretch
from simpar.cost.costs import Costs
from simpar.hardware.net import Net
from simpar.program import Program

SLACK: Final = 5.0
"""Seconds that gloo waits longer than the watchdog, which knows more."""
MOST_LATE: Final = 0.01
"""Share of the messages of a paced link that the machine may be too slow for, without a word."""
TOO_SLOW: Final = 'the machine was too busy'
"""How a note begins that says so."""


Watched: TypeAlias = Streams | issue.DeviceRun
"""A run that somebody watches."""
Prepared = tuple[tuple[str, ...], Computation | None, Watched]
"""Notes, what computes for real, and the run."""


@dataclass(frozen=True, slots=True)
class Machines:
    """What makes the machines of a rank whose streams are threads."""

    real: Callable[..., RealMachine] = RealMachine
    emulated: Callable[..., EmulatedMachine] = EmulatedMachine


@dataclass(eq=False)
class Rank:
    """One rank of a world.

    Arguments:
        store: the store that all ranks share.
        timeout: seconds after which a message that does not come has failed.
        status: learns what every stream does.
        machines: what runs the ops of streams that are threads.
        started: its launcher's number of it, where that is another; devices of a host are counted by it.
    """

    rank: int
    world: int
    store: dist.Store
    net: Net
    status: Status
    timeout: float
    clock: host.Clock
    machines: Machines
    started: int | None = None

    def __post_init__(self) -> None:
        # Longer than the watchdog's, which names rank and op, while gloo says only that time is up.
        self._timeout = datetime.timedelta(seconds=self.timeout + SLACK)
        self._link = Link(self.clock, self.net.rate, self.net.latency) if self.net.kind == 'paced' else None
        self._groups: dict[tuple[tuple[int, ...], int, str], dist.ProcessGroup] = {}
        self._channels: dict[str, dict[tuple[str, str], Channel]] = {}
        self._communicators: Groups = {}
        self._held: dict[str, torch.Tensor] | None = None
        self._local = int(os.environ.get('LOCAL_RANK', self.rank if self.started is None else self.started))

    def load(self, program: Program) -> None:
        """Open the channels that a program needs; all ranks must have the same program."""
        if program.hash in self._channels:
            return
        if not dist.is_initialized():
            dist.init_process_group(
                'gloo',
                store=dist.PrefixStore('simpar', self.store),
                rank=self.rank,
                world_size=self.world,
                timeout=datetime.timedelta(seconds=INIT_TIMEOUT),
            )
        self._channels[program.hash] = self._open(program)

    def _open(self, program: Program) -> dict[tuple[str, str], Channel]:
        """A pair of process groups for each communicator; all ranks make all groups, in the same order."""
        channels = {}
        used: dict[tuple[int, ...], int] = {}
        # torch demands that all ranks of the world create all groups, in one order, members or not.
        for partition, stream, members in validate.groups(program):
            # Two communicators of the same ranks must not share a group: gloo would mix their messages.
            ordinal = used[members] = used.get(members, -1) + 1
            upward, downward = (self._group(members, ordinal, way) for way in ('up', 'down'))
            if self.rank in members:
                channels[partition, stream] = Channel(members, self.rank, upward, downward, self.clock)
        return channels

    def _group(self, members: tuple[int, ...], ordinal: int, way: str) -> dist.ProcessGroup:
        key = (members, ordinal, way)
        if key not in self._groups:
            self._groups[key] = dist.new_group(list(members), timeout=self._timeout)
        return self._groups[key]

    def run(
        self, program: Program, request: Request, agree: Callable[[], float], watch: Callable[[Watched], None]
    ) -> Outcome:
        """Run a loaded program.

        Arguments:
            agree: called when this rank is ready; it returns the moment at which all begin.
            watch: returns when all streams are through, and raises otherwise.
        """
        channels = self._channels[program.hash]
        for channel in channels.values():
            channel.paced = channel.late = 0
        # Where nothing is computed, there is nothing that communication could go before.
        favour = request.favour and request.compute == 'real'
        # Only while data are read: that is when the executor's modules have something to say.
        with _Log() as log:
            if request.threads:
                notes, computation, job = self._in_threads(program, request, favour=favour)
            else:
                notes, computation, job = self._on_device(program, request)
        # Real computation must not come before all else; where messages are favoured, its threads make themselves nice.
        with host.urgently() if favour or request.compute == 'emulated' else nullcontext():
            begin = agree()
            job.begin(begin)
            # All ranks begin at one moment, so that traces have one zero.
            self.clock.sleep_until(begin)
            job.start(begin)
            watch(job)
        keep = computation if request.keep else None
        return Outcome(
            arrive_KS=job.arrive_KS - begin,
            end_KS=job.end_KS - begin,
            notes=(*notes, *log.lines, *_too_slow(self.rank, channels.values())),
            losses=[computation.losses[step] for step in range(request.steps)] if computation else [],
            parameters=keep.parameters() if keep else {},
            gradients=keep.gradients if keep else {},
            written=self._leave(computation, program, request.stretch),
            cpu=job.cpu,
        )

    def _leave(self, computation: Computation | None, program: Program, stretch: Stretch | None) -> str:
        """Keep what the next stretch begins with, and write a checkpoint of it, if one is due."""
        if stretch is None or computation is None:
            return ''
        self._held = {name: tensor.cpu() for name, tensor in computation.memory.held.items()}
        return write_rank(Path(stretch.save), program, self.rank, self._held) if stretch.save else ''

    def _in_threads(self, program: Program, request: Request, *, favour: bool) -> Prepared:
        """A thread for each stream."""
        machine: EmulatedMachine | RealMachine
        if request.compute == 'real':
            start = Start.of(program, self.rank, request, self._held)
            machine = self.machines.real(start, self.clock, self._link, keep=request.keep, to_host=request.to_host)
        else:
            costs = cast('Costs', request.costs)
            machine = self.machines.emulated(program, costs, self.rank, self.clock, self._link)
        streams = Streams(
            program, self.rank, request.steps, machine, self._channels[program.hash], self.status,
            favour=favour, queues=request.queues, clocks=request.clocks,
        )  # fmt: skip
        return (), machine if isinstance(machine, RealMachine) else None, streams

    def _on_device(self, program: Program, request: Request) -> Prepared:
        """An accelerator, whose streams take the place of threads."""
        # Before anything else is asked of the driver.
        streams = len(program.role(self.rank).streams)
        notes = set_queues(KINDS[request.device], request.queues, streams)
        device = open_device(request.device, self._local)
        channels, groups = self._channels[program.hash], self._communicators
        transports = device_transports(program, self.rank, device, channels, request, self._timeout, groups)
        start = Start.of(program, self.rank, request, self._held)
        issuer = issue.ISSUERS[request.issue](start, device, transports)
        return notes, issuer.computation, issue.DeviceRun(issuer, self.status, self.clock.now)


def _too_slow(rank: int, channels: Iterable[Channel]) -> list[str]:
    """Say so where the machine, and not the link that it stands for, was the limit of more than a few messages."""
    met = [(channel.paced, channel.late) for channel in channels]
    paced, late = sum(paced for paced, _ in met), sum(late for _, late in met)
    if late <= MOST_LATE * paced:
        return []
    came = f'on rank {rank} data of {late} of {paced} messages came more than {LATE * 1e3:g} ms after the link'
    return [f'{TOO_SLOW}: {came} would have let them through, and real time counts there']


class _Log(logging.Handler):
    """Collects what the executor's modules have to say while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._logger = logging.getLogger('executor')

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> _Log:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._logger.removeHandler(self)
