"""Ranks that also say how much CPU time every op took: on a machine that is shared, wall time alone misleads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, Protocol

import numpy as np

from executor import process, rank
from executor.backend import Pool
from executor.emulated import EmulatedMachine
from executor.machine import Work
from executor.process import Setup
from executor.rank import Compute, Request
from executor.real import RealMachine
from simpar.cost.costs import Costs
from simpar.hardware.net import Net
from simpar.program import Program
from simpar.trace import Times, Trace

MOST_STEPS: Final = 64
"""Steps of a run with emulated compute, at most."""


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


class Timer(Protocol):
    """Ranks that run a program and say how long its ops took: own ones, or those that a launcher has started."""

    @property
    def world(self) -> int:
        """How many."""

    @property
    def net(self) -> Net:
        """What joins them."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the times must know."""

    def timed(self, program: Program, steps: int, costs: Costs | None = None, issue: str = 'eager') -> Timed:
        """Run a program for some steps, back to back.

        Arguments: ``costs``, for emulated compute; None: compute is real. ``issue``, as of ``Request``.
        """


def on_clock(trace: Trace) -> Timed:
    """A run on devices, whose events tell all there is: no processor is shared with others."""
    seconds = np.zeros((trace.program.world, trace.steps, max(map(len, trace.program.roles))))
    for one in range(trace.program.world):
        times = trace.times_of(one)
        seconds[one, :, : times.end_KS.shape[1]] = times.end_KS - times.start_KS
    return Timed(trace, seconds, seconds)


class TimedPool(Pool):
    """A pool of ranks with one thread for computation each.

    Arguments:
        favour: communication is scheduled before computation.
        device, transport: as of ``Request``.
        others: as of ``Pool``.
    """

    def __init__(
        self,
        world: int,
        *,
        favour: bool = False,
        device: str = 'cpu',
        transport: str = '',
        dtype: str = '',
        **more: Any,
    ) -> None:
        self._request = Request(favour=favour, device=device, transport=transport, dtype=dtype)
        super().__init__(world, **more)

    def __enter__(self) -> TimedPool:
        return self

    def timed(self, program: Program, steps: int, costs: Costs | None = None, issue: str = 'eager') -> Timed:
        """Run a program for some steps, back to back; see ``Timer``."""
        compute: Compute = 'real' if costs is None else 'emulated'
        request = replace(self._request, compute=compute, costs=costs, steps=steps, issue=issue)
        trace = self.perform(program, request).trace
        if not request.threads:
            return on_clock(trace)
        # Through files, since outcomes of ranks have no room for times that only a bench wants.
        return with_cpu(trace, [cpu_times(self._folder, one, program) for one in range(program.world)])

    def _start(self, target: Callable[..., object], *arguments: object) -> Any:
        return super()._start(main if target is process.main else target, *arguments)


def main(setup: Setup, pipe: Connection, lifeline: Connection) -> NoReturn:
    """A rank's process, in which the machine of real compute is one that reads CPU clocks."""
    use_timed_machines(setup.folder, setup.rank)
    process.main(replace(setup, threads=1), pipe, lifeline)


def with_cpu(trace: Trace, cpu: Sequence[Times]) -> Timed:
    """A run on processors. Arguments: ``cpu``, as of ``cpu_times``, rank by rank."""
    # Ranks that stand by have fewer slots than others: what they have none of took no time.
    found = np.zeros((2, trace.program.world, trace.steps, max(map(len, trace.program.roles))))
    for one, seconds in enumerate(cpu):
        if seconds.size:
            found[:, one, :, : seconds.shape[2]] = seconds[:, : trace.steps]
    return Timed(trace, *found)


def cpu_times(folder: Path, rank: int, program: Program) -> Times:
    """CPU seconds that a rank's machine has left, shape [thread and process, steps, slots]."""
    slots = len(program.role(rank))
    return np.fromfile(_file(folder, rank)).reshape(2, -1, slots) if slots else np.zeros((2, 0, 0))


def use_timed_machines(folder: Path, one: int) -> None:
    """Have this rank's process run machines that read CPU clocks."""
    TimedMachine.place = TimedEmulation.place = _file(folder, one)
    # In the rank's own process alone; the parent and other pools keep the plain machines.
    vars(rank)['RealMachine'] = TimedMachine
    vars(rank)['EmulatedMachine'] = TimedEmulation


class TimedMachine(RealMachine):
    """Real compute; leaves CPU times in the file ``place``."""

    place: ClassVar[Path]

    def __init__(self, program: Program, rank: int, steps: int, *more: Any, **others: Any) -> None:
        super().__init__(program, rank, steps, *more, **others)
        self._cpu = mapped(self.place, (2, steps, len(program.role(rank))))

    def compute(self, work: Work, arrived: float) -> float:
        """As real compute does."""
        before = _cpu_times()
        end = super().compute(work, arrived)
        self._cpu[:, work.step, work.slot] = np.subtract(_cpu_times(), before)
        return end

    def communicate(self, work: Work, arrived: float) -> float:
        """As real compute does."""
        before = _cpu_times()
        end = super().communicate(work, arrived)
        self._cpu[:, work.step, work.slot] = np.subtract(_cpu_times(), before)
        return end


class TimedEmulation(EmulatedMachine):
    """Emulated compute; leaves CPU times of its messages in the file ``place``."""

    place: ClassVar[Path]

    def __init__(self, program: Program, costs: Costs, rank: int, *more: Any) -> None:
        super().__init__(program, costs, rank, *more)
        # It is not told how many steps will run; what is never written takes no room.
        self._cpu = mapped(self.place, (2, MOST_STEPS, len(program.role(rank))))

    def communicate(self, work: Work, arrived: float) -> float:
        """As emulated compute does."""
        before = _cpu_times()
        end = super().communicate(work, arrived)
        self._cpu[:, work.step, work.slot] = np.subtract(_cpu_times(), before)
        return end


def mapped(place: Path, shape: tuple[int, ...]) -> Times:
    """Numbers in a file that another process reads."""
    # A mapped file costs no system call for each op, which would disturb what is measured.
    # A rank that stands by has no slots, and a file of no bytes cannot be mapped.
    return np.asarray(np.memmap(place, dtype=np.float64, mode='w+', shape=shape)) if shape[-1] else np.zeros(shape)


def _cpu_times() -> tuple[float, float]:
    return time.thread_time(), time.process_time()


def _file(folder: Path, rank: int) -> Path:
    return folder / f'cpu{rank}'
