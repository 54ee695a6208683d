"""One rank: its store, its process groups (kept from program to program), and the runs of programs on it."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Final, Protocol, cast

import torch
import torch.distributed as dist

from executor.checkpoint import contents_of, read_rank, write_rank
from executor.devices.kinds import KINDS
from executor.draws import fed
from executor.host import Clock, keep_memory, urgently
from executor.ranks.collectives import LATE, Channel
from executor.ranks.emulated import EmulatedMachine
from executor.ranks.link import Link
from executor.ranks.memory import Memory
from executor.ranks.real import RealMachine
from executor.ranks.request import INIT_TIMEOUT, Outcome, Request, Stretch
from executor.ranks.streams import Streams, set_queues
from executor.ranks.watchdog import Failure, Status
from executor.tensors import TORCH
from executor.validate import communicators
from simpar.cost.costs import Costs
from simpar.hardware.net import Net
from simpar.program import Program

SLACK: Final = 5.0
"""Seconds that gloo waits longer than the watchdog, which knows more."""
MOST_LATE: Final = 0.01
"""Share of the messages of a paced link that the machine may be too slow for, without a word."""
TOO_SLOW: Final = 'the machine was too busy'
"""How a note begins that says so."""


class Watched(Protocol):
    """A run that somebody watches."""

    failures: list[Failure]

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; return whether all is through or something has failed."""


class Rank:
    """One rank of a world.

    Arguments:
        store: the store that all ranks share.
        timeout: seconds after which a message that does not come has failed.
        status: learns what every stream does.
    """

    def __init__(
        self, rank: int, world: int, store: dist.Store, net: Net, status: Status, timeout: float, clock: Clock
    ) -> None:
        self.rank = rank
        self.world = world
        self.status = status
        self._store = store
        self._clock = clock
        # Before the threads of streams and of gloo start.
        keep_memory()
        # Longer than the watchdog's, which names rank and op, while gloo says only that time is up.
        self._timeout = datetime.timedelta(seconds=timeout + SLACK)
        self._link = Link(clock, net.rate, net.latency) if net.kind == 'paced' else None
        self._groups: dict[tuple[tuple[int, ...], int, str], dist.ProcessGroup] = {}
        self._channels: dict[str, dict[tuple[str, str], Channel]] = {}
        self._held: dict[str, torch.Tensor] | None = None
        self.local = int(os.environ.get('LOCAL_RANK', rank))

    def load(self, program: Program) -> None:
        """Open the channels that a program needs; all ranks must have the same program."""
        if program.hash in self._channels:
            return
        if not dist.is_initialized():
            dist.init_process_group(
                'gloo',
                store=dist.PrefixStore('simpar', self._store),
                rank=self.rank,
                world_size=self.world,
                timeout=datetime.timedelta(seconds=INIT_TIMEOUT),
            )
        self._channels[program.hash] = self._open(program)

    def _open(self, program: Program) -> dict[tuple[str, str], Channel]:
        """A pair of process groups for each communicator; all ranks make all groups, in the same order."""
        channels = {}
        used: dict[tuple[int, ...], int] = {}
        for partition, stream in communicators(program):
            # torch demands that all ranks of the world create all groups, in one order, members or not.
            for members in map(tuple, partition.groups_GP.tolist()):
                if len(members) == 1:
                    continue
                # Two communicators of the same ranks must not share a group: gloo would mix their messages.
                ordinal = used[members] = used.get(members, -1) + 1
                upward, downward = (self._group(members, ordinal, way) for way in ('up', 'down'))
                if self.rank in members:
                    channels[partition.name, stream] = Channel(members, self.rank, upward, downward, self._clock)
        return channels

    def _group(self, members: tuple[int, ...], ordinal: int, way: str) -> dist.ProcessGroup:
        key = (members, ordinal, way)
        if key not in self._groups:
            self._groups[key] = dist.new_group(list(members), timeout=self._timeout)
        return self._groups[key]

    def run(
        self,
        program: Program,
        request: Request,
        agree: Callable[[], float],
        watch: Callable[[Watched], None],
    ) -> Outcome:
        """Run a loaded program.

        Arguments:
            agree: called when this rank is ready; it returns the moment at which all begin.
            watch: returns when all streams are through, and raises otherwise.
        """
        stretch = request.stretch or Stretch()
        with fed(stretch.first, stretch.batches):
            return self._run(program, request, agree, watch)

    def _run(
        self,
        program: Program,
        request: Request,
        agree: Callable[[], float],
        watch: Callable[[Watched], None],
    ) -> Outcome:
        if not request.threads:
            return self._run_on_device(program, request, agree, watch)
        log = _Log()
        # Only while data are read: that is when the executor's modules have something to say.
        with log:
            machine = self._machine(program, request)
            self._go_on(machine, program, request.stretch)
        channels = self._channels[program.hash]
        for channel in channels.values():
            channel.paced = channel.late = 0
        # Where nothing is computed, there is nothing that communication could go before.
        favour = request.favour and request.compute == 'real'
        streams = Streams(
            program, self.rank, request.steps, machine, channels, self.status, request.faults,
            favour=favour, queues=request.queues,
        )  # fmt: skip
        # Real computation must not come before all else; where messages are favoured, its threads make themselves nice.
        with urgently() if favour or request.compute == 'emulated' else nullcontext():
            begin = agree()
            machine.begin(begin)
            # All ranks begin at one moment, so that traces have one zero.
            self._clock.sleep_until(begin)
            streams.start(begin)
            watch(streams)
        real = machine if isinstance(machine, RealMachine) else None
        keep = real if request.keep else None
        return Outcome(
            arrive_KS=streams.arrive_KS - begin,
            end_KS=streams.end_KS - begin,
            notes=(*log.lines, *_too_slow(self.rank, channels.values())),
            losses=real.losses if real else [],
            parameters=keep.parameters() if keep else {},
            gradients=keep.gradients if keep else {},
            written=self._stop(machine, program, request.stretch),
        )

    def _go_on(self, machine: EmulatedMachine | RealMachine, program: Program, stretch: Stretch | None) -> None:
        """Read the checkpoint that a stretch begins from, if it does."""
        if stretch and stretch.source and isinstance(machine, RealMachine):
            folder = Path(stretch.source)
            read_rank(folder, contents_of(folder), program, self.rank, machine.held)

    def _stop(self, machine: EmulatedMachine | RealMachine, program: Program, stretch: Stretch | None) -> str:
        """Keep what the next stretch begins with, and write a checkpoint of it, if one is due."""
        if stretch is None or not isinstance(machine, RealMachine):
            return ''
        return self._leave(machine.held, program, stretch)

    def _leave(self, held: dict[str, torch.Tensor], program: Program, stretch: Stretch) -> str:
        self._held = held
        return write_rank(Path(stretch.save), program, self.rank, held).packed() if stretch.save else ''

    def _run_on_device(
        self, program: Program, request: Request, agree: Callable[[], float], watch: Callable[[Watched], None]
    ) -> Outcome:
        """The same on an accelerator, whose streams take the place of threads."""
        from executor.devices.open import open_device
        from executor.devices.transports import device_run, device_transports

        # Before anything else is asked of the driver.
        streams = len(program.role(self.rank).streams)
        told = set_queues(KINDS[request.device], request.queues, streams)
        device = open_device(request.device, self.local)
        transports = device_transports(program, self.rank, device, self._channels[program.hash], request, self._timeout)
        with _Log() as log:
            held = self._before(program, request)
            issuer, run = device_run(program, self.rank, device, transports, request, self.status, held)
        begin = agree()
        issuer.begin(self._clock.now, request.steps - 1)
        self._clock.sleep_until(begin)
        run.start(begin)
        watch(run)
        return Outcome(
            arrive_KS=run.arrive_KS - begin,
            end_KS=run.end_KS - begin,
            notes=(*told, *log.lines),
            losses=issuer.losses,
            parameters=issuer.parameters() if request.keep else {},
            gradients=issuer.gradients if request.keep else {},
            written=self._leave(issuer.held(), program, request.stretch) if request.stretch else '',
        )

    def _before(self, program: Program, request: Request) -> dict[str, torch.Tensor] | None:
        """What a device's run begins with, on the host; None: what the seed draws."""
        stretch = request.stretch or Stretch()
        if not stretch.source:
            return self._held if stretch.first else None
        folder = Path(stretch.source)
        held = Memory(program, self.rank, request.seed, TORCH[request.dtype] if request.dtype else None).held
        read_rank(folder, contents_of(folder), program, self.rank, held)
        return held

    def _machine(self, program: Program, request: Request) -> EmulatedMachine | RealMachine:
        if request.compute == 'real':
            dtype = TORCH[request.dtype] if request.dtype else None
            stretch = request.stretch or Stretch()
            # What the stretch before has left, unless a checkpoint is read.
            held = self._held if stretch.first and not stretch.source else None
            where = (self._clock, self._link, stretch.first, held)
            return RealMachine(program, self.rank, request.steps, request.seed, dtype, *where, keep=request.keep)
        costs = cast('Costs', request.costs)
        return EmulatedMachine(program, costs, self.rank, self._clock, self._link)


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
