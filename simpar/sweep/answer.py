"""SweepAnswer: the outcomes of all rows side by side, with the gain of each and the fastest."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simpar import errors, headline, lazy, metrics, predict, units
from simpar.case import case_of, check_memory
from simpar.schedule import Schedule
from simpar.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A step in seconds, means over the ranks as of ``StepMetrics``; ``bubble`` of pipelines only.

    Arguments:
        grades: share of the isolated seconds by grade.
        notes: as of the prediction.
        hidden: share of communication under which ranks compute; None where there is none.
    """

    step: float
    compute: float
    exposed: float
    idle: float
    bubble: float | None
    grades: Mapping[str, float]
    notes: tuple[str, ...]
    hidden: float | None = None


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

    def __post_init__(self) -> None:
        # A journal's row is read back by this class, and anybody may have edited it.
        if self.figures and not (self.device > 0 and self.figures.step > 0):
            raise ValueError('figures without a step or a device')

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
        outcome = Outcome(figures=_figures(prediction), peak=prediction.memory.peak, device=prediction.room.tensors)
        # After the figures are known, so that a row that does not fit still tells its step.
        check_memory(case, prediction)
        if prediction.fits is None:
            # A row that may not fit is told apart, and is no best one.
            detail = headline.maybe_too_large('plan', outcome.peak, outcome.device, prediction.memory_margin)
            step = units.format_time(prediction.step)
            reason = f'may not fit: {_of_device(outcome)}; if it does, {step} a step'
            outcome = replace(outcome, reason=reason, detail=detail)
    except errors.SimparError as error:
        return infeasible(error, outcome)
    return outcome


def infeasible(error: errors.SimparError, outcome: Outcome = Outcome()) -> Outcome:
    """The outcome of what an error refuses; ``outcome``, what is known of it all the same."""
    return replace(outcome, reason=_short_reason(error, outcome), detail=str(error))


def _figures(prediction: predict.Prediction) -> Figures:
    steady = prediction.metrics.steady
    return Figures(
        step=prediction.step,
        compute=steady.compute,
        exposed=steady.exposed,
        idle=steady.idle,
        bubble=steady.bubble if metrics.is_pipeline(prediction.program) else None,
        grades=prediction.grades,
        notes=prediction.notes,
        hidden=steady.overlap if steady.communication else None,
    )


def _short_reason(error: errors.SimparError, outcome: Outcome) -> str:
    # Told in short form; the full message does not fit into a table.
    if outcome.peak > outcome.device:
        return f'does not fit: {_of_device(outcome)}'
    if isinstance(error, errors.ScheduleError):
        more = len(error.problems) - 1
        return f'{error.problems[0].what}{f" (and {more} more)" if more else ""}'
    return str(error).partition('\n')[0].rstrip(':')


def _of_device(outcome: Outcome) -> str:
    return f'{units.format_size(outcome.peak)} of {units.format_size(outcome.device)}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row.

    Arguments:
        settings: dotted keys and what it sets them to.
        batch: samples of a step.
        baseline: seconds of the step that its gain is measured from.
        gain: ; both None where there is no such step.
        is_baseline: whether it is itself that step.
        why_no_gain: the reason why a baseline that was asked for cannot be.
    """

    settings: Mapping[str, Any]
    batch: int
    outcome: Outcome
    baseline: float | None = None
    gain: float | None = None
    is_baseline: bool = False
    why_no_gain: str = ''

    @property
    def step(self) -> float | None:
        """Seconds of a step; None where the row is infeasible."""
        return self.outcome.figures.step if self.outcome.figures and self.outcome.feasible else None

    @property
    def figures(self) -> tuple[object, ...]:
        """All figures of the row."""
        numbers, outcome = self.outcome.figures, self.outcome
        own = (numbers.compute, numbers.exposed, numbers.idle, numbers.bubble, numbers.grades) if numbers else ()
        return (self.step, outcome.peak, outcome.device, *own)

    @property
    def sample(self) -> float:
        """Seconds that the step takes for each of its samples; infinite where the row is infeasible."""
        return float('inf') if self.step is None else self.step / self.batch


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepAnswer(lazy.Table):
    """All rows in the order given.

    Arguments:
        keys: dotted.
        against: the differences of every row's own baseline, empty where gain is measured from the first feasible
            row.
        changed_links: whether a row has links that are not the profile's.
        framework: whose steps the rows are, in a sentence; empty where they differ.
    """

    keys: tuple[str, ...]
    results: tuple[Result, ...]
    against: Mapping[str, Any]
    changed_links: bool = False
    framework: str = ''

    def __repr__(self) -> str:
        best = None if self.best is None else dict(self.results[self.best].settings)
        return f'SweepAnswer(rows={len(self.results)}, keys={list(self.keys)}, best={best})'

    @property
    def best(self) -> int | None:
        """The row that takes least time a sample, the first of equal ones; None where no row is feasible."""
        rows = range(len(self.results))
        # By seconds a sample, since rows may differ in their batch; ``min`` takes the first of equal rows.
        place = min(rows, key=lambda row: self.results[row].sample)
        return None if self.results[place].step is None else place

    @property
    def first(self) -> int | None:
        """The first feasible row."""
        return next((row for row, result in enumerate(self.results) if result.step is not None), None)

    @property
    def varying(self) -> frozenset[str]:
        """The keys that rows set to different values, or that some rows leave."""
        settings = [result.settings for result in self.results]
        return frozenset(key for key in self.keys if any(one.get(key) != settings[0].get(key) for one in settings))

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The keys that change no figure: feasible rows that differ in one of them alone are alike."""
        return tuple(key for key in self.keys if key in self.varying and self._changes_nothing(key))

    def _changes_nothing(self, key: str) -> bool:
        alike: dict[str, list[Result]] = {}
        for result in self.results:
            if result.step is not None and key in result.settings:
                others = {other: value for other, value in result.settings.items() if other != key}
                alike.setdefault(repr(others), []).append(result)
        # A key is judged only where rows differ in it alone.
        groups = [rows for rows in alike.values() if len(rows) > 1]
        return bool(groups) and all(row.figures == rows[0].figures for rows in groups for row in rows)

    @property
    def batches_differ(self) -> bool:
        """Whether steps have different numbers of samples, so that samples a second are what compares."""
        return len({result.batch for result in self.results}) > 1
