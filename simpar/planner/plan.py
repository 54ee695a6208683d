"""plan: search a schedule's space, on one or on several numbers of devices, with the sweep's ways to predict."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path as File
from typing import Any

from simpar import case, lazy, plans, predict
from simpar.document import Source, Tree, build, one_screen, read
from simpar.errors import Problem, ScheduleError
from simpar.planner import answer as answers
from simpar.planner.answer import Answer, Own, Ranked, Robustness, Size
from simpar.planner.judge import Judge, Workers
from simpar.planner.render import front_picture, render, render_sizes, sizes_picture
from simpar.planner.search import Found, Path, Search
from simpar.planner.space import PLAN_KEYS, Space, space_of
from simpar.schedule import Schedule, contents, load_schedule
from simpar.schedule.schedule import TERMS
from simpar.session import Session
from simpar.sweep.answer import Outcome
from simpar.sweep.journal import FILES, wanted_of
from simpar.sweep.run import Note, Way, cores, predict_all
from simpar.throughput import Budget, parse_budget, training_run

Tell = Callable[[Answer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """A schedule and the space that its section opens."""

    schedule: Schedule
    space: Space

    def search(
        self,
        *,
        jobs: int | None = None,
        journal: str | os.PathLike[str] | None = None,
        scheduler: str = '',
        seconds: float = float('inf'),
        gap: float | None = None,
        tell: Tell | None = None,
        note: Note | None = None,
    ) -> Answer:
        """Find the best plan.

        Arguments:
            jobs: processes at once, which change no answer; None, as many as there are cores, where that repays.
            journal: a file that takes predicted plans as they come; those that it has are not predicted again.
            scheduler: address of a Dask scheduler whose workers predict.
            seconds: after which the search ends with what it knows.
            gap: in place of the file's.
            tell: is told the answer so far, now and then.
        Ctrl-C ends it with what it knows.
        Raises ``ScheduleError`` where journal or scheduler are none, ``RunFailed`` where a process dies.
        """
        planner = self.schedule.planner or contents.Planner()
        until = time.monotonic() + seconds
        margin = answers.USUAL if planner.margin is None else planner.margin
        way = Way(
            jobs=jobs,
            journal=File(journal) if journal else None,
            scheduler=scheduler,
            note=_once(note) if note else None,
        )

        judge = Judge(self.space, case.cluster_of(self.schedule), until=until)
        with closing(Workers(self.space, judge, cores() if jobs is None else jobs)) as those:
            place = self.space.place(self.schedule.plan)
            own = self._own(place, way)
            if note:
                note(f'{answers.own_in_words(own)}; the search begins with it')

            def told(state: Found) -> None:
                if tell:
                    tell(answers.answer_of(self.space, state, margin, own))

            state = Search(
                self.space,
                judge,
                lambda paths: self._predicted(paths, replace(way, processes=those.predict if those.ready else None)),
                gap=planner.gap if gap is None else gap,
                until=until,
                tell=told if tell else None,
                ask=those.judge,
            ).run(
                None if place is None else (place, own.outcome),
                own.ranked.step if own.ranked and own.fits and own.allowed and place is None else float('inf'),
            )
        return answers.with_noise(answers.answer_of(self.space, state, margin, own), planner.margin)

    def _own(self, place: Path | None, way: Way) -> Own:
        """The file's plan, predicted. Argument: ``place``, among the plans of the space."""
        planner, plan = self.schedule.planner or contents.Planner(), self.schedule.plan
        alone = replace(self.schedule, against={}, sweep=None, planner=None)
        schedule = alone if place is None else self.space.schedule(place)
        (outcome,) = self._outcomes([schedule], way)
        keys = [key for key, values in planner.keys.items() if values not in (contents.FREE, contents.FIXED)]
        names = [key.removeprefix('plan.') for key in keys]
        return Own(
            outcome=outcome,
            ranked=answers.ranked(self.space, schedule, outcome) if outcome.figures else None,
            allowed=all(getattr(plan, name) in self.space.values_of(name) for name in names),
        )

    def _predicted(self, paths: Sequence[Path], way: Way) -> Iterator[tuple[Path, Outcome]]:
        yield from zip(paths, self._outcomes([self.space.schedule(path) for path in paths], way), strict=True)

    def _outcomes(self, schedules: Sequence[Schedule], way: Way) -> Sequence[Outcome]:
        session = Session(FILES)
        settings = [{f'plan.{key}': getattr(one.plan, key) for key in self.space.keys} for one in schedules]
        both = zip(schedules, settings, strict=True) if way.journal else ()
        return predict_all(schedules, way, [wanted_of(*one, session) for one in both])


def load_planning(path: Source, overrides: Sequence[str] = (), *, module: str = '') -> Planning:
    """Read a schedule (file, text or dict) and the space of its ``planner`` section; without one, usual keys are free.

    Arguments: ``overrides``, ``a.b=value`` as of `--set`; ``module``, the graph of a torch module.
    Raises ``ScheduleError`` with file:line of every unknown key and value.
    """
    try:
        schedule = load_schedule(path, overrides, module=module)
    except ScheduleError as wrong:
        raise ScheduleError(one_screen([*wrong.problems, *_other_values(path, overrides, module, wrong)])) from None
    planner = schedule.planner or contents.Planner()
    typed: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, values in planner.keys.items():
        typed[key] = values
        if isinstance(values, list):
            where = schedule.where(f'planner.keys.{key}')
            typed[key] = [_typed(where, key, value, problems) for value in values]
    if problems:
        raise ScheduleError(one_screen(problems))
    schedule = replace(schedule, planner=replace(planner, keys=typed))
    return Planning(schedule=schedule, space=space_of(schedule, case.cluster_of(schedule).world))


def _once(note: Note) -> Note:
    """Notes of a journal, which is asked anew in each round: not those of rows that other rounds want."""
    texts: list[str] = []

    def tell(text: str) -> None:
        finished = ' are finished in ' in text
        if ' are left out: ' in text or (finished and texts):
            return
        texts.extend([text] if finished else [])
        note(f'rows {text.partition(" rows ")[2]}' if finished else text)

    return tell


def _typed(where: str, key: str, value: Any, problems: list[Problem]) -> Any:
    """A value as the document types it; what is wrong with it is added to the problems."""
    name = key.removeprefix('plan.')
    try:
        return getattr(build(Tree(root={name: value}, origins={(): where}), plans.Plan, terms=TERMS), name)
    except ScheduleError as wrong:
        problems += [replace(one, what=f'planner.keys: plan.{one.what}') for one in wrong.problems]
        return None


def _other_values(path: Source, overrides: Sequence[str], module: str, wrong: ScheduleError) -> list[Problem]:
    """What is wrong with listed values beside what is wrong with the section's form, which would hide it."""
    alone = [*overrides, 'planner.keys={}']
    try:
        load_schedule(path, alone, module=module)
        tree = read(path)
        keys = tree.root['planner']['keys']
    except (ScheduleError, TypeError, KeyError):
        # More is wrong than this section: that comes first.
        return []
    problems: list[Problem] = []
    for key, values in keys.items():
        is_named = any(str(key) in f'{one.where} {one.what}' for one in wrong.problems)
        if is_named or not isinstance(values, list) or str(key).removeprefix('plan.') not in PLAN_KEYS:
            continue
        for value in values:
            _typed(tree.where(('planner', 'keys', str(key))), str(key), value, problems)
    return problems


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sizes(lazy.Table):
    """Answers by number of devices, in the order asked for. Argument: ``budget``, the training; None: a step."""

    found: tuple[Size, ...]
    budget: Budget | None

    @property
    def front(self) -> tuple[Size, ...]:
        """Sizes than which no other is as quick for less cost, the quickest first."""
        best: list[Size] = []
        for one in sorted(self.found, key=lambda one: (one.time, one.cost)):
            if isfinite(one.time) and (not best or one.cost < best[-1].cost):
                best.append(one)
        return tuple(best)

    @property
    def unit(self) -> str:
        """What cost is counted in."""
        return 'cost' if self.budget and self.budget.price else 'device-hours'

    def plot(self) -> Any:
        """Cost and time as a picture that shows itself."""
        return sizes_picture(self)

    def __str__(self) -> str:
        return render_sizes(self)

    __repr__ = __str__


def sizes(
    planning: Planning, counts: Sequence[int], budget: Budget | None, search: Callable[[Planning], Answer]
) -> Sizes:
    """Plan on each number of devices; the batch is kept.

    Arguments: ``counts``, devices; ``search`` plans one of them.
    Raises ``ScheduleError`` with every count that the nodes do not make.
    """
    size_list = []
    for count, one in zip(counts, _plannings(planning, counts), strict=True):
        answer = search(one)
        if answer.choice is None:
            size_list.append(Size(devices=count, answer=answer))
            continue
        throughput = case.case_of(answer.choice.schedule).throughput
        run = training_run(budget, throughput, answer.choice.step) if budget else None
        size_list.append(Size(devices=count, answer=answer, throughput=throughput, run=run))
    return Sizes(found=tuple(size_list), budget=budget)


def _plannings(planning: Planning, counts: Sequence[int]) -> list[Planning]:
    schedule = planning.schedule
    each = schedule.cluster.devices or case.cluster_of(schedule).profile.devices
    problems = [
        Problem('--devices', f'{count} devices are no whole nodes of {each}', f'write {each * -(-count // each)}')
        for count in counts
        if count > each and count % each
    ]
    if problems:
        raise ScheduleError(problems)
    return [_on(schedule, count, each) for count in counts]


def _on(schedule: Schedule, count: int, each: int) -> Planning:
    nodes, devices = (1, count) if count < each else (count // each, schedule.cluster.devices)
    # A slow rank stands in the file for its own number of devices.
    slow = {rank: share for rank, share in schedule.cluster.slow.items() if rank < count}
    plan = replace(schedule.plan, data=0)
    other = replace(schedule, plan=plan, cluster=replace(schedule.cluster, slow=slow, nodes=nodes, devices=devices))
    return Planning(schedule=other, space=space_of(other, case.cluster_of(other).world))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Planned(lazy.Card):
    """An answer with why the runner-up loses, and what becomes of the choice where something is worse."""

    answer: Answer
    why: predict.Prediction | None = field(default=None)
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
        return lazy.notebook().to_dataframe(self.answer)


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
    explanation = Planned(answer=answer)
    if not answer.complete:
        return explanation
    try:
        explanation = Planned(answer=answer, why=answers.why(answer))
        return Planned(
            answer=answer, why=explanation.why, robustness=answers.robust(answer, jobs=jobs, scheduler=scheduler)
        )
    except KeyboardInterrupt:
        return explanation
