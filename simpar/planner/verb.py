"""plan: ``simpar.plan(...)``, the best plan from Python, as a value that a notebook shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from simpar.budget import parse_budget
from simpar.document import Source
from simpar.lazy import card, dataframe
from simpar.planner.answer import Answer, Ranked
from simpar.planner.picture import front_picture
from simpar.planner.plan import load_planning
from simpar.planner.render import render
from simpar.planner.robust import Robustness, robust
from simpar.planner.sizes import Sizes, sizes
from simpar.planner.why import why
from simpar.predict import Prediction
from simpar.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Planned:
    """An answer with why the runner-up loses, and what becomes of the choice where something is worse."""

    answer: Answer
    why: Prediction | None = field(default=None)
    robustness: Robustness | None = field(default=None)

    @property
    def choice(self) -> Ranked | None:
        """The plan; None where none is known to fit."""
        return self.answer.choice

    @property
    def schedule(self) -> Schedule | None:
        """Its schedule, which ``case_of`` takes."""
        return self.choice.schedule if self.choice else None

    @property
    def step(self) -> float:
        """Seconds of its step; infinite where none is known to fit."""
        return self.choice.step if self.choice else float('inf')

    @property
    def gap(self) -> float:
        """Share of the fastest step by which another plan may be faster."""
        return self.answer.gap

    def __str__(self) -> str:
        return render(self.answer, self.why, self.robustness)

    __repr__ = __str__

    def plot(self) -> Any:
        """Step and memory of predicted plans, and the front, as a picture that shows itself."""
        return front_picture(self.answer)

    def to_dataframe(self) -> Any:
        """The ranking as a table of pandas."""
        return dataframe(self.answer)

    def _repr_html_(self) -> str:
        return card(self)


def plan(
    source: Source,
    overrides: Sequence[str] = (),
    *,
    devices: Sequence[int] = (),
    train: Sequence[str] = (),
    gap: float | None = None,
    seconds: float = float('inf'),
    jobs: int | None = None,
    module: str = '',
) -> Planned | Sizes:
    """The best plan for the model on the devices of a schedule, with a proven gap.

    Arguments:
        source: a path, the text of a file (of several lines), or a dict.
        overrides: ``a.b=value`` as of `--set`.
        devices: numbers of devices to plan on, each by itself: then cost and time of each come back.
        train: the training that cost and time are of, as of `--train`: ``['tokens=1T', 'price=2.5']``.
        gap: share of the best step by which another plan may be faster when the search ends, in place of the file's.
        seconds: after which the search ends with what it knows.
        jobs: processes at once; None, as many as there are cores, where that repays.
        module: the graph of a torch module (`from_module`), which is the schedule's model.
    Raises ``ScheduleError`` with all that is wrong, ``ValueError`` where ``train`` is no training.
    Example: ``simpar.plan('schedule.yaml', gap=0.05).plot()``.
    """
    planning = load_planning(source, overrides, module=module)
    if devices:
        budget = parse_budget(train) if train else None
        return sizes(planning, devices, budget, lambda one: one.search(jobs=jobs, seconds=seconds, gap=gap))
    return explained(planning.search(jobs=jobs, seconds=seconds, gap=gap), jobs=jobs)


def explained(answer: Answer, *, jobs: int | None = 1, scheduler: str = '') -> Planned:
    """The answer with why, and robustness; an interrupt leaves out what is not known yet."""
    found = Planned(answer=answer)
    if not answer.complete:
        return found
    try:
        found = Planned(answer=answer, why=why(answer))
        return Planned(answer=answer, why=found.why, robustness=robust(answer, jobs=jobs, scheduler=scheduler))
    except KeyboardInterrupt:
        return found
