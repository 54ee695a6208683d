"""What computation and communication take from one another when both run on every rank at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from executor.bench.communication import collective
from executor.bench.compute import matmul, program_items
from executor.bench.item import COMMUNICATION, COMPUTE, Item, program_of
from executor.bench.ranks import Timed, Timer
from executor.bench.sample import WARM_UP
from executor.bench.sizes import Sizes
from executor.measure import Statistics
from simpar.cost.compute import MATRIX
from simpar.interval_sets import Intervals, union
from simpar.lower import lower
from simpar.model.library.gpt import Transformer
from simpar.plan import Plan
from simpar.program import OpClass, Program
from simpar.trace import Span, Trace
from simpar.workload import Workload

Kernels = Literal['matrix', 'memory']
TRIALS: Final = 3
"""Steps of every run that count."""
LOW: Final = 0.1
"""Quantile of what ops take alone."""
COVERED: Final = 0.8
"""A kernel is beside messages where they run for so much of its time."""
MOSTLY: Final = 0.5
"""Kernels must run for so much of the messages' time, and so much of their work be done meanwhile."""
LEAST: Final = 0.01
"""Seconds of kernels in a step."""
LONGER: Final = 1.5
TINY: Final = 1e-6
"""Seconds, in place of nothing."""
LARGEST: Final = 2**20
SMALLEST: Final = 2**12
"""Bytes of messages."""
USUAL: Final = 2
"""How many sizes of a program's messages are tried."""
BUSIEST: Final = 6
"""How many of the ops of programs are tried."""
LEAST_FLOPS: Final = 10_000_000
LEAST_BYTES: Final = 1_000_000
"""What keeps a core busy for about 200 microseconds: shorter kernels are mostly noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """How many times as long something takes while something else runs, one sample for each run and rank.

    Arguments:
        what: what is stretched: matrix or memory kernels, or a collective.
        beside: what runs, in words.
    """

    what: Kernels | Literal['collective']
    beside: str
    factor: Statistics


def measure_overlap(
    pool: Timer,
    sizes: Sizes,
    largest: float,
    said: Callable[[], None] = lambda: None,
    programs: Sequence[Program] = (),
) -> list[Stretch]:
    """Run kernels alone, collectives alone and both at once, in turns.

    Arguments:
        largest: bytes of the largest message.
        said: called ``2 × sizes.rounds`` times for each kind of collective.
        programs: whose sizes messages have, if any communicate, and whose ops kernels are, if any are long enough.
    """
    size = int(min(max(largest, SMALLEST), LARGEST))
    found: list[Stretch] = []
    kinds: tuple[Kernels, ...] = ('matrix', 'memory')
    for operator in sizes.beside:
        messages = [collective(operator, pool.world, part) for part in _usual(programs) or (size, size // 4)]
        for what in kinds:
            pair = _Pair(pool, busiest(what, programs, pool.world) or kernels(what), messages)
            found += pair.measure(what, operator, sizes.rounds, said)
    return found


def _usual(programs: Sequence[Program]) -> list[int]:
    """The sizes of collectives in which programs send most bytes; the work that a message is has a part for each."""
    sent: Counter[int] = Counter()
    for program in programs:
        for op, times in _often(program):
            if op.kind == 'collective':
                sent[int(op.bytes)] += times * int(op.bytes)
    return [size for size, _ in sent.most_common(USUAL)]


def _often(program: Program) -> Iterator[tuple[OpClass, int]]:
    """Each op class, and how often all ranks together do it in a step; in the order of their first ops."""
    times = Counter(index for rank in range(program.world) for index in program.role(rank).op_class.tolist())
    return ((program.op_classes[index], count) for index, count in times.items())


def busiest(what: Kernels, programs: Sequence[Program], world: int) -> list[Item]:
    """The products of programs with most FLOPs, or those of their other ops that move most bytes.

    What a message takes from a kernel is also its cache, and sizes tell how much of one there is to lose.
    """
    work: list[tuple[float, Item]] = []
    for index, program in enumerate(programs):
        often = {op.name: times for op, times in _often(program)}
        prefix = f'{what}{index}.'
        for item in program_items(program, world, prefix[:-1]):
            op = item.ops[-1]
            least, amount = (LEAST_FLOPS, op.flops) if what == 'matrix' else (LEAST_BYTES, op.bytes)
            if (op.operator in MATRIX) == (what == 'matrix') and amount >= least:
                work.append((often[op.name.removeprefix(prefix)] * amount, item))
    return [item for _, item in sorted(work, key=lambda one: -one[0])[:BUSIEST]]


def kernels(what: Kernels) -> list[Item]:
    """Matrix products, or ops bound by memory, of some hundred microseconds each or more."""
    if what == 'matrix':
        return [matmul(m, n, k, phase) for m, n, k in ((256, 512, 512), (128, 512, 1024)) for phase in ('F', 'I', 'W')]
    model = Transformer(layers=1, hidden=512, heads=8, vocab=1024, sequence=256)
    items = program_items(lower(Workload(model=model, batch=4), Plan(), 1), 1, 'beside')
    return [item for item in items if item.ops[-1].operator in ('norm', 'gelu', 'residual')]


class _Pair:
    """Kernels and messages, and the programs that run either and both; the two streams never wait for one another."""

    def __init__(self, pool: Timer, kernels: list[Item], messages: list[Item]) -> None:
        self._pool = pool
        self._items = {COMPUTE: kernels, COMMUNICATION: messages}
        self._alone = [program_of(items, pool.world) for items in self._items.values()]
        self._seconds: dict[str, list[float]] = {}
        # Once before the combined program is built: its lengths follow from the times alone.
        self._run_alone()
        self._both = self._program()

    def measure(self, what: Kernels, operator: str, rounds: int, said: Callable[[], None]) -> list[Stretch]:
        """How the kernels stretch beside the messages, and the messages beside the kernels.

        Arguments: ``operator``, the kind of the messages.
        """
        both = []
        # Alone and together in turns, so that a slow minute of the machine hits both sides of the ratio.
        for _ in range(rounds):
            self._run_alone()
            both.append(self._run(self._both))
            said()
        alone = self._usual()
        # On a shaped network messages cannot be quicker than the link, however much CPU they get.
        shaped = self._pool.net.kind != 'none'
        kernels = [factor for run in both for factor in kernel_stretches(run, alone, shaped=shaped)]
        messages = [factor for run in both for factor in message_stretches(run.trace, alone)]
        called, of = f'{operator.replace("_", "-")}s', '' if operator == 'all_reduce' else f' ({operator})'
        return [
            Stretch(what, called, Statistics(np.array(kernels))),
            Stretch('collective', f'{what} kernels{of}', Statistics(np.array(messages))),
        ]

    def _run(self, program: Program) -> Timed:
        return self._pool.timed(program, WARM_UP + TRIALS)

    def _run_alone(self) -> None:
        """Remember CPU seconds of kernels, and seconds of messages by the clock, with nothing beside them."""
        for run in map(self._run, self._alone):
            for rank in range(run.trace.program.world):
                for step, span in _spans(run.trace, rank):
                    kernel = span.op.kind == 'compute'
                    # Kernels work on their own thread; gloo's threads do the work of messages, for which the wall clock
                    # is what counts.
                    seconds = run.thread_RKS[rank, step, span.slot] if kernel else span.end - span.start
                    self._seconds.setdefault(span.op.name, []).append(float(seconds))

    def _usual(self) -> dict[str, float]:
        # A low quantile: others on the machine only ever add time.
        return {name: float(np.quantile(seconds, LOW)) for name, seconds in self._seconds.items()}

    def _program(self) -> Program:
        """Both at once; messages last longer than kernels, so that they are there beside the last kernel."""
        alone = self._usual()
        totals = {stream: sum(alone[item.name] for item in items) for stream, items in self._items.items()}
        times = max(1, round(LEAST / totals[COMPUTE]))
        # Kernels take longer beside messages than alone. Messages get a margin, so that the last kernel does not run
        # alone.
        lasting = LONGER * totals[COMPUTE] * times
        messages = self._items[COMMUNICATION] * max(1, round(lasting / totals[COMMUNICATION]))
        return program_of([*self._items[COMPUTE] * times, *messages], self._pool.world)


def _spans(trace: Trace, rank: int, first: int = WARM_UP) -> list[tuple[int, Span]]:
    return [(step, span) for step in range(first, trace.steps) for span in trace.spans(rank, step)]


def _busy(trace: Trace, rank: int, kind: str) -> Intervals:
    """When ops of a kind run on a rank, warm-ups included."""
    # Warm-up steps too: a message of a warm-up may still run when the first counted kernel starts.
    spans = [(span.start, span.end) for _, span in _spans(trace, rank, 0) if span.op.kind == kind]
    return union(np.array(spans).reshape(-1, 2))


def kernel_stretches(run: Timed, alone: Mapping[str, float], *, shaped: bool) -> Iterator[float]:
    """For each rank, how many times as long kernels take while messages run on their core.

    Arguments:
        alone: op class → CPU seconds.
        shaped: whether the network sets the pace of messages.
    Where nobody else uses the machine, a core runs kernels or messages. So a kernel takes its own CPU time and that
    which messages take meanwhile: on a shaped network, their part of the clock; on one that is not, where messages go
    the faster the more of the core they get, their part of the process's CPU time. Both are one where nobody else is
    on the machine, and change little where somebody is, other than the clock.
    """
    for rank in range(run.trace.program.world):
        busy = _busy(run.trace, rank, 'collective')
        beside = [
            (span.end - span.start, run.thread_RKS[at], run.process_RKS[at], alone[span.op.name])
            for step, span in _spans(run.trace, rank)
            # A kernel that is partly alone would dilute the factor.
            if span.op.kind == 'compute' and covered(span, busy) >= COVERED * (span.end - span.start)
            for at in [(rank, step, span.slot)]
        ]
        if beside:
            # Sums before ratios: a ratio for each short kernel would mostly be noise.
            clock, own, process, work = (sum(column) for column in zip(*beside, strict=True))
            # The process's time beyond the kernel's own is gloo's: what messages took of the core.
            shared = clock / max(clock - (process - own), TINY) if shaped else process / own
            yield float(own / work * shared)


def message_stretches(trace: Trace, alone: Mapping[str, float]) -> Iterator[float]:
    """For each rank, how many times as long messages take while kernels run.

    Of the messages from the first kernel to the last, with A seconds alone, U went by while no kernel ran for a moment,
    and C while one did: the factor is C / (A − U). Nothing where that rests on too little.
    """
    for rank in range(trace.program.world):
        busy = _busy(trace, rank, 'compute')
        mine = [span for _, span in _spans(trace, rank) if span.op.kind == 'collective' and _within(span, busy)]
        both = sum(covered(span, busy) for span in mine)
        free = sum(span.end - span.start for span in mine) - both
        work = sum(alone[span.op.name] for span in mine)
        # A quotient of two small differences says nothing, so such a rank gives no sample.
        if mine and both >= MOSTLY * (both + free) and work - free >= MOSTLY * work:
            yield both / (work - free)


def _within(span: Span, busy: Intervals) -> bool:
    return len(busy) > 0 and bool(busy[0, 0] <= span.start and span.end <= busy[-1, 1])


def covered(span: Span, busy: Intervals) -> float:
    """Seconds of a span that lie in a union of intervals."""
    inside = np.clip(busy, span.start, span.end)
    return float((inside[:, 1] - inside[:, 0]).sum())
