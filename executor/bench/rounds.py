"""Rounds of a bench: items in shuffled orders, kernels beside messages, what a device has; and the rows they become."""

from __future__ import annotations

import datetime
import os
import platform
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from executor import devices, state, tensors
from executor.bench import items as bench
from executor.bench.kinds import Price, low
from executor.bench.ranks import Timed, Timer
from executor.ranks import real, streams
from executor.ranks.pool import Pool
from executor.ranks.rank import Machines
from simpar import __version__, interval_sets, plans, workload
from simpar.cost.compute import MATRIX, NO_WORK
from simpar.cost.costs import Costs
from simpar.engine import simulate
from simpar.lower import lower
from simpar.model.library.gpt import Transformer
from simpar.program import OpClass, Phase, Program, Role
from simpar.trace import Span, Times, Trace

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Said = Callable[[], None]
"""Called after each turn."""
WARM_UP = 2
"""Steps of every run that do not count."""
QUIET = 0.02
TICK = 5e-6
"""Wall time may exceed CPU time by this share, or by so many seconds of reading clocks."""
ENOUGH = 8
QUICKEST: Final = 0.25
"""The share of steps that is quick: where they scatter normally, its mean is their 10th percentile."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Repeats of one item on all ranks: seconds by the clock and of CPU time.

    Arguments: ``quick``, the mean by the clock over the steps in which all items together were quickest; 0: not known.
    """

    wall: Times
    cpu: Times
    quick: float = 0.0

    @property
    def quiet(self) -> NDArray[np.bool_]:
        """Which repeats had the processor to themselves: hardly longer than their CPU time."""
        return self.wall - self.cpu < np.maximum(QUIET * self.wall, TICK)

    @property
    def kept(self) -> Samples:
        """The quiet repeats, as far as there are enough; all of them otherwise."""
        # A quantile over a handful of repeats would be worse than one over disturbed ones.
        return Samples(self.wall[self.quiet], self.cpu[self.quiet]) if self.quiet.sum() >= ENOUGH else self


def sample(pool: Timer, items: Sequence[bench.Item], sizes: bench.Sizes, seed: int, said: Said) -> list[Samples]:
    """Run all items on every rank, one after the other without a pause, in shuffled orders of so many trials each.

    Arguments: ``said``, called after each order.
    """
    shuffled, pairs = random.Random(seed), defaultdict[str, list[tuple[Times, Times]]](list)
    for _ in range(sizes.orders):
        # A new order each time: what ran before an op leaves caches in another state, and drift must not favour one
        # item.
        order = list(items)
        shuffled.shuffle(order)
        run = pool.timed(bench.program_of(order, pool.world), WARM_UP + sizes.trials)
        for name, wall, cpu in seconds_by_op(run):
            pairs[name].append((wall, cpu))
        said()
    walls, cpus = ([np.concatenate([pair[which] for pair in pairs[item.name]]) for item in items] for which in (0, 1))
    # Repeats are [orders, ranks, steps], one behind the other.
    by_step = [wall.reshape(sizes.orders, -1, sizes.trials).mean(1).ravel() for wall in walls]
    first = quickest(np.sum(by_step, axis=0))
    means = [float(seconds[first].mean()) for seconds in by_step]
    return [Samples(*one) for one in zip(walls, cpus, means, strict=True)]


def quickest(totals: Times) -> NDArray[np.int64]:
    """Which steps are quick, by what each took."""
    return np.argsort(totals)[: max(1, round(QUICKEST * len(totals)))]


def seconds_by_op(run: Timed) -> list[tuple[str, Times, Times]]:
    """Op class, seconds from start to end and CPU seconds of every slot, over steps that count and all ranks.

    CPU seconds are those of the op's thread for compute, of the whole process for communication.
    """
    role = run.trace.program.role(0)
    representatives = run.trace.representatives
    # From start, not arrival: the wait for peers is not the op's own time.
    wall_RKS = np.array([rank_times.end_KS - rank_times.start_KS for rank_times in representatives])[:, WARM_UP:]
    ops = [run.trace.program.op(role, slot) for slot in range(len(role))]
    computes = np.array([op.kind == 'compute' for op in ops])
    cpu_RKS = np.where(computes, run.thread_RKS, run.process_RKS)[:, WARM_UP:]
    return [(op.name, wall_RKS[:, :, slot].ravel(), cpu_RKS[:, :, slot].ravel()) for slot, op in enumerate(ops)]


# What computation and communication take from one another when both run on every rank at once.

Kernels = Literal['matrix', 'memory']
TRIALS: Final = 3
"""Steps of every run that count."""
COVERED: Final = 0.8
"""A kernel is beside messages where they run for so much of its time."""
MOSTLY: Final = 0.5
"""Kernels must run for so much of the messages' time, and so much of their work be done meanwhile."""
LEAST: Final = 0.01
"""Seconds of kernels in a step."""
OUTLAST: Final = 3
"""How many of the longest message kernels outlast."""
LONGER: Final = 1.5
TINY: Final = 1e-6
"""Seconds, in place of nothing."""
LARGEST: Final = 2**20
SMALLEST: Final = 2**12
"""Bytes of messages."""
USUAL: Final = 2
"""How many messages of a program, of unlike operators or sizes, are tried."""
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
    factor: Times


def measure_overlap(
    pool: Timer, messages: Mapping[str, Sequence[int]], rounds: int, said: Said, programs: Sequence[Program]
) -> list[Stretch]:
    """Run kernels alone, collectives alone and both at once, in turns.

    Arguments:
        messages: bytes of those of each operator, see ``messages_beside``.
        said: called ``2 × rounds`` times for each operator.
        programs: whose ops kernels are, if any are long enough.
    """
    stretches: list[Stretch] = []
    kinds: tuple[Kernels, ...] = ('matrix', 'memory')
    for operator, sizes in messages.items():
        talking = [bench.collective(operator, pool.world, size) for size in sizes]
        for what in kinds:
            pair = _Pair(pool, busiest(what, programs, pool.world) or kernels(what), talking)
            stretches += pair.measure(what, operator, rounds, said)
    return stretches


def messages_beside(sizes: bench.Sizes, largest: float, programs: Sequence[Program]) -> dict[str, list[int]]:
    """Bytes of the messages that run beside kernels, by operator.

    Those in which programs send most bytes; without programs that send, two sizes of what is usual. A send counts as an
    exchange of two ranks: so both compute beside one. Arguments: ``largest``, bytes of the largest without programs.
    """
    sent: Counter[tuple[str, int]] = Counter()
    for program in programs:
        for op, times in _often(program):
            if op.kind in ('collective', 'send'):
                operator = 'send_recv' if op.kind == 'send' else op.operator
                sent[operator, int(op.bytes)] += times * int(op.bytes)
    size = int(min(max(largest, SMALLEST), LARGEST))
    messages = {} if sent else {operator: [size, size // 4] for operator in sizes.beside}
    for (operator, size), _ in sent.most_common(USUAL):
        messages.setdefault(operator, []).append(size)
    return messages


def _often(program: Program) -> Iterator[tuple[OpClass, int]]:
    """Each op class, and how often all ranks together do it in a step; in the order of their first ops."""
    times = Counter(index for rank in range(program.world) for index in program.role(rank).op_class.tolist())
    return ((program.op_classes[index], count) for index, count in times.items())


def busiest(what: Kernels, programs: Sequence[Program], world: int) -> list[bench.Item]:
    """The products of programs with most FLOPs, or those of their other ops that move most bytes.

    What a message takes from a kernel is also its cache, and sizes tell how much of one there is to lose.
    """
    work: list[tuple[float, bench.Item]] = []
    for index, program in enumerate(programs):
        often = {op.name: times for op, times in _often(program)}
        prefix = f'{what}{index}.'
        for item in bench.program_items(program, world, prefix[:-1]):
            op = item.ops[-1]
            least, amount = (LEAST_FLOPS, op.flops) if what == 'matrix' else (LEAST_BYTES, op.bytes)
            if (op.operator in MATRIX) == (what == 'matrix') and amount >= least:
                work.append((often[op.name.removeprefix(prefix)] * amount, item))
    return [item for _, item in sorted(work, key=lambda one: -one[0])[:BUSIEST]]


def kernels(what: Kernels) -> list[bench.Item]:
    """Matrix products, or ops bound by memory, of some hundred microseconds each or more."""
    if what == 'matrix':
        return [
            bench.matmul(m, n, k, phase) for m, n, k in ((256, 512, 512), (128, 512, 1024)) for phase in ('F', 'I', 'W')
        ]
    model = Transformer(layers=1, hidden=512, heads=8, vocab=1024, sequence=256)
    items = bench.program_items(lower(workload.Workload(model=model, batch=4), plans.Plan(), 1), 1, 'beside')
    return [item for item in items if item.ops[-1].operator in ('norm', 'gelu', 'residual')]


class _Pair:
    """Kernels and messages, and the programs that run either and both; the two streams never wait for one another."""

    def __init__(self, pool: Timer, kernels: list[bench.Item], messages: list[bench.Item]) -> None:
        self._pool = pool
        self._items = {bench.COMPUTE: kernels, bench.COMMUNICATION: messages}
        self._alone = [bench.program_of(items, pool.world) for items in self._items.values()]
        self._seconds: dict[str, list[float]] = {}
        # Once before the combined program is built: its lengths follow from the times alone.
        self._run_alone()
        self._both = self._program()

    def measure(self, what: Kernels, operator: str, rounds: int, said: Said) -> list[Stretch]:
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
            Stretch(what, called, np.array(kernels)),
            Stretch('collective', f'{what} kernels{of}', np.array(messages)),
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
        return {name: low(seconds) for name, seconds in self._seconds.items()}

    def _program(self) -> Program:
        """Both at once; messages last longer than kernels, so that they are there beside the last kernel."""
        alone = self._usual()
        totals = {stream: sum(alone[item.name] for item in items) for stream, items in self._items.items()}
        # A message counts where kernels run from its start to its end, so they outlast several: paced ones are long.
        longest = max(alone[item.name] for item in self._items[bench.COMMUNICATION])
        times = max(1, round(max(LEAST, OUTLAST * longest) / totals[bench.COMPUTE]))
        # Kernels take longer beside messages than alone. Messages get a margin, so that the last kernel does not run
        # alone.
        lasting = LONGER * totals[bench.COMPUTE] * times
        messages = self._items[bench.COMMUNICATION] * max(1, round(lasting / totals[bench.COMMUNICATION]))
        return bench.program_of([*self._items[bench.COMPUTE] * times, *messages], self._pool.world)


def _spans(trace: Trace, rank: int, first: int = WARM_UP) -> list[tuple[int, Span]]:
    return [(step, span) for step in range(first, trace.steps) for span in trace.spans(rank, step)]


def _busy(trace: Trace, rank: int, kind: str) -> interval_sets.Intervals:
    """When ops of a kind run on a rank, warm-ups included."""
    # Warm-up steps too: a message of a warm-up may still run when the first counted kernel starts.
    spans = [(span.start, span.end) for _, span in _spans(trace, rank, 0) if span.op.kind == kind]
    return interval_sets.union(np.array(spans).reshape(-1, 2))


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


def _within(span: Span, busy: interval_sets.Intervals) -> bool:
    return len(busy) > 0 and bool(busy[0, 0] <= span.start and span.end <= busy[-1, 1])


def covered(span: Span, busy: interval_sets.Intervals) -> float:
    """Seconds of a span that lie in a union of intervals."""
    inside = np.clip(busy, span.start, span.end)
    return float((inside[:, 1] - inside[:, 0]).sum())


# The record of a bench: one JSON object, every line with its count, median, 10th percentile, IQR and CV.

FORMAT: Final = 'simpar bench 1'
TABLES: Final = ('matmul', 'attention', 'operator', 'collective')
FAMILIES: Final = {'x86_64': 'x86', 'amd64': 'x86', 'aarch64': 'ARM', 'arm64': 'ARM'}


def table_rows(items: Sequence[bench.Item], samples: Sequence[Samples]) -> dict[str, list[dict[str, Any]]]:
    """Rows of every table, in the order of the items."""
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for item, repeats in zip(items, samples, strict=True):
        computes = item.ops[-1].kind == 'compute'
        # Messages wait for other ranks, so wall time beyond CPU time is no sign of a disturbance there.
        quiet_repeats = repeats.kept if computes else repeats
        row: dict[str, Any] = {**item.key, 'weight': item.weight}
        # Wall time of all repeats, CPU time of quiet ones: their distance tells a reader how busy the machine was.
        # Of messages a step has many, one after the other: what they take in quick steps counts.
        low = None if computes or not repeats.quick else repeats.quick
        row |= {'wall': state.figures(repeats.wall, low), 'cpu': state.figures(quiet_repeats.cpu)}
        if computes:
            row['quiet'] = round(float(repeats.quiet.mean()), 3)
        tables[item.table].append(row)
    return tables


def overlap_rows(stretches: Sequence[Stretch]) -> list[dict[str, Any]]:
    """One row for everything that was measured beside something else; ``factor`` of its time alone."""
    return [{'what': one.what, 'beside': one.beside, 'factor': state.figures(one.factor)} for one in stretches]


def environment(ranks: int, net: str, on: bench.On = bench.CPU, per_host: int = 0) -> dict[str, Any]:
    """Where the times are from, in general words."""
    return {
        'format': FORMAT,
        'date': datetime.date.today().isoformat(),
        'machine': machine() if on.threads else on.name,
        'cores': os.cpu_count() or 1,
        'memory': memory() if on.threads else on.memory,
        'software': {'Python': platform.python_version(), 'torch': str(torch.__version__), 'simpar': __version__},
        'ranks': ranks,
        'hosts': ranks // per_host if per_host else 1,
        'net': net,
        **({} if on.threads else {'device': on.device, 'dtype': on.dtype or 'fp32', 'library': on.library}),
    }


def machine() -> str:
    """The kind of this machine, e.g. ``2-core x86 CPU (AVX512)``."""
    family = FAMILIES.get(platform.machine().lower(), platform.machine())
    vectors = torch.backends.cpu.get_cpu_capability()
    return f'{os.cpu_count()}-core {family} CPU' + (f' ({vectors})' if vectors != 'DEFAULT' else '')


def memory() -> int:
    """Bytes of this machine's memory; 0 where the system does not say."""
    try:
        return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    except (ValueError, OSError, AttributeError):
        return 0


# What a device has and a processor has not: a host that issues to it, and a clock that sinks under load.

LEAST_SIZE: Final = 8
"""Sizes of a product that takes a device no longer than the host needs to issue it."""
MANY: Final = (64, 256)
"""Such products in a step: the slope between the two is what one costs, what is left is the step's own."""
DEVICE_WARM_UP: Final = 3
"""Steps that do not count: with captured graphs, the first and those that are captured."""
DEVICE_STEPS: Final = 8
PHASES: Final[tuple[Phase, ...]] = ('F', 'I')
AT_ONCE: Final = 16
"""Large products in a step."""
EARLY, LATE = 0.1, 0.25
"""Shares of the time under load: at its beginning, when the clock is still high, and at its end."""


@dataclass(slots=True, eq=False)
class Reporter:
    """Says how far a bench has come: by a bar for each part, or in a log by one line when it begins."""

    bars: Progress | None = None
    _begin: float = field(default_factory=time.monotonic)
    _task: TaskID | None = None

    def part(self, name: str, turns: int) -> None:
        """A part of so many turns begins."""
        if self.bars is None:
            print(f'bench: {time.monotonic() - self._begin:4.0f} s: {name}', file=sys.stderr, flush=True)
        else:
            self._task = self.bars.add_task(name, total=turns)

    def turn(self) -> None:
        """One turn of it is done."""
        if self.bars is not None and self._task is not None:
            self.bars.advance(self._task)


def of_device(timer: Timer, sizes: bench.Sizes, on: bench.On, reporter: Reporter) -> dict[str, Any]:
    """Rows of a record: what the host takes to issue an op, eagerly and captured, and the clock under load."""
    modes = ['eager', *(['graph'] if devices.KINDS[on.device].graphs else [])]
    reporter.part(f'launches: {" and ".join(modes)}', len(modes) * len(PHASES))
    launches = []
    for mode in modes:
        for phase in PHASES:
            launches.append({'mode': mode, 'phase': phase, **_launch(timer, mode, phase)})
            reporter.turn()
    reporter.part('clock under load', 1)
    under_load = _under_load(timer, sizes)
    reporter.turn()
    return {'launches': launches, 'sustained': under_load, 'copies': _copies(timer, sizes)}


def _copies(timer: Timer, sizes: bench.Sizes) -> list[dict[str, Any]]:
    """Seconds of copies to the host and back, the smallest and the largest of messages."""
    items = [item for size in (sizes.messages[0], sizes.messages[-1]) for item in bench.copies(size)]
    run = timer.timed(bench.program_of(items, timer.world), DEVICE_WARM_UP + DEVICE_STEPS)
    seconds = {name: wall for name, wall, _ in seconds_by_op(run)}
    return [{**item.key, 'seconds': state.figures(np.maximum(seconds[item.name], 1e-9))} for item in items]


def _launch(timer: Timer, mode: str, phase: Phase) -> dict[str, Any]:
    """Seconds that an op takes of the host, and those of a step beside its ops."""
    item = bench.matmul(LEAST_SIZE, LEAST_SIZE, LEAST_SIZE, phase)
    few, many = (
        _steps(timer.timed(bench.program_of([item] * count, timer.world), DEVICE_WARM_UP + DEVICE_STEPS, issue=mode))
        for count in MANY
    )
    slopes = (many - few) / (MANY[1] - MANY[0])
    # Every rank has a host of its own; noise may make a short slope negative.
    op = np.maximum(slopes.ravel(), 1e-9)
    return {'op': state.figures(op), 'step': state.figures(np.maximum((few - MANY[0] * slopes).ravel(), 1e-9))}


def _steps(run: Timed) -> Times:
    """Seconds of the steps that count, shape [ranks, steps]: from the end of the step before to its own end."""
    ends = np.array([run.trace.times_of(rank).end_KS[:, -1] for rank in range(run.trace.program.world)])
    return np.asarray(np.diff(ends, axis=1)[:, DEVICE_WARM_UP - 1 :])


def _under_load(timer: Timer, sizes: bench.Sizes) -> dict[str, Any]:
    """Seconds of a large product at the beginning and at the end of a time in which a device does nothing else."""
    item = bench.matmul(sizes.load, sizes.load, sizes.load, 'F')
    program = bench.program_of([item] * AT_ONCE, timer.world)
    first = timer.timed(program, DEVICE_WARM_UP + 1)
    once = float(np.median(_products(first)[:, -AT_ONCE:]))
    steps = DEVICE_WARM_UP + max(DEVICE_STEPS, round(sizes.load_seconds / (AT_ONCE * once)))
    seconds = _products(timer.timed(program, steps))[:, DEVICE_WARM_UP * AT_ONCE :]
    count = seconds.shape[1]
    early, late = seconds[:, : max(1, round(EARLY * count))], seconds[:, -max(1, round(LATE * count)) :]
    return {
        'size': sizes.load,
        'seconds': sizes.load_seconds,
        'early': state.figures(early.ravel()),
        'late': state.figures(late.ravel()),
    }


def _products(run: Timed) -> Times:
    """Seconds of each product, shape [ranks, products in their order]."""
    return run.thread_RKS.reshape(run.trace.program.world, -1)


# Compute ops in the order of a step: every rank runs its own ops of whole steps, and no message is sent.

STEPS: Final = 4
"""Steps of a run that count."""


class AloneMachine(real.RealMachine):
    """Real compute without messages: what would come from other ranks is there at once, as small numbers."""

    def __init__(self, pauses: Mapping[str, list[float]], start: real.Start, *more: Any, **others: Any) -> None:
        super().__init__(start, *more, **others)
        self._came: dict[int, list[torch.Tensor]] = {}
        self._pauses = pauses.get(start.program.hash, [0.0] * len(start.program.role(start.rank)))

    def run(self, work: streams.Work, arrived: float) -> float:
        """As real compute does; for a message the thread sleeps.

        The same memory comes each time, for that of a message is no part of what is timed.
        """
        slot, program = work.slot, self._start.program
        if slot.op.kind == 'compute':
            return super().run(work, arrived)
        if slot.index not in self._came:
            named = [program.tensor[name] for name in slot.op.writes + slot.op.accumulates]
            self._came[slot.index] = [
                torch.full(program.local_shape(one), 0.02).to(tensors.torch_dtype(one.dtype, self._start.dtype))
                for one in named
            ]
        self._clock.sleep_until(arrived + self._pauses[slot.position])
        self.memory.keep(slot.op, *slot.part, self._came[slot.index])
        self.memory.free(slot.op, *slot.part)
        return self._clock.now()


class AlonePool(Pool):
    """A pool of ranks with a core each that send no messages.

    Arguments:
        costs: of each program; for as long as its messages then take, their threads sleep.
        favour: whether the threads of messages come first, as of ``TimedPool``.
    """

    def __init__(self, world: int, programs: Sequence[Program], costs: Price, *, favour: bool = False) -> None:
        self._favour = favour
        self._pauses = {program.hash: message_seconds(program, costs(program)) for program in programs}
        super().__init__(world, pinned=True, timeout=60.0)

    def ran(self, program: Program, steps: int) -> list[state.Outcome]:
        """Run so many steps; what each rank saw."""
        by_rank: list[state.Outcome] = []
        request = state.Request(steps=steps, favour=self._favour, clocks=True)
        self.perform(program, request, lambda _, outcomes: by_rank.extend(outcomes))
        return by_rank

    def _machines(self, rank: int) -> Machines:
        mine = {digest: seconds[rank].tolist() for digest, seconds in self._pauses.items() if rank < len(seconds)}
        return Machines(real=partial(AloneMachine, mine))


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of one rank: seconds of its priced ops in the order of their ends, by the clock and of CPU time."""

    names: list[str]
    wall: list[Times] = field(default_factory=list)
    cpu: list[Times] = field(default_factory=list)


class InOrder:
    """The ops of programs, timed in the order of their steps, round by round."""

    def __init__(self, pool: AlonePool, programs: Sequence[Program]) -> None:
        self._pool = pool
        self._programs = list({program.hash: program for program in programs}.values())
        self._steps: dict[tuple[str, int], _Steps] = {}

    def round(self, steps: int = STEPS) -> None:
        """Run so many steps of every program, and some to warm up."""
        for program in self._programs:
            self.round_of(program, steps)

    def round_of(self, program: Program, steps: int = STEPS) -> None:
        """Run so many steps of one of the programs, and some to warm up."""
        for one, ran in enumerate(self._pool.ran(program, WARM_UP + steps)):
            self._add(program, one, ran)

    def _add(self, program: Program, one: int, ran: state.Outcome) -> None:
        role = program.role(one)
        ops = [program.op(role, slot) for slot in range(len(role))]
        computing = [slot for slot, op in enumerate(ops) if op.kind == 'compute']
        # Ops of several streams in the order in which they ended: together they take all that the rank has.
        order = sorted(computing, key=lambda slot: float(ran.end_KS[WARM_UP, slot]))
        priced = [at for at, slot in enumerate(order) if ops[slot].operator not in NO_WORK]
        if not priced:
            return
        steps = self._steps.setdefault((program.hash, one), _Steps([ops[order[at]].name for at in priced]))
        # Of the whole process, from the end of one op to that of the next.
        cpu = np.diff(ran.cpu[3][:, order].ravel(), prepend=0.0).reshape(len(ran.end_KS), -1)
        for seconds, series in ((own_seconds(role, order, ran), steps.wall), (cpu, steps.cpu)):
            # What takes no time by price, as a view, counts with the op behind it.
            series.extend(_behind(seconds, priced)[WARM_UP:])

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Rows of the record's tables, a row for each op class; it weighs as much as there are ops of it."""
        tables: dict[str, list[dict[str, Any]]] = {}
        for program in self._programs:
            for op, row in self._rows_of(program):
                table, key = bench.place_of(op)
                tables.setdefault(table, []).append({**key, **row})
        return tables

    def seconds(self) -> dict[str, dict[str, float]]:
        """By a program's hash the seconds of its ops by name."""
        return {one.hash: {op.name: row['wall']['low'] for op, row in self._rows_of(one)} for one in self._programs}

    def _rows_of(self, program: Program) -> Iterator[tuple[OpClass, dict[str, Any]]]:
        mine = [steps for (digest, _), steps in self._steps.items() if digest == program.hash]
        for op in program.op_classes:
            if row := _row(op.name, mine):
                yield op, row


def _behind(seconds: Times, places: Sequence[int]) -> Times:
    """Sums over stretches of columns, each up to one of the places; what follows the last counts with it."""
    starts = [0, *(place + 1 for place in places[:-1])]
    return np.add.reduceat(seconds, starts, axis=1)


def _row(name: str, ranks: Sequence[_Steps]) -> dict[str, Any]:
    """Figures of an op class over all ranks that have it; nothing where none has."""
    wall, cpu, low, count = [], [], [], 0
    for steps in ranks:
        mine = [at for at, one in enumerate(steps.names) if one == name]
        if not mine:
            continue
        times = np.array(steps.wall)
        count += len(mine)
        # The mean over quick steps, not an op's own quantile: of many ops some are always slow.
        low.append((len(mine), float(times[quickest(times.sum(1))][:, mine].mean())))
        wall.append(times[:, mine].mean(1))
        cpu.append(np.array(steps.cpu)[:, mine].mean(1))
    if not count:
        return {}
    one = sum(weight * seconds for weight, seconds in low) / count
    seconds = {'wall': state.figures(np.concatenate(wall), low=one), 'cpu': state.figures(np.concatenate(cpu))}
    return {'weight': count, **seconds, 'quiet': 1.0}


def own_seconds(role: Role, order: Sequence[int], ran: state.Outcome) -> Times:
    """Seconds by the clock of compute ops, shape [steps, ops]: with what passes before and behind them.

    Arguments: ``order``, the slots of compute ops as they end.
    From the end of the op before, or of the message that it needs, to its own end; and on until the message starts that
    waits for it. Of the first step nothing is known of what came before.
    """
    before = np.roll(ran.end_KS[:, order].ravel(), 1).reshape(len(ran.end_KS), -1)
    place = {slot: at for at, slot in enumerate(order)}
    needs, carried = role.needs(), role.carried()

    def latest(slot: int) -> Times:
        """When a slot's needs that are messages have ended."""
        ends = [ran.end_KS[:, need] for need in needs[slot] if need not in place]
        ends += [np.roll(ran.end_KS[:, need], 1) for need in carried[slot] if need not in place]
        return np.max(ends, axis=0, initial=0.0) if ends else np.zeros(len(ran.end_KS))

    ready = np.maximum(before, np.stack([latest(slot) for slot in order], axis=1))
    seconds: Times = ran.end_KS[:, order] - np.minimum(ready, ran.end_KS[:, order])
    # Since when the rank's next op could run; that of a step's last op stands in the next step.
    then = np.roll(ready.ravel(), -1).reshape(ready.shape)
    for before_it, slot, need in _senders(role, place):
        at, arrived, end = place[need], ran.arrive_KS[:, slot], ran.end_KS[:, need]
        # While another op computes, or another message is awaited, nothing waits for this one to start. Nor while its
        # stream is still busy: with the slot before, which of the first is the last one of the step before.
        stream = np.roll(ran.end_KS[:, before_it], 1) if before_it >= slot else ran.end_KS[:, before_it]
        free = (then[:, at] >= arrived) & (np.maximum(latest(slot), stream) <= end)
        seconds[:, at] += np.where(free, arrived - end, 0.0)
    return seconds


def _senders(role: Role, computing: Container[int]) -> Iterator[tuple[int, int, int]]:
    """Messages that are the first on their stream to wait for a compute op: the slot before, theirs, and this op's."""
    producers = set()
    for slots in role.by_stream().rows():
        for before, slot in zip((*slots[-1:], *slots), slots, strict=False):
            mine = [need for need in role.needs()[slot] if need in computing]
            if slot not in computing and mine and max(mine) not in producers:
                producers.add(max(mine))
                yield before, slot, max(mine)


def message_seconds(program: Program, costs: Costs) -> list[Times]:
    """For each rank the seconds of its slots that are messages, waits for peers included, by prediction; else 0."""
    trace, seconds = simulate(program, costs), []
    for one in range(program.world):
        times, role = trace.times_of(one), program.role(one)
        computes = np.array([program.op(role, slot).kind == 'compute' for slot in range(len(role))])
        # The last step is a steady one.
        seconds.append(np.where(computes, 0.0, (times.end_KS - times.arrive_KS)[-1]))
    return seconds


def put(tables: dict[str, list[dict[str, Any]]], rows: dict[str, list[dict[str, Any]]]) -> None:
    """Put rows of steps into the tables of a record, in place of rows of the same ops alone."""
    for name, new_rows in rows.items():
        keys = {_columns(row) for row in new_rows}
        tables[name] = [*(row for row in tables[name] if _columns(row) not in keys), *new_rows]


def _columns(row: dict[str, Any]) -> tuple[tuple[str, int | str], ...]:
    # One line of a table may hold several phases: all of them are of steps, or none.
    values = ('wall', 'cpu', 'weight', 'quiet', *(() if 'operator' in row else ('phase',)))
    return tuple(sorted((key, value) for key, value in row.items() if key not in values))
