"""``simpar compare PREDICTION MEASUREMENT``: join two traces of the same program."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from simpar.commands.difference import check_plot, draw_difference
from simpar.commands.statistic import statistic_json, statistic_line
from simpar.compare import Comparison, compare, comparison_to_dict, render_comparison
from simpar.errors import Problem, ScheduleError
from simpar.gain import Gain, gain_of, gain_to_dict, render_gain
from simpar.trace_files import SavedTrace, load_trace, to_trace


def command(options: argparse.Namespace) -> int:
    """Print signed errors; raises ``OutsideTolerance`` where the step differs by more than asked."""
    check_plot(options)
    predicted, measured = load_trace(options.prediction), load_trace(options.measurement)
    _refuse_swapped(options, predicted, measured)
    gain = gain_of(predicted, measured)
    comparison = gain.plan.comparison if gain else compare(predicted, measured)
    if options.plot:
        _draw(options.plot, predicted, measured, comparison, gain)
    if options.json:
        found = gain_to_dict(gain) if gain else comparison_to_dict(comparison)
        told = {**found, 'statistic': statistic_json(comparison.steps)}
        print(json.dumps(told, ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render_gain(gain) if gain else render_comparison(comparison))
        print(statistic_line(comparison.steps, comparison.origin))
    if options.tolerance is not None:
        sys.stdout.flush()
        comparison.check(options.tolerance)
    return 0


def _refuse_swapped(options: argparse.Namespace, prediction: SavedTrace, measurement: SavedTrace) -> None:
    """Raise ``ScheduleError`` where the first trace is no prediction."""
    if prediction.origin == 'simulated':
        return
    what = f'the first trace is {prediction.origin}, not predicted (its origin is not simulated)'
    instead = 'give the trace of `simpar run --save` first'
    if measurement.origin == 'simulated':
        instead = f'swap the two: simpar compare {options.measurement} {options.prediction}'
    raise ScheduleError(Problem(str(options.prediction), what, instead))


def _draw(path: Path, predicted: SavedTrace, measured: SavedTrace, comparison: Comparison, gain: Gain | None) -> None:
    """The picture; it needs the program, which the prediction brings."""
    if predicted.basis is None:
        what = 'the prediction does not hold its program, without which nothing can be drawn'
        raise ScheduleError(Problem('--plot', what, 'write it again with `simpar run --save`'))
    program = predicted.basis.program
    draw_difference(path, to_trace(predicted, program), to_trace(measured, program), comparison, gain)
