"""Drawn schedules of the evidence: what is predicted and measured, on links, sizes and ranks that nobody chose.

A draw is a pair of plans of one model; gain is measured from the first one. Its kind, degrees, sizes of messages and
shares of computation are drawn; sizes are drawn again until a step takes about what it should.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from executor.bench.bench import given_cluster
from simpar import Plan, Program, Workload, price, simulate
from simpar.errors import SimparError
from simpar.hardware import Cluster
from simpar.hardware.net import parse_net
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.resolve import resolve

NETS = (
    *('paced:100Mbit/s,5ms', 'netns:50mbit', 'paced:300Mbit/s,2ms'),
    *('netns:150mbit', 'paced:1Gbit/s,200us', 'netns:400mbit'),
)
WORLDS = (2, 3, 4)
KINDS = ('tensor', 'pipeline', 'sequence', 'zero', 'tiles')
ORDERS = ('gpipe', '1f1b', 'interleaved-1f1b', 'zb-h1')
SHORTEST, LONGEST = 0.15, 1.0
"""Seconds that a step may take by formula."""
LEAST = 2**12
MOST = 2**26
"""Bytes of the longest messages."""
TALK = 0.1
"""Communication must be at least this share of all that a rank does."""
TRIES = 400


@dataclass(frozen=True)
class Row:
    """One schedule on one network: ``against``, the name of the row that its gain is measured from."""

    name: str
    kind: str
    program: Program
    against: str = ''


@dataclass(frozen=True)
class Block:
    """Rows that are measured together: one network, one number of ranks."""

    number: int
    net: str
    world: int
    kinds: tuple[str, str]
    seed: int

    def rows(self) -> list[Row]:
        """Its schedules, drawn: two pairs."""
        drawn = random.Random(self.seed)
        hardware = given_cluster(self.world, parse_net(self.net))
        return [row for kind in self.kinds for row in _pair(drawn, kind, self.world, hardware)]


def blocks(seed: int, count: int) -> list[Block]:
    """As many blocks as asked for: networks, ranks and kinds take turns, the rest is drawn."""
    drawn = random.Random(seed)
    kinds = _shuffled_for_ever(drawn, KINDS)
    return [
        Block(
            number=number,
            net=NETS[number % len(NETS)],
            world=WORLDS[(number + number // len(NETS)) % len(WORLDS)],
            kinds=(next(kinds), next(kinds)),
            seed=drawn.randrange(2**31),
        )
        for number in range(count)
    ]


def _shuffled_for_ever(drawn: random.Random, items: tuple[str, ...]) -> Iterator[str]:
    while True:
        yield from drawn.sample(items, len(items))


def _pair(drawn: random.Random, kind: str, world: int, hardware: Cluster) -> list[Row]:
    """Two plans of one model, of which the first takes about as long as it should."""
    for _ in range(TRIES):
        plans = _plans(drawn, kind, world)
        work = _workload(drawn, kind, world, plans[0])
        try:
            programs = [lower(work, resolve(work, plan, hardware), world) for plan in plans]
        # A drawn order or degree that the drawn sizes do not allow; the next draw may.
        except SimparError:
            continue
        if all(_fits(program, hardware) for program in programs):
            names = [f'{_named(plan, kind)}, {_longest(one)}' for plan, one in zip(plans, programs, strict=True)]
            return [Row(names[0], kind, programs[0]), Row(names[1], kind, programs[1], against=names[0])]
    raise RuntimeError(f'no {kind} of {world} ranks fits the network in {TRIES} draws')


def _plans(drawn: random.Random, kind: str, world: int) -> tuple[Plan, Plan]:
    """A plan, and another one that differs in one key or two."""
    one, other = drawn.sample((1, 2, 3, 4), 2)
    # Four ranks may also be two by two.
    half = world == 4 and drawn.random() < 0.4
    tensor, data = (2, 2) if half else (world, 1)
    if kind == 'tensor':
        plan = Plan(tensor=tensor, data=data, copies=one, overlap=_overlap(drawn))
        return plan, replace(plan, copies=other)
    if kind == 'sequence':
        plan = Plan(tensor=tensor, data=data, sequence_parallel=True, copies=one)
        return plan, replace(plan, copies=other)
    if kind == 'tiles':
        few, many = sorted(drawn.sample((1, 2, 3, 4), 2))
        plan = Plan(tensor=tensor, data=data, tiles=few, copies=drawn.choice((1, 2)))
        return plan, replace(plan, tiles=many)
    if kind == 'zero':
        level, second = drawn.sample((0, 1, 2, 3), 2)
        plan = Plan(data=world, zero=level, copies=drawn.choice((1, 2)))
        return plan, replace(plan, zero=second)
    first, second = drawn.sample(ORDERS, 2)
    plan = Plan(
        pipeline=world,
        micro_batches=2 * world,
        order=first,
        copies=drawn.choice((1, 2)),
        receive=drawn.choice(('early', 'late')),
    )
    return plan, replace(plan, order=second)


def _overlap(drawn: random.Random) -> tuple[str, ...]:
    every = Plan().overlap
    return every if drawn.random() < 0.5 else every[1:]


def _workload(drawn: random.Random, kind: str, world: int, plan: Plan) -> Workload:
    """Blocks of a wide and a narrow product; the longest message and the computation beside it are drawn."""
    message = LEAST * (MOST / LEAST) ** drawn.random()
    parts = 12 * world
    if kind == 'zero':
        width = 8 * world * drawn.choice((4, 8, 16, 32, 64))
        inner = max(int(message / 4 / width) // parts, 1) * parts
        batch = parts * drawn.choice((1, 4, 16, 64, 256))
    else:
        width = 4 * world * drawn.choice((8, 16, 32, 64, 128))
        slices = plan.micro_batches * plan.copies
        batch = max(round(message / 4 / width * slices / (parts * plan.micro_batches)), 1) * parts * plan.micro_batches
        inner = parts * int(4 ** (5 * drawn.random()))
    count = drawn.randint(1, 4) if kind != 'pipeline' else 2 * world
    wide, narrow = Dense(inputs=width, outputs=inner, bias=False), Dense(inputs=inner, outputs=width, bias=False)
    layers = [part for _ in range(count) for part in (wide, Relu(), narrow, Relu())][:-1]
    if kind == 'pipeline':
        layers = [Dense(inputs=width, outputs=width, bias=False)] * count
    return Workload(model=Network(layers=tuple(layers)), batch=batch, loss='mse')


def _fits(program: Program, hardware: Cluster) -> bool:
    """Whether a step lasts about as long as it should, its messages are of the sizes, and they matter."""
    longest = max((op.bytes for op in program.op_classes if op.kind != 'compute'), default=0)
    if not LEAST <= longest <= MOST:
        return False
    costs = price(program, hardware)
    computes = talks = 0.0
    role = program.roles[0]
    for index in role.op_class.tolist():
        found = costs.communication.get(index)
        computes += float(costs.compute[index])
        talks += found[0].alpha + found[0].transfer if found else 0.0
    if not SHORTEST / 2 <= computes + talks <= 3 * LONGEST or talks < TALK * (computes + talks):
        return False
    return SHORTEST <= simulate(program, costs).step <= LONGEST


def _named(plan: Plan, kind: str) -> str:
    degrees = [
        f'{key} {getattr(plan, key)}' for key in ('data', 'tensor', 'pipeline') if getattr(plan, key) not in (0, 1)
    ]
    more = [f'copies {plan.copies}'] if plan.copies > 1 else []
    more += ['sequence parallel'] if plan.sequence_parallel else []
    more += [f'tiles {plan.tiles}'] if kind == 'tiles' else []
    more += [f'zero {plan.zero}'] if kind == 'zero' else []
    more += [f'{plan.order}, {plan.receive} receives'] if kind == 'pipeline' else []
    more += ['sums of dx wait'] if kind == 'tensor' and plan.overlap != Plan().overlap else []
    return ', '.join([' × '.join(degrees), *more])


def _longest(program: Program) -> str:
    size = max(op.bytes for op in program.op_classes if op.kind != 'compute')
    return f'messages to {size / 2**20:.3g} MiB' if size >= 2**20 else f'messages to {size / 2**10:.3g} KiB'
