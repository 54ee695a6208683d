"""What computation and communication take from one another when both run on every rank at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from executor.bench.communication import collective
from executor.bench.compute import matmul, program_items
from executor.bench.item import COMMUNICATION, COMPUTE, Item, program_of
from executor.bench.ranks import TimedPool
from executor.bench.sample import WARM_UP
from executor.bench.sizes import Sizes
from executor.measure import Statistics
from simpar.intervals import Intervals, union
from simpar.lower import lower
from simpar.plan import Plan
from simpar.program import Program
from simpar.trace import Span, Trace
from simpar.workload import Transformer, Workload

Kernels = Literal['matrix', 'memory']
TRIALS: Final = 3
"""Steps of every run that count."""
COVERED: Final = 0.8
"""An op is beside another stream where that was busy for so much of the op's time."""
LEAST: Final = 0.01
"""Seconds of kernels in a step."""
LONGER: Final = 1.5
LARGEST: Final = 2**20
SMALLEST: Final = 2**12
"""Bytes of messages."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """How many times as long something takes while something else runs, one sample for each run and rank.

    Arguments: ``what`` is stretched: matrix or memory kernels, or a collective; ``beside``, what runs, in words.
    """

    what: Kernels | Literal['collective']
    beside: str
    factor: Statistics


def measure_overlap(
    pool: TimedPool, sizes: Sizes, largest: float, said: Callable[[], None] = lambda: None
) -> list[Stretch]:
    """Run kernels alone, collectives alone and both at once, in turns.

    Arguments: ``largest`` message, bytes; ``said`` is called ``2 × sizes.rounds`` times.
    """
    size = int(min(max(largest, SMALLEST), LARGEST))
    messages = [collective('all_reduce', pool.world, part) for part in (size, size // 4)]
    found: list[Stretch] = []
    kinds: tuple[Kernels, ...] = ('matrix', 'memory')
    for what in kinds:
        found += _Pair(pool, kernels(what), messages).measure(what, sizes.rounds, said)
    return found


def kernels(what: Kernels) -> list[Item]:
    """Matrix products, or ops bound by memory, of some hundred microseconds each or more."""
    if what == 'matrix':
        return [matmul(m, n, k, phase) for m, n, k in ((256, 512, 512), (128, 512, 1024)) for phase in ('F', 'I', 'W')]
    model = Transformer(layers=1, hidden=512, heads=8, vocab=1024, sequence=256)
    items = program_items(lower(Workload(model=model, batch=4), Plan(), 1), 1, 'beside')
    return [item for item in items if item.ops[-1].operator in ('norm', 'gelu', 'residual')]


class _Pair:
    """Kernels and messages, and the programs that run either and both; the two streams never wait for one another."""

    def __init__(self, pool: TimedPool, kernels: list[Item], messages: list[Item]) -> None:
        self._pool = pool
        self._items = {COMPUTE: kernels, COMMUNICATION: messages}
        self._alone = [program_of(items, pool.world) for items in self._items.values()]
        self._both = self._program()

    def measure(self, what: Kernels, rounds: int, said: Callable[[], None]) -> list[Stretch]:
        """How the kernels stretch beside the messages, and the messages beside the kernels."""
        factors: dict[str, list[float]] = {stream: [] for stream in self._items}
        for _ in range(rounds):
            alone, trace = self._run_alone(), self._run(self._both)
            for stream in factors:
                factors[stream] += stretches(trace, stream, alone)
            said()
        return [
            Stretch(what, 'all-reduces', Statistics(np.array(factors[COMPUTE]))),
            Stretch('collective', f'{what} kernels', Statistics(np.array(factors[COMMUNICATION]))),
        ]

    def _run(self, program: Program) -> Trace:
        return self._pool.timed(program, WARM_UP + TRIALS).trace

    def _run_alone(self) -> dict[tuple[int, str], float]:
        """Mean seconds of every op class on every rank, with nothing beside it."""
        seconds: dict[tuple[int, str], list[float]] = {}
        for trace in map(self._run, self._alone):
            for rank in range(trace.program.world):
                for span in _spans(trace, rank):
                    seconds.setdefault((rank, span.op.name), []).append(span.end - span.start)
        return {key: sum(values) / len(values) for key, values in seconds.items()}

    def _program(self) -> Program:
        """Both at once; messages last longer than kernels, so that they are there beside the last kernel."""
        seconds = self._run_alone()
        totals = {stream: sum(seconds[0, item.name] for item in items) for stream, items in self._items.items()}
        times = max(1, round(LEAST / totals[COMPUTE]))
        lasting = LONGER * totals[COMPUTE] * times
        messages = self._items[COMMUNICATION] * max(1, round(lasting / totals[COMMUNICATION]))
        return program_of([*self._items[COMPUTE] * times, *messages], self._pool.world)


def _spans(trace: Trace, rank: int, first: int = WARM_UP) -> list[Span]:
    return [span for step in range(first, trace.steps) for span in trace.spans(rank, step)]


def stretches(trace: Trace, stream: str, alone: Mapping[tuple[int, str], float]) -> Iterator[float]:
    """For each rank, how many times as long a stream's ops take while the rank's other stream is busy.

    Arguments: ``alone``, (rank, op class) → seconds with nothing beside it, from runs just before.
    """
    for rank in range(trace.program.world):
        others = [(span.start, span.end) for span in _spans(trace, rank, 0) if span.stream != stream]
        busy = union(np.array(others).reshape(-1, 2))
        mine = [span for span in _spans(trace, rank) if span.stream == stream]
        beside = [span for span in mine if covered(span, busy) >= COVERED]
        if beside:
            yield sum(span.end - span.start for span in beside) / sum(alone[rank, span.op.name] for span in beside)


def covered(span: Span, busy: Intervals) -> float:
    """The part of a span's time that lies in a union of intervals."""
    inside = np.clip(busy, span.start, span.end)
    return float((inside[:, 1] - inside[:, 0]).sum()) / max(span.end - span.start, 1e-12)
