"""Step times of one order for many cases at once, each to the bit as by the clock."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal

import numpy as np

from simpar.errors import Problem, ScheduleError, SimparError
from simpar.pipeline.clock import StageTimes, check_stages
from simpar.pipeline.order import Order
from simpar.pipeline.recurrence import Recurrence
from simpar.pipeline.scan import Floats, scan

Engine = Literal['auto', 'numpy', 'compiled']
CALL: Final = 1_000
"""Cases whose arithmetic takes numpy as long as to be called."""
REPAYS: Final = 500_000_000
"""From how much work of numpy on, in instructions × cases, numba repays: about a second, as long as compiling takes."""

_done: Final = [0]
"""Work that numpy has done in this process."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTimesTable:
    """`StageTimes` of many cases: the same fields, with a row for each case.

    Arguments: ``forward``, ``input``, ``weight``: shape [cases, stages]; ``communication``: shape [cases, stages − 1].
    Raises `ScheduleError` where shapes differ, and for times that are negative or not finite.
    """

    forward: Floats
    input: Floats
    weight: Floats
    communication: Floats

    def __post_init__(self) -> None:
        every = (self.forward, self.input, self.weight, self.communication)
        cases, stages = self.forward.shape if self.forward.ndim == 2 else (0, 0)
        if [times.shape for times in every] != [(cases, stages)] * 3 + [(cases, stages - 1)]:
            what = f'tables of shapes {", ".join(str(times.shape) for times in every)}'
            raise ScheduleError(Problem('pipeline times', what, 'give [cases, stages], and one way less than stages'))
        if not all(((times >= 0) & (times < np.inf)).all() for times in every):
            raise ScheduleError(Problem('pipeline times', 'negative or not finite'))

    @staticmethod
    def of(cases: Sequence[StageTimes]) -> StageTimesTable:
        """The table of one case or more, each of as many stages."""
        names = [field.name for field in fields(StageTimesTable)]
        return StageTimesTable(**{name: np.array([getattr(case, name) for case in cases], float) for name in names})

    @property
    def stages(self) -> int:
        """Number of stages."""
        stages: int = self.forward.shape[1]
        return stages

    def __len__(self) -> int:
        return len(self.forward)


def step_times(order: Order | Recurrence, times: StageTimesTable, steps: int = 3, *, engine: Engine = 'auto') -> Floats:
    """Seconds of a step in the steady state for each case, shape [cases]; each is `step_time`'s to the bit.

    Arguments:
        order: or its `Recurrence`, which is worth keeping where the order is evaluated again.
        steps: how many run back to back; the last one counts.
        engine: ``numpy``; ``compiled``, by numba; ``auto``, whichever is sooner done.
    Raises `ScheduleError` where the times are for another number of stages, or ranks wait for each other for ever;
    `SimparError` where numba is asked for and not installed.
    """
    found = Recurrence.of(order) if isinstance(order, Order) else order
    check_stages(times.stages, found.order.stages)
    lasts = found.order.seconds([*times.forward.T], [*times.input.T], [*times.weight.T])
    given = np.concatenate([times.communication.T, np.zeros((1, len(times))), lasts])
    if _repays(len(found.code) * steps * (CALL + len(times)), engine):
        from simpar.pipeline.compiled.scan import scan as compiled_scan

        return compiled_scan(found, given, steps)
    return scan(found, given, steps)


def _repays(work: int, engine: Engine) -> bool:
    """Whether to do so much work, as numpy counts it, compiled."""
    installed = importlib.util.find_spec('numba') is not None
    if engine == 'compiled' and not installed:
        raise SimparError('compiled step times need numba, which is not installed; write: pip install numba')
    if engine != 'auto' or 'simpar.pipeline.compiled.scan' in sys.modules:
        return engine != 'numpy'
    # As many again are likely to follow.
    _done[0] += work
    return installed and _done[0] >= REPAYS
