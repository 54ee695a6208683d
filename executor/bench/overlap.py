"""What computation and communication take from one another when both run on every rank at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from executor.bench.communication import collective
from executor.bench.compute import matmul, program_items
from executor.bench.item import COMPUTE, Item, program_of
from executor.bench.ranks import TimedPool
from executor.bench.sample import WARM_UP
from executor.bench.sizes import Sizes
from executor.measure import Statistics
from simpar.intervals import overlap, union
from simpar.lower import lower
from simpar.plan import Plan
from simpar.program import Program
from simpar.trace import Span, Times, Trace
from simpar.workload import Transformer, Workload

What = Literal['matrix', 'memory']
COVERED: Final = 0.9
"""An op counts as beside another stream when that stream was busy for so much of its time."""
TRIALS: Final = 4
"""Steps of every run that count."""
LARGEST_MESSAGE: Final = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """Seconds of the same ops, on average in each run: ``alone``, and ``beside`` the other stream.

    Arguments: ``what`` was measured, matrix or memory kernels or a collective; ``other``, what ran beside it.
    """

    what: What | Literal['collective']
    other: str
    alone: Statistics
    beside: Statistics


def overlap_items(what: What) -> list[Item]:
    """Ops of one kind, each of some hundred microseconds or more."""
    if what == 'matrix':
        return [matmul(m, n, k, phase) for m, n, k in ((256, 512, 512), (128, 512, 1024)) for phase in ('F', 'I', 'W')]
    model = Transformer(layers=1, hidden=512, heads=8, vocab=1024, sequence=256)
    items = program_items(lower(Workload(model=model, batch=4), Plan(), 1), 1, 'beside')
    wanted = {('norm', 'F'), ('norm', 'I'), ('gelu', 'F'), ('gelu', 'I'), ('residual', 'F'), ('relu', 'F')}
    return [item for item in items if (item.ops[-1].operator, item.ops[-1].phase) in wanted]


def measure_overlap(
    pool: TimedPool, sizes: Sizes, largest: float, said: Callable[[], None] = lambda: None
) -> list[Beside]:
    """Run kernels alone, collectives alone and both at once, in turns.

    Arguments: ``largest`` message in bytes. The two streams do not wait for one another; only ops during all of which
    the other stream was busy are counted.
    """
    size = int(max(min(LARGEST_MESSAGE, largest), 1024))
    messages = [collective('all_reduce', pool.world, part) for part in (size, size // 4)]
    found: list[Beside] = []
    for what in ('matrix', 'memory'):
        found += _pair(pool, what, overlap_items(what), messages, sizes.rounds, said)
    return found


def _pair(
    pool: TimedPool, what: What, kernels: list[Item], messages: list[Item], rounds: int, said: Callable[[], None]
) -> list[Beside]:
    alone = {name: program_of(items, pool.world) for name, items in (('kernels', kernels), ('messages', messages))}
    length = {name: _step(pool.timed(program, WARM_UP + TRIALS).trace) for name, program in alone.items()}
    longest = max(length.values())
    both = program_of(
        [item for name, items in (('kernels', kernels), ('messages', messages)) for item in items * round(longest / length[name])],
        pool.world,
    )
    seconds: dict[str, list[float]] = {name: [] for name in ('kernels', 'messages', 'kernels beside', 'messages beside')}
    for _ in range(rounds):
        for name, program in alone.items():
            seconds[name].append(_mean(pool.timed(program, WARM_UP + TRIALS).trace, name, 0.0))
        trace = pool.timed(both, WARM_UP + TRIALS).trace
        for name in alone:
            seconds[f'{name} beside'].append(_mean(trace, name, COVERED))
        said()
    statistics = {name: Statistics(np.array([value for value in values if value > 0])) for name, values in seconds.items()}
    other = f'all_reduce of {messages[0].key["bytes"]} bytes'
    return [
        Beside(what, other, statistics['kernels'], statistics['kernels beside']),
        Beside('collective', f'{what} kernels', statistics['messages'], statistics['messages beside']),
    ]
