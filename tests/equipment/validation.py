"""Validation: schedules predicted and measured in one run, on a network of known rate, with emulated compute.

``make netns`` prints the tables of docs/proofs/evidence.md. Emulated compute checks dependencies, streams, rendezvous
and communication; it does not check the seconds of computation, which are given. Communication is calibrated in the run
that it is used in, on sizes other than those of the schedules: seconds are α + size / rate by relative least squares
over the 10th percentiles.
"""

import argparse
import dataclasses
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from executor.ranks.pool import Pool
from executor.ranks.request import Request
from executor.state import FIRST_STEADY, Execution
from simpar.cost.costs import CollectiveCost
from simpar.cost.price import price
from simpar.errors import OutsideTolerance, SimparError
from simpar.files import write_atomically
from simpar.hardware import Cluster, ShareFigure
from simpar.hardware.net import Net, parse_net
from simpar.predict import followed
from simpar.profiles import cluster, load_profile, shaped
from simpar.program import OpClass, Partition, Program, ProgramBuilder, Split, Tensor
from simpar.trace import Times
from simpar.units import format_time

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


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Seconds of some repeats."""

    samples: Times

    @property
    def p10(self) -> float:
        return float(np.quantile(self.samples, 0.1))

    @property
    def median(self) -> float:
        return float(np.median(self.samples))

    @property
    def cv(self) -> float:
        """The standard deviation over the mean."""
        return float(np.std(self.samples) / np.mean(self.samples))


def steady_steps(execution: Execution) -> list[float]:
    """Seconds of the steps from the third on that have a follower, where that matters."""
    return execution.trace.step_times[execution.trace.warm(FIRST_STEADY)].tolist()


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
APART = 0.05
"""Steps that are predicted further apart than this must be measured in the same order."""
BESIDE = 0.9
"""Speed of emulated compute beside a collective."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One program of a round, and who takes what is measured."""

    program: Program
    request: Request
    take: Callable[[Execution], None]


def _into(found: list[float]) -> Callable[[Execution], None]:
    return lambda execution: found.extend(steady_steps(execution))


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One case: predicted seconds of a step, measured ones, and the same of the case that gain is measured from."""

    case: ValidationCase
    predicted: float
    measured: Statistics
    gain_predicted: float | None
    gain_measured: float | None

    @property
    def error(self) -> float:
        """predicted / the 10th percentile measured − 1."""
        return self.predicted / self.measured.p10 - 1

    @property
    def gain_error(self) -> float:
        """Difference of the gains, as a share; 0 for a baseline."""
        if self.gain_predicted is None or self.gain_measured is None:
            return 0.0
        return self.gain_predicted - self.gain_measured


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """All rows of a run, and the lines that communication was calibrated to."""

    net: Net
    world: int
    rows: tuple[Row, ...]
    lines: dict[Kind, Line]

    @property
    def worst(self) -> float:
        """The largest error of a step."""
        return max(abs(row.error) for row in self.rows)

    @property
    def worst_gain(self) -> float:
        """The largest error of a gain."""
        return max(abs(row.gain_error) for row in self.rows)

    def disordered(self, apart: float = APART) -> list[tuple[str, str]]:
        """Pairs predicted further apart than this share, and measured the other way round."""
        wrong = []
        for one, other in itertools.combinations(self.rows, 2):
            # Steps closer than this may change places by noise alone.
            clear = abs(one.predicted - other.predicted) > apart * min(one.predicted, other.predicted)
            if clear and (one.predicted < other.predicted) != (one.measured.p10 < other.measured.p10):
                wrong.append((one.case.name, other.case.name))
        return wrong


def run_cases(
    cases: Sequence[ValidationCase],
    net: Net,
    world: int,
    *,
    rounds: int = 20,
    steps_a_run: int = STEPS,
    timeout: float = 60.0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Validation:
    """Measure everything, calibrate from the same rounds, predict.

    Arguments:
        rounds: how many rounds count, after one of warm-up.
        steps_a_run: steps of a run; those from the third on count.
        progress: called with the rounds done and their number.
    Raises ``RunFailed``.
    """
    hardware = emulated_cluster(net, world)
    samples: dict[Kind, Samples] = {}
    steps: dict[str, list[float]] = {}
    jobs: list[Job] = []
    for case in cases:
        # The same costs drive the emulated device and the prediction: seconds of compute are given, not tested.
        request = Request(compute='emulated', costs=price(case.program, hardware), steps=steps_a_run)
        found = steps.setdefault(case.name, [])
        jobs.append(Job(case.program, request, _into(found)))
    for kind, used in kinds_of(case.program for case in cases).items():
        program = program_of(kind, sizes_around(used), world)
        samples[kind] = Samples()
        # Two steps: the first warms up, the second is measured.
        request = Request(compute='emulated', costs=price(program, hardware), steps=2)
        jobs.append(Job(program, request, samples[kind].add))
    # Pinned, so that a rank that wakes up late is the network's doing, not the scheduler's.
    with Pool(world, net=net, timeout=timeout, pinned=True) as pool:
        _measure(jobs, pool, rounds, progress)
    lines = {kind: found.fit() for kind, found in samples.items()}
    calibrated = CalibratedCollectives(lines)
    predicted = {
        case.name: followed(case.program, price(case.program, hardware, collective=calibrated)).step for case in cases
    }
    measured = {name: Statistics(np.array(found)) for name, found in steps.items()}
    return Validation(net, world, tuple(_row(case, predicted, measured) for case in cases), lines)


def emulated_cluster(net: Net, world: int) -> Cluster:
    """CPU cores over one shaped link each; compute is slowed beside collectives, as given, and collectives are not."""
    profile = shaped(load_profile('cpu-gloo'), str(net), net.rate, net.latency)

    def factor(value: float) -> ShareFigure:
        return ShareFigure(value=value, source='given to the emulated device', grade='estimate')

    slow_down = dataclasses.replace(
        profile.slow_down, matrix=factor(BESIDE), memory=factor(BESIDE), collective=factor(1.0)
    )
    return cluster(dataclasses.replace(profile, slow_down=slow_down, devices=world))


def _measure(jobs: Sequence[Job], pool: Pool, rounds: int, progress: Callable[[int, int], None]) -> None:
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
        progress(turn, rounds)


def _row(case: ValidationCase, predicted: dict[str, float], steps: dict[str, Statistics]) -> Row:
    if not case.against:
        return Row(case, predicted[case.name], steps[case.name], None, None)
    return Row(
        case,
        predicted[case.name],
        steps[case.name],
        predicted[case.against] / predicted[case.name] - 1,
        steps[case.against].p10 / steps[case.name].p10 - 1,
    )


CASES = ('copies', 'pipelines', 'optimizer', 'tiles', 'all')
LONG = parse_net('paced:500mbit,10ms')
"""Where latency decides; namespaces shape rates only, so this network is always paced."""


def main() -> int:
    """Gather, print and judge."""
    options = _parser().parse_args()
    try:
        found = []
        for rows, net in _runs(options.cases, options.ranks, options.net):
            found.append(run_cases(rows, net, options.ranks, rounds=options.rounds, progress=_progress))
            # Each table as soon as it is there: all of them together take minutes.
            print(table(found[-1]) + '\n', flush=True)
        if options.json:
            write_atomically(options.json, json.dumps([to_dict(validation) for validation in found], indent=1) + '\n')
        # Judged last, so that a figure out of tolerance does not cost the other tables.
        for validation in found:
            judge(validation, options.tolerance / 100)
    except SimparError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


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


def judge(validation: Validation, tolerance: float) -> None:
    """Raise ``OutsideTolerance`` where a step errs by more, or two steps are in the wrong order."""
    wrong = [f'{row.case.name}: step off by {row.error:+.1%}' for row in validation.rows if abs(row.error) > tolerance]
    wrong += [f'wrong order: {one}, {other}' for one, other in validation.disordered()]
    if wrong:
        raise OutsideTolerance('\n'.join(wrong))


def table(validation: Validation) -> str:
    """Markdown, as it stands in docs/proofs/evidence.md."""
    lines = [
        f'{validation.world} ranks, network {validation.net}, emulated compute',
        '',
        '| schedule | predicted | measured p10 | median | spread (CV) | error | gain predicted | gain measured |',
        '|---|---|---|---|---|---|---|---|',
    ]
    lines += [_line(row) for row in validation.rows]
    order = len(validation.disordered())
    worst = f'Worst error {validation.worst:.1%}, worst gain {validation.worst_gain * 100:.1f} points'
    lines += ['', f'{worst}, pairs in the wrong order: {order}.']
    for (operator, ranks), line in validation.lines.items():
        lines.append(
            f'{operator} over {ranks}: {format_time(line.alpha)} + bytes / {line.rate / 1e6:.4g} MB/s, '
            f'residual at most {line.residual:.1%}'
        )
    return '\n'.join(lines)


def _line(row: Row) -> str:
    gains = ['', '']
    if row.gain_predicted is not None and row.gain_measured is not None:
        gains = [f'{row.gain_predicted:+.1%}', f'{row.gain_measured:+.1%}']
    cells = [row.case.name, format_time(row.predicted), format_time(row.measured.p10), format_time(row.measured.median)]
    return '| ' + ' | '.join([*cells, f'{row.measured.cv:.1%}', f'{row.error:+.1%}', *gains]) + ' |'


def to_dict(validation: Validation) -> dict[str, Any]:
    """All figures; seconds."""
    return {
        'net': str(validation.net),
        'ranks': validation.world,
        'rows': [
            {
                'schedule': row.case.name,
                'against': row.case.against,
                'program': row.case.program.hash,
                'predicted': row.predicted,
                'measured': row.measured.samples.tolist(),
                'error': row.error,
                'gain_predicted': row.gain_predicted,
                'gain_measured': row.gain_measured,
            }
            for row in validation.rows
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m equipment.validation', description=__doc__, allow_abbrev=False)
    parser.add_argument('--net', type=_net, default=parse_net('paced:500mbit,200us'), metavar='NET')
    parser.add_argument('--cases', choices=CASES, default='all', help='default: all')
    parser.add_argument('--ranks', type=int, choices=(2, 4), default=2)
    parser.add_argument('--rounds', type=int, default=20, metavar='N', help='measured rounds (default: 20)')
    parser.add_argument('--tolerance', type=float, default=5.0, metavar='PERCENT', help='default: 5')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write all samples')
    return parser


def _net(text: str) -> Net:
    try:
        net = parse_net(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if net.kind == 'none':
        raise argparse.ArgumentTypeError('a network of known rate is needed: paced:RATE,LATENCY or netns:RATE')
    return net


def _progress(done: int, of: int) -> None:
    print(f'\rround {done} of {of}', end='' if done < of else '\n', file=sys.stderr, flush=True)


if __name__ == '__main__':
    sys.exit(main())
