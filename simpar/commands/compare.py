"""``simpar compare PREDICTION MEASUREMENT``: join two traces of the same program."""

from __future__ import annotations

import argparse
import json
import sys

from simpar.compare import compare, comparison_to_dict, render_comparison
from simpar.trace_files import load_trace


def command(options: argparse.Namespace) -> int:
    """Print signed errors; raises ``OutsideTolerance`` where the step differs by more than asked."""
    comparison = compare(load_trace(options.prediction), load_trace(options.measurement))
    if options.json:
        print(json.dumps(comparison_to_dict(comparison), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render_comparison(comparison))
    if options.tolerance is not None:
        sys.stdout.flush()
        comparison.check(options.tolerance)
    return 0
