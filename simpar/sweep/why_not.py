"""Why not this overlap? Those that a plan's framework offers, alone and together: what each hides, and what it takes.

``overlaps.csv`` has them: a switch is a key of the plan, off and on. Every figure is a prediction like any other.
"""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from simpar import errors, files, headline, predict, profiles, report, session, units
from simpar.case import Case, case_of
from simpar.page.page import table_html
from simpar.report import table as empty_table
from simpar.schedule import Schedule
from simpar.schedule.schedule import with_changes
from simpar.sweep.answer import Outcome, infeasible, predicted

if TYPE_CHECKING:
    from rich.table import Table

FORMAT: Final = 'simpar why-not 1'
TABLE: Final = Path(__file__).with_name('overlaps.csv')
MOST_SETS: Final = 16
"""Sets that are all tried; of more, the best that no single switch makes better."""
NOTHING: Final = 'none of them'
_HIDES: Final = 'ideal overlap'
_WORDS: Final = {row['name']: row['loses'] for row in predict.ROWS}
"""What an effect takes, in words; by the names of ``predict.EFFECTS``."""
_HELPS: Final = {_HIDES: 'more hidden', 'small operators': 'more hidden of small kernels and messages'}
"""How an effect helps; what runs is the same, so that latencies which count for less are hidden."""
Changes = Mapping[str, Any]
Chosen = frozenset[tuple[str, int]]
"""A set of overlaps: the name of each, and which of its ways to have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """One overlap that frameworks sell.

    Arguments: ``stacks``, patterns of names; ``needs``, a key of the plan that must be above 1, or none; ``off`` and
    ``on``, dotted keys with their values, ``on`` with every way to have it; ``called``, what frameworks call it.
    """

    name: str
    stacks: tuple[str, ...]
    needs: str
    off: Changes
    on: tuple[Changes, ...]
    called: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A set of overlaps.

    Arguments:
        overlaps: their names; ``changes``, the keys that they are.
        step: seconds; None where it cannot be, for ``reason``.
        hidden: share of communication under which ranks compute; ``peak``, bytes of the fullest rank.
        tax: seconds that small operators, launches, queues, slow-down and shared links take more than without any.
    """

    overlaps: tuple[str, ...]
    changes: Changes
    step: float | None
    hidden: float | None
    peak: int
    reason: str
    tax: float | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return ' + '.join(self.overlaps) or NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one overlap does to the best set: ``gain``, of the set with it over the set without, and why in words."""

    overlap: str
    in_best: bool
    gain: float | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """The answer: sets of overlaps, the best first, and a verdict on each overlap.

    Arguments:
        written: the plan as its file has it; ``best``: None where no set fits.
        rows: none of them, each alone, all together, and the best.
        tried: how many sets were predicted; ``complete``, whether these are all.
        case: of the best set, against the plan as written.
    """

    framework: str
    written: Tried
    rows: tuple[Tried, ...]
    best: Tried | None
    verdicts: tuple[Verdict, ...]
    left_out: tuple[str, ...]
    tried: int
    complete: bool
    case: Case | None = field(default=None, repr=False)

    @property
    def answer(self) -> str:
        """The best set in a sentence."""
        if not self.verdicts:
            return f'no overlap of {self.framework} has anything to hide in this plan'
        if self.best is None or self.best.step is None:
            return 'no set of overlaps fits; the reasons stand below'
        mine, written = (self.best.name, self.best.step), self.written
        if written.reason:
            return f'{headline.headline(mine, None)}; the plan as written: {written.reason}'
        return headline.headline(mine, ('the plan as written', written.step) if written.step else None)

    def to_dict(self) -> dict[str, Any]:
        """The answer as one object; seconds, bytes, and shares from 0 to 1."""
        rows = [{'name': row.name, **asdict(row)} for row in self.rows]
        return {
            'format': FORMAT,
            'answer': self.answer,
            'framework': self.framework,
            'written': asdict(self.written),
            'best': {'name': self.best.name, **asdict(self.best)} if self.best else None,
            'rows': rows,
            'verdicts': [asdict(one) for one in self.verdicts],
            'left_out': list(self.left_out),
            'tried': self.tried,
            'complete': self.complete,
        }

    def tables(self) -> list[Table]:
        """Sets and verdicts as a screen and a page have them."""
        sets = empty_table('overlaps', 'step', 'hidden', 'tax', 'memory', 'not possible')
        for row in (replace(self.written, overlaps=('the plan as written',)), *self.rows):
            sets.add_row(
                f'{row.name}{" (best)" if row == self.best else ""}',
                units.format_time(row.step) if row.step is not None else '-',
                f'{row.hidden * 100:.0f} %' if row.hidden is not None else '-',
                f'{"-" if row.tax < 0 else ""}{units.format_time(abs(row.tax))}' if row.tax is not None else '-',
                units.format_size(row.peak) if row.peak else '-',
                row.reason,
            )
        verdicts = empty_table('overlap', 'of the best set', 'it makes the step', 'why')
        for one in self.verdicts:
            does = '-' if one.gain is None else headline.gain_in_words(one.gain)
            verdicts.add_row(one.overlap, 'yes' if one.in_best else 'no', does, one.why)
        for table in (sets, verdicts):
            table.columns[-1].justify = 'left'
        return [sets, verdicts]

    @property
    def notes(self) -> tuple[str, ...]:
        """How far to trust the best."""
        how = 'all sets of these' if self.complete else 'the best is one that no single switch makes better'
        out = (f'Not here: {"; ".join(self.left_out)}.',) if self.left_out else ()
        return (f'{self.tried} sets predicted: {how}.', *self._to_have, *out)

    @property
    def _to_have(self) -> tuple[str, ...]:
        """What the best set changes in the plan, as flags."""
        if self.case is None or not self.case.schedule.against:
            return ()
        values = {key: self.case.schedule.value(key) for key in self.case.schedule.against}
        flags = (f'{key}={value if isinstance(value, str) else json.dumps(value)}' for key, value in values.items())
        return (f'To have the best: {" ".join(f"--set {shlex.quote(flag)}" for flag in flags)}',)

    def render(self, *, colour: bool | None = None) -> str:
        """The answer as text."""
        if not self.verdicts:
            return report.render_parts([self.answer, *self.notes[1:]], colour=colour, width=120)
        sets, verdicts = self.tables()
        return report.render_parts([self.answer, '', sets, '', verdicts, '', *self.notes], colour=colour, width=140)

    def __str__(self) -> str:
        return self.render(colour=False)

    __repr__ = __str__

    @property
    def html(self) -> str:
        """Tables and notes as a page has them."""
        tables = ''.join(map(table_html, self.tables())) if self.verdicts else ''
        return tables + ''.join(f'<p>{html.escape(note)}</p>' for note in self.notes)

    def _repr_html_(self) -> str:
        return f'<p><b>{html.escape(self.answer)}</b></p>{self.html}'


def overlaps() -> tuple[Overlap, ...]:
    """The table."""
    rows: list[dict[str, Any]] = [
        {**row, 'off': yaml.safe_load(row['off']), 'on': tuple(map(yaml.safe_load, row['on'].split(' | ')))}
        for row in files.read_csv(TABLE)
    ]
    return tuple(Overlap(**{**row, 'stacks': tuple(row['stacks'].split())}) for row in rows)


def why_not(case: Case, only: Collection[str] = ()) -> WhyNot:
    """Each overlap that the case's framework offers, alone and together, and why each loses.

    Arguments: ``only``, names of those to try; empty: all. Raises ``ScheduleError`` where one has another name.
    Does not model: what the framework itself refuses to combine; overlaps that are no row of ``overlaps.csv``.
    Example: ``why_not(case).best``.
    """
    names = dict.fromkeys(one.name for one in overlaps())
    for name in only:
        if name not in names:
            what = f'no overlap of this name (got {name})'
            raise errors.ScheduleError(errors.Problem('--overlap', what, f'write one of {", ".join(names)}'))
    return _Question(case, only).answer()


class _Question:
    """One plan's sets of overlaps, each predicted once; mutable."""

    def __init__(self, case: Case, only: Collection[str]) -> None:
        self.session: session.Session = case.session
        self.asked = replace(case.schedule, against={})
        stack = case.cluster.stack
        self.framework = stack.called if stack else 'a device without a framework'
        self.names = (stack.name, stack.extends) if stack else (profiles.NONE,)
        self.left_out: list[str] = []
        self.switches = {one.name: self._with_own_way(one) for one in self._offered(case, only)}
        self.alone: dict[str, int] = {}
        self.sets: dict[Chosen, Outcome] = {}

    @property
    def off(self) -> Changes:
        """Without any overlap."""
        return _joined([one.off for one in self.switches.values()])

    @property
    def none(self) -> Schedule:
        return _changed(self.asked, self.off)

    def _offered(self, case: Case, only: Collection[str]) -> Iterator[Overlap]:
        """Those of its framework, and those that the file itself sets, where the plan has what they need."""
        seen = set()
        for one in overlaps():
            mine = any(fnmatchcase(name, pattern) for name in self.names for pattern in one.stacks)
            is_set = any(tuple(key.split('.')) in self.asked.origins for key in one.off)
            named = one.name in only or not only
            if one.name in seen or not named or not (mine or is_set or self.names == (profiles.NONE,)):
                continue
            seen.add(one.name)
            if one.needs and getattr(case.plan, one.needs.removeprefix('plan.')) < 2:
                self.left_out.append(f'{one.name}, as {one.needs} is 1')
            else:
                yield one
        self.left_out += [f'{name}, which {self.framework} does not offer' for name in only if name not in seen]

    def _with_own_way(self, one: Overlap) -> Overlap:
        """An overlap with the plan's own number as one of its ways, as three copies."""
        own = {key: self.asked.value(key) for key in one.off}
        more = all(isinstance(value, int) and value > one.off[key] for key, value in own.items())
        return replace(one, on=(*one.on, own)) if more and own not in one.on else one

    def answer(self) -> WhyNot:
        written = self._row((), self._outcome(self.asked, {}), {})
        for name, one in self.switches.items():
            ways = range(len(one.on))
            self.alone[name] = min(ways, key=lambda way: _rank(self._of(frozenset({(name, way)}))))
        idle = {name: why for name in self.switches if (why := self._idle(name))}
        # Their keys stay as the plan has them.
        self.switches = {name: one for name, one in self.switches.items() if name not in idle}
        names = [*self.switches]
        best, complete = self._best(names)
        every = dict(self._alone(names)) | dict(best)
        choices = [Chosen(), *(self._alone([name]) for name in names), Chosen(every.items()), best]
        rows = [self._with_tax(chosen) for chosen in dict.fromkeys(choices)]
        first = rows[[*dict.fromkeys(choices)].index(best)]
        fits = first.step is not None and not first.reason
        verdicts = [self._verdict(name, best) for name in names]
        return WhyNot(
            framework=self.framework,
            written=written,
            rows=tuple(sorted(rows, key=lambda row: (row != first, bool(row.reason), row.step or 0.0))),
            best=first if fits else None,
            verdicts=tuple(sorted(verdicts, key=lambda one: (not one.in_best, -(one.gain or 0.0)))),
            left_out=(*self.left_out, *(f'{name}, {why}' for name, why in idle.items())),
            tried=len(self.sets),
            complete=complete,
            case=self._against_written(best) if fits else None,
        )

    def _alone(self, names: Collection[str]) -> Chosen:
        """These overlaps, each the way that is best alone."""
        return frozenset((name, self.alone[name]) for name in names)

    def _best(self, names: list[str]) -> tuple[Chosen, bool]:
        """The fastest set that fits, and whether all were tried; beside others another way may be better than alone."""
        complete = 2 ** len(names) <= MOST_SETS
        sizes = range(len(names) + 1) if complete else (0, 1, len(names))
        written = {
            (name, way) for name in names for way, on in enumerate(self.switches[name].on) if self._is_written(on)
        }
        tried = [self._alone(some) for size in sizes for some in combinations(names, size)]
        best = min((*tried, Chosen(dict(written).items())), key=lambda chosen: (_rank(self._of(chosen)), len(chosen)))
        while True:
            beside = [*self._switched(best, names), *self._other_ways(best)]
            better = min(beside, key=lambda chosen: _rank(self._of(chosen)), default=best)
            if _rank(self._of(better)) >= _rank(self._of(best)):
                return best, complete
            best = better

    def _is_written(self, changes: Changes) -> bool:
        """Whether the plan has this already; of lists, with whatever else."""
        values = [(self.asked.value(key), value) for key, value in changes.items()]
        return all(set(new) <= set(old) if isinstance(old, list | tuple) else new == old for old, new in values)

    def _switched(self, chosen: Chosen, names: list[str]) -> list[Chosen]:
        """With one overlap more, or less."""
        held = dict(chosen)
        return [chosen - {(name, held[name])} if name in held else chosen | self._alone([name]) for name in names]

    def _other_ways(self, chosen: Chosen) -> list[Chosen]:
        """With one of its overlaps another way."""
        return [
            chosen - {(name, held)} | {(name, way)}
            for name, held in chosen
            for way in range(len(self.switches[name].on))
            if way != held
        ]

    def _idle(self, name: str) -> str:
        """Why an overlap changes nothing in this plan; empty where it does."""
        everything, alone = self._alone(self.switches), self._alone([name])
        try:
            # Some have an effect only beside others, as delayed gradients of weights have beside pairs.
            sides = ((self.none, alone), (self._schedule(everything - alone), everything))
            for without, chosen in sides:
                bare, other = (case_of(one, session=self.session) for one in (without, self._schedule(chosen)))
                if bare.program.hash != other.program.hash:
                    return ''
        except errors.SimparError:
            return ''
        reasons = {one.key: one.why for one in other.without_effect()}
        reason = next(
            (reasons[key] for key in self.switches[name].off if key in reasons), 'the program is the same without it'
        )
        return f'as {reason}'

    def _verdict(self, name: str, best: Chosen) -> Verdict:
        """What an overlap does to the best set; of those that are not in it, why it loses."""
        inside = name in dict(best)
        (other,) = self._switched(best, [name])
        more, less = (best, other) if inside else (other, best)
        outcomes = self._of(more), self._of(less)
        refused = outcomes[inside]
        # Where the best set does not fit either, the seconds tell more than that.
        if refused.figures is None or (refused.reason and not inside and not self._of(best).reason):
            return Verdict(
                overlap=name, in_best=inside, gain=None, why=f'{"without it: " if inside else ""}{refused.reason}'
            )
        within, without = self._schedule(more), self._schedule(less)
        if within == without:
            return Verdict(overlap=name, in_best=inside, gain=0.0, why='the best set has it another way')
        gain, explanation = self._explained(within, without)
        needed = f'without it: {refused.reason}; ' if inside and refused.reason else ''
        return Verdict(overlap=name, in_best=inside, gain=gain, why=needed + in_words(explanation, gain))

    def _explained(self, within: Schedule, without: Schedule) -> tuple[float, tuple[predict.Contribution, ...]]:
        against = {key: value for key in self.off if (value := without.value(key)) != within.value(key)}
        prediction = case_of(replace(within, against=against), session=self.session).predict(tell=False)
        return prediction.gain or 0.0, prediction.explanation

    def _with_tax(self, chosen: Chosen) -> Tried:
        outcome = self._of(chosen)
        row = self._row(tuple(name for name in self.switches if name in dict(chosen)), outcome, self._changes(chosen))
        if not chosen or outcome.figures is None:
            return row
        _, explanation = self._explained(self._schedule(chosen), self.none)
        return replace(row, tax=-sum(one.seconds for one in explanation if one.effect != _HIDES))

    def _row(self, names: tuple[str, ...], outcome: Outcome, changes: Changes) -> Tried:
        figures = outcome.figures
        return Tried(
            overlaps=names,
            changes=changes,
            step=figures.step if figures else None,
            hidden=figures.hidden if figures else None,
            peak=outcome.peak,
            reason=outcome.reason,
        )

    def _of(self, chosen: Chosen) -> Outcome:
        if chosen not in self.sets:
            self.sets[chosen] = self._outcome(self.asked, self._changes(chosen))
        return self.sets[chosen]

    def _outcome(self, schedule: Schedule, changes: Changes) -> Outcome:
        """What comes of a schedule with some changes, which may not go with it, as more copies than samples."""
        try:
            return predicted(_changed(schedule, changes), self.session)
        except errors.ScheduleError as wrong:
            return infeasible(wrong)

    def _changes(self, chosen: Chosen) -> Changes:
        held = dict(chosen)
        return _joined([self.off, *(one.on[held[name]] for name, one in self.switches.items() if name in held)])

    def _schedule(self, chosen: Chosen) -> Schedule:
        return _changed(self.asked, self._changes(chosen))

    def _against_written(self, chosen: Chosen) -> Case:
        mine = self._schedule(chosen)
        against = {key: value for key in self._changes(chosen) if (value := self.asked.value(key)) != mine.value(key)}
        return case_of(replace(mine, against=against), session=self.session)


def in_words(explanation: tuple[predict.Contribution, ...], gain: float) -> str:
    """What an overlap wins and what it pays, the larger first."""
    ordered = sorted(explanation, key=lambda one: -abs(one.seconds))
    if not any(one.seconds for one in explanation):
        return 'it changes no time'
    lost = [f'{_WORDS[one.effect]} ({units.format_time(-one.seconds)})' for one in ordered if one.seconds < 0][:2]
    helps = [(_HELPS.get(one.effect, f'less time by {one.effect}'), one.seconds) for one in ordered if one.seconds > 0]
    won = [f'{words} ({units.format_time(seconds)})' for words, seconds in helps[:2]]
    if gain >= 0:
        return '; it pays: '.join(filter(None, (', '.join(won), ', '.join(lost))))
    rest = f'; it wins: {", ".join(won)}' if won else ', and nothing more is hidden'
    return f'{", ".join(lost)}{rest}'


def _rank(outcome: Outcome) -> tuple[bool, bool, float]:
    """What can be comes first, then what has a step, then the shorter one."""
    return bool(outcome.reason), outcome.figures is None, outcome.figures.step if outcome.figures else 0.0


def _joined(changes: list[Changes]) -> Changes:
    """Several changes as one: lists are joined, of other keys the last holds."""
    joint: dict[str, Any] = {}
    for one in changes:
        for key, value in one.items():
            joint[key] = [*joint.get(key, []), *value] if isinstance(value, list) else value
    return joint


def _changed(schedule: Schedule, changes: Changes) -> Schedule:
    """The schedule with other values, without a baseline; what it has already is no change."""
    other = {key: value for key, value in changes.items() if schedule.value(key) != value}
    return replace(with_changes(schedule, other), against={}) if other else schedule
