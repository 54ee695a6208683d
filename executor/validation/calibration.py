"""Communication calibrated in the run that it is used in, on sizes other than those of the schedules.

Each collective is measured over a range of sizes; seconds are α + size / rate by relative least squares over the 10th
percentiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from executor.assemble import Execution
from simpar.cost.model import CollectiveCost
from simpar.program import OpClass, Partition, Program, ProgramBuilder, Split, Tensor

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
        # A transfer occupies its sender's link only; receiving is free, as in ``executor.link``.
        senders = ranks if op.kind == 'collective' else ranks[:1]
        links = tuple((f'wire/{rank}', 1.0) for rank in senders)
        return CollectiveCost(line.alpha, transfer, transfer, links, why, 'measured')
