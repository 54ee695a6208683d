"""The picture of a comparison: the predicted step above the measured one, what differs by its own doing outlined."""

from __future__ import annotations

import argparse
from pathlib import Path

from simpar.compare import Comparison
from simpar.errors import Problem, ScheduleError
from simpar.gain import Gain, gain_line
from simpar.trace import Trace

FORMATS = ('.png', '.svg', '.pdf')


def check_plot(options: argparse.Namespace) -> None:
    """Refuse a name of a picture whose format is not ours; raises ``ScheduleError``."""
    # matplotlib knows more formats, but these look the same everywhere.
    if options.plot and options.plot.suffix not in FORMATS:
        what = f'not a kind of picture (got {options.plot})'
        raise ScheduleError(Problem('--plot', what, f'write a name that ends in {", ".join(FORMATS)}'))


def draw_difference(
    path: Path, predicted: Trace, measured: Trace, comparison: Comparison, gain: Gain | None = None
) -> None:
    """Write the picture, with the gain in its title where there is one; raises ``OSError``."""
    from simpar.notebook.measured import difference_picture
    from simpar.plot import write_figure

    path.parent.mkdir(parents=True, exist_ok=True)
    title = gain_line(gain) if gain and gain.baseline else ''
    write_figure(path, difference_picture(predicted, measured, comparison, title))
