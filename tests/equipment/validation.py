"""Validation: schedules predicted and measured in one run, on a network of known rate, with emulated compute.

`make prove NAME=netns` prints tables like those of docs/proofs/evidence.md. Emulated compute checks dependencies,
streams, rendezvous and communication; it does not check the seconds of computation, which are given. Communication is
calibrated in the run that it is used in, on sizes other than those of the schedules: seconds are α + size / rate by
relative least squares over the 10th percentiles.
"""

import dataclasses
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from evidence_page import APART, MOST, disordered, error, tables, verdict
from proof import arguments, steady_steps

from executor.ranks.pool import Pool
from executor.state import Execution, Request
from simpar.cost.costs import CollectiveCost
from simpar.cost.price import price
from simpar.hardware import Cluster, ShareFigure
from simpar.hardware.net import Net, parse_net
from simpar.predict import followed
from simpar.profiles import cluster, load_profile, shaped
from simpar.program import OpClass, Partition, Program, ProgramBuilder, Split, Tensor

from .validation_cases import (
    ValidationCase,
    balance_cases,
    cases,
    losing_cases,
    optimizer_cases,
    pipeline_cases,
    tile_cases,
)

LOW = 0.1
REPEATS = 3
ONE_SHARD = frozenset({('all_gather', 'in'), ('reduce_scatter', 'out')})
"""Sides of a collective that are one rank's slice."""
Kind = tuple[str, int]
"""A collective and the number of ranks in its group; a send has two."""


def kind_of(op: OpClass, ranks: int) -> Kind:
    """How a communication op is calibrated."""
    return (op.operator, ranks) if op.kind == 'collective' else ('send', 2)


def kinds_of(programs: Iterable[Program]) -> dict[Kind, set[int]]:
    """The collectives of some programs, and the sizes that they carry."""
    found: dict[Kind, set[int]] = {}
    for program in programs:
        for op in program.op_classes:
            if op.kind in ('collective', 'send'):
                kind = kind_of(op, program.partitions[op.partition].size)
                found.setdefault(kind, set()).add(int(op.bytes))
    return found


def sizes_around(used: set[int], count: int = 5) -> list[int]:
    """Sizes that span those used and equal none of them, multiples of 4096 bytes."""
    # Beyond the used sizes on both sides, so that the line interpolates.
    low, high = min(used) * 0.7, max(used) * 1.35
    grid = np.geomspace(low, max(high, 4 * low), count)
    sizes = [max(4096, round(size / 4096) * 4096) for size in grid.tolist()]
    # A size that is also predicted would make the prediction a copy of its measurement.
    return sorted({size + 4096 if size in used else size for size in sizes})


def program_of(kind: Kind, sizes: Sequence[int], world: int) -> Program:
    """A program that does this collective (or send), each size ``REPEATS`` times in a row.

    A compute op stands before them, as its ranks have to agree on when a collective starts only where it may slow one.
    """
    operator, ranks = kind
    groups = np.arange(world, dtype=np.int32).reshape(-1, ranks)
    builder = ProgramBuilder(world, [Partition('group', groups)])
    builder.add_op_class(OpClass(name='compute', kind='compute', operator='relu', phase='F', bytes=4.0, dtype='fp32'))
    ends = ('send', 'recv') if operator == 'send' else (operator,)
    for size in sizes:
        for repeat in range(REPEATS):
            for part in ('in', 'out'):
                splits = (Split(0, 'group'),) if (operator, part) in ONE_SHARD else ()
                builder.add_tensor(Tensor(f'{part}.{size}.{repeat}', 'state', (size // 4,), 'fp32', splits=splits))
            for end in ends:
                builder.add_op_class(_op(end, size, repeat))
    for position, end in enumerate(ends):
        mine = groups[:, position] if len(ends) > 1 else groups.ravel()
        slots = [('compute', 'compute', 0, 0)]
        slots += [(f'{end}.{size}.{repeat}', 'group', 0, 0) for size in sizes for repeat in range(REPEATS)]
        builder.add_role(end, mine.tolist(), slots, ('compute', 'group'))
    return builder.build()


def _op(operator: str, size: int, repeat: int) -> OpClass:
    pair = operator in ('send', 'recv')
    return OpClass(
        name=f'{operator}.{size}.{repeat}',
        kind='send' if operator == 'send' else 'recv' if operator == 'recv' else 'collective',
        operator=operator,
        phase='F',
        bytes=float(size),
        partition='group',
        peer={'send': 1, 'recv': -1}.get(operator, 0),
        reduce='' if pair or operator == 'all_gather' else 'sum',
        reads=() if operator == 'recv' else (f'in.{size}.{repeat}',),
        writes=() if operator == 'send' else (f'out.{size}.{repeat}',),
        attributes={} if pair or operator == 'all_reduce' else {'dim': 0},
    )


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a collective: ``alpha`` + size / ``rate``; ``residual``, the largest relative error of the line."""

    alpha: float
    rate: float
    residual: float


@dataclass(slots=True)
class Samples:
    """Seconds of single collectives by size, over all runs of a calibration program."""

    seconds: dict[int, list[float]] = field(default_factory=dict)

    def add(self, execution: Execution) -> None:
        """Take a run's durations, from the last participant's arrival to the last end; the first step is warm-up."""
        trace = execution.trace
        program = trace.program
        for slot, index in enumerate(program.roles[0].op_class.tolist()):
            op = program.op_classes[index]
            if op.kind == 'compute':
                continue
            size = int(op.bytes)
            representatives = [trace.times_of(rank) for rank in program.partitions['group'].members(0)]
            # The last arrival starts a collective, and its last end is what the ranks after it wait for.
            start = np.max([rank_times.start_KS[1:, slot] for rank_times in representatives], axis=0)
            end = np.max([rank_times.end_KS[1:, slot] for rank_times in representatives], axis=0)
            self.seconds.setdefault(size, []).extend((end - start).tolist())

    def fit(self) -> Line:
        """The line that misses the low quantiles least, relatively."""
        sizes = np.array(sorted(self.seconds), dtype=np.float64)
        low = np.array([np.quantile(self.seconds[int(size)], LOW) for size in sizes.tolist()])
        # Divided by the seconds: relative errors, or large messages would decide alone.
        rows = np.stack([1 / low, sizes / low], axis=1)
        (alpha, slope), *_ = np.linalg.lstsq(rows, np.ones_like(low), rcond=None)
        # Noise at long messages can push the intercept below zero, where no latency is; then the rate alone is fitted.
        if alpha < 0:
            alpha, slope = 0.0, float(np.mean(low / sizes))
        residual = float(np.max(np.abs((alpha + slope * sizes) / low - 1)))
        return Line(float(alpha), 1 / float(slope), residual)


@dataclass(frozen=True, slots=True)
class CalibratedCollectives:
    """Prices collectives by their lines; each rank's one link is taken whole while they transfer."""

    lines: dict[Kind, Line]

    def cost(self, op: OpClass, ranks: Sequence[int]) -> CollectiveCost:
        """α + size / rate."""
        line = self.lines[kind_of(op, len(ranks))]
        transfer = op.bytes / line.rate
        why = f'calibrated in this run: {line.alpha * 1e3:.3g} ms + bytes / {line.rate / 1e6:.4g} MB/s'
        # A transfer occupies its sender's link only; receiving is free, as in ``ranks.link``.
        senders = ranks if op.kind == 'collective' else ranks[:1]
        links = tuple((f'wire/{rank}', 1.0) for rank in senders)
        return CollectiveCost(line.alpha, transfer, transfer, links, why, 'measured')


STEPS = 4
BESIDE = 0.9
"""Speed of emulated compute beside a collective."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One program of a round, and who takes what is measured."""

    program: Program
    request: Request
    take: Callable[[Execution], None]


def run_cases(
    cases: Sequence[ValidationCase],
    net: Net,
    world: int,
    *,
    rounds: int = 20,
    steps_a_run: int = STEPS,
    timeout: float = 60.0,
) -> list[dict[str, Any]]:
    """Measure everything, calibrate from the same rounds, predict: rows as `evidence_page` has them.

    Arguments:
        rounds: how many rounds count, after one of warm-up.
        steps_a_run: steps of a run; those from the third on count.
    Raises ``RunFailed``.
    """
    hardware = emulated_cluster(net, world)
    samples: dict[Kind, Samples] = {}
    runs: dict[str, list[list[float]]] = {case.name: [] for case in cases}
    jobs: list[Job] = []
    for case in cases:
        # The same costs drive the emulated device and the prediction: seconds of compute are given, not tested.
        request = Request(compute='emulated', costs=price(case.program, hardware), steps=steps_a_run)
        jobs.append(Job(case.program, request, lambda run, of=runs[case.name]: of.append(steady_steps(run))))
    for kind, used in kinds_of(case.program for case in cases).items():
        program = program_of(kind, sizes_around(used), world)
        samples[kind] = Samples()
        # Two steps: the first warms up, the second is measured.
        request = Request(compute='emulated', costs=price(program, hardware), steps=2)
        jobs.append(Job(program, request, samples[kind].add))
    # Pinned, so that a rank that wakes up late is the network's doing, not the scheduler's.
    with Pool(world, net=net, timeout=timeout, pinned=True) as pool:
        _measure(jobs, pool, rounds)
    calibrated = CalibratedCollectives({kind: found.fit() for kind, found in samples.items()})
    return [
        {
            'name': case.name,
            'against': case.against,
            'net': str(net),
            'world': world,
            'predicted': followed(case.program, price(case.program, hardware, collective=calibrated)).step,
            'runs': runs[case.name],
            'same': verdict(runs[case.name]) if rounds > 1 else 0.0,
        }
        for case in cases
    ]


def emulated_cluster(net: Net, world: int) -> Cluster:
    """CPU cores over one shaped link each; compute is slowed beside collectives, as given, and collectives are not."""
    profile = shaped(load_profile('cpu-gloo'), str(net), net.rate, net.latency)

    def factor(value: float) -> ShareFigure:
        return ShareFigure(value=value, source='given to the emulated device', grade='estimate')

    slow_down = dataclasses.replace(
        profile.slow_down, matrix=factor(BESIDE), memory=factor(BESIDE), collective=factor(1.0)
    )
    return cluster(dataclasses.replace(profile, slow_down=slow_down, devices=world))


def _measure(jobs: Sequence[Job], pool: Pool, rounds: int) -> None:
    """Run every job once a round, in a new order each; the first round is warm-up."""
    # A new order each round: drift of the machine hits all cases and the calibration alike.
    shuffled, order = random.Random(0), list(jobs)
    for turn in range(rounds + 1):
        shuffled.shuffle(order)
        for job in order:
            execution = pool.perform(job.program, job.request)
            # The first round opens connections.
            if turn:
                job.take(execution)


CASES = ('copies', 'pipelines', 'optimizer', 'tiles', 'all')
LONG = parse_net('paced:500mbit,10ms')
"""Where latency decides; namespaces shape rates only, so this network is always paced."""


def main() -> int:
    """Measure what is asked for, and print it; 4 where an error or an order is wrong."""
    options = arguments(
        __doc__,
        net='paced:500mbit,200us',
        cases={'choices': CASES, 'default': 'all'},
        ranks={'type': int, 'choices': (2, 4), 'default': 2},
        rounds=(20, 'rounds that count'),
    )
    every = True
    for of, net in _runs(options.cases, options.ranks, parse_net(options.net)):
        rows = run_cases(of, net, options.ranks, rounds=options.rounds)
        worst, wrong = max(map(abs, map(error, rows))), disordered(rows)
        claims = [
            (f'no error > {MOST:.0%}', f'{worst:.1%}', worst <= MOST),
            (
                f'pairs predicted > {APART:.0%} apart are in order',
                f'{len(wrong)} are not{"".join(wrong[:1])}',
                not wrong,
            ),
        ]
        # Each table as soon as it is there: all of them together take minutes.
        print(*tables(claims, rows), sep='\n', flush=True)
        every &= all(held for *_, held in claims)
    return 0 if every else 4


def _runs(which: str, ranks: int, net: Net) -> Iterator[tuple[list[ValidationCase], Net]]:
    """What is measured together, and on which network."""
    if which in ('copies', 'all'):
        yield cases(ranks), net
        yield losing_cases(ranks), LONG
    if which in ('pipelines', 'all'):
        yield [*pipeline_cases(ranks), *balance_cases(ranks, emulated_cluster(net, ranks))], net
    if which in ('optimizer', 'all'):
        yield optimizer_cases(ranks), net
    if which in ('tiles', 'all'):
        yield tile_cases(ranks), net


if __name__ == '__main__':
    sys.exit(main())
