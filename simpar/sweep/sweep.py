"""Sweep: the rows of a schedule file, which become an answer when they are predicted."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simpar.case import cluster_of
from simpar.document import one_screen
from simpar.errors import Problem, ScheduleError
from simpar.schedule import Row, Schedule, load_rows
from simpar.schedule.framework import run_as
from simpar.sweep.answer import Outcome, Result, SweepAnswer, gain_over, infeasible
from simpar.sweep.journal import Wanted, content_key, identity, places
from simpar.sweep.run import Note, Progress, Way, predict_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is to be predicted: rows of well-formed values; ``keys``, all that any row sets, in the order given."""

    keys: tuple[str, ...]
    rows: tuple[Row, ...]

    def __repr__(self) -> str:
        return f'Sweep(rows={len(self.rows)}, keys={list(self.keys)})'

    @property
    def against(self) -> Mapping[str, Any]:
        """The differences of every row's own baseline; empty where none is given."""
        return self.rows[0].schedule.against or {}

    def predict(
        self,
        jobs: int | None = 1,
        progress: Progress | None = None,
        *,
        journal: str | os.PathLike[str] | None = None,
        scheduler: str = '',
        note: Note | None = None,
    ) -> SweepAnswer:
        """Predict every row, and every row's baseline, each of them once.

        Arguments:
            jobs: processes at once, which change no figure; None, as many as there are cores, where that repays.
            progress: is told how many rows are done, of how many.
            journal: a file that takes finished rows as they come; those that it has are not predicted again.
            scheduler: address of a Dask scheduler whose workers predict.
            note: is told in a sentence what of journal and scheduler the user should know.
        Raises ``ScheduleError`` where no row has the baseline that ``against`` asks for, or journal or scheduler are
        none; ``RunFailed`` where a process dies.
        """
        baselines = self._baselines()
        every = (*self._fitting(), *(other for other in baselines if isinstance(other, Schedule)))
        place = Path(journal) if journal else None
        way = Way(jobs=jobs, progress=progress, journal=place, scheduler=scheduler, note=note)
        done = self._outcomes(every, way)
        results = [self._result(row, done) for row in self.rows]
        if self.against:
            results = [_measured(*pair, done) for pair in zip(results, baselines, strict=True)]
        answer = SweepAnswer(
            keys=self.keys,
            results=tuple(results),
            against=self.against,
            changed_links=any(set(row.schedule.cluster.links.values()) - {1} for row in self.rows),
            framework=run_as(schedule.cluster for schedule in self._fitting()),
        )
        return answer if self.against else _from_first(answer)

    def _outcomes(self, schedules: Sequence[Schedule], way: Way) -> dict[int, Outcome]:
        """The outcome of each schedule, by the schedule's ``id``."""
        names = [identity(schedule) for schedule in schedules]
        # By identity, so that a baseline that is also a row is predicted once: as the row, which comes first.
        different: dict[str, Schedule] = {}
        for name, schedule in zip(names, schedules, strict=True):
            different.setdefault(name, schedule)
        different = _together(different)
        settings = {id(row.schedule): row.settings for row in self.rows}
        wanted = [
            Wanted(key=content_key(name, schedule), places=places(schedule), settings=settings.get(id(schedule)))
            for name, schedule in different.items()
            # Only a journal asks, and profiles are read for it.
            if way.journal
        ]
        found = dict(zip(different, predict_all(list(different.values()), way, wanted), strict=True))
        return {id(schedule): found[name] for name, schedule in zip(names, schedules, strict=True)}

    def _fitting(self) -> list[Schedule]:
        return [row.schedule for row in self.rows if not row.problems]

    def _baselines(self) -> list[Schedule | ScheduleError | None]:
        """Return each row's baseline, why that is no schedule, or None where the row needs none."""
        asked = [bool(self.against) and not row.problems for row in self.rows]
        found = [_baseline(row.schedule) if ask else None for row, ask in zip(self.rows, asked, strict=True)]
        refused = [one for one in found if isinstance(one, ScheduleError)]
        # If some rows have a baseline, the others only lack a gain; if none has, ``against`` itself is wrong.
        if refused and len(refused) == sum(asked):
            raise ScheduleError(one_screen([problem for wrong in refused for problem in wrong.problems]))
        return found

    def _result(self, row: Row, done: Mapping[int, Outcome]) -> Result:
        refused = infeasible(ScheduleError(list(row.problems))) if row.problems else None
        outcome = refused or done[id(row.schedule)]
        return Result(settings=row.settings, batch=row.schedule.workload.batch, outcome=outcome)


def _together(schedules: Mapping[str, Schedule]) -> dict[str, Schedule]:
    """The same, ordered so that schedules of one workload and plan are neighbours: they have one program."""
    number: dict[str, int] = {}
    # Rows that differ in prices share the very objects, which are written out once.
    told: dict[tuple[int, int], str] = {}
    group = {}
    for name, one in schedules.items():
        both = (id(one.workload), id(one.plan))
        if both not in told:
            told[both] = repr((one.workload, one.plan))
        group[name] = number.setdefault(told[both], len(number))
    return dict(sorted(schedules.items(), key=lambda item: group[item[0]]))


def load_sweep(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), sweeps: Sequence[str] = (), *, module: str = ''
) -> Sweep:
    """Read the sweep of a schedule file.

    Arguments:
        overrides: ``a.b=value`` as of `--set`.
        sweeps: ``a.b=1,2,4`` as of `--sweep`, which take the place of the file's.
        module: the graph of a torch module, which is the file's model.
    Raises ``ScheduleError`` with file:line of every unknown key, value, profile or link.
    """
    rows = load_rows(path, overrides, sweeps, module=module)
    _check_clusters(rows)
    return Sweep(keys=tuple(dict.fromkeys(key for row in rows for key in row.settings)), rows=rows)


def _check_clusters(rows: Sequence[Row]) -> None:
    """Profiles and links that do not exist are wrong, not infeasible."""
    problems: list[Problem] = []
    seen: list[tuple[str, Mapping[str, float]]] = []
    for row in rows:
        cluster = row.schedule.cluster
        # Rows mostly share a profile; each is read once.
        if (cluster.profile, cluster.links) in seen:
            continue
        seen.append((cluster.profile, cluster.links))
        try:
            # One node and nothing slow: only profile and links are checked here.
            cluster_of(replace(row.schedule, cluster=replace(cluster, nodes=1, devices=0, slow={})))
        except ScheduleError as wrong:
            problems += wrong.problems
    if problems:
        raise ScheduleError(one_screen(problems))


def _baseline(schedule: Schedule) -> Schedule | ScheduleError | None:
    try:
        return schedule.baseline()
    except ScheduleError as wrong:
        return wrong


def _measured(result: Result, baseline: Schedule | ScheduleError | None, done: Mapping[int, Outcome]) -> Result:
    """A row with its gain over a baseline of its own, as `simpar run` has it."""
    if result.step is None:
        return result
    if baseline is None:
        return replace(result, baseline=result.step, gain=0.0, is_baseline=True)
    if isinstance(baseline, ScheduleError):
        return replace(result, why_no_gain=infeasible(baseline).reason)
    outcome = done[id(baseline)]
    if outcome.figures is None:
        return replace(result, why_no_gain=f'against: {outcome.reason}')
    step = outcome.figures.step
    return replace(result, baseline=step, gain=step / result.step - 1)


def _from_first(answer: SweepAnswer) -> SweepAnswer:
    """The answer with gains over the first feasible row."""
    if answer.first is None:
        return answer
    first = answer.results[answer.first]
    return replace(answer, results=tuple(_over(first, result) for result in answer.results))


def _over(first: Result, result: Result) -> Result:
    if first.step is None or result.step is None:
        return result
    gain = gain_over((first.step, first.batch), (result.step, result.batch))
    return replace(result, baseline=first.step, gain=gain, is_baseline=result is first)
