"""Compared: several cases or predictions side by side, as a table that shows itself."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

from simpar.case import Case
from simpar.notebook.measured import Measured, with_measurement
from simpar.predict import Prediction
from simpar.report import figures_of, render_parts
from simpar.units import format_time


@dataclass(frozen=True, slots=True)
class Compared:
    """Predictions side by side; the fastest is marked."""

    predictions: tuple[Prediction, ...]

    @property
    def fastest(self) -> Prediction:
        """The one with the shortest step, of those that fit if any does."""
        return min(self.predictions, key=lambda one: (not one.fits, one.step))

    def __str__(self) -> str:
        return render_parts([self._answer(), '', figures_of(self.predictions)], colour=False, width=120)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from simpar.page.page import table_html

        return f'<p><b>{html.escape(self._answer())}</b></p>{table_html(figures_of(self.predictions))}'

    def _answer(self) -> str:
        best = self.fastest
        return f'fastest of {len(self.predictions)}: {best.name}, {format_time(best.step)} a step'


def compare(first: Case | Prediction, *others: Case | Prediction | str | Path) -> Compared | Measured:
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


def compare_cases(*answers: Case | Prediction) -> Compared:
    """Cases or predictions side by side; cases are predicted. Raises ``ValueError`` without any.

    Example: ``compare_cases(case, case.what_if(copies=4))``.
    """
    if not answers:
        raise ValueError('nothing to compare; give cases or predictions')
    return Compared(tuple(one.predict() if isinstance(one, Case) else one for one in answers))
