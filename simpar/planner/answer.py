"""Answer: what a search found: the ranking, plans within noise, the front of step and memory, and what is proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simpar.lazy import card, dataframe
from simpar.plan import Plan
from simpar.planner.search import Found
from simpar.planner.space import KEYS, Space
from simpar.schedule import Schedule
from simpar.sweep.outcome import Figures, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A plan that the engine predicted.

    Arguments:
        settings: keys and their values.
        schedule: its schedule, without a baseline.
        step: seconds; peak, bytes of the fullest device.
        bound: least seconds, as known before it was predicted.
        parts: how many keys are not as in a plan that splits nothing.
    """

    settings: Mapping[str, Any]
    schedule: Schedule = field(repr=False)
    outcome: Outcome
    step: float
    peak: int
    bound: float
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The plan of the file, which a search begins with.

    Arguments: ``ranked``, None where it has no program; ``allowed``, whether the file's ``planner`` section lets it be
    chosen.
    """

    outcome: Outcome
    ranked: Ranked | None
    allowed: bool = True

    @property
    def fits(self) -> bool:
        """Whether it can be on this cluster."""
        return self.outcome.feasible and self.ranked is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How many plans a rule cut off, and what it said of the first of them."""

    rule: str
    plans: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The best plan that is known, and how much faster another could be at most.

    Arguments:
        schedule: the file's; keys, what was chosen, with their values.
        ranking: predicted plans that fit, the fastest first; of equal ones the simpler.
        infeasible: how many predicted plans do not fit, or have no program.
        pruned: by rule, most plans first.
        plans: of the space; open, those neither predicted nor cut off.
        least: seconds; no open plan, and none cut off by its bound, takes less.
        gap: 1 − least / the best step; 1 where no plan is known.
        margin: share of the fastest step within which plans are one class; ``noise``, what that rests on.
        complete: whether the search ended by itself; else it was interrupted.
        nodes: of the tree that were looked at.
        own: the plan of the file; None where nobody asked for it.
    """

    schedule: Schedule = field(repr=False)
    keys: Mapping[str, tuple[Any, ...]]
    ranking: tuple[Ranked, ...]
    infeasible: int
    pruned: tuple[Pruned, ...]
    plans: int
    open: int
    least: float
    gap: float
    margin: float
    complete: bool
    nodes: int
    noise: str = 'nobody measured pairs of plans there'
    own: Own | None = None

    @property
    def best(self) -> Ranked | None:
        """The fastest plan; None where none is known to fit."""
        return self.ranking[0] if self.ranking else None

    @property
    def alike(self) -> tuple[Ranked, ...]:
        """The plans whose steps are within noise of the fastest."""
        best = self.best
        return tuple(one for one in self.ranking if best and one.step <= best.step * (1 + self.margin))

    @property
    def choice(self) -> Ranked | None:
        """The simplest of those that are no slower than the file's own plan; of equally simple ones the faster."""
        own = self.own
        most = own.ranked.step if own and own.ranked and own.fits and own.allowed else float('inf')
        return min((one for one in self.alike if one.step <= most), key=lambda one: (one.parts, one.step), default=None)

    @property
    def refuted(self) -> float:
        """By what share a plan was predicted below its bound at most; above 0 nothing is proven.

        Steps that are not steady yet are left out: bounds are of steady ones.
        """
        steady = (one for one in self.ranking if one.outcome.figures and not _unsteady(one.outcome.figures))
        return max((one.bound / one.step - 1 for one in steady), default=0.0)

    @property
    def runner_up(self) -> Ranked | None:
        """The fastest plan that is not within noise of the fastest; None where all are."""
        return next((one for one in self.ranking[len(self.alike) :]), None)

    @property
    def kinds(self) -> tuple[tuple[Ranked, ...], ...]:
        """The ranking with plans of equal step and peak together, the simplest of them first."""
        found: dict[tuple[float, int], list[Ranked]] = {}
        for one in self.ranking:
            found.setdefault((one.step, one.peak), []).append(one)
        return tuple(tuple(sorted(alike, key=lambda one: one.parts)) for alike in found.values())

    @property
    def front(self) -> tuple[Ranked, ...]:
        """Predicted plans than which no other is as fast with less memory, the fastest first."""
        found: list[Ranked] = []
        for one in self.ranking:
            if not found or one.peak < found[-1].peak:
                found.append(one)
        return tuple(found)

    def __repr__(self) -> str:
        # The ranking alone may hold hundreds of plans.
        choice = self.choice
        best = f'choice={dict(choice.settings)}, step={choice.step!r}' if choice else 'choice=None'
        return f'Answer(plans={self.plans}, {best}, gap={self.gap:.3g}, complete={self.complete})'

    def _repr_html_(self) -> str:
        return card(self)

    def to_dataframe(self) -> Any:
        """The ranking as a table of pandas."""
        return dataframe(self)


def answer_of(space: Space, found: Found, margin: float, own: Own | None = None) -> Answer:
    """The answer of a search. Argument: ``own``, the file's plan; one that the space does not have is ranked, too."""
    ranking = [
        (path, ranked(space, space.schedule(path), outcome, found.bounds.get(path, 0.0)))
        for path, outcome in found.outcomes.items()
        if outcome.feasible and outcome.figures
    ]
    infeasible = len(found.outcomes) - len(ranking)
    if own and own.ranked and found.other < float('inf'):
        ranking.append(((), own.ranked))
    pruned = [Pruned(rule=rule, plans=count, example=found.examples[rule]) for rule, count in found.pruned.items()]
    return Answer(
        schedule=space.base,
        keys={f'plan.{key}': values for key, values in zip(space.keys, space.values, strict=True)},
        ranking=tuple(one for _, one in sorted(ranking, key=lambda pair: (pair[1].step, pair[1].parts, pair[0]))),
        infeasible=infeasible,
        pruned=tuple(sorted(pruned, key=lambda one: (-one.plans, one.rule))),
        plans=space.count,
        open=found.open,
        least=found.least,
        gap=found.gap,
        margin=margin,
        complete=found.complete,
        nodes=found.nodes,
        own=own,
    )


def _unsteady(figures: Figures) -> bool:
    return any(note.startswith('not steady yet') for note in figures.notes)


def ranked(space: Space, schedule: Schedule, outcome: Outcome, bound: float = 0.0) -> Ranked:
    """A plan that the engine has predicted. Arguments: ``schedule``, its own; ``bound``, its least seconds."""
    assert outcome.figures is not None
    simple = Plan()
    return Ranked(
        settings={f'plan.{key}': getattr(schedule.plan, key) for key in space.keys},
        schedule=schedule,
        outcome=outcome,
        step=outcome.figures.step,
        peak=outcome.peak,
        bound=bound,
        parts=sum(getattr(schedule.plan, key) != getattr(simple, key) for key in (*KEYS, 'data')),
    )
