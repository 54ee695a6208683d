"""Kinds of messages: every collective, and sends, in groups inside of a host and across hosts, measured until steady.

Each kind has a program of its own, in which every message stands between compute ops: so ranks agree on when it starts.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from executor.bench.items import DRAWN, WIDTH, algorithm, group_sizes, hosts_of, message_op, rounded
from executor.bench.ranks import Timed, Timer
from executor.ranks.collectives import SMALL
from executor.state import figures
from simpar.cost.costs import Costs
from simpar.hardware.net import Net
from simpar.program import COLLECTIVES, OpClass, Partition, Program, ProgramBuilder, Split, Tensor
from simpar.trace import Times

KINDS: Final = (*COLLECTIVES, 'send')
GROUP: Final = 'group'
STREAMS: Final = (2, 3)
"""How many all-reduces run at once."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A collective, or a send, in groups of so many ranks, of these ``sizes`` in bytes, on ``streams`` at once.

    Arguments:
        hosts: how many a group touches.
        stride: from one member of a group to the next; 1: neighbours.
        crowded: whether all groups communicate at once; else the first one does, and the others stand by.
    """

    operator: str
    ranks: int
    sizes: tuple[int, ...]
    streams: int = 1
    hosts: int = 1
    stride: int = 1
    crowded: bool = True

    def groups(self, world: int) -> NDArray[np.int32]:
        """The ranks of every group, shape [groups, ranks]; of sends of neighbours, all ranks are one."""
        ranks = np.arange(world, dtype=np.int32)
        if self.operator == 'send' and self.stride == 1:
            return ranks.reshape(1, -1)
        return ranks.reshape(-1, self.ranks, self.stride).swapaxes(1, 2).reshape(-1, self.ranks)

    def talking(self, world: int) -> list[list[int]]:
        """The ranks that communicate, group by group; of a send its source and its target."""
        groups: list[list[int]] = self.groups(world).tolist()
        if self.operator == 'send':
            return [groups[0][:2]]
        return groups if self.crowded else groups[:1]


def kinds(world: int, sizes: Iterable[int], net: Net, seconds: float, per_host: int = 0) -> list[Kind]:
    """Every kind in groups of every size, over sizes on both sides of the executor's change of algorithm.

    Arguments:
        seconds: how long the largest message may take on a shaped network.
        per_host: ranks of a host; 0: all. Of several hosts, groups with one rank of each are measured too, alone.
    """
    largest = net.rate * seconds
    fitting = sorted(size for size in sizes if size <= largest) or [min(sizes)]
    # The largest that may be: beyond it the rate of its neighbours counts, and a burst that a shaped link lets through
    # at once would seem part of that rate.
    fitting += [int(largest)] if net.shaped and largest > fitting[-1] else []
    all_kinds = []
    for operator in KINDS:
        for ranks in (2,) if operator == 'send' else group_sizes(world, per_host):
            hosts = 2 if operator == 'send' and per_host == 1 else hosts_of(ranks, per_host)
            all_kinds.append(Kind(operator, ranks, _wanted(operator, ranks, fitting), hosts=hosts))
        hosts = world // per_host if per_host > 1 else 1
        for ranks in (hosts,) * (hosts > 1) if operator == 'send' else group_sizes(hosts):
            wanted = _wanted(operator, ranks, fitting)
            all_kinds.append(Kind(operator, ranks, wanted, hosts=ranks, stride=per_host, crowded=False))
    return all_kinds


def _wanted(operator: str, ranks: int, fitting: Sequence[int]) -> tuple[int, ...]:
    # What is exchanged, or sent, need not be split.
    wanted = {rounded(size, 1 if size <= SMALL and operator == 'all_reduce' else ranks) for size in fitting}
    if operator == 'all_reduce':
        # The last size that is exchanged, and the first that goes around a ring.
        wanted |= {SMALL, rounded(SMALL + 1, ranks)}
    return tuple(sorted(wanted))


def at_once(world: int, size: int, per_host: int = 0) -> list[Kind]:
    """All-reduces of all ranks on several streams that never wait for one another."""
    hosts = hosts_of(world, per_host)
    return [Kind('all_reduce', world, (rounded(size, world),) * 2, streams, hosts) for streams in STREAMS]


def crossing(world: int, size: int, per_host: int) -> list[Kind]:
    """All-reduces of groups with one rank of each host: of one group alone, and of all groups at once."""
    hosts = world // per_host
    sizes = (rounded(size, hosts),)
    return [
        Kind('all_reduce', hosts, sizes, hosts=hosts, stride=per_host, crowded=crowded) for crowded in (False, True)
    ]


def program_of(kind: Kind, world: int, *, computes: bool) -> Program:
    """The program of a kind.

    Arguments: ``computes``: a compute op stands before each message, as emulated ranks have them.
    """
    pairs, groups = kind.operator == 'send', kind.groups(world)
    names = [f'{GROUP}{stream}' for stream in range(kind.streams)]
    builder = ProgramBuilder(world, [Partition(name, groups) for name in names])
    if computes:
        builder.add_op_class(
            OpClass(name='compute', kind='compute', operator='relu', phase='F', bytes=4.0, dtype='fp32')
        )
    ends = ('send', 'recv') if pairs else (kind.operator,)
    sides = ('full', 'full') if pairs else (COLLECTIVES[kind.operator].gives, COLLECTIVES[kind.operator].gets)
    for name in names:
        for place, size in enumerate(kind.sizes):
            for part, side in zip(('in', 'out'), sides, strict=True):
                splits = (Split(0, name),) if side == 'shard' else ()
                tensor = Tensor(f'{part}.{name}.{place}', 'state', (size // WIDTH,), 'fp32', splits=splits)
                builder.add_tensor(replace(tensor, initial=DRAWN if part == 'in' else 'zeros'))
            for end in ends:
                reads = () if end == 'recv' else (f'in.{name}.{place}',)
                writes = () if end == 'send' else (f'out.{name}.{place}',)
                op = message_op(f'{end}.{name}.{place}', end, size, name, kind.ranks, reads, writes)
                builder.add_op_class(op)
    # A send has one pair of all ranks: the others stand by, as in a pipeline.
    talking = [rank for group in kind.talking(world) for rank in group]
    roles = {'send': talking[:1], 'recv': talking[1:]} if pairs else {kind.operator: sorted(talking)}
    roles['idle'] = [rank for rank in range(world) if rank not in set(talking)]
    first = ('compute',) if computes else ()
    for role, ranks in roles.items():
        slots = [(name, name, 0, 0) for name in first]
        for place in range(len(kind.sizes) if role != 'idle' else 0):
            slots += [(f'{role}.{name}.{place}', name, 0, 0) for name in names]
        if ranks:
            builder.add_role(role, ranks, slots, (*first, *names))
    return builder.build()


# Messages by kind, number of ranks and size: every collective, and sends; alone, and on several streams at once.

LOW: Final = 0.1
Price = Callable[[Program], Costs]


@dataclass(frozen=True, slots=True)
class Found:
    """Repeats of a message: seconds from its last rank's arrival to its last rank's end; CPU seconds of a rank."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


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
            for kind, timings in zip(self.kinds, self.found, strict=True)
            for size, one in timings.items()
            if halves_differ(one.wall) > most
        ]

    def drift(self) -> float:
        """By how much all messages together differ between repeats, weighted by their seconds."""
        lows = [(low(one.wall), halves_differ(one.wall)) for timings in self.found for one in timings.values()]
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
    seconds: list[float] = (end - start).tolist()
    return seconds


def rows(messages: Messages) -> list[dict[str, Any]]:
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
        for kind, timings in zip(messages.kinds, messages.found, strict=True)
        # All groups across hosts at once have rows of their own.
        if kind.streams == 1 and (kind.stride == 1 or not kind.crowded)
        for size, one in timings.items()
    ]


def crossing_rows(messages: Messages) -> list[dict[str, Any]]:
    """Two rows: seconds of an all-reduce of one rank of each host, alone and while all other ranks do the same."""
    crossings = []
    for kind, times in zip(messages.kinds[-2:], messages.found[-2:], strict=True):
        groups, size = len(kind.talking(messages.world)), kind.sizes[0]
        seconds = figures(np.array(times[size].wall))
        crossings.append({'groups': groups, 'ranks': kind.ranks, 'bytes': size, 'seconds': seconds})
    return crossings


def stream_rows(messages: Messages) -> list[dict[str, Any]]:
    """A row for so many streams at once: bytes of all messages of one of them, and seconds until all are through."""
    return [
        {
            'streams': kind.streams,
            'ranks': kind.ranks,
            'bytes': sum(kind.sizes),
            'seconds': figures(np.array(timings[kind.sizes[0]].wall)),
        }
        for kind, timings in zip(messages.kinds, messages.found, strict=True)
        if kind.streams > 1
    ]


# Repeats until the spread is narrow, or until it is clear that the machine is too busy for that.

NARROW: Final = 0.05
"""By how much the 10th percentiles of every other repeat of a message may differ."""
WIDE: Final = 0.1
"""Share of all messages that may differ by more."""
DRIFT: Final = 0.01
"""By how much all of them together may differ, weighted by their seconds."""
PATIENCE: Final = 3
"""Up to how many times the rounds that are planned are run."""
STEPS: Final = 3
WARM_UP: Final = 1
"""Steps of a run that count, and those before them."""


def repeat(messages: Messages, rounds: int, said: Callable[[], None]) -> list[str]:
    """Measure for so many rounds or more; returns what a reader must know: that the machine was too busy, or nothing.

    Arguments: ``said``, called after each of the planned rounds.
    """
    for turn in range(PATIENCE * rounds):
        messages.round(STEPS, WARM_UP)
        if turn < rounds:
            said()
        if turn + 1 >= rounds and narrow(messages):
            return []
    wide, all_of_them = len(messages.unsteady(NARROW)), sum(map(len, messages.found))
    return [
        (
            f'the machine is too busy: {wide} of {all_of_them} messages still differ by more than {NARROW:.0%} between '
            f'repeats after {PATIENCE * rounds} rounds; calibrate again when nothing else runs'
        )
    ]


def narrow(messages: Messages) -> bool:
    """Whether hardly any message differs between repeats, and all together still less."""
    few = len(messages.unsteady(NARROW)) <= WIDE * sum(map(len, messages.found))
    return few and messages.drift() <= DRIFT
