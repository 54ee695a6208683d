"""A plugin that trains on virtual accelerators whatever a test trains in process: ``pytest -p on_virtual``.

Every test of numerics then holds the figures of virtual accelerators against autograd's. The order is another one each
time, and a race, a number that the host reads or an operation that is missing fails the test. Where SIMPAR_FIGURES
names a file, it gets how many tests passed and the largest deviation.
"""

import itertools
import json
import os
from collections import Counter
from math import isfinite
from pathlib import Path

import torch

from executor import numerics
from executor.ranks.request import Request
from executor.state import Result
from executor.tensors import TORCH
from executor.virtual.transport import VirtualWorld

MOST = 6
NAMES = {None: '', **{dtype: name for name, dtype in reversed(TORCH.items())}}
orders = itertools.count()
outcomes = Counter()
reasons = set()
worst = {'virtual': 0.0}
check = numerics.check


class OnVirtual:
    """What ``InProcess`` is to those who train step by step."""

    def __init__(self, program, seed=0, dtype=torch.float64, **_):
        request = Request(steps=MOST, seed=seed, dtype=NAMES[dtype])
        self._world = VirtualWorld(program, request, next(orders))
        self._done = 0

    def run(self, steps=1):
        """Train more steps."""
        found = self._world.train(self._done, steps)
        self._done += steps
        return Result(found.losses, found.parameters, found.gradients)


def measured(*arguments, **options):
    """``numerics.check``, its largest deviation noted."""
    report = check(*arguments, **options)
    if report.tolerance <= numerics.TOLERANCE:
        outcomes['count'] += 1
        if isfinite(report.worst.error):
            worst['virtual'] = max(worst['virtual'], report.worst.error)
    return report


def pytest_runtest_logreport(report):
    """Count."""
    if report.when == 'call' or report.outcome != 'passed':
        outcomes[report.outcome] += 1
    if report.skipped:
        reasons.add(str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr))


def pytest_sessionfinish():
    """Write what was seen."""
    if path := os.environ.get('SIMPAR_FIGURES'):
        counts = {key: outcomes[key] for key in ('passed', 'failed', 'skipped', 'count')}
        Path(path).write_text(json.dumps({**counts, **worst, 'reasons': sorted(reasons)}))


numerics.InProcess = OnVirtual
numerics.check = measured
