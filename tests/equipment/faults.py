"""Faults in threads of streams; ``python -m equipment.faults FAULT JOB ...`` is a launched rank that has one."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from executor.__main__ import main
from executor.cluster.external import External
from executor.options import leave
from executor.ranks.emulated import EmulatedMachine
from executor.ranks.pool import Pool
from executor.ranks.rank import Machines
from executor.ranks.real import RealMachine, Start
from executor.ranks.streams import Work
from simpar.cost.costs import Costs
from simpar.program import Program


class Fault(NamedTuple):
    """Something that goes wrong as a rank comes to an op: ``kill`` or ``stop`` the rank's process, let the stream's
    thread ``stall`` or ``spin``, or ``resize`` the op's message (in emulated compute)."""

    kind: str
    rank: int
    action: str
    step: int = 0


class Mine:
    """The faults of one rank."""

    def __init__(self, faults: Sequence[Fault], program: Program, rank: int) -> None:
        self._kinds = {(fault.action, fault.step): fault.kind for fault in faults if fault.rank == rank}
        self._program, self._role = program, program.role(rank)

    def of(self, work: Work) -> str:
        return self._kinds.get((self._program.action(self._role, work.slot.position), work.step), '')

    def happen(self, work: Work) -> None:
        kind = self.of(work)
        if kind in ('kill', 'stop'):
            os.kill(os.getpid(), signal.SIGKILL if kind == 'kill' else signal.SIGSTOP)
        if kind == 'stall':
            time.sleep(3600)
        while kind == 'spin':
            pass


class FaultyMachine(RealMachine):
    """Real compute."""

    def __init__(self, faults: Sequence[Fault], start: Start, *more: Any, **others: Any) -> None:
        super().__init__(start, *more, **others)
        self._faults = Mine(faults, start.program, start.rank)

    def arrive(self, work: Work, ready: float) -> float:
        self._faults.happen(work)
        return super().arrive(work, ready)


class FaultyEmulation(EmulatedMachine):
    """Emulated compute."""

    def __init__(self, faults: Sequence[Fault], program: Program, costs: Costs, rank: int, *more: Any) -> None:
        super().__init__(program, costs, rank, *more)
        self._faults = Mine(faults, program, rank)

    def arrive(self, work: Work, ready: float) -> float:
        self._faults.happen(work)
        return super().arrive(work, ready)

    def run(self, work: Work, arrived: float) -> float:
        if self._faults.of(work) == 'resize':
            # The same op with a message twice as long.
            op = replace(work.slot.op, bytes=2 * work.slot.op.bytes)
            work = replace(work, slot=replace(work.slot, op=op))
        return super().run(work, arrived)


def machines(faults: Sequence[Fault]) -> Machines:
    return Machines(partial(FaultyMachine, faults), partial(FaultyEmulation, faults))


class FaultyPool(Pool):
    """A pool of ranks with faults."""

    def __init__(self, world: int, faults: Sequence[Fault], **more: Any) -> None:
        self._faults = faults
        super().__init__(world, **more)

    def _machines(self, rank: int) -> Machines:
        return machines(self._faults)


if __name__ == '__main__':
    kind, number, name, step = sys.argv[1].split(':')
    External._machines = lambda self: machines([Fault(kind, int(number), name, int(step))])
    leave(main(['run', *sys.argv[2:]]))
