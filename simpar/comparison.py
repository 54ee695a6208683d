"""A prediction against a measurement of the very same Program: signed errors, and the ops that err most, with why.

Both traces are joined on (program hash, op, rank). On its stream, an op follows the one before after a pause (it waited
for what it needs), waits for its peers, and runs; the three are compared, so that of an op that is late it is told why.
An error is predicted / measured − 1: positive where the prediction is too slow.

The gain of a plan over its baseline is predicted beside measured: step, computing, exposed communication, overlap.
Predicted figures are those of the last simulated step, measured ones those of the step that counts
(``Trace.that_counts``). Each side's figures are thus of one real step and add up to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from simpar.cost.costs import Costs
from simpar.diagnosis import Diagnosis, diagnose, diagnosis_to_dict, sentence
from simpar.errors import OutsideTolerance, refusal
from simpar.hardware.net import Net, parse_net
from simpar.headline import than
from simpar.metrics import StepMetrics, metrics
from simpar.trace import PERCENTILE, Times, Trace, step_that_counts, stream_order
from simpar.trace_files import SavedRank, SavedSlot, SavedTrace, to_saved, to_trace
from simpar.units import format_time

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

FORMAT: Final = 'simpar comparison 1'
_WORST: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Seconds, predicted and measured."""

    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """predicted / measured − 1; NaN where nothing was measured."""
        return self.predicted / self.measured - 1 if self.measured else math.nan

    @property
    def difference(self) -> float:
        """Seconds predicted beyond those measured."""
        return self.predicted - self.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class OpError:
    """One op on the rank where it errs most.

    Arguments:
        pause: seconds after the op before on its stream.
        wait: seconds that the op waits for its peers.
        run: the op itself.
    """

    op: str
    rank: int
    stream: str
    pause: Pair
    wait: Pair
    run: Pair

    @property
    def difference(self) -> float:
        """Seconds that it ends later in the prediction, counted from the end of the op before on its stream."""
        return self.pause.difference + self.wait.difference + self.run.difference

    @property
    def why(self) -> str:
        """Say which of the three accounts for most of the difference."""
        parts = {
            'waits for what it needs': self.pause.difference,
            'waits for its peers': self.wait.difference,
            'itself': self.run.difference,
        }
        # The largest in size: an op may start late and run short, and only one of them is the reason.
        part = max(parts, key=lambda name: abs(parts[name]))
        longer = 'longer' if parts[part] < 0 else 'shorter'
        return f'{part} {longer} than predicted'


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A prediction against a measurement, in seconds of one step.

    Arguments:
        origin: how the measurement came about: ``measured`` or ``emulated``.
        steps: how many measured steps it rests on; the first, from cold, is left out if there are more.
        step, cold_step: of the whole.
        phases: what the ranks spend a step on, means over ranks: computing by phase, each kind of communication,
            waiting for peers, and pauses of the first stream.
        op_classes: running one op, mean over its occurrences and ranks.
        worst: the ops that account for most of the error.
        diagnosis: the cause of the difference; None where the prediction does not say what it was simulated from, and
            where the networks differ, which is cause enough.
        networks: what was predicted and what was measured, as ``--net`` writes them, where they differ.
    """

    origin: str
    steps: int
    step: Pair
    cold_step: Pair
    phases: dict[str, Pair]
    op_classes: dict[str, Pair]
    worst: tuple[OpError, ...]
    diagnosis: Diagnosis | None = None
    networks: tuple[str, str] | None = None

    @property
    def cause(self) -> str:
        """What makes the difference, in a sentence; empty where nothing can be told."""
        if self.networks:
            return _networks_differ(*self.networks)
        return _capital(sentence(self.diagnosis)) if self.diagnosis else ''

    @property
    def headline(self) -> str:
        """The comparison in a sentence."""
        step = self.step
        steps = f'predicted {format_time(step.predicted)} a step, {self.origin} {format_time(step.measured)}'
        return f'{steps}: error {_signed_percent(step.error)}'

    @property
    def cold(self) -> str:
        """What to say of a first step that is longer than the others by more than was predicted; else empty."""
        first, step = self.cold_step, self.step
        longer = [first.predicted - step.predicted, first.measured - step.measured]
        # Half a step: less is the scatter of steps on a machine.
        if self.steps == 1 or longer[1] - longer[0] <= 0.5 * step.measured:
            return ''
        return (
            f'The first step took {format_time(longer[1])} longer than the others: a machine from cold opens '
            'connections and fills caches, which is not predicted. It does not count.'
        )

    def check(self, tolerance: float) -> None:
        """Raise ``OutsideTolerance`` where the step's error is larger than ``tolerance``, a share."""
        if not abs(self.step.error) <= tolerance:
            raise OutsideTolerance(f'{self.headline}, tolerance {tolerance * 100:g} %')


def compare(
    predicted: Trace | SavedTrace,
    measured: Trace | SavedTrace,
    *,
    percentile: float = PERCENTILE,
    costs: Costs | None = None,
) -> Comparison:
    """Compare two traces of one Program, and look for the cause of the difference.

    Arguments:
        percentile: of the measured steps; the step there is compared with the last predicted one. Ops are compared by
            their medians over the measured steps.
        costs: what a predicted ``Trace`` was simulated with; a saved one may bring its own.
    Raises ``ScheduleError`` if the traces are of different Programs.
    """
    one = to_saved(predicted, costs) if isinstance(predicted, Trace) else predicted
    other = to_saved(measured) if isinstance(measured, Trace) else measured
    _same_program(one, other)
    # The last predicted step is the steady one; measured steps are noisy, so all warm ones count.
    counted = other.warm()
    ranks = [
        _Both(rank, count, _table(one, rank, slice(-1, None)), _table(other, rank, counted))
        for rank, count in _unlike(one.representative_of_rank, other.representative_of_rank)
    ]
    step = step_that_counts(other.step_times, counted, percentile)
    # A file that does not say its network is taken to be of the other's.
    networks = (one.net, other.net)
    differ = all(networks) and parse_net(one.net) != parse_net(other.net)
    # Only a prediction that says what it was simulated from tells why.
    basis = None if differ else one.basis
    return Comparison(
        origin=other.origin,
        steps=len(other.step_times[counted]),
        step=Pair(predicted=float(one.step_times[-1]), measured=float(other.step_times[step])),
        cold_step=Pair(predicted=float(one.step_times[0]), measured=float(other.step_times[0])),
        phases=_phases(ranks),
        op_classes=_op_classes(ranks),
        worst=_worst(ranks),
        diagnosis=diagnose(basis.program, basis.costs, to_trace(other, basis.program)) if basis else None,
        networks=networks if differ else None,
    )


def _networks_differ(predicted: str, measured: str) -> str:
    """Say which networks, and how to predict on the measured one."""

    def words(net: Net) -> str:
        return f'a network {net}' if net.shaped else 'no shaped network'

    one, other = words(parse_net(predicted)), words(parse_net(measured))
    instead = f'predict with `simpar run --net {measured}`'
    return f'The networks differ: the prediction is for {one}, the measurement was made on {other}; {instead}.'


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison as one object; seconds, errors as shares."""
    return {
        'format': FORMAT,
        'diagnosis': diagnosis_to_dict(comparison.diagnosis) if comparison.diagnosis else None,
        'networks': dict(zip(('predicted', 'measured'), comparison.networks, strict=True))
        if comparison.networks
        else None,
        'origin': comparison.origin,
        'steps': comparison.steps,
        'step': _pair_json(comparison.step),
        'cold_step': _pair_json(comparison.cold_step),
        'phases': {name: _pair_json(pair) for name, pair in comparison.phases.items()},
        'op_classes': {name: _pair_json(pair) for name, pair in comparison.op_classes.items()},
        'worst': [
            {name: getattr(op, name) for name in ('op', 'rank', 'stream', 'difference', 'why')}
            | {part: _pair_json(getattr(op, part)) for part in ('pause', 'wait', 'run')}
            for op in comparison.worst
        ],
    }


def render_comparison(comparison: Comparison, *, colour: bool | None = None, width: int = 100) -> str:
    """The comparison on one screen; arguments as of ``report.render``."""
    from simpar.report import render_parts

    # The cause first: it is what a reader can act on.
    cause = [comparison.cause] if comparison.cause else []
    steps = {'step': comparison.step, 'first step, from cold': comparison.cold_step}
    parts = [*cause, comparison.headline, '', *details(comparison, steps)]
    return render_parts(parts, colour=colour, width=width)


def details(comparison: Comparison, steps: Mapping[str, Pair] = MappingProxyType({})) -> list[RenderableType]:
    """What a step is spent on, and the ops that err most, as tables; argument: ``steps``, the first rows."""
    from simpar.report import table

    phases = table('', 'predicted', comparison.origin, 'difference', 'error')
    for name, pair in {**steps, **comparison.phases}.items():
        phases.add_row(name, *_cells(pair))
    worst = table('ops that err most', 'rank', 'difference', 'why')
    worst.columns[-1].justify = 'left'
    for op in comparison.worst:
        worst.add_row(op.op, str(op.rank), _signed_time(op.difference), op.why)
    return [phases, '', worst, *(['', comparison.cold] if comparison.cold else [])]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


class _Rank(NamedTuple):
    """A rank's ops: seconds of one step, medians over steps; shape [slots]."""

    slots: tuple[SavedSlot, ...]
    pause: Times
    wait: Times
    run: Times


class _Both(NamedTuple):
    """What both traces say of a rank, and of how many ranks they say the same."""

    rank: int
    alike: int
    predicted: _Rank
    measured: _Rank


Ranks = list[_Both]


def _unlike(one: Sequence[int], other: Sequence[int]) -> list[tuple[int, int]]:
    """The ranks that have unlike pairs of numbers, the first of each, and how many have the same."""
    pairs = [*zip(one, other, strict=True)]
    counts = Counter(pairs)
    return [(pairs.index(pair), count) for pair, count in counts.items()]


def _same_program(one: SavedTrace, other: SavedTrace) -> None:
    """Refuse traces that cannot be joined."""
    # Ops are joined by their place, so only the very same program can be compared.
    if one.program != other.program:
        what = f'the traces are of different programs ({one.program[:12]}… and {other.program[:12]}…)'
        raise refusal('compare', what, 'predict and measure the same schedule, with the same --set')
    if _world(one) != _world(other):
        raise refusal('compare', f'one trace has {_world(one)} ranks, the other {_world(other)}')
    for rank, _ in _unlike(one.representative_of_rank, other.representative_of_rank):
        if _slots(one, rank) != _slots(other, rank):
            raise refusal('compare', f'the traces name different ops on rank {rank}')


def _world(saved: SavedTrace) -> int:
    return len(saved.representative_of_rank)


def _rank_times(saved: SavedTrace, rank: int) -> SavedRank:
    return saved.representatives[saved.representative_of_rank[rank]]


def _slots(saved: SavedTrace, rank: int) -> tuple[SavedSlot, ...]:
    return saved.roles[_rank_times(saved, rank).role]


def _table(saved: SavedTrace, rank: int, steps: slice) -> _Rank:
    """Pause, wait and run of every op of a rank."""
    rank_times, slots = _rank_times(saved, rank), _slots(saved, rank)
    before, tail = stream_order(np.unique([slot.stream for slot in slots], return_inverse=True)[1])
    # The first op of a stream follows the stream's last op of the step before; in the first step, the program's begin.
    last = np.vstack((np.zeros(len(slots)), rank_times.end_KS[:-1, tail]))
    times = (
        rank_times.arrive_KS - np.where(before >= 0, rank_times.end_KS[:, before], last),
        rank_times.start_KS - rank_times.arrive_KS,
        rank_times.end_KS - rank_times.start_KS,
    )
    return _Rank(slots, *(np.median(part[steps], axis=0) for part in times))


def _phases(ranks: Ranks) -> dict[str, Pair]:
    """Seconds of a step by what they are spent on, means over ranks; in the order of first use."""
    both = [(one.alike, _spent(one.predicted), _spent(one.measured)) for one in ranks]
    world = sum(count for count, _, _ in both)
    names = dict.fromkeys(name for _, seconds, _ in both for name in seconds)
    return {
        name: Pair(
            predicted=sum(count * one.get(name, 0.0) for count, one, _ in both) / world,
            measured=sum(count * other.get(name, 0.0) for count, _, other in both) / world,
        )
        for name in names
    }


def _spent(rank: _Rank) -> dict[str, float]:
    """Sum what a rank spends a step on."""
    seconds: dict[str, float] = {}
    for slot, run in zip(rank.slots, rank.run.tolist(), strict=True):
        name = f'compute {slot.phase}' if slot.kind == 'compute' else f'{slot.partition} {slot.operator} {slot.phase}'
        seconds[name] = seconds.get(name, 0.0) + run
    # On a rank without communication the row would always be zero.
    if any(slot.kind != 'compute' for slot in rank.slots):
        seconds['waiting for peers'] = float(rank.wait.sum())
    first = rank.slots[0].stream
    # Pauses of parallel streams overlap, so those of the first stream alone add up to something.
    on_first = np.array([slot.stream == first for slot in rank.slots])
    seconds[f'pauses of {first}'] = float(rank.pause[on_first].sum())
    return seconds


def _op_classes(ranks: Ranks) -> dict[str, Pair]:
    """Running one op, by op class."""
    sums: dict[str, list[float]] = {}
    for _, count, predicted, measured in ranks:
        runs = zip(predicted.slots, predicted.run.tolist(), measured.run.tolist(), strict=True)
        for slot, one, other in runs:
            entry = sums.setdefault(slot.op_class, [0.0, 0.0, 0.0])
            entry[0] += count * one
            entry[1] += count * other
            entry[2] += count
    return {name: Pair(predicted=one / many, measured=other / many) for name, (one, other, many) in sums.items()}


def _worst(ranks: Ranks) -> tuple[OpError, ...]:
    """Find the ops with the largest difference; an op stands once, for the rank where it errs most."""
    errors: dict[str, OpError] = {}
    for rank, _, predicted, measured in ranks:
        parts = [(getattr(predicted, part), getattr(measured, part)) for part in ('pause', 'wait', 'run')]
        total = np.sum([one - other for one, other in parts], axis=0)
        # Twice as many as are shown, for the same op may be among the worst of several ranks. Stable: ties stay in
        # issue order.
        for slot in np.argsort(-np.abs(total), kind='stable')[: 2 * _WORST].tolist():
            pause, wait, run = (Pair(predicted=float(a[slot]), measured=float(b[slot])) for a, b in parts)
            described = predicted.slots[slot]
            op = OpError(op=described.op, rank=rank, stream=described.stream, pause=pause, wait=wait, run=run)
            if op.op not in errors or abs(op.difference) > abs(errors[op.op].difference):
                errors[op.op] = op
    # Ties by name, so that equal traces give equal answers.
    ranked = sorted(errors.values(), key=lambda op: (-abs(op.difference), op.op))
    return tuple(op for op in ranked[:_WORST] if op.difference)


def _pair_json(pair: Pair) -> dict[str, float | None]:
    # JSON has no NaN.
    error = pair.error if math.isfinite(pair.error) else None
    return {'predicted': pair.predicted, 'measured': pair.measured, 'error': error}


def _cells(pair: Pair) -> tuple[str, str, str, str]:
    error = _signed_percent(pair.error) if math.isfinite(pair.error) else ''
    return format_time(pair.predicted), format_time(pair.measured), _signed_time(pair.difference), error


def _signed_percent(share: float) -> str:
    return f'{share * 100:+.1f} %'


def _signed_time(seconds: float) -> str:
    # No clock tells less than a nanosecond.
    magnitude = abs(seconds) if abs(seconds) >= 1e-9 else 0.0
    return f'{"-" if seconds < 0 and magnitude else "+"}{format_time(magnitude)}'


_SECONDS: Final[dict[str, Callable[[StepMetrics], float]]] = {
    'exposed communication': lambda one: one.exposed,
    'computing': lambda one: one.compute,
    'idle': lambda one: one.idle,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A plan, predicted and measured.

    Arguments: ``samples`` of a step; ``comparison``, op by op.
    """

    name: str
    samples: int
    predicted: StepMetrics
    measured: StepMetrics
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A plan and the baseline that its gain is measured from; None where the baseline was not measured."""

    plan: Side
    baseline: Side | None = None

    @property
    def predicted(self) -> float | None:
        """Baseline step / step − 1, of the seconds that a sample takes; None without a baseline."""
        return self._gain(lambda side: side.predicted.step)

    @property
    def measured(self) -> float | None:
        """The same, measured."""
        return self._gain(lambda side: side.measured.step)

    def _gain(self, step: Callable[[Side], float]) -> float | None:
        if self.baseline is None:
            return None
        samples = (self.plan.samples or 1) / (self.baseline.samples or 1)
        return step(self.baseline) / step(self.plan) * samples - 1


def side_of(name: str, predicted: Trace, measured: Trace, comparison: Comparison, samples: int = 0) -> Side:
    """A plan's figures; arguments as of ``Side``, and its two traces."""
    return Side(
        name=name,
        samples=samples,
        predicted=metrics(predicted).steady,
        measured=metrics(measured).of(measured.that_counts),
        comparison=comparison,
    )


def gain_of(predicted: SavedTrace, measured: SavedTrace) -> Gain | None:
    """The gain that two files tell; None where the prediction does not hold its program.

    Raises ``ScheduleError`` where they are of different programs.
    """
    plan = _saved_side(predicted, measured)
    if plan is None:
        return None
    both = predicted.baseline and measured.baseline
    return Gain(plan=plan, baseline=_saved_side(predicted.baseline, measured.baseline) if both else None)


def _saved_side(predicted: SavedTrace | None, measured: SavedTrace | None) -> Side | None:
    if predicted is None or measured is None or predicted.basis is None:
        return None
    program, comparison = predicted.basis.program, compare(predicted, measured)
    name = measured.name or predicted.name or 'plan'
    samples = measured.samples or predicted.samples
    return side_of(name, to_trace(predicted, program), to_trace(measured, program), comparison, samples)


AGREES: Final = 0.05
"""Share of the measured step within which step, overlap and exposed communication agree; of a gain, so much of 1."""


def verdict(gain: Gain, unlike: str = '') -> str:
    """What of a prediction the measurement bears out, in one sentence: what agrees, what does not, and why.

    Arguments: ``unlike``, why machine and prediction cannot be compared, in words; then nothing else is said.
    """
    plan = gain.plan
    if unlike or plan.comparison.networks:
        return unlike or plan.comparison.cause
    rows = _judged(gain)
    good = [name for name, _, fine in rows if fine]
    bad = [f'{name} {detail}' for name, detail, fine in rows if not fine]
    text = f'{_several(good)} {"agree" if len(good) > 1 else "agrees"}' if good else ''
    if bad:
        text += (
            f'{", " if good else ""}{_several(bad)} {"do" if len(bad) > 1 else "does"} not{"" if good else " agree"}'
        )
    text = _capital(text)
    diagnosis = plan.comparison.diagnosis
    if diagnosis is not None and diagnosis.causes:
        return f'{text}{": " if bad else "; yet "}{sentence(diagnosis)}.'
    cancelled = _cancelled(plan)
    if cancelled:
        return f'{text}{"; " if bad else ", but by "}errors that cancel: {cancelled}.'
    return f'{text}{f": {sentence(diagnosis)}" if bad and diagnosis is not None else ""}.'


def _judged(gain: Gain) -> list[tuple[str, str, bool]]:
    """What is judged, with both figures, and whether they agree."""
    one, other = gain.plan.predicted, gain.plan.measured
    step = gain.plan.comparison.step
    detail = f'(predicted {format_time(step.predicted)}, {gain.plan.comparison.origin} {format_time(step.measured)})'
    rows = [('the step', detail, abs(step.error) <= AGREES)]
    if gain.predicted is not None and gain.measured is not None:
        points = f'({gain.predicted * 100:+.0f} % and {gain.measured * 100:+.0f} %)'
        rows.append(('the gain', points, abs(gain.predicted - gain.measured) <= AGREES))
    # Without communication there is nothing to hide.
    if math.isfinite(one.overlap) and math.isfinite(other.overlap):
        shares = f'({one.overlap * 100:.0f} % and {other.overlap * 100:.0f} %)'
        rows.append(('the overlap', shares, abs(one.overlap - other.overlap) <= AGREES))
        times = f'({format_time(one.exposed)} and {format_time(other.exposed)})'
        rows.append(('exposed communication', times, abs(one.exposed - other.exposed) <= AGREES * other.step))
    return rows


def _cancelled(side: Side) -> str:
    """Which parts of a step err by more than the step itself does; empty: none that matters."""
    parts = {name: of(side.predicted) - of(side.measured) for name, of in _SECONDS.items()}
    long, short = (max(sign * one for one in parts.values()) for sign in (1, -1))
    if min(long, short) <= AGREES * side.measured.step:
        return ''
    words = [
        f'{name} is predicted {format_time(abs(error))} too {"long" if error > 0 else "short"}'
        for name, error in sorted(parts.items(), key=lambda item: -abs(item[1]))
        if abs(error) > AGREES * side.measured.step
    ]
    return _several(words)


def _several(words: list[str]) -> str:
    return f'{", ".join(words[:-1])} and {words[-1]}' if len(words) > 1 else words[0]


def render_gain(gain: Gain, *, unlike: str = '', colour: bool | None = None) -> str:
    """Gain and comparison on one screen; arguments as of ``report.render``, and ``unlike`` as of ``verdict``."""
    from simpar.report import render_parts

    comparison = gain.plan.comparison
    lines = [verdict(gain, unlike), *([gain_line(gain)] if gain.baseline else []), comparison.headline]
    return render_parts([*lines, '', gain_table(gain), '', *details(comparison)], colour=colour, width=110)


def gain_line(gain: Gain) -> str:
    """The gain in a sentence, measured and predicted; without a baseline, the step."""
    plan, origin = gain.plan, gain.plan.comparison.origin
    if gain.baseline is None or gain.predicted is None or gain.measured is None:
        return plan.comparison.headline
    measured, predicted = (than(1.0, 1 + one) for one in (gain.measured, gain.predicted))
    prediction = predicted.removesuffix(' than').removesuffix(' as')
    return f'{plan.name}: {origin} {measured} {gain.baseline.name}, predicted {prediction}'


def gain_table(gain: Gain) -> Table:
    """Plan and baseline, each predicted and measured; means over the ranks."""
    from simpar.report import table

    sides = [gain.plan, *([gain.baseline] if gain.baseline else [])]
    origin = gain.plan.comparison.origin
    rows = table('', *(f'{side.name}, {how}' for side in sides for how in ('predicted', origin)))
    if gain.predicted is not None and gain.measured is not None:
        rows.add_row(
            'gain: baseline / step - 1', f'{gain.predicted * 100:+.1f} %', f'{gain.measured * 100:+.1f} %', '', ''
        )
    both = [one for side in sides for one in (side.predicted, side.measured)]
    rows.add_row('step', *(format_time(one.step) for one in both))
    rows.add_row('overlap', *(f'{one.overlap * 100:.1f} %' if math.isfinite(one.overlap) else '-' for one in both))
    for name, of in _SECONDS.items():
        rows.add_row(name, *(_share(of(one), one.step) for one in both))
    cold = [one for side in sides for one in (side.comparison.cold_step.predicted, side.comparison.cold_step.measured)]
    rows.add_row('first step, from cold', *map(format_time, cold))
    return rows


def gain_to_dict(gain: Gain) -> dict[str, Any]:
    """The plan's comparison as one object, with gain and figures, and the baseline's below it."""
    summary = {**_side(gain.plan), 'verdict': verdict(gain)}
    if gain.predicted is not None and gain.measured is not None and gain.baseline is not None:
        points = (gain.predicted - gain.measured) * 100
        summary['gain'] = {'predicted': gain.predicted, 'measured': gain.measured, 'points': points}
        summary['baseline'] = _side(gain.baseline)
    else:
        summary['gain'] = summary['baseline'] = None
    return summary


def _side(side: Side) -> dict[str, Any]:
    both = {'predicted': side.predicted, 'measured': side.measured}
    figures = {
        'overlap': {how: one.overlap if math.isfinite(one.overlap) else None for how, one in both.items()},
        **{name: {how: of(one) for how, one in both.items()} for name, of in _SECONDS.items()},
    }
    return {**comparison_to_dict(side.comparison), 'name': side.name, 'figures': figures}


def _share(seconds: float, step: float) -> str:
    return f'{format_time(seconds)} {seconds / step * 100:3.0f} %' if seconds else '-'
