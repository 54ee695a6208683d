"""``numerics``: every loss, gradient and parameter of some steps in process against torch autograd's."""

from __future__ import annotations

import argparse
import json

from executor.draws import module_of
from executor.numerics import check
from simpar.case import load_case
from simpar.size import parse_limit


def command(options: argparse.Namespace) -> int:
    """Train in process, compare with the unsharded model; raises ``NumericsWrong`` where they differ."""
    case = load_case(options.job, options.set, limit=parse_limit(options.limit), module=module_of(options))
    report = check(case.program, case.schedule.workload, case.schedule.plan, options.steps, options.seed)
    worst = report.worst
    if options.json:
        found = {'program': case.program.hash, 'compared': len(report.deviations), 'tolerance': report.tolerance}
        print(json.dumps({**found, 'worst': {'step': worst.step, 'name': worst.name, 'error': worst.error}}))
    else:
        count = f'{len(report.deviations)} losses, gradients and parameters of {options.steps} steps'
        print(f'numerics: {count} equal those of the unsharded model in fp64 to {worst.error:.2g}; worst: {worst.name}')
    return 0
