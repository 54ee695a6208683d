"""Prediction: what a step takes, where its time goes, and what each part of the plan gains."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from math import expm1
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simpar import files, session
from simpar.cost.compute import BEYOND, FAR, MATRIX
from simpar.cost.costs import Costs
from simpar.cost.price import Effects, Pricer
from simpar.critical_path import CriticalPath, critical_path
from simpar.engine import simulate, step_ends
from simpar.hardware import Cluster, Device, Profile, ShareFigure
from simpar.interval import Interval, Spread, bound_by, interval, spread_of, streaming_share
from simpar.lazy import Card, notebook
from simpar.memory import Framework, Memory, Room, fits, framework_of, margin_of, memory, room_of
from simpar.metrics import Metrics, metrics
from simpar.program import Program
from simpar.throughput import Throughput
from simpar.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simpar.keys import WithoutEffect


# Clocks under load: what a step asks of the matrix units decides how fast a device's power lets them run.
#
# Power of the units goes with the FLOPs that they do in a second and with the square of the voltage, which goes with
# the clock. At clock f, as a share of that of short measurements, a step that would use the share u of the peak at f
# = 1 draws u · f³. A profile's ``sustained`` is the clock s of a device that does nothing but its largest products,
# which use the share ``matmul.share``. So f = s · (matmul.share / u)^(1/3), and never above 1: a device that waits,
# streams or is launched slowly keeps its clock.

STEPS = 2
"""Steps that are simulated at full clocks; the last counts."""


def under_load(program: Program, cluster: Cluster, models: session.Session | None = None) -> Cluster:
    """The cluster with its matrix units at the clock that they keep under this program; ``cluster`` without a stack, or
    where the device is not bound by power. Arguments: ``models``, as of ``price``.

    Does not model: clocks that differ between ranks or change in a step; devices that share a node's power.
    """
    device = cluster.profile.device
    limit = device.sustained
    if cluster.stack is None or limit is None or not device.power_bound or limit.value >= 1:
        return cluster
    boosted = _at(cluster, replace(limit, value=1.0))
    step = float(np.diff(step_ends(program, Pricer(program, boosted, models=models).costs(), steps=STEPS))[-1])
    return _at(cluster, replace(limit, value=clock(device, limit.value, utilisation(program, device, step))))


def at_full_clocks(cluster: Cluster) -> Cluster:
    """The cluster as fast as any program finds it: its matrix units at the clock of short measurements."""
    limit = cluster.profile.device.sustained
    if cluster.stack is None or limit is None or not cluster.profile.device.power_bound:
        return cluster
    return _at(cluster, replace(limit, value=max(limit.value, 1.0)))


def clock(device: Device, sustained: float, share: float) -> float:
    """The clock of a device of which a step would use this share of the peak at full clocks."""
    full = device.matmul.share.value
    return min(1.0, sustained * (full / share) ** (1 / 3)) if share > 0 else 1.0


def utilisation(program: Program, device: Device, step: float) -> float:
    """The share of the matrix peak that the busiest rank of a program uses in a step of so many seconds."""
    peaks = {str(dtype): figure.value for dtype, figure in device.matrix.items()}
    work = np.array([
        op.flops / peaks[op.dtype] if op.kind == 'compute' and op.operator in MATRIX and op.dtype in peaks else 0.0
        for op in program.op_classes
    ])  # fmt: skip
    return max(float(work[role.op_class].sum()) for role in program.roles) / step


def _at(cluster: Cluster, figure: ShareFigure) -> Cluster:
    device = replace(cluster.profile.device, sustained=figure)
    return replace(cluster, profile=replace(cluster.profile, device=device))


# A prediction: the simulated trace and what it answers, the gain against a baseline, and why.
#
# The gain is explained in seconds that add up exactly: both programs are priced ideally, and then with one effect
# after the other switched on. What an effect contributes is how much it changes the difference of the two steps.
# Times are multiples of 2⁻⁴⁰ s, so the contributions sum to (baseline step − step) to the bit.

Told = Callable[[int, int], None]
"""Is told how many simulations of how many are done."""
Pricing = Callable[[Program, Cluster, Effects], Costs]
_NONE: Final = Effects(**dict.fromkeys((field.name for field in fields(Effects)), False))
ROWS: Final = tuple(files.read_csv(Path(__file__).with_name('effects.csv')))
"""Effects in their order, the key that switches each on, and its words; ``only`` what has it can be changed by it."""
_FELT: Final = 0.05
"""Share of computing from which on it is told that a table is asked beyond its range."""
OF_STACKS: Final = frozenset(row['name'] for row in ROWS if row['only'] == 'stack')
"""Effects that only a stack has."""
EFFECTS: Final = tuple(
    (row['name'], replace(_NONE, **{one['key']: True for one in ROWS[1 : number + 1]}))
    for number, row in enumerate(ROWS)
)
"""What is switched on, one after the other; the last state is the prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one effect contributes to (baseline step − step).

    Arguments: ``baseline`` and ``step``, seconds of the two steps with this and all effects before it switched on.
    """

    effect: str
    seconds: float
    baseline: float
    step: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Prediction(Card):
    """What a plan's steps will be like, and a baseline's; what a trace answers is worked out when it is asked for.

    Arguments:
        profile: the cluster's hardware profile.
        room: what of a device's memory tensors may take; ``memory_margin``: see ``simpar.memory.margin_of``.
        framework: what the cluster's stack holds beside a program.
        baseline: a prediction without a baseline.
        explanation: rows whose seconds sum to (baseline step − step); empty without a baseline.
        without_effect: the keys of the schedule that changed nothing, where it was made of one.
        throughput: what a step does, where it was made of a schedule.
        stack: the name of the cluster's stack; ``title``, what answers call it; ``beside_stack``, keys of the file that
            are otherwise than that framework has them, in words; ``spread``, how measured steps like this one lie about
            predictions; ``streaming``, the share of the step that kernels off the matrix units fill.
    """

    name: str
    trace: Trace
    costs: Costs
    profile: Profile
    room: Room
    framework: Framework | None = None
    memory_margin: float = 0.0
    baseline: Prediction | None = None
    explanation: tuple[Contribution, ...] = ()
    without_effect: tuple[WithoutEffect, ...] = ()
    throughput: Throughput | None = None
    stack: str = ''
    title: str = ''
    beside_stack: tuple[str, ...] = ()
    spread: Spread | None = None
    streaming: float = 0.0

    def __repr__(self) -> str:
        # A program alone would be millions of characters.
        return f'Prediction({self.name!r}, step={self.step!r}, gain={self.gain!r})'

    @property
    def program(self) -> Program:
        """The program that was simulated."""
        return self.trace.program

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.trace.step

    @cached_property
    def interval(self) -> Interval | None:
        """Where 80 % of measured steps like this one lie; None where nobody published any."""
        return interval(self.step, self.spread, self.streaming) if self.spread else None

    @property
    def gain_noise(self) -> float | None:
        """Gains that are smaller than this may be noise; None where nothing measured tells."""
        widths = [side.spread.gain for side in (self, self.baseline) if side and side.spread and side.spread.pairs]
        return expm1(max(widths)) if len(widths) == 1 + (self.baseline is not None) and self.baseline else None

    @property
    def cold_step(self) -> float:
        """Seconds of the first step."""
        return self.trace.cold_step

    @cached_property
    def metrics(self) -> Metrics:
        """Busy, exposed, idle and bubble seconds, by rank and stream."""
        return metrics(self.trace)

    @cached_property
    def critical_path(self) -> CriticalPath:
        """What the step takes its time for."""
        return critical_path(self.trace, self.costs)

    @cached_property
    def memory(self) -> Memory:
        """What every rank holds over a step."""
        # With gloo the executor copies the tensors of a fused collective into one buffer; other libraries work in
        # place.
        flattened = self.profile.library.name.lower() == 'gloo'
        return memory(self.trace, flattened=flattened, framework=self.framework)

    @property
    def device_memory(self) -> float:
        """Bytes of a device."""
        return self.room.size

    @cached_property
    def fits(self) -> bool | None:
        """Whether no rank holds more than its device; None where that is not known: see ``memory_margin``."""
        return fits(self.memory, self.room, self.memory_margin)

    @property
    def gain(self) -> float | None:
        """How much faster it is than the baseline; None without one.

        baseline step / step − 1; where their batches or sequences differ, of the seconds that a token takes (a sample,
        where the model reads no tokens).
        """
        if self.baseline is None:
            return None
        mine, other = self.throughput, self.baseline.throughput
        if mine and other and mine.work != other.work:
            return (self.baseline.step / other.work) / (self.step / mine.work) - 1
        return self.baseline.step / self.step - 1

    @property
    def grades(self) -> dict[str, float]:
        """Share of the isolated seconds that rest on numbers of each grade."""
        total = sum(self.costs.grades.values())
        return {grade: seconds / total for grade, seconds in self.costs.grades.items()} if total else {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know besides the figures."""
        return (*self.program.notes, *self._own_notes())

    def _own_notes(self) -> Iterator[str]:
        device, role, queues = self.profile.device, self.program.role(0), self.costs.work_queues
        # Without a stack all is at its best, and the answer does not claim more.
        if self.stack and device.matrix and not device.sustained:
            unknown = f'the clock that {device.name} keeps under load is not known, so the step may be too fast'
            yield f'{unknown}: give device.sustained in its profile, or a measured step by --fit'
        if far := [index for index, why in self.costs.why.items() if BEYOND in why]:
            each = self.costs.compute[role.op_class]
            share = each[np.isin(role.op_class, far)].sum() / each.sum()
            if share >= _FELT:
                far_away = f'more than {FAR:g} times as large as any in the measured table'
                what = f'{share * 100:.0f} % of computing is products {far_away}'
                yield f'{what}: their rates go on from its edge'
        if queues:
            streams = max(len(role.streams) for role in self.program.roles)
            shared = f'{streams} streams of a device share {queues} work queue{"s" if queues > 1 else ""}'
            yield f'{shared}: an op that waits holds up what is issued behind it to the same one'
        times, steps = self.trace.step_times, self.trace.steps
        # A thousandth: less than any other error of the model.
        if steps > 1 and abs(times[-1] - times[-2]) > 1e-3 * times[-1]:
            change = (times[-1] / times[-2] - 1) * 100
            yield f'not steady yet: step {steps} differs from step {steps - 1} by {change:+.1f} %; simulate more'

    def timeline(self) -> Figure:
        """The timeline of a steady step, below its baseline's."""
        from simpar.plot import timeline

        if self.baseline is None:
            return timeline(self.trace, names=(self.name, ''))
        return timeline(self.trace, self.baseline.trace, names=(self.name, self.baseline.name))

    def interactive(self, *ranks: int) -> Any:
        """The answer's page inside of a notebook: zoom in, point at an op to see why it takes its time.

        Arguments: ``ranks`` whose ops it shows; unless given, a few that differ.
        """
        return notebook().Interactive(self, ranks)

    def to_dataframe(self, kind: str = 'streams') -> Any:
        """A table of pandas: ``streams``, ``spans`` or ``memory``."""
        return notebook().to_dataframe(self, kind)


def followed(program: Program, costs: Costs, steps: int = 3) -> Trace:
    """Simulate steps of which the last has a follower too.

    Messages behind the last computation of a step (gathers of updated weights) go on under the next step's
    computation, and both slow each other. A receive of the next step is posted while this one still computes, and
    slows it where what waits does so. The last step that is simulated would be too fast. So a further one is simulated
    where there is any of this, and left out of the trace.
    """
    further = _goes_on(program, costs)
    trace = simulate(program, costs, steps=steps + further)
    return trace.first(steps) if further else trace


def step_of(program: Program, cluster: Cluster, *, steps: int = 2) -> float:
    """Seconds of the last of so many steps, all that is asked where predictions are many."""
    return step_and_costs(program, cluster, steps=steps)[0]


def step_and_costs(program: Program, cluster: Cluster, *, steps: int = 2) -> tuple[float, Costs]:
    """The same, and the costs that it comes of."""
    models = session.Session()
    costs = Pricer(program, under_load(program, cluster, models), models=models).costs(EFFECTS[-1][1])
    return step_of_costs(program, costs, steps), costs


def step_of_costs(program: Program, costs: Costs, steps: int = 2) -> float:
    """Seconds of the last step of ``followed``."""
    ends = step_ends(program, costs, steps=steps + _goes_on(program, costs))[:steps]
    return float(np.diff(ends, prepend=0.0)[-1])


def _goes_on(program: Program, costs: Costs) -> bool:
    """Whether a step that none follows is shorter."""
    return program.ends_in_messages or (any(costs.waiting) and program.receives)


def predict(
    program: Program,
    baseline: Program | None,
    cluster: Cluster,
    *,
    steps: int = 3,
    names: tuple[str, str] = ('plan', 'baseline'),
    baseline_cluster: Cluster | None = None,
    pricing: Pricing | None = None,
    progress: Told | None = None,
    models: session.Session | None = None,
) -> Prediction:
    """Predict a program on a cluster, and explain its gain against a baseline.

    Arguments:
        steps: how many steps are simulated; the last is the answer.
        names: what to call the plan and the baseline.
        baseline_cluster: the baseline's cluster, where it is another.
        pricing: what prices programs in place of ``price``.
        progress: is told after each simulation.
        models: that other predictions share.
    Raises ``Deadlock``.
    Not modelled: noise; what a gain costs in memory.
    """
    shared = models or session.Session()

    def pricer(of: Program, on: Cluster) -> Callable[[Effects], Costs]:
        if pricing:
            return partial(pricing, of, on)
        return Pricer(of, under_load(of, on, shared), models=shared).costs

    priced = pricer(program, cluster)
    if baseline is None:
        # Without a baseline nothing is explained, so only the last state is simulated.
        costs = priced(EFFECTS[-1][1])
        trace = followed(program, costs, steps)
        return _prediction(names[0], program, cluster, trace, costs)
    done = itertools.count(1)
    both = 2 * len(EFFECTS)
    report = (lambda: progress(next(done), both)) if progress else (lambda: None)
    mine = _states(program, priced, steps, report)
    other_cluster = baseline_cluster or cluster
    others = _states(baseline, pricer(baseline, other_cluster), steps, report)
    other = _prediction(names[1], baseline, other_cluster, others.trace, others.costs)
    explanation = _explain(others, mine, (cluster, other_cluster))
    prediction = _prediction(names[0], program, cluster, mine.trace, mine.costs)
    return replace(prediction, baseline=other, explanation=explanation)


def _prediction(name: str, program: Program, cluster: Cluster, trace: Trace, costs: Costs) -> Prediction:
    # Nobody has published steps of a device alone.
    bound = bound_by(program, costs, trace.step) if cluster.stack else ''
    spread = spread_of(cluster, bound)
    return Prediction(
        name=name,
        trace=trace,
        costs=costs,
        profile=cluster.profile,
        room=room_of(cluster),
        framework=framework_of(cluster),
        memory_margin=margin_of(cluster),
        stack=cluster.stack.name if cluster.stack else '',
        title=cluster.stack.called if cluster.stack else '',
        spread=spread,
        streaming=streaming_share(program, costs, trace.step, bound) if spread else 0.0,
    )


@dataclass(frozen=True, slots=True)
class _States:
    """What comes of a program after each of ``EFFECTS``: its steps in seconds, and at last its costs and trace."""

    steps: tuple[float, ...]
    costs: Costs
    trace: Trace


def _states(program: Program, priced: Callable[[Effects], Costs], steps: int, report: Callable[[], None]) -> _States:
    """One state after each of ``EFFECTS``; an effect that changes no cost is not simulated again."""
    costs = [priced(effects) for _, effects in EFFECTS]
    trace = followed(program, costs[-1], steps)
    report()
    step_seconds = [trace.step]
    # From the last state back: nothing is asked of the others but their step, and many are as the one behind them.
    for one, behind in zip(reversed(costs[:-1]), reversed(costs), strict=False):
        step_seconds.append(step_seconds[-1] if _same(one, behind) else step_of_costs(program, one, steps))
        report()
    return _States(tuple(reversed(step_seconds)), costs[-1], trace)


def _explain(baselines: _States, states: _States, clusters: tuple[Cluster, Cluster]) -> tuple[Contribution, ...]:
    """Differences of differences, from the ideal state to the last."""
    has = {
        '': True,
        'stack': any(one.stack for one in clusters),
        # Only a plan with more streams than queues has this effect.
        'queues': bool(baselines.costs.work_queues or states.costs.work_queues),
        'spread': any(one.spread for one in clusters),
    }
    rows = []
    before = 0.0
    for row, baseline, step in zip(ROWS, baselines.steps, states.steps, strict=True):
        # What neither of both has changes nothing.
        if not has[row['only']]:
            continue
        # The change of the difference, so that the rows telescope to the whole gain. Times on the grid make the sum
        # exact.
        rows.append(Contribution(effect=row['name'], seconds=baseline - step - before, baseline=baseline, step=step))
        before = baseline - step
    return tuple(rows)


def _same(one: Costs, other: Costs) -> bool:
    """Whether a program takes the same time under both."""
    arrays = ('compute', 'host', 'speeds', 'taking', 'beside_compute', 'rank_speed')
    return (
        one.communication == other.communication
        and one.waiting == other.waiting
        and (one.waits, one.host_step, one.work_queues) == (other.waits, other.host_step, other.work_queues)
        and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
    )
