"""Compared: cases or predictions side by side, or a prediction beside a measurement, as tables that show themselves."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from simpar import predict, report, trace_files, units
from simpar.case import Case, names_of
from simpar.comparison import Comparison, render_comparison
from simpar.comparison import compare as compare_traces
from simpar.diagnosis import Diagnosis
from simpar.notebook.cards import image_of
from simpar.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Compared:
    """Predictions side by side; the fastest is marked."""

    predictions: tuple[predict.Prediction, ...]

    @property
    def fastest(self) -> predict.Prediction:
        """The one with the shortest step, of those that fit if any does."""
        return min(self.predictions, key=lambda one: (not one.fits, one.step))

    def __str__(self) -> str:
        return report.render_parts([self._answer(), '', report.figures_of(self.predictions)], colour=False, width=120)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from simpar.page.page import table_html

        return f'<p><b>{html.escape(self._answer())}</b></p>{table_html(report.figures_of(self.predictions))}'

    def _answer(self) -> str:
        best = self.fastest
        return f'fastest of {len(self.predictions)}: {best.name}, {units.format_time(best.step)} a step'


def compare(first: Case | predict.Prediction, *others: Case | predict.Prediction | str | Path) -> Compared | Measured:
    """Cases and predictions side by side; or one of them beside a measurement, which is a path.

    Raises ``ScheduleError`` for a measurement of another program.
    Example: ``compare(case, case.what_if(copies=4))``, ``compare(case, 'measured.json')``.
    """
    files = [one for one in others if isinstance(one, str | Path)]
    if not files:
        return compare_cases(first, *(one for one in others if not isinstance(one, str | Path)))
    if len(others) > 1:
        raise TypeError('a measurement stands beside one case or prediction; compare each by itself')
    prediction = first.predict() if isinstance(first, Case) else first
    return with_measurement(prediction, Path(files[0]))


def compare_cases(*answers: Case | predict.Prediction) -> Compared:
    """Cases or predictions side by side; cases are predicted. Raises ``ValueError`` without any.

    Example: ``compare_cases(case, case.what_if(copies=4))``.
    """
    if not answers:
        raise ValueError('nothing to compare; give cases or predictions')
    cases = [one for one in answers if isinstance(one, Case)]
    found = [one.predict() if isinstance(one, Case) else one for one in answers]
    if len(cases) == len(found):
        names = names_of(cases)
    else:
        same = [one.name for one in found]
        names = [name if same.count(name) == 1 else f'{name} ({index})' for index, name in enumerate(same, 1)]
    return Compared(tuple(replace(one, name=name) for one, name in zip(found, names, strict=True)))


# Measured: a prediction beside a measurement of the same program, as a picture and a table that show themselves.


@dataclass(frozen=True, slots=True)
class Measured:
    """A prediction and a measurement; ``comparison`` has the errors and the cause."""

    predicted: Trace
    measured: Trace
    comparison: Comparison

    def timeline(self) -> Figure:
        """The measured step below the predicted one; what differs by its own doing is outlined."""
        return difference_picture(self.predicted, self.measured, self.comparison)

    def __str__(self) -> str:
        return render_comparison(self.comparison, colour=False)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f'{image_of(self.timeline())}<pre>{html.escape(str(self))}</pre>'


def with_measurement(prediction: predict.Prediction, file: Path) -> Measured:
    """A prediction beside what `simpar measure --save` wrote; raises ``ScheduleError`` for another program's trace."""
    saved = trace_files.load_trace(file)
    comparison = compare_traces(prediction.trace, saved, costs=prediction.costs)
    return Measured(prediction.trace, trace_files.to_trace(saved, prediction.program), comparison)


def difference_picture(predicted: Trace, measured: Trace, comparison: Comparison, title: str = '') -> Figure:
    """The picture of a comparison: a title of its own or the cause above it, and outlined where that lies."""
    from simpar.plot import timeline

    diagnosis = comparison.diagnosis
    return timeline(
        # Up to the step that counts: the last one may have been disturbed.
        measured.first(measured.that_counts + 1),
        predicted,
        names=(comparison.origin, 'predicted'),
        rank=_rank(diagnosis, measured),
        marks=diagnosis.marks if diagnosis else frozenset(),
        answer=title or comparison.cause,
    )


def _rank(diagnosis: Diagnosis | None, measured: Trace) -> int:
    """The rank that is shown: one at which the cause lies, else one that ends last."""
    if diagnosis and diagnosis.marks:
        return min(rank for rank, _ in diagnosis.marks)
    return max(measured.representatives, key=lambda times: float(times.end_KS[-1].max())).rank
