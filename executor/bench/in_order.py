"""Compute ops in the order of a step: every rank runs its own ops of whole steps, and no message is sent.

An op that is repeated alone finds what it reads in a cache, and its memory mapped. In a step neither holds. So a
program's own ops are timed among their neighbours: from the end of the op before to its own end, with all that the
executor does in between. What an op without a price takes, as a view, counts with the op behind it.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from executor.bench.items import place_of
from executor.bench.kinds import Price
from executor.bench.ranks import mapped
from executor.bench.rounds import WARM_UP, figures, quickest
from executor.ranks.memory import Start
from executor.ranks.pool import Pool
from executor.ranks.rank import Machines
from executor.ranks.real import RealMachine
from executor.ranks.request import Request
from executor.ranks.streams import Work
from executor.tensors import torch_dtype
from simpar.cost.compute import NO_WORK
from simpar.cost.costs import Costs
from simpar.engine import simulate
from simpar.program import Program, Role
from simpar.trace import Times

STEPS: Final = 4
"""Steps of a run that count."""
Place = tuple[str, tuple[tuple[str, int | str], ...]]
"""A table, and the columns of a line of it."""


class AloneMachine(RealMachine):
    """Real compute without messages: what would come from other ranks is there at once, as small numbers."""

    def __init__(self, folder: Path, start: Start, *more: Any, **others: Any) -> None:
        super().__init__(start, *more, **others)
        slots = len(start.program.role(start.rank))
        self._cpu = mapped(_file(folder, start.rank), (start.steps, slots))
        self._came: dict[int, list[torch.Tensor]] = {}
        pauses = _pauses(folder, start.program, start.rank)
        self._pauses = np.fromfile(pauses).tolist() if pauses.exists() else [0.0] * slots

    def run(self, work: Work, arrived: float) -> float:
        """As real compute does, with the CPU time of the process at the end; for a message the thread sleeps.

        The same memory comes each time, for that of a message is no part of what is timed.
        """
        slot, program = work.slot, self._start.program
        if slot.op.kind == 'compute':
            end = super().run(work, arrived)
            self._cpu[work.step, slot.position] = time.process_time()
            return end
        if slot.index not in self._came:
            named = [program.tensor[name] for name in slot.op.writes + slot.op.accumulates]
            self._came[slot.index] = [
                torch.full(program.local_shape(one), 0.02).to(torch_dtype(one.dtype, self._start.dtype))
                for one in named
            ]
        self._clock.sleep_until(arrived + self._pauses[slot.position])
        self.memory.keep(slot.op, *slot.part, self._came[slot.index])
        self.memory.free(slot.op, *slot.part)
        return self._clock.now()


class Ran(NamedTuple):
    """When ops arrived and ended by the clock, and CPU seconds of the process at their end, shape [steps, slots]."""

    arrive: Times
    end: Times
    cpu: Times


class AlonePool(Pool):
    """A pool of ranks with a core each that send no messages.

    Arguments: ``favour``, whether the threads of messages come first, as of ``TimedPool``.
    """

    def __init__(self, world: int, *, favour: bool = False) -> None:
        self._favour = favour
        super().__init__(world, pinned=True, timeout=60.0)

    def __enter__(self) -> AlonePool:
        return self

    def pause(self, program: Program, seconds: Sequence[Times]) -> None:
        """Sleep for so long where a program has a message. Arguments: ``seconds``, see ``message_seconds``."""
        for one, mine in enumerate(seconds):
            mine.tofile(_pauses(self._folder, program, one))

    def ran(self, program: Program, steps: int) -> list[Ran]:
        """Run so many steps; what each rank saw."""
        trace = self.perform(program, Request(steps=steps, favour=self._favour)).trace
        return [
            Ran(times.arrive_KS, times.end_KS, np.fromfile(_file(self._folder, one)).reshape(steps, -1))
            for one, times in enumerate(trace.representatives)
        ]

    def _machines(self, rank: int) -> Machines:
        return Machines(real=partial(AloneMachine, self._folder))


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of one rank: seconds of its priced ops in the order of their ends, by the clock and of CPU time."""

    names: list[str]
    wall: list[Times] = field(default_factory=list)
    cpu: list[Times] = field(default_factory=list)


class InOrder:
    """The ops of programs, timed in the order of their steps, round by round.

    Arguments: ``costs``, of each program; for as long as its messages then take, their threads sleep.
    """

    def __init__(self, pool: AlonePool, programs: Sequence[Program], costs: Price | None = None) -> None:
        self._pool = pool
        self._programs = list({program.hash: program for program in programs}.values())
        self._steps: dict[tuple[str, int], _Steps] = {}
        if costs:
            for program in self._programs:
                pool.pause(program, message_seconds(program, costs(program)))

    def round(self, steps: int = STEPS) -> None:
        """Run so many steps of every program, and some to warm up."""
        for program in self._programs:
            self.round_of(program, steps)

    def round_of(self, program: Program, steps: int = STEPS) -> None:
        """Run so many steps of one of the programs, and some to warm up."""
        for one, ran in enumerate(self._pool.ran(program, WARM_UP + steps)):
            self._add(program, one, ran)

    def _add(self, program: Program, one: int, ran: Ran) -> None:
        role = program.role(one)
        ops = [program.op(role, slot) for slot in range(len(role))]
        computing = [slot for slot, op in enumerate(ops) if op.kind == 'compute']
        # Ops of several streams in the order in which they ended: together they take all that the rank has.
        order = sorted(computing, key=lambda slot: float(ran.end[WARM_UP, slot]))
        priced = [at for at, slot in enumerate(order) if ops[slot].operator not in NO_WORK]
        if not priced:
            return
        found = self._steps.setdefault((program.hash, one), _Steps([ops[order[at]].name for at in priced]))
        cpu = np.diff(ran.cpu[:, order].ravel(), prepend=0.0).reshape(len(ran.cpu), -1)
        for seconds, kept in ((own_seconds(role, order, ran), found.wall), (cpu, found.cpu)):
            # What takes no time by price, as a view, counts with the op behind it.
            kept.extend(_behind(seconds, priced)[WARM_UP:])

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


def _behind(seconds: Times, places: Sequence[int]) -> Times:
    """Sums over stretches of columns, each up to one of the places; what follows the last counts with it."""
    starts = [0, *(place + 1 for place in places[:-1])]
    return np.add.reduceat(seconds, starts, axis=1)


def _row(name: str, ranks: Sequence[_Steps]) -> dict[str, Any]:
    """Figures of an op class over all ranks that have it; nothing where none has."""
    wall, cpu, low, count = [], [], [], 0
    for found in ranks:
        mine = [at for at, one in enumerate(found.names) if one == name]
        if not mine:
            continue
        times = np.array(found.wall)
        count += len(mine)
        # The mean over quick steps, not an op's own quantile: of many ops some are always slow.
        low.append((len(mine), float(times[quickest(times.sum(1))][:, mine].mean())))
        wall.append(times[:, mine].mean(1))
        cpu.append(np.array(found.cpu)[:, mine].mean(1))
    if not count:
        return {}
    one = sum(weight * seconds for weight, seconds in low) / count
    told = {'wall': figures(np.concatenate(wall), low=one), 'cpu': figures(np.concatenate(cpu))}
    return {'weight': count, **told, 'quiet': 1.0}


def own_seconds(role: Role, order: Sequence[int], ran: Ran) -> Times:
    """Seconds by the clock of compute ops, shape [steps, ops]: with what passes before and behind them.

    Arguments: ``order``, the slots of compute ops as they end.
    From the end of the op before, or of the message that it needs, to its own end; and on until the message starts that
    waits for it. Of the first step nothing is known of what came before.
    """
    before = np.roll(ran.end[:, order].ravel(), 1).reshape(len(ran.end), -1)
    place = {slot: at for at, slot in enumerate(order)}
    needs, carried = role.needs(), role.carried()

    def latest(slot: int) -> Times:
        """When a slot's needs that are messages have ended."""
        ends = [ran.end[:, need] for need in needs[slot] if need not in place]
        ends += [np.roll(ran.end[:, need], 1) for need in carried[slot] if need not in place]
        return np.max(ends, axis=0, initial=0.0) if ends else np.zeros(len(ran.end))

    ready = np.maximum(before, np.stack([latest(slot) for slot in order], axis=1))
    seconds: Times = ran.end[:, order] - np.minimum(ready, ran.end[:, order])
    # Since when the rank's next op could run; that of a step's last op stands in the next step.
    then = np.roll(ready.ravel(), -1).reshape(ready.shape)
    for slot, need in _senders(role, place):
        at, arrived, end = place[need], ran.arrive[:, slot], ran.end[:, need]
        # While another op computes, or another message is awaited, nothing waits for this one to start.
        free = (then[:, at] >= arrived) & (latest(slot) <= end)
        seconds[:, at] += np.where(free, arrived - end, 0.0)
    return seconds


def _senders(role: Role, computing: Container[int]) -> Iterator[tuple[int, int]]:
    """Messages that are the first on their stream to wait for a compute op, and this op, their last need."""
    taken = set()
    for slots in role.by_stream().rows():
        for slot in slots:
            mine = [need for need in role.needs()[slot] if need in computing]
            if slot not in computing and mine and max(mine) not in taken:
                taken.add(max(mine))
                yield slot, max(mine)


def message_seconds(program: Program, costs: Costs) -> list[Times]:
    """For each rank the seconds of its slots that are messages, waits for peers included, by prediction; else 0."""
    trace, found = simulate(program, costs), []
    for one in range(program.world):
        times, role = trace.times_of(one), program.role(one)
        computes = np.array([program.op(role, slot).kind == 'compute' for slot in range(len(role))])
        # The last step is a steady one.
        found.append(np.where(computes, 0.0, (times.end_KS - times.arrive_KS)[-1]))
    return found


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


def _pauses(folder: Path, program: Program, one: int) -> Path:
    return folder / f'pauses{one}-{program.hash}'
