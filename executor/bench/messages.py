"""Messages by kind, number of ranks and size: every collective, and sends; alone, and on several streams at once.

Each kind has a program of its own, in which every message stands between compute ops: so ranks agree on when it starts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from executor.bench.kinds import Kind, program_of
from executor.bench.ranks import Timed, Timer
from executor.collectives import SMALL
from simpar.cost.costs import Costs
from simpar.program import Program
from simpar.trace import Times

LOW: Final = 0.1
Price = Callable[[Program], Costs]


@dataclass(frozen=True, slots=True)
class Found:
    """Repeats of a message: seconds from its last rank's arrival to its last rank's end; CPU seconds of a rank."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def algorithm(operator: str, size: int) -> str:
    """How the executor does it; fits must not mix algorithms."""
    if operator == 'all_reduce' and size <= SMALL:
        return 'exchange'
    if operator in ('all_reduce', 'all_gather', 'reduce_scatter'):
        return 'ring'
    return 'pairwise' if operator == 'all_to_all' else 'direct'


class Messages:
    """Kinds, measured round after round until their spread is narrow.

    Arguments: ``price``, costs of programs where compute is emulated; None: compute is real.
    """

    def __init__(self, pool: Timer, kinds: Sequence[Kind], price: Price | None, seed: int = 0) -> None:
        self._pool = pool
        self.world = pool.world
        self._shuffled = random.Random(seed)
        self.kinds = list(kinds)
        self._programs = [program_of(kind, pool.world, computes=price is not None) for kind in kinds]
        self._costs = [price(program) if price else None for program in self._programs]
        self.found: list[dict[int, Found]] = [{size: Found() for size in kind.sizes} for kind in kinds]

    def round(self, steps: int, warm_up: int) -> None:
        """Run every kind once, in a new order."""
        order = list(range(len(self.kinds)))
        self._shuffled.shuffle(order)
        for index in order:
            run = self._pool.timed(self._programs[index], warm_up + steps, self._costs[index])
            self._take(index, run, warm_up)

    def _take(self, index: int, run: Timed, warm_up: int) -> None:
        kind = self.kinds[index]
        if kind.streams > 1:
            self.found[index][kind.sizes[0]].wall.extend(together(run, warm_up))
            return
        for size, wall, cpu in by_size(run, warm_up, kind.talking(self._pool.world)):
            self.found[index][size].wall.extend(wall)
            self.found[index][size].cpu.extend(cpu)

    def unsteady(self, most: float) -> list[tuple[Kind, int]]:
        """What took in its later repeats another time than in its earlier ones, by more than a share."""
        return [
            (kind, size)
            for kind, found in zip(self.kinds, self.found, strict=True)
            for size, one in found.items()
            if halves_differ(one.wall) > most
        ]

    def drift(self) -> float:
        """By how much all messages together differ between repeats, weighted by their seconds."""
        lows = [(low(one.wall), halves_differ(one.wall)) for found in self.found for one in found.values()]
        return sum(seconds * differ for seconds, differ in lows) / sum(seconds for seconds, _ in lows)


def low(seconds: Sequence[float]) -> float:
    """The 10th percentile: others on the machine only ever add time."""
    return float(np.quantile(seconds, LOW))


def halves_differ(seconds: Sequence[float]) -> float:
    """By how much the 10th percentiles of every other repeat differ, as a share; nothing is known of fewer than 8."""
    if len(seconds) < 8:
        return float('inf')
    one, other = low(seconds[::2]), low(seconds[1::2])
    return abs(one - other) / min(one, other)


def by_size(run: Timed, warm_up: int, groups: Sequence[list[int]]) -> Iterable[tuple[int, list[float], list[float]]]:
    """Of every message bytes, seconds of each repeat and group, and CPU seconds of each rank.

    Arguments: ``groups``, the ranks that communicate, see ``Kind.talking``.
    """
    trace = run.trace
    program = trace.program
    role = program.roles[0]
    for slot, index in enumerate(role.op_class.tolist()):
        op = program.op_classes[index]
        if op.kind == 'compute':
            continue
        wall: list[float] = []
        for group in groups:
            times = [trace.times_of(rank) for rank in group]
            # It starts when its last rank has arrived, and ends when its last one has: that is what others wait for.
            start: Times = np.max([one.start_KS[warm_up:, slot] for one in times], axis=0)
            end: Times = np.max([one.end_KS[warm_up:, slot] for one in times], axis=0)
            wall += (end - start).tolist()
        cpu = [run.process_RKS[rank, warm_up:, slot] for group in groups for rank in group]
        yield int(op.bytes), wall, np.concatenate(cpu).tolist()


def together(run: Timed, warm_up: int) -> list[float]:
    """Of every step seconds from the first message's start to the last one's end, over all streams and ranks."""
    trace = run.trace
    role = trace.program.roles[0]
    slots = [slot for slot in range(len(role)) if trace.program.op(role, slot).kind != 'compute']
    times = [trace.times_of(rank) for rank in range(trace.program.world)]
    start = np.min([one.start_KS[warm_up:, slots] for one in times], axis=(0, 2))
    end = np.max([one.end_KS[warm_up:, slots] for one in times], axis=(0, 2))
    found: list[float] = (end - start).tolist()
    return found


def rows(messages: Messages, figures: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """A row for every message that was alone."""
    return [
        {
            'operator': kind.operator,
            # A send has two ends, of however large a group.
            'ranks': 2 if kind.operator == 'send' else kind.ranks,
            'nodes': min(kind.hosts, 2) if kind.operator == 'send' else kind.hosts,
            'bytes': size,
            'algorithm': algorithm(kind.operator, size),
            'weight': 1,
            'wall': figures(np.array(one.wall)),
            # A clock of CPU time has ticks; nothing at all would not be a figure.
            'cpu': figures(np.maximum(one.cpu, 1e-9)),
        }
        for kind, found in zip(messages.kinds, messages.found, strict=True)
        # All groups across hosts at once have rows of their own.
        if kind.streams == 1 and (kind.stride == 1 or not kind.crowded)
        for size, one in found.items()
    ]


def crossing_rows(messages: Messages, figures: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Two rows: seconds of an all-reduce of one rank of each host, alone and while all other ranks do the same."""
    found = []
    for kind, times in zip(messages.kinds[-2:], messages.found[-2:], strict=True):
        groups, size = len(kind.talking(messages.world)), kind.sizes[0]
        seconds = figures(np.array(times[size].wall))
        found.append({'groups': groups, 'ranks': kind.ranks, 'bytes': size, 'seconds': seconds})
    return found


def stream_rows(messages: Messages, figures: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """A row for so many streams at once: bytes of all messages of one of them, and seconds until all are through."""
    return [
        {
            'streams': kind.streams,
            'ranks': kind.ranks,
            'bytes': sum(kind.sizes),
            'seconds': figures(np.array(found[kind.sizes[0]].wall)),
        }
        for kind, found in zip(messages.kinds, messages.found, strict=True)
        if kind.streams > 1
    ]
