"""Outcome: what comes of one row, its figures or why it cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simpar.case import case_of, check_memory
from simpar.errors import ScheduleError, SimparError
from simpar.headline import maybe_too_large
from simpar.metrics import is_pipeline
from simpar.predict import Prediction
from simpar.schedule import Schedule
from simpar.session import Session
from simpar.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A step in seconds, means over the ranks as of ``StepMetrics``; ``bubble`` of pipelines only.

    Arguments:
        grades: share of the isolated seconds by grade.
        notes: as of the prediction.
    """

    step: float
    compute: float
    exposed: float
    idle: float
    bubble: float | None
    grades: Mapping[str, float]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What comes of a schedule.

    Arguments:
        figures: None where there is no program.
        peak, device: bytes that the fullest device holds and has; both 0 where there is no program.
        reason: why it cannot be, in a few words; empty where it can.
        detail: the same in full.
    """

    figures: Figures | None = None
    peak: int = 0
    device: float = 0.0
    reason: str = ''
    detail: str = field(default='', repr=False)

    @property
    def feasible(self) -> bool:
        """Whether it can be on this cluster."""
        return not self.reason


def predicted(schedule: Schedule, session: Session | None = None) -> Outcome:
    """Predict a schedule, without a baseline; one that cannot be is an outcome too.

    Arguments: ``session`` of rows that are predicted one after the other.
    """
    outcome = Outcome()
    try:
        # Baselines are rows of their own here, predicted once for all rows that share them.
        case = case_of(replace(schedule, against={}), session=session)
        prediction = case.predict(tell=False)
        outcome = Outcome(figures=_figures(prediction), peak=prediction.memory.peak, device=prediction.device_memory)
        # After the figures are known, so that a row that does not fit still tells its step.
        check_memory(case, prediction)
        if prediction.fits is None:
            # A row that may not fit is told apart, and is no best one.
            detail = maybe_too_large('plan', outcome.peak, outcome.device, prediction.memory_margin)
            outcome = replace(outcome, reason=f'may not fit: {_of_device(outcome)}', detail=detail)
    except SimparError as error:
        return infeasible(error, outcome)
    return outcome


def infeasible(error: SimparError, outcome: Outcome = Outcome()) -> Outcome:
    """The outcome of what an error refuses; ``outcome``, what is known of it all the same."""
    return replace(outcome, reason=_short_reason(error, outcome), detail=str(error))


def _figures(prediction: Prediction) -> Figures:
    steady = prediction.metrics.steady_seconds
    return Figures(
        step=prediction.step,
        compute=steady.compute,
        exposed=steady.exposed,
        idle=steady.idle,
        bubble=steady.bubble if is_pipeline(prediction.program) else None,
        grades=prediction.grades,
        notes=prediction.notes,
    )


def _short_reason(error: SimparError, outcome: Outcome) -> str:
    # Told in short form; the full message does not fit into a table.
    if outcome.peak > outcome.device:
        return f'does not fit: {_of_device(outcome)}'
    if isinstance(error, ScheduleError):
        more = len(error.problems) - 1
        return f'{error.problems[0].what}{f" (and {more} more)" if more else ""}'
    return str(error).partition('\n')[0].rstrip(':')


def _of_device(outcome: Outcome) -> str:
    return f'{format_size(outcome.peak)} of {format_size(outcome.device)}'
