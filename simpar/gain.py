"""The gain of a plan over its baseline, predicted beside measured: step, computing, exposed communication, overlap.

Predicted figures are those of the last simulated step, measured ones those of the step that counts
(``Trace.that_counts``). Each side's figures are thus of one real step and add up to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from simpar.comparison import Comparison, compare, comparison_to_dict, details
from simpar.headline import than
from simpar.metrics import StepMetrics, metrics
from simpar.trace import Trace
from simpar.trace_files import SavedTrace, to_trace
from simpar.units import format_time

if TYPE_CHECKING:
    from rich.table import Table

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
    program, found = predicted.basis.program, compare(predicted, measured)
    name = measured.name or predicted.name or 'plan'
    samples = measured.samples or predicted.samples
    return side_of(name, to_trace(predicted, program), to_trace(measured, program), found, samples)


def render_gain(gain: Gain, *, colour: bool | None = None, width: int = 110) -> str:
    """Gain and comparison on one screen; arguments as of ``report.render``."""
    from simpar.report import render_parts

    comparison = gain.plan.comparison
    cause = [comparison.cause] if comparison.cause else []
    told = [gain_line(gain)] if gain.baseline else []
    # Where the networks differ, no other figure tells anything before.
    lines = [*cause, *told] if comparison.networks else [*told, *cause]
    lines.append(comparison.headline)
    return render_parts([*lines, '', gain_table(gain), '', *details(comparison)], colour=colour, width=width)


def gain_line(gain: Gain) -> str:
    """The gain in a sentence, measured and predicted; without a baseline, the step."""
    plan, origin = gain.plan, gain.plan.comparison.origin
    if gain.baseline is None or gain.predicted is None or gain.measured is None:
        return plan.comparison.headline
    measured, predicted = (than(1.0, 1 + one) for one in (gain.measured, gain.predicted))
    told = predicted.removesuffix(' than').removesuffix(' as')
    return f'{plan.name}: {origin} {measured} {gain.baseline.name}, predicted {told}'


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
    told = _side(gain.plan)
    if gain.predicted is not None and gain.measured is not None and gain.baseline is not None:
        points = (gain.predicted - gain.measured) * 100
        told['gain'] = {'predicted': gain.predicted, 'measured': gain.measured, 'points': points}
        told['baseline'] = _side(gain.baseline)
    else:
        told['gain'] = told['baseline'] = None
    return told


def _side(side: Side) -> dict[str, Any]:
    both = {'predicted': side.predicted, 'measured': side.measured}
    figures = {
        'overlap': {how: one.overlap if math.isfinite(one.overlap) else None for how, one in both.items()},
        **{name: {how: of(one) for how, one in both.items()} for name, of in _SECONDS.items()},
    }
    return {**comparison_to_dict(side.comparison), 'name': side.name, 'figures': figures}


def _share(seconds: float, step: float) -> str:
    return f'{format_time(seconds)} {seconds / step * 100:3.0f} %' if seconds else '-'
