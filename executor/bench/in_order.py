"""Compute ops in the order of a step: every rank runs its own ops of whole steps, and no message is sent.

An op that is repeated alone finds what it reads in a cache, and its memory mapped. In a step neither holds. So a
program's own ops are timed among their neighbours: from the end of the op before to its own end, with all that the
executor does in between. What an op without a price takes, as a view, counts with the op behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

import numpy as np
import torch

from executor import process, rank
from executor.backend import Pool
from executor.bench.compute import place_of
from executor.bench.ranks import mapped
from executor.bench.record import figures
from executor.bench.sample import WARM_UP, quickest
from executor.machine import Work
from executor.process import Setup
from executor.rank import Request
from executor.real import RealMachine
from executor.tensors import torch_dtype
from simpar.cost.compute import NO_WORK
from simpar.program import Program
from simpar.trace import Times

STEPS: Final = 4
"""Steps of a run that count."""
Place = tuple[str, tuple[tuple[str, int | str], ...]]
"""A table, and the columns of a line of it."""


class AloneMachine(RealMachine):
    """Real compute without messages: what would come from other ranks is there at once, as small numbers."""

    place: ClassVar[Path]

    def __init__(self, program: Program, rank: int, steps: int, *more: Any, **others: Any) -> None:
        super().__init__(program, rank, steps, *more, **others)
        self._cpu = mapped(self.place, (steps, len(program.role(rank))))
        self._came: dict[int, list[torch.Tensor]] = {}

    def compute(self, work: Work, arrived: float) -> float:
        """As real compute does; remembers the CPU time of the process at the end."""
        end = super().compute(work, arrived)
        self._cpu[work.step, work.slot] = time.process_time()
        return end

    def communicate(self, work: Work, arrived: float) -> float:
        """Nothing is sent. The same memory comes each time, for that of a message is no part of what is timed."""
        if work.index not in self._came:
            named = [self._program.tensor[name] for name in work.op.writes + work.op.accumulates]
            self._came[work.index] = [
                torch.full(self._program.local_shape(one), 0.02).to(torch_dtype(one.dtype, self._dtype))
                for one in named
            ]
        return self._keep(work, self._came[work.index])


def main(setup: Setup, pipe: Connection, lifeline: Connection) -> NoReturn:
    """A rank's process that computes alone."""
    AloneMachine.place = _file(setup.folder, setup.rank)
    # In the rank's own process alone, as the bench's other ranks do.
    vars(rank)['RealMachine'] = AloneMachine
    process.main(replace(setup, threads=1), pipe, lifeline)


class AlonePool(Pool):
    """A pool of ranks with a core each that send no messages.

    Arguments: ``favour``, whether the threads of messages come first, as of ``TimedPool``.
    """

    def __init__(self, world: int, *, favour: bool = False) -> None:
        self._favour = favour
        super().__init__(world, pinned=True, timeout=60.0)

    def __enter__(self) -> AlonePool:
        return self

    def ends(self, program: Program, steps: int) -> list[tuple[Times, Times]]:
        """For each rank when its ops ended, by the clock and in CPU seconds of its process, shape [steps, slots]."""
        trace = self.perform(program, Request(steps=steps, favour=self._favour)).trace
        return [
            (trace.representatives[one].end_KS, np.fromfile(_file(self._folder, one)).reshape(steps, -1))
            for one in range(program.world)
        ]

    def _start(self, target: Callable[..., object], *arguments: object) -> Any:
        return super()._start(main if target is process.main else target, *arguments)


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of one rank: seconds of its priced ops in the order of their ends, by the clock and of CPU time."""

    names: list[str]
    wall: list[Times] = field(default_factory=list)
    cpu: list[Times] = field(default_factory=list)


class InOrder:
    """The ops of programs, timed in the order of their steps, round by round."""

    def __init__(self, pool: AlonePool, programs: Sequence[Program]) -> None:
        self._pool = pool
        self._programs = list({program.hash: program for program in programs}.values())
        self._steps: dict[tuple[str, int], _Steps] = {}

    def round(self, steps: int = STEPS) -> None:
        """Run so many steps of every program, and some to warm up."""
        for program in self._programs:
            self.round_of(program, steps)

    def round_of(self, program: Program, steps: int = STEPS) -> None:
        """Run so many steps of one of the programs, and some to warm up."""
        for one, ends in enumerate(self._pool.ends(program, WARM_UP + steps)):
            self._add(program, one, *ends)

    def _add(self, program: Program, one: int, wall: Times, cpu: Times) -> None:
        role = program.role(one)
        ops = [program.op(role, slot) for slot in range(len(role))]
        priced = [slot for slot, op in enumerate(ops) if op.kind == 'compute' and op.operator not in NO_WORK]
        # Ops of several streams in the order in which they ended: together they take all that the rank has.
        order = sorted(priced, key=lambda slot: float(wall[WARM_UP, slot]))
        if not order:
            return
        found = self._steps.setdefault((program.hash, one), _Steps([ops[slot].name for slot in order]))
        for ends, kept in ((wall, found.wall), (cpu, found.cpu)):
            seconds = np.diff(ends[:, order].ravel(), prepend=0.0).reshape(len(ends), -1)
            kept.extend(seconds[WARM_UP:])

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Rows of the record's tables, a row for each op class; it weighs as much as there are ops of it."""
        tables: dict[str, list[dict[str, Any]]] = {}
        for program in self._programs:
            mine = [found for (digest, _), found in self._steps.items() if digest == program.hash]
            for op in program.op_classes:
                row = _row(op.name, mine)
                if row:
                    table, key = place_of(op)
                    tables.setdefault(table, []).append({**key, **row})
        return tables


def _row(name: str, ranks: Sequence[_Steps]) -> dict[str, Any]:
    """Figures of an op class over all ranks that have it; nothing where none has."""
    wall, cpu, low, count = [], [], [], 0
    for found in ranks:
        mine = [at for at, one in enumerate(found.names) if one == name]
        if not mine:
            continue
        times = np.array(found.cpu)
        count += len(mine)
        # The mean over quick steps, not an op's own quantile: of many ops some are always slow.
        low.append((len(mine), float(times[quickest(times.sum(1))][:, mine].mean())))
        wall.append(np.array(found.wall)[:, mine].mean(1))
        cpu.append(times[:, mine].mean(1))
    if not count:
        return {}
    one = sum(weight * seconds for weight, seconds in low) / count
    told = {'wall': figures(np.concatenate(wall)), 'cpu': figures(np.concatenate(cpu), low=one)}
    return {'weight': count, **told, 'quiet': 1.0}


def put(tables: dict[str, list[dict[str, Any]]], rows: dict[str, list[dict[str, Any]]]) -> None:
    """Put rows of steps into the tables of a record, in place of rows of the same ops alone."""
    for name, found in rows.items():
        keys = {_key(row) for row in found}
        tables[name] = [*(row for row in tables[name] if _key(row) not in keys), *found]


def _key(row: dict[str, Any]) -> tuple[tuple[str, int | str], ...]:
    # One line of a table may hold several phases: all of them are of steps, or none.
    told = ('wall', 'cpu', 'weight', 'quiet', *(() if 'operator' in row else ('phase',)))
    return tuple(sorted((key, value) for key, value in row.items() if key not in told))


def _file(folder: Path, one: int) -> Path:
    return folder / f'alone{one}'
