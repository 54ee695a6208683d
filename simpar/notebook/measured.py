"""Measured: a prediction beside a measurement of the same program, as a picture and a table that show themselves."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simpar.comparison import Comparison, compare, render_comparison
from simpar.diagnosis import Diagnosis
from simpar.notebook.cards import image_of
from simpar.predict import Prediction
from simpar.trace import Trace
from simpar.trace_files import load_trace, to_trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def with_measurement(prediction: Prediction, file: Path) -> Measured:
    """A prediction beside what `simpar measure --save` wrote; raises ``ScheduleError`` for another program's trace."""
    saved = load_trace(file)
    comparison = compare(prediction.trace, saved, costs=prediction.costs)
    return Measured(prediction.trace, to_trace(saved, prediction.program), comparison)


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
