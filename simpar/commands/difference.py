"""The picture of a comparison: the predicted step above the measured one, what differs by its own doing outlined."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from simpar.compare import Comparison
from simpar.diagnosis import Diagnosis, sentence
from simpar.errors import Problem, ScheduleError
from simpar.trace import Trace

FORMATS = ('.png', '.svg', '.pdf')


def check_plot(options: argparse.Namespace) -> None:
    """Refuse a name of a picture whose format is not ours; raises ``ScheduleError``."""
    # matplotlib knows more formats, but these look the same everywhere.
    if options.plot and options.plot.suffix not in FORMATS:
        what = f'not a kind of picture (got {options.plot})'
        raise ScheduleError(Problem('--plot', what, f'write a name that ends in {", ".join(FORMATS)}'))


def draw_difference(path: Path, predicted: Trace, measured: Trace, comparison: Comparison) -> None:
    """Write the picture; raises ``OSError``."""
    from simpar.plot import timeline, write_figure

    diagnosis = comparison.diagnosis
    text = sentence(diagnosis) if diagnosis else ''
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = timeline(
        _typical(measured),
        predicted,
        names=(comparison.origin, 'predicted'),
        rank=_rank(diagnosis, measured),
        marks=diagnosis.marks if diagnosis else frozenset(),
        answer=text[:1].upper() + text[1:],
    )
    write_figure(path, figure)


def _typical(measured: Trace) -> Trace:
    """The measurement up to the warm step that is nearest to the median: the last one may have been disturbed."""
    first = min(1, measured.steps - 1)
    warm = measured.step_times[first:]
    return measured.first(first + 1 + int(np.argmin(np.abs(warm - np.median(warm)))))


def _rank(diagnosis: Diagnosis | None, measured: Trace) -> int:
    """The rank that is shown: one at which the cause lies, else one that ends last."""
    if diagnosis and diagnosis.marks:
        return min(rank for rank, _ in diagnosis.marks)
    return max(measured.representatives, key=lambda times: float(times.end_KS[-1].max())).rank
