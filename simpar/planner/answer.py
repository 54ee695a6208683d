"""Answer: what a search found: the ranking, plans within noise, why the rival loses, and what may be worse."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import expm1
from typing import Any, Final

from simpar import case, errors, lazy
from simpar.planner.search import Found
from simpar.planner.space import KEYS, Space
from simpar.plans import Plan
from simpar.predict import Prediction, predict
from simpar.schedule import Schedule
from simpar.sweep.answer import Figures, Outcome
from simpar.sweep.run import Way, predict_all
from simpar.throughput import Run, Throughput
from simpar.units import format_size, format_time
from simpar.workload import Transformer


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
class Answer(lazy.Table):
    """The best plan that is known, and how much faster another could be at most.

    Arguments:
        schedule: the file's; keys, what was chosen, with their values.
        ranking: predicted plans that fit, the fastest first; of equal ones the simpler.
        infeasible: how many predicted plans do not fit, or have no program.
        pruned: by rule, most plans first.
        plans: of the space; open, those neither predicted nor cut off; never_bounded, those of which nothing is known
            before they are predicted.
        least: seconds; no open plan that has a bound, and none cut off by its bound, takes less.
        gap: 1 − least / the best step, of plans that have bounds; 1 where no plan is known.
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
    never_bounded: int = 0
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
        groups: dict[tuple[float, int], list[Ranked]] = {}
        for one in self.ranking:
            groups.setdefault((one.step, one.peak), []).append(one)
        return tuple(tuple(sorted(alike, key=lambda one: one.parts)) for alike in groups.values())

    @property
    def front(self) -> tuple[Ranked, ...]:
        """Predicted plans than which no other is as fast with less memory, the fastest first."""
        pareto: list[Ranked] = []
        for one in self.ranking:
            if not pareto or one.peak < pareto[-1].peak:
                pareto.append(one)
        return tuple(pareto)

    def __repr__(self) -> str:
        # The ranking alone may hold hundreds of plans.
        choice = self.choice
        best = f'choice={dict(choice.settings)}, step={choice.step!r}' if choice else 'choice=None'
        return f'Answer(plans={self.plans}, {best}, gap={self.gap:.3g}, complete={self.complete})'


def answer_of(space: Space, state: Found, margin: float, own: Own | None = None) -> Answer:
    """The answer of a search. Argument: ``own``, the file's plan; one that the space does not have is ranked, too."""
    ranking = [
        (path, ranked(space, space.schedule(path), outcome, state.bounds.get(path, 0.0)))
        for path, outcome in state.outcomes.items()
        if outcome.feasible and outcome.figures
    ]
    infeasible = len(state.outcomes) - len(ranking)
    if own and own.ranked and state.other < float('inf'):
        ranking.append(((), own.ranked))
    pruned = [Pruned(rule=rule, plans=count, example=state.examples[rule]) for rule, count in state.pruned.items()]
    return Answer(
        schedule=space.base,
        keys={f'plan.{key}': values for key, values in zip(space.keys, space.values, strict=True)},
        ranking=tuple(one for _, one in sorted(ranking, key=lambda pair: (pair[1].step, pair[1].parts, pair[0]))),
        infeasible=infeasible,
        pruned=tuple(sorted(pruned, key=lambda one: (-one.plans, one.rule))),
        plans=space.count,
        **{name: getattr(state, name) for name in ('open', 'least', 'gap', 'complete', 'nodes')},
        margin=margin,
        never_bounded=space.never_bounded,
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


USUAL: Final = 0.03
"""Where nobody measured pairs of plans."""


def with_noise(answer: Answer, margin: float | None) -> Answer:
    """The answer with the noise of its best plan.

    Arguments: ``margin``, the share that the file asks for; None: as measured, else ``USUAL``.
    """
    if margin is not None:
        return replace(answer, margin=margin, noise='as the file asks')
    if answer.best is None:
        return answer
    noise = measured(answer.best.schedule)
    return replace(answer, margin=noise[0], noise=noise[1]) if noise else answer


def measured(schedule: Schedule) -> tuple[float, str] | None:
    """The share by which gains on such a stack and device were off, and what it rests on; None where nobody says."""
    # Spreads are of stacks: without one there is nothing to look up, and nothing to predict.
    if not schedule.cluster.has_stack:
        return None
    try:
        spread = case.case_of(schedule).predict(tell=False).spread
    except errors.SimparError:
        return None
    if spread is None or not spread.pairs:
        return None
    words = f'80 % of {spread.pairs} measured pairs on {spread.device}, bound by the {spread.bound}, were off by less'
    return expm1(spread.gain), words


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
class Robustness(lazy.Card):
    """The choice and those that come next, where something is worse.

    Arguments: ``plans``, the choice first; ``trials``, the first as it is; ``margin``, of the answer.
    """

    plans: tuple[Ranked, ...]
    trials: tuple[Trial, ...]
    margin: float

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
    plans = _rivals(answer)
    if not plans:
        return None
    cases = tuple(worse(plans[0].schedule))
    # Plans of a space differ in their plan alone.
    schedules = [replace(changed, plan=one.schedule.plan) for _, changed in cases for one in plans]
    outcomes = predict_all(schedules, Way(jobs=jobs, scheduler=scheduler))
    rows = [outcomes[start : start + len(plans)] for start in range(0, len(outcomes), len(plans))]
    trials = [Trial(name=name, steps=tuple(map(_step_of, row))) for (name, _), row in zip(cases, rows, strict=True)]
    as_it_is = Trial(name='as it is', steps=tuple(one.step for one in plans))
    return Robustness(plans=plans, trials=(as_it_is, *trials), margin=answer.margin)


def _rivals(answer: Answer) -> tuple[Ranked, ...]:
    """The choice, the fastest, others of its class, and the runner-up: of plans with equal figures the simplest."""
    choice = answer.choice
    if choice is None:
        return ()
    leaders = [kind[0] for kind in answer.kinds]
    others = [one for one in leaders if (one.step, one.peak) != (choice.step, choice.peak)]
    return (choice, *others[:MOST])


def worse(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    """What may be worse on a cluster, and the schedule where it is."""
    own, cluster = schedule.cluster, case.cluster_of(schedule)
    joined = 1
    for link in cluster.profile.links:
        # A link that joins no more devices than the one below carries nothing.
        members = min(link.devices or cluster.world, cluster.world)
        if members > joined:
            links = {**own.links, link.name: own.links.get(link.name, 1.0) * HALF}
            yield f'{link.name} at half its rate', replace(schedule, cluster=replace(own, links=links))
        joined = max(joined, members)
    slow = {**own.slow, 0: own.slow.get(0, 1.0) / SLOWER}
    yield f'rank 0 {SLOWER:g} × slower', replace(schedule, cluster=replace(own, slow=slow))
    model = schedule.workload.model
    if isinstance(model, Transformer) and model.experts is not None and not model.experts.capacity:
        more = min(model.experts.imbalance * FULLER, model.experts.count / model.experts.top_k)
        if more > model.experts.imbalance:
            fuller = replace(model, experts=replace(model.experts, imbalance=more))
            workload = replace(schedule.workload, model=fuller)
            yield f'the fullest expert with {more:.3g} × the mean', replace(schedule, workload=workload)


def _step_of(outcome: Outcome) -> float:
    return outcome.figures.step if outcome.feasible and outcome.figures else float('inf')


_SHORT: Final = {
    'sequence_parallel': 'sequence parallel', 'micro_batches': 'micro-batches', 'shard_group': 'shard group'
}  # fmt: skip


def words(one: Ranked) -> str:
    """A plan in words: what is not as in a plan that splits nothing."""
    plan = one.schedule.plan
    values = {'plan.data': plan.data, **one.settings}
    simple = {key: 1 if key == 'plan.data' else getattr(Plan(), key.removeprefix('plan.')) for key in values}
    # Of one stage all orders are the same.
    idle = {'plan.order'} if plan.pipeline == 1 and plan.chunks <= 1 else set()
    return told({key: value for key, value in values.items() if value != simple[key] and key not in idle})


def own_in_words(own: Own) -> str:
    """What the file's own plan comes to."""
    outcome = own.outcome
    if own.ranked is None:
        return f"The file's own plan has no program: {outcome.reason}"
    if not own.fits:
        return f"The file's own plan does not fit: {format_size(outcome.peak)} of {format_size(outcome.device)}"
    return f"The file's own plan takes {format_time(own.ranked.step)}, peak {format_size(own.ranked.peak)}"


def told(settings: Mapping[str, Any]) -> str:
    """Keys and values in a row."""
    named = ((key.removeprefix('plan.'), value) for key, value in settings.items())
    return ', '.join(_said(key, value) for key, value in named) or 'nothing is split'


def _said(key: str, value: Any) -> str:
    name = _SHORT.get(key, key)
    if isinstance(value, bool):
        return name if value else f'no {name}'
    return f'{name} {value}'


LONGEST: Final = 2_000_000
"""Ops of both programs over all representative ranks; each is simulated up to seven times."""


def why(answer: Answer) -> Prediction | None:
    """The choice with its rival as the baseline: gain, and why; None where there is no other plan.

    The rival is the fastest plan that is not within noise; where all are, the fastest other one.
    """
    choice, other = answer.choice, rival(answer)
    if choice is None or other is None:
        return None
    try:
        mine, others = case.case_of(choice.schedule), case.case_of(other.schedule)
    except errors.SimparError:
        return None
    if sum(len(role) for one in (mine, others) for role in one.program.roles) > LONGEST:
        return None
    prediction = predict(
        mine.program, others.program, mine.cluster, names=(_differs(choice, other), _differs(other, choice))
    )
    below = replace(prediction.baseline, throughput=others.throughput) if prediction.baseline else None
    return replace(prediction, baseline=below, throughput=mine.throughput)


def rival(answer: Answer) -> Ranked | None:
    """Which plan the choice is compared with."""
    choice = answer.choice
    if choice is None:
        return None
    others = (one for one in answer.ranking if (one.step, one.peak) != (choice.step, choice.peak))
    return answer.runner_up or next(others, None)


def _differs(one: Ranked, other: Ranked) -> str:
    """What a plan has that the other has not."""
    return told({key: value for key, value in _settings(one).items() if _settings(other).get(key) != value})


def _settings(one: Ranked) -> dict[str, object]:
    return {'plan.data': one.schedule.plan.data, **one.settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The answer on so many devices.

    Arguments: ``run``, the training that was asked about, None without one; both that and ``throughput`` None where no
    plan is known.
    """

    devices: int
    answer: Answer
    throughput: Throughput | None = None
    run: Run | None = None

    @property
    def choice(self) -> Ranked | None:
        """The plan."""
        return self.answer.choice

    @property
    def time(self) -> float:
        """Seconds of the training, or of a step where none was asked about; infinite where no plan is known."""
        if self.run:
            return self.run.seconds
        return self.choice.step if self.choice else float('inf')

    @property
    def cost(self) -> float:
        """Money where there is a price, else device-hours."""
        if self.run and self.run.cost is not None:
            return self.run.cost
        return self.run.device_hours if self.run else self.time * self.devices / 3600
