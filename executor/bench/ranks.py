"""Ranks that also say how much CPU time every op took: on a machine that is shared, wall time alone misleads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from executor import process, rank
from executor.backend import Pool
from executor.machine import Work
from executor.process import Setup
from executor.rank import Request
from executor.real import RealMachine
from simpar.program import Program
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


class TimedPool(Pool):
    """A pool of ranks with one thread for computation each.

    Arguments: as of ``Pool``; ``favour``: communication is scheduled before computation.
    """

    def __init__(self, world: int, *, favour: bool = False, **more: Any) -> None:
        self._favour = favour
        super().__init__(world, **more)

    def __enter__(self) -> TimedPool:
        return self

    def timed(self, program: Program, steps: int) -> Timed:
        """Run a program for some steps, back to back; see ``Pool.run``."""
        execution = self.perform(program, Request(steps=steps, favour=self._favour))
        shape = (2, steps, len(program.role(0)))
        # Through files, since outcomes of ranks have no room for times that only a bench wants.
        cpu = [np.fromfile(_file(self._folder, rank)).reshape(shape) for rank in range(program.world)]
        return Timed(execution.trace, *np.stack(cpu, axis=1))

    def _start(self, target: Callable[..., object], *arguments: object) -> Any:
        return super()._start(main if target is process.main else target, *arguments)


def main(setup: Setup, pipe: Connection, lifeline: Connection) -> NoReturn:
    """A rank's process, in which the machine of real compute is one that reads CPU clocks."""
    TimedMachine.place = _file(setup.folder, setup.rank)
    # In the rank's own process alone; the parent and other pools keep the plain machine.
    vars(rank)['RealMachine'] = TimedMachine
    process.main(replace(setup, threads=1), pipe, lifeline)


class TimedMachine(RealMachine):
    """Real compute; leaves CPU times in the file ``place``."""

    place: ClassVar[Path]

    def __init__(self, program: Program, rank: int, steps: int, *more: Any) -> None:
        super().__init__(program, rank, steps, *more)
        shape = (2, steps, len(program.role(rank)))
        # A mapped file costs no system call for each op, which would disturb what is measured.
        self._cpu: Times = np.asarray(np.memmap(self.place, dtype=np.float64, mode='w+', shape=shape))

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


def _cpu_times() -> tuple[float, float]:
    return time.thread_time(), time.process_time()


def _file(folder: Path, rank: int) -> Path:
    return folder / f'cpu{rank}'
