"""Ranks that also say how much CPU time every op took: on a machine that is shared, wall time alone misleads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

import numpy as np

from executor import process, rank
from executor.backend import Pool
from executor.emulated import EmulatedMachine
from executor.machine import Work
from executor.process import Setup
from executor.rank import Compute, Request
from executor.real import RealMachine
from simpar.cost.costs import Costs
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


class TimedPool(Pool):
    """A pool of ranks with one thread for computation each.

    Arguments: as of ``Pool``; ``favour``: communication is scheduled before computation.
    """

    def __init__(self, world: int, *, favour: bool = False, **more: Any) -> None:
        self._favour = favour
        super().__init__(world, **more)

    def __enter__(self) -> TimedPool:
        return self

    def timed(self, program: Program, steps: int, costs: Costs | None = None) -> Timed:
        """Run a program for some steps, back to back; see ``Pool.run``.

        Arguments: ``costs``, for emulated compute; None: compute is real.
        """
        compute: Compute = 'real' if costs is None else 'emulated'
        execution = self.perform(program, Request(compute=compute, costs=costs, steps=steps, favour=self._favour))
        # Ranks that stand by have fewer slots than others: what they have none of took no time.
        found = np.zeros((2, program.world, steps, max(map(len, program.roles))))
        for one in range(program.world):
            slots = len(program.role(one))
            # Through files, since outcomes of ranks have no room for times that only a bench wants.
            if slots:
                cpu = np.fromfile(_file(self._folder, one)).reshape(2, -1, slots)
                found[:, one, :, :slots] = cpu[:, :steps]
        return Timed(execution.trace, *found)

    def _start(self, target: Callable[..., object], *arguments: object) -> Any:
        return super()._start(main if target is process.main else target, *arguments)


def main(setup: Setup, pipe: Connection, lifeline: Connection) -> NoReturn:
    """A rank's process, in which the machine of real compute is one that reads CPU clocks."""
    TimedMachine.place = TimedEmulation.place = _file(setup.folder, setup.rank)
    # In the rank's own process alone; the parent and other pools keep the plain machines.
    vars(rank)['RealMachine'] = TimedMachine
    vars(rank)['EmulatedMachine'] = TimedEmulation
    process.main(replace(setup, threads=1), pipe, lifeline)


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
