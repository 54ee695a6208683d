"""The size of a prediction, estimated before anything is built: slots, memory and seconds, and the bound on them.

A schedule of many micro-batches is lowered twice with few of them, for a line through both tells how many slots it has;
one of many stages, with few that are alike. A coarse bound from above comes first, and most schedules need nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar import errors, units
from simpar.program import Program
from simpar.schedule import Schedule, check_against_cluster
from simpar.workload import Transformer

Build = Callable[[Schedule], Program]
Counts = NDArray[np.float64]
"""Slots, entries and op classes; see ``Size``."""
MOST_STAGES: Final = 8
"""Pipeline ranks that a schedule is lowered with to learn its size."""
MOST_OPS: Final = 120
"""Ops of a transformer's layer in one micro-batch and copy, more than any plan makes of it."""
OPS_OF_CONTEXT_RANK: Final = 8
"""The same of a step of a ring: messages, attention and sums, forward, backward and again."""
MOST_OPS_OF_MIXTURE: Final = 140
"""Of these, further ones of a layer with a mixture of experts."""
MOST_OPS_OF_OPERATOR: Final = 40
"""The same of an operator of a network."""
BASE: Final = 57e6
"""Bytes of a process before it lowers anything."""
COMPILED: Final = 110e6
"""Bytes of numba, and of the kernels that it has compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Bounds of a prediction's size: bytes of memory, and seconds."""

    memory: float = 8e9
    seconds: float = 600.0

    def __str__(self) -> str:
        return f'{units.format_size(self.memory)} and {units.format_time(self.seconds)}'


LIMIT: Final = Limit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a prediction is.

    Arguments:
        slots: of all roles.
        entries: one for each group of ranks of each communication op class.
        classes: op classes.
    """

    slots: float = 0.0
    entries: float = 0.0
    classes: float = 0.0

    def __add__(self, other: Size) -> Size:
        return Size(
            slots=self.slots + other.slots, entries=self.entries + other.entries, classes=self.classes + other.classes
        )

    @property
    def memory(self) -> float:
        """Bytes that lowering and simulating it take."""
        return BASE + COMPILED + 620.0 * self.slots + 50.0 * self.entries

    @property
    def seconds(self) -> float:
        """Seconds that lowering and simulating it take on one core, by order of magnitude."""
        return 0.3 + 4e-6 * self.slots + 1.4e-6 * self.entries + 1e-4 * self.classes

    def within(self, limit: Limit) -> bool:
        """Whether it is no larger than a limit."""
        return self.memory <= limit.memory and self.seconds <= limit.seconds

    def __str__(self) -> str:
        return f'{_rounded(self.slots)} slots, {units.format_size(float(_two(self.memory)))} and {_about(self.seconds)}'


def parse_limit(texts: Sequence[str]) -> Limit:
    """Read ``--limit``: a size, a time, or one of each; raises ``ValueError`` saying what to write."""
    limit = Limit()
    for text in texts:
        limit = replace(limit, **_bound(text))
    return limit


def _bound(text: str) -> dict[str, float]:
    """The one bound that a text sets."""
    for name, kind in (('seconds', 'time'), ('memory', 'size')):
        with suppress(ValueError):
            return {name: units.parse(text, kind)}
    raise ValueError(f'not a limit: {text!r}; write memory or time, e.g. 32GB or 3600s')


def check_size(schedules: Sequence[Schedule], ranks: int, limit: Limit, build: Build) -> None:
    """Raise ``Infeasible`` where the prediction of a schedule, with its baseline, is larger than a limit.

    Arguments:
        schedules: the schedule, and its baseline if it has one.
        ranks: of the cluster.
        build: makes the program of a small schedule.
    """
    if sum((at_most(schedule, ranks) for schedule in schedules), Size()).within(limit):
        return
    for schedule in schedules:
        # What does not fit its cluster is wrong, not too large.
        check_against_cluster(schedule, ranks)
    size = sum((estimate(schedule, ranks, build) for schedule in schedules), Size())
    if not size.within(limit):
        where = schedules[0].where('plan')
        raise errors.Infeasible(
            f'{where}: plan: about {size} are needed, the limit is {limit}; '
            'take fewer micro-batches, copies, tiles or stages, or raise it, e.g. --limit 64GB --limit 3600s'
        )


def at_most(schedule: Schedule, ranks: int) -> Size:
    """A bound from above that needs no program."""
    plan, model = schedule.plan, schedule.workload.model
    steps = OPS_OF_CONTEXT_RANK * plan.context if plan.context > 1 else 0
    if isinstance(model, Transformer):
        ops = (MOST_OPS + MOST_OPS_OF_MIXTURE * (model.experts is not None) + steps) * model.blocks
    else:
        ops = MOST_OPS_OF_OPERATOR * len(model.layers)
    classes = float(ops * plan.tiles * plan.sequence_chunks)
    passing = 8 * plan.pipeline * max(plan.chunks, 2)
    slots = (classes + passing * plan.sequence_chunks) * plan.micro_batches * plan.copies
    return Size(slots=slots, entries=classes * ranks / 2, classes=classes)


def estimate(schedule: Schedule, ranks: int, build: Build) -> Size:
    """The size of a schedule's program, from small ones of its kind; the bound from above where none can be made."""
    try:
        slots, entries, classes = _extrapolated(schedule, build)
    except errors.SimparError:
        return at_most(schedule, ranks)
    return Size(slots=float(slots), entries=float(entries), classes=float(classes))


def _extrapolated(schedule: Schedule, build: Build) -> Counts:
    plan, pipeline = schedule.plan, _stages(schedule)
    # An order from a file says how many micro-batches there are.
    is_fixed = bool(plan.rows) or plan.order.endswith('.csv')
    few = 2 * pipeline
    # Two points of a line must lie below what it tells.
    if is_fixed or 2 * few >= plan.micro_batches:
        few = plan.micro_batches
    counts = _counts(build(_small(schedule, few, pipeline)))
    if few < plan.micro_batches:
        # A line, as a step has updates once; op classes and entries do not grow with micro-batches.
        more = _counts(build(_small(schedule, 2 * few, pipeline))) - counts
        counts = counts + more * (plan.micro_batches / few - 1)
    # Equal stages have equally many slots; each op class knows the groups of all stages.
    stages = plan.pipeline / pipeline
    return np.asarray(counts * np.array([stages, stages**2, stages]))


def _stages(schedule: Schedule) -> int:
    """Pipeline ranks to lower with: fewer where stages are alike and layers, devices and nodes divide."""
    plan, model, cluster = schedule.plan, schedule.workload.model, schedule.cluster
    is_fixed = plan.rows or plan.order.endswith('.csv') or (plan.stages and plan.stages != 'balanced')
    if plan.pipeline <= MOST_STAGES or is_fixed or not isinstance(model, Transformer):
        return plan.pipeline
    for stages in range(MOST_STAGES, plan.pipeline):
        whole = all(count * stages % plan.pipeline == 0 for count in (model.layers, cluster.nodes))
        if plan.pipeline % stages == 0 and whole:
            return stages
    return plan.pipeline


def _small(schedule: Schedule, micro_batches: int, pipeline: int) -> Schedule:
    """A schedule of the same kind with fewer micro-batches and pipeline ranks."""
    plan, workload, cluster = schedule.plan, schedule.workload, schedule.cluster
    # As many samples for each micro-batch.
    batch, model = workload.batch * micro_batches // plan.micro_batches, workload.model
    if isinstance(model, Transformer):
        model = replace(model, layers=model.layers * pipeline // plan.pipeline)
    return replace(
        schedule,
        workload=replace(workload, batch=batch, model=model),
        plan=replace(plan, micro_batches=micro_batches, pipeline=pipeline),
        cluster=replace(cluster, nodes=cluster.nodes * pipeline // plan.pipeline),
    )


def _counts(program: Program) -> Counts:
    groups = [len(program.partitions[op.partition].groups_GP) for op in program.op_classes if op.kind != 'compute']
    return np.array([sum(map(len, program.roles)), sum(groups), len(program.op_classes)], dtype=float)


def _rounded(count: float) -> str:
    for factor, name in ((1e9, ' billion'), (1e6, ' million')):
        if count >= factor:
            return f'{_two(count / factor)}{name}'
    return _two(count)


def _about(seconds: float) -> str:
    return f'{_two(seconds / 3600)} h' if seconds >= 3600 else f'{_two(seconds)} s'


def _two(number: float) -> str:
    """A number with two digits that count: an estimate has no more."""
    return f'{float(f"{number:.2g}"):g}'
