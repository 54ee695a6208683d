"""``simpar compare PREDICTION MEASUREMENT``: join two traces of the same program."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from simpar.commands.difference import check_plot, draw_difference
from simpar.compare import Comparison, compare, comparison_to_dict, render_comparison
from simpar.errors import Problem, ScheduleError
from simpar.trace_files import SavedTrace, load_trace, to_trace


def command(options: argparse.Namespace) -> int:
    """Print signed errors; raises ``OutsideTolerance`` where the step differs by more than asked."""
    check_plot(options)
    predicted, measured = load_trace(options.prediction), load_trace(options.measurement)
    comparison = compare(predicted, measured)
    if options.plot:
        _draw(options.plot, predicted, measured, comparison)
    if options.json:
        print(json.dumps(comparison_to_dict(comparison), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render_comparison(comparison))
    if options.tolerance is not None:
        sys.stdout.flush()
        comparison.check(options.tolerance)
    return 0


def _draw(path: Path, predicted: SavedTrace, measured: SavedTrace, comparison: Comparison) -> None:
    """The picture; it needs the program, which the prediction brings."""
    if predicted.basis is None:
        what = 'the prediction does not hold its program, without which nothing can be drawn'
        raise ScheduleError(Problem('--plot', what, 'write it again with `simpar run --save`'))
    program = predicted.basis.program
    draw_difference(path, to_trace(predicted, program), to_trace(measured, program), comparison)
