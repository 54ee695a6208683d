"""What a device has and a processor has not: a host that issues to it, and a clock that sinks under load."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np

from executor.bench.compute import matmul
from executor.bench.item import program_of
from executor.bench.on import On
from executor.bench.ranks import Timed, Timer
from executor.bench.record import figures
from executor.bench.sizes import Sizes
from executor.devices.kinds import KINDS
from simpar.program.op import Phase
from simpar.trace import Times

LEAST: Final = 8
"""Sizes of a product that takes a device no longer than the host needs to issue it."""
MANY: Final = (64, 256)
"""Such products in a step: the slope between the two is what one costs, what is left is the step's own."""
WARM_UP: Final = 3
"""Steps that do not count: with captured graphs, the first and those that are captured."""
STEPS: Final = 8
PHASES: Final[tuple[Phase, ...]] = ('F', 'I')
AT_ONCE: Final = 16
"""Large products in a step."""
EARLY, LATE = 0.1, 0.25
"""Shares of the time under load: at its beginning, when the clock is still high, and at its end."""


class Reporter(Protocol):
    """Learns how far a bench has come."""

    def part(self, name: str, turns: int) -> None:
        """A part of so many turns begins."""

    def turn(self) -> None:
        """One turn of it is done."""


def of_device(timer: Timer, sizes: Sizes, on: On, reporter: Reporter) -> dict[str, Any]:
    """Rows of a record: what the host takes to issue an op, eagerly and captured, and the clock under load."""
    modes = ['eager', *(['graph'] if KINDS[on.device].graphs else [])]
    reporter.part(f'launches: {" and ".join(modes)}', len(modes) * len(PHASES))
    launches = []
    for mode in modes:
        for phase in PHASES:
            launches.append({'mode': mode, 'phase': phase, **_launch(timer, mode, phase)})
            reporter.turn()
    reporter.part('clock under load', 1)
    under_load = _under_load(timer, sizes)
    reporter.turn()
    return {'launches': launches, 'sustained': under_load}


def _launch(timer: Timer, mode: str, phase: Phase) -> dict[str, Any]:
    """Seconds that an op takes of the host, and those of a step beside its ops."""
    item = matmul(LEAST, LEAST, LEAST, phase)
    few, many = (
        _steps(timer.timed(program_of([item] * count, timer.world), WARM_UP + STEPS, issue=mode)) for count in MANY
    )
    slopes = (many - few) / (MANY[1] - MANY[0])
    # Every rank has a host of its own; noise may make a short slope negative.
    op = np.maximum(slopes.ravel(), 1e-9)
    return {'op': figures(op), 'step': figures(np.maximum((few - MANY[0] * slopes).ravel(), 1e-9))}


def _steps(run: Timed) -> Times:
    """Seconds of the steps that count, shape [ranks, steps]: from the end of the step before to its own end."""
    ends = np.array([run.trace.times_of(rank).end_KS[:, -1] for rank in range(run.trace.program.world)])
    return np.asarray(np.diff(ends, axis=1)[:, WARM_UP - 1 :])


def _under_load(timer: Timer, sizes: Sizes) -> dict[str, Any]:
    """Seconds of a large product at the beginning and at the end of a time in which a device does nothing else."""
    item = matmul(sizes.load, sizes.load, sizes.load, 'F')
    program = program_of([item] * AT_ONCE, timer.world)
    first = timer.timed(program, WARM_UP + 1)
    once = float(np.median(_products(first)[:, -AT_ONCE:]))
    steps = WARM_UP + max(STEPS, round(sizes.load_seconds / (AT_ONCE * once)))
    seconds = _products(timer.timed(program, steps))[:, WARM_UP * AT_ONCE :]
    count = seconds.shape[1]
    early, late = seconds[:, : max(1, round(EARLY * count))], seconds[:, -max(1, round(LATE * count)) :]
    return {
        'size': sizes.load,
        'seconds': sizes.load_seconds,
        'early': figures(early.ravel()),
        'late': figures(late.ravel()),
    }


def _products(run: Timed) -> Times:
    """Seconds of each product, shape [ranks, products in their order]."""
    return run.thread_RKS.reshape(run.trace.program.world, -1)
