"""Random sets of transfers: through the production code of paced links on a clock that jumps, and by the engine."""

from dataclasses import dataclass, field
from math import ceil, floor, log10, ulp
from random import Random

import numpy as np
from jump_clock import JumpClock

from executor.ranks.collectives import Link
from executor.ranks.emulated import VirtualDevice
from simpar.cost.costs import Communication, Costs
from simpar.engine import simulate
from simpar.program import OpClass, Partition, Program, ProgramBuilder, Tensor
from simpar.units import GRID, quantise

BASES = (1.0, 1e8)
"""Clocks begin between these seconds of uptime, evenly by their logarithm."""
TICK = 1 / GRID


@dataclass(frozen=True)
class Message:
    """A transfer: ``due`` by the clock, ``size`` in bytes on a link of 2⁴⁰ bytes/s."""

    due: float
    size: int
    demand: float
    beside: float

    @property
    def seconds(self) -> float:
        return quantise(self.size / (GRID * self.demand))


@dataclass(frozen=True)
class Case:
    """A set of transfers on one link.

    Arguments:
        computing: when the device computes, and for how many seconds.
        span: seconds over which the transfers are spread.
    """

    base: float
    messages: tuple[Message, ...]
    computing: tuple[tuple[float, float], ...]
    span: float

    @property
    def origin(self) -> int:
        """The whole second before anything happens: the engine begins there, too."""
        return floor(min([message.due for message in self.messages] + [start for start, _ in self.computing]))

    def relative(self, moment: float) -> float:
        """Seconds on the grid since the origin."""
        return quantise(moment - self.origin)


def case_of(seed: int) -> Case:
    """One of many; half of them on grids so coarse that moments coincide."""
    draw = Random(seed)
    base = quantise(10 ** draw.uniform(*map(log10, BASES)))
    # A clock tells nothing apart that is closer than its doubles, which are 15 ns apart at 1e8 s.
    least = max(TICK, 2 * ulp(base + 64))
    # From single ticks, where rounding decides, to a second; None: moments of any kind.
    grid = draw.choice([None, None, None, least, 3 * least, 2.0**-20, 2.0**-10, 0.1])
    span = 1.0 if grid is None else draw.choice([4, 16, 64]) * grid

    def moment(most: float) -> float:
        return quantise(draw.uniform(0.0, most) if grid is None else draw.randint(0, round(most / grid)) * grid)

    def length() -> float:
        return max(least, moment(span))

    # A transfer of which several are equal: equal ones beside a longer one left rests that no double could add.
    twin = length()
    messages = []
    for _ in range(draw.randint(1, 6)):
        demand = draw.choice([1.0, 1.0, 0.5, 0.25, draw.randint(1, 1024) / 1024])
        seconds = draw.choice([twin, length(), max(least, length() * draw.choice([1e-9, 1.0, 10.0]))])
        beside = draw.choice([1.0, 1.0, 0.5, 0.7, 0.3])
        messages.append(Message(base + moment(span), ceil(seconds * GRID * demand), demand, beside))
    edges = sorted(base + moment(2 * span) for _ in range(draw.choice([0, 0, 2, 4, 6])))
    spans = [(start, end - start) for start, end in zip(edges[::2], edges[1::2], strict=True) if end - start >= least]
    return Case(base, tuple(messages), tuple(spans), span)


def paced(case: Case, late: float = 0.0, seed: int = 0) -> list[float]:
    """When each message is through by the production code.

    Arguments: ``late``, seconds up to which threads wake up late, at random; then link and engine differ in who comes
    first, but every transfer still ends.
    """
    clock = JumpClock(float(case.origin), late, seed)
    link = Link(clock, GRID, 0.0)
    device = VirtualDevice(clock, link)
    ends = [0.0] * len(case.messages)

    def send(index: int, message: Message) -> None:
        clock.sleep_until(message.due)
        ends[index] = link.carry(message.size, message.due, message.demand, message.beside)
        assert clock.now() >= ends[index]

    def compute() -> None:
        for start, seconds in case.computing:
            clock.sleep_until(start)
            device.compute(start, seconds, [1.0])

    bodies = [lambda index=index, message=message: send(index, message) for index, message in enumerate(case.messages)]
    clock.run([compute, *bodies])
    # A thread wakes up for its own moment and for what others change, which is seldom.
    assert clock.jumps <= (2 + len(case.messages)) * (2 + len(case.messages) + 2 * len(case.computing))
    return ends


def simulated(cases: list[Case]) -> list[list[float]]:
    """The same by the engine: a pair of ranks and a link for each case, in one program."""
    program, costs, sends = _program(cases)
    trace = simulate(program, costs, steps=1)
    found = []
    for number, case in enumerate(cases):
        ends = trace.times_of(2 * number).end_KS[0]
        found.append([case.origin + float(ends[slot]) for slot in sends[number]])
    return found


def _program(cases: list[Case]) -> tuple[Program, Costs, list[list[int]]]:
    """The program, its costs, and each case's sends as slots of its first rank: the host issues each when it is due."""
    groups = np.arange(2 * len(cases), dtype=np.int32).reshape(-1, 2)
    build = ProgramBuilder(2 * len(cases), [Partition('pair', groups)])
    seconds, host, beside, transfers, sends = [], [], [], {}, []

    def add(op: OpClass, lasts: float, issue: float, slowed: float) -> None:
        build.add_op_class(op)
        seconds.append(lasts)
        host.append(issue)
        beside.append(slowed)

    for number, case in enumerate(cases):
        events = [(case.relative(message.due), index) for index, message in enumerate(case.messages)]
        events += [(case.relative(start), -1 - index) for index, (start, _) in enumerate(case.computing)]
        slots, receives, at, mine = [], [], 0.0, {}
        for start, index in sorted(events):
            name = f'{number}.{index}'
            if index < 0:
                end = case.relative(sum(case.computing[-1 - index]))
                build.add_tensor(Tensor(name, 'activation', (1,), 'fp32'))
                add(OpClass(name, 'compute', 'relu', 'F', reads=('x',), writes=(name,)), end - start, start - at, 1.0)
                slots.append((name, 'compute', 0, 0))
            else:
                message = case.messages[index]
                both = {'bytes': float(message.size), 'partition': 'pair'}
                build.add_tensor(Tensor(name, 'activation', (1,), 'fp32'))
                add(
                    OpClass(f'{name}.send', 'send', 'send', 'F', peer=1, reads=('x',), **both),
                    0.0,
                    start - at,
                    message.beside,
                )
                load = ((number, message.demand),) if message.seconds else ()
                transfers[len(seconds) - 1] = (Communication(0.0, message.seconds, load),) * len(cases)
                add(OpClass(f'{name}.recv', 'recv', 'recv', 'F', peer=-1, writes=(name,), **both), 0.0, 0.0, 1.0)
                transfers[len(seconds) - 1] = transfers[len(seconds) - 2]
                mine[index] = len(slots)
                slots.append((f'{name}.send', f's{index}', 0, 0))
                receives.append((f'{name}.recv', f's{index}', 0, 0))
            at = start
        streams = tuple(dict.fromkeys(stream for _, stream, _, _ in slots))
        build.add_role(f'{number}.0', [2 * number], slots, streams)
        build.add_role(f'{number}.1', [2 * number + 1], receives, tuple(stream for _, stream, _, _ in receives))
        sends.append([mine[index] for index in range(len(case.messages))])
    build.add_tensor(Tensor('x', 'input', (1,), 'fp32'))
    count = len(seconds)
    costs = Costs(
        compute=np.array(seconds),
        host=np.array(host),
        beside_communication=np.ones(count),
        beside_compute=np.array(beside),
        communication=transfers,
        links=tuple(f'link{number}' for number in range(len(cases))),
        rank_speed=np.ones(2 * len(cases)),
    )
    return build.build(), costs, sends


@dataclass
class Proof:
    """What was compared: sets of transfers, transfers, and how many sets ended elsewhere than in the engine."""

    sets: int = 0
    transfers: int = 0
    late: int = 0
    wrong: list[int] = field(default_factory=list)


def prove(first: int, count: int, batch: int = 50) -> Proof:
    """Compare the sets of ``count`` seeds with the engine; run each fifth again with threads that wake up late."""
    proof = Proof()
    for begin in range(first, first + count, batch):
        seeds = range(begin, min(begin + batch, first + count))
        cases = [case_of(seed) for seed in seeds]
        for seed, case, wanted in zip(seeds, cases, simulated(cases), strict=True):
            proof.sets += 1
            proof.transfers += len(wanted)
            if paced(case) != wanted:
                proof.wrong.append(seed)
            if seed % 5 == 0:
                proof.late += 1
                ends = paced(case, case.span / 10 ** (seed % 3), seed)
                alone = [message.due + message.seconds for message in case.messages]
                # None is quicker than alone, but for the last bit of the clock and of the grid.
                assert all(end >= least - ulp(least) - TICK for end, least in zip(ends, alone, strict=True)), seed
    return proof
