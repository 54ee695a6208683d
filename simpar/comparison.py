"""A prediction against a measurement of the very same Program: signed errors, and the ops that err most, with why.

Both traces are joined on (program hash, op, rank). On its stream, an op follows the one before after a pause (it waited
for what it needs), waits for its peers, and runs; the three are compared, so that of an op that is late it is told why.
An error is predicted / measured − 1: positive where the prediction is too slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from simpar.cost.costs import Costs
from simpar.diagnosis import Diagnosis, diagnose, diagnosis_to_dict, sentence
from simpar.errors import OutsideTolerance, Problem, ScheduleError
from simpar.hardware.net import Net, parse_net
from simpar.trace import PERCENTILE, Times, Trace, step_that_counts
from simpar.trace_files import SavedRank, SavedSlot, SavedTrace, to_saved, to_trace
from simpar.units import format_time

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    ranks = [(_table(one, rank, slice(-1, None)), _table(other, rank, counted)) for rank in range(_world(one))]
    step = step_that_counts(other.step_times, counted, percentile)
    # A file that does not say its network is taken to be of the other's.
    networks = (one.net, other.net)
    differ = all(networks) and parse_net(one.net) != parse_net(other.net)
    return Comparison(
        origin=other.origin,
        steps=len(other.step_times[counted]),
        step=Pair(predicted=float(one.step_times[-1]), measured=float(other.step_times[step])),
        cold_step=Pair(predicted=float(one.step_times[0]), measured=float(other.step_times[0])),
        phases=_phases(ranks),
        op_classes=_op_classes(ranks),
        worst=_worst(ranks),
        diagnosis=None if differ else _diagnosis(one, other),
        networks=networks if differ else None,
    )


def _networks_differ(predicted: str, measured: str) -> str:
    """Say which networks, and how to predict on the measured one."""

    def words(net: Net) -> str:
        return f'a network {net}' if net.shaped else 'no shaped network'

    one, other = words(parse_net(predicted)), words(parse_net(measured))
    instead = f'predict with `simpar run --net {measured}`'
    return f'The networks differ: the prediction is for {one}, the measurement was made on {other}; {instead}.'


def _diagnosis(one: SavedTrace, other: SavedTrace) -> Diagnosis | None:
    """The cause, where the prediction says what it was simulated from."""
    if one.basis is None:
        return None
    return diagnose(one.basis.program, one.basis.costs, to_trace(other, one.basis.program))


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
            {
                'op': op.op,
                'rank': op.rank,
                'stream': op.stream,
                'difference': op.difference,
                'why': op.why,
                'pause': _pair_json(op.pause),
                'wait': _pair_json(op.wait),
                'run': _pair_json(op.run),
            }
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
    return [phases, '', worst]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


class _Rank(NamedTuple):
    """A rank's ops: seconds of one step, medians over steps; shape [slots]."""

    slots: tuple[SavedSlot, ...]
    pause: Times
    wait: Times
    run: Times


Ranks = list[tuple[_Rank, _Rank]]


def _same_program(one: SavedTrace, other: SavedTrace) -> None:
    """Refuse traces that cannot be joined."""
    # Ops are joined by their place, so only the very same program can be compared.
    if one.program != other.program:
        what = f'the traces are of different programs ({one.program[:12]}… and {other.program[:12]}…)'
        raise ScheduleError(Problem('compare', what, 'predict and measure the same schedule, with the same --set'))
    if _world(one) != _world(other):
        raise ScheduleError(Problem('compare', f'one trace has {_world(one)} ranks, the other {_world(other)}'))
    for rank in range(_world(one)):
        if _slots(one, rank) != _slots(other, rank):
            raise ScheduleError(Problem('compare', f'the traces name different ops on rank {rank}'))


def _world(saved: SavedTrace) -> int:
    return len(saved.representative_of_rank)


def _rank_times(saved: SavedTrace, rank: int) -> SavedRank:
    return saved.representatives[saved.representative_of_rank[rank]]


def _slots(saved: SavedTrace, rank: int) -> tuple[SavedSlot, ...]:
    return saved.roles[_rank_times(saved, rank).role]


def _table(saved: SavedTrace, rank: int, steps: slice) -> _Rank:
    """Pause, wait and run of every op of a rank."""
    rank_times, slots = _rank_times(saved, rank), _slots(saved, rank)
    before = np.empty_like(rank_times.end_KS)
    tail: dict[str, int] = {}
    for slot, described in enumerate(slots):
        before[:, slot] = rank_times.end_KS[:, tail[described.stream]] if described.stream in tail else np.nan
        tail[described.stream] = slot
    # The first op of a stream follows the stream's last op of the step before; in the first step, the program's begin.
    for slot in np.flatnonzero(np.isnan(before[0])).tolist():
        last = rank_times.end_KS[:, tail[slots[slot].stream]]
        before[:, slot] = np.concatenate(([0.0], last[:-1]))
    times = (
        rank_times.arrive_KS - before,
        rank_times.start_KS - rank_times.arrive_KS,
        rank_times.end_KS - rank_times.start_KS,
    )
    return _Rank(slots, *(np.median(part[steps], axis=0) for part in times))


def _phases(ranks: Ranks) -> dict[str, Pair]:
    """Seconds of a step by what they are spent on, means over ranks; in the order of first use."""

    def means(of: Callable[[_Rank], dict[str, float]]) -> dict[str, Pair]:
        both = [(of(predicted), of(measured)) for predicted, measured in ranks]
        names = dict.fromkeys(name for seconds, _ in both for name in seconds)
        count = len(ranks)
        return {
            name: Pair(
                predicted=sum(one.get(name, 0.0) for one, _ in both) / count,
                measured=sum(other.get(name, 0.0) for _, other in both) / count,
            )
            for name in names
        }

    return means(_spent)


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
    for predicted, measured in ranks:
        runs = zip(predicted.slots, predicted.run.tolist(), measured.run.tolist(), strict=True)
        for slot, one, other in runs:
            entry = sums.setdefault(slot.op_class, [0.0, 0.0, 0.0])
            entry[0] += one
            entry[1] += other
            entry[2] += 1
    return {name: Pair(predicted=one / count, measured=other / count) for name, (one, other, count) in sums.items()}


def _worst(ranks: Ranks) -> tuple[OpError, ...]:
    """Find the ops with the largest difference; an op stands once, for the rank where it errs most."""
    found: dict[str, OpError] = {}
    for rank, (predicted, measured) in enumerate(ranks):
        parts = [(getattr(predicted, part), getattr(measured, part)) for part in ('pause', 'wait', 'run')]
        total = np.sum([one - other for one, other in parts], axis=0)
        # Twice as many as are shown, for the same op may be among the worst of several ranks. Stable: ties stay in
        # issue order.
        for slot in np.argsort(-np.abs(total), kind='stable')[: 2 * _WORST].tolist():
            pause, wait, run = (Pair(predicted=float(a[slot]), measured=float(b[slot])) for a, b in parts)
            described = predicted.slots[slot]
            op = OpError(op=described.op, rank=rank, stream=described.stream, pause=pause, wait=wait, run=run)
            if op.op not in found or abs(op.difference) > abs(found[op.op].difference):
                found[op.op] = op
    # Ties by name, so that equal traces give equal answers.
    ranked = sorted(found.values(), key=lambda op: (-abs(op.difference), op.op))
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
    return f'{"-" if seconds < 0 else "+"}{format_time(abs(seconds))}'
