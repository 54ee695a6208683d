"""Robust: whether the chosen plan still wins on slower links, with a slow rank, with a fuller expert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simpar.case import cluster_of
from simpar.lazy import card
from simpar.planner.answer import Answer, Ranked
from simpar.schedule import Schedule
from simpar.sweep.outcome import Outcome
from simpar.sweep.run import Way, predict_all
from simpar.units import format_time
from simpar.workload import Transformer

HALF: Final = 0.5
SLOWER: Final = 1.25
FULLER: Final = 1.5
"""Of a link's rate; how many times as long a slow rank computes; of an expert's imbalance."""
MOST: Final = 4
"""Plans beside the choice that are asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What becomes of plans where something is worse.

    Arguments:
        name: what is worse.
        steps: seconds of each plan of ``Robustness.plans``; infinite where it has no program or does not fit.
    """

    name: str
    steps: tuple[float, ...]

    @property
    def best(self) -> int:
        """The place of the fastest plan; of equal ones the first, which is the choice before others."""
        return min(range(len(self.steps)), key=lambda place: self.steps[place])


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """The choice and those that come next, where something is worse.

    Arguments: ``plans``, the choice first; ``trials``, the first as it is; ``margin``, of the answer.
    """

    plans: tuple[Ranked, ...]
    trials: tuple[Trial, ...]
    margin: float

    def _repr_html_(self) -> str:
        return card(self)

    def behind(self, trial: Trial) -> float:
        """By what share the choice is slower than the fastest of the plans."""
        return trial.steps[0] / trial.steps[trial.best] - 1

    def holds(self, trial: Trial) -> bool:
        """Whether the choice is still within noise of the fastest."""
        return self.behind(trial) <= self.margin


def robust(answer: Answer, *, jobs: int | None = 1, scheduler: str = '') -> Robustness | None:
    """Predict the choice and its nearest rivals where something is worse; None where no plan is known.

    Only plans that the search predicted are asked: a plan that it cut off could win on a slower link.
    Arguments: ``jobs`` and ``scheduler`` as of sweeps.
    """
    plans = _asked(answer)
    if not plans:
        return None
    cases = tuple(worse(plans[0].schedule))
    schedules = [changed for _, change in cases for changed in (change(one.schedule) for one in plans)]
    found = predict_all(schedules, Way(jobs=jobs, scheduler=scheduler))
    rows = [found[start : start + len(plans)] for start in range(0, len(found), len(plans))]
    trials = [Trial(name=name, steps=tuple(map(_step, row))) for (name, _), row in zip(cases, rows, strict=True)]
    as_it_is = Trial(name='as it is', steps=tuple(one.step for one in plans))
    return Robustness(plans=plans, trials=(as_it_is, *trials), margin=answer.margin)


def _asked(answer: Answer) -> tuple[Ranked, ...]:
    """The choice, the fastest, others of its class, and the runner-up: of plans with equal figures the simplest."""
    choice = answer.choice
    if choice is None:
        return ()
    leaders = [kind[0] for kind in answer.kinds]
    others = [one for one in leaders if (one.step, one.peak) != (choice.step, choice.peak)]
    return (choice, *others[:MOST])


def worse(schedule: Schedule) -> Iterator[tuple[str, Change]]:
    """What may be worse on a cluster, and how a schedule says so."""
    cluster = cluster_of(schedule)
    joined = 1
    for link in cluster.profile.links:
        # A link that joins no more devices than the one below carries nothing.
        members = min(link.devices or cluster.world, cluster.world)
        if members > joined:
            yield f'{link.name} at half its rate', Change(link=link.name)
        joined = max(joined, members)
    yield f'rank 0 {SLOWER:g} × slower', Change(slow=True)
    model = schedule.workload.model
    if isinstance(model, Transformer) and model.experts is not None and not model.experts.capacity:
        more = min(model.experts.imbalance * FULLER, model.experts.count / model.experts.top_k)
        if more > model.experts.imbalance:
            yield f'the fullest expert with {more:.3g} × the mean', Change(imbalance=more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is made worse of a schedule."""

    link: str = ''
    slow: bool = False
    imbalance: float = 0.0

    def __call__(self, schedule: Schedule) -> Schedule:
        """The schedule where it is worse."""
        cluster, workload = schedule.cluster, schedule.workload
        if self.link:
            links = {**cluster.links, self.link: cluster.links.get(self.link, 1.0) * HALF}
            cluster = replace(cluster, links=links)
        if self.slow:
            cluster = replace(cluster, slow={**cluster.slow, 0: cluster.slow.get(0, 1.0) / SLOWER})
        model = workload.model
        if self.imbalance and isinstance(model, Transformer) and model.experts is not None:
            experts = replace(model.experts, imbalance=self.imbalance)
            workload = replace(workload, model=replace(model, experts=experts))
        return replace(schedule, cluster=cluster, workload=workload)


def _step(outcome: Outcome) -> float:
    return outcome.figures.step if outcome.feasible and outcome.figures else float('inf')


def words(found: Robustness, named: Sequence[str]) -> Iterator[list[str]]:
    """A row of cells for each trial. Argument: ``named``, what the plans are called."""
    first = found.trials[0].steps[0]
    for trial in found.trials:
        own = trial.steps[0]
        if own == float('inf'):
            yield [trial.name, 'does not fit', '', f'beaten by {named[trial.best]}']
            continue
        slower = f'{own / first - 1:+.1%}' if trial is not found.trials[0] else ''
        behind = f'{found.behind(trial):.1%}'
        if trial.best == 0:
            verdict = 'the fastest'
        elif found.holds(trial):
            verdict = f'within noise of the fastest ({behind} behind)'
        else:
            verdict = f'{behind} behind {named[trial.best]}'
        yield [trial.name, format_time(own), slower, verdict]
