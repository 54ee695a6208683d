"""What `simpar run --save` keeps beside a trace, and what changed between two such answers.

A saved answer says what it rests on: simpar's version and sources, every number of profile and stack, and the schedule
with all its choices. Two of them are compared key by key. Where one of the three alone differs, all of the change
is its doing; the trace says in which operators the seconds are.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

from simpar import __version__, errors, predict, profiles, units
from simpar.case import Case, written_out
from simpar.hardware.profile import figures_of
from simpar.headline import change_in_words
from simpar.sweep.journal import source_content
from simpar.trace_files import SavedTrace

FORMAT: Final = 'simpar difference 1'
Part = Literal['simpar', 'profile', 'schedule']
PARTS: Final[tuple[Part, ...]] = ('simpar', 'profile', 'schedule')
_TOLD_BY_PROFILE: Final = ('cluster.profile', 'cluster.stack')
_MOST: Final = 20
"""Changes of a part, and operators, that the screen shows."""
_SHORTEST: Final = 1e-3
"""Of the larger step: what changed by a smaller share is left out of the operators."""


def to_answer(case: Case, prediction: predict.Prediction) -> dict[str, Any]:
    """What the prediction of a case rests on, and its figures, as plain values."""
    steady = prediction.metrics.steady
    rate = prediction.throughput.rate(prediction.step) if prediction.throughput else None
    return {
        'simpar': {'version': __version__, 'sources': source_content()[:16]},
        'profile': _profile(case),
        'schedule': _schedule(case),
        'unit': prediction.throughput.unit if prediction.throughput else '',
        'figures': {
            'step': prediction.step,
            'cold_step': prediction.cold_step,
            'computing': steady.compute,
            'exposed': steady.exposed,
            'idle': steady.idle,
            'memory': prediction.memory.peak,
            'rate': rate,
        },
    }


def _schedule(case: Case) -> dict[str, Any]:
    """Every choice of the plan's own step; its baseline changes none of it."""
    tree = {key: value for key, value in written_out(case).items() if key != 'against'}
    return {key: value for key, value in _flat(tree).items() if key not in _TOLD_BY_PROFILE}


def _profile(case: Case) -> dict[str, Any]:
    """Every number of profile and stack, and what its tables hold."""
    profile, named = case.cluster.profile, case.schedule.cluster
    tables = {kind: getattr(profile.tables, kind) for kind in profiles.COLUMNS}
    numbers: dict[str, Any] = {'profile': case.schedule.cluster.profile}
    numbers |= {key: figure.value for key, figure in figures_of(profile)}
    files = {kind: Path(table.file) for kind, table in tables.items() if table is not None}
    numbers |= {f'tables.{kind}': sha256(file.read_bytes()).hexdigest()[:16] for kind, file in files.items()}
    if named.has_stack:
        numbers |= {'stack': named.stack} | _flat(dataclasses.asdict(profiles.load_stack(named.stack)), 'stack')
    return numbers


def _flat(value: Any, at: str = '') -> dict[str, Any]:
    """Dotted keys with plain values; lists of plain values stay whole."""
    if isinstance(value, Mapping):
        items: Iterator[tuple[Any, Any]] = iter(value.items())
    elif isinstance(value, (list, tuple)) and any(isinstance(one, (Mapping, list, tuple)) for one in value):
        items = iter(enumerate(value))
    else:
        return {at: list(value) if isinstance(value, tuple) else value}
    return {key: one for name, part in items for key, one in _flat(part, f'{at}.{name}' if at else str(name)).items()}


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value is another one; None: it is not there."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two saved answers.

    Arguments:
        figures: name → (old, new); seconds, bytes, samples or tokens a second.
        changes: what each of them rests on, where it differs.
        operators: seconds of a step by operator and phase, mean over the ranks, (old, new), largest change first.
        unit: what is counted a second.
        same_program: whether both are of one program, so that costs alone can differ.
    """

    figures: dict[str, tuple[float | None, float | None]]
    changes: dict[Part, tuple[Change, ...]]
    operators: dict[str, tuple[float, float]]
    unit: str
    same_program: bool

    @property
    def steps(self) -> tuple[float, float]:
        """Seconds of both steps."""
        old, new = self.figures['step']
        assert old is not None
        assert new is not None
        return old, new

    @property
    def changed(self) -> tuple[Part, ...]:
        """Which of simpar, profile and schedule differ."""
        return tuple(part for part in PARTS if self.changes[part])


def difference(old: SavedTrace, new: SavedTrace, names: tuple[str, str] = ('the first', 'the second')) -> Difference:
    """What changed from one saved answer to another.

    Arguments: ``names`` of the files, for messages. Raises ``ScheduleError`` where one says not what it rests on.
    """
    first, second = (_answer(saved, name) for saved, name in zip((old, new), names, strict=True))
    return Difference(
        figures={name: (first['figures'].get(name), second['figures'].get(name)) for name in first['figures']},
        changes={part: tuple(_changes(first[part], second[part])) for part in PARTS},
        operators=_moved(_by_operator(old), _by_operator(new)),
        unit=str(second.get('unit') or 'samples'),
        same_program=old.program == new.program,
    )


def _answer(saved: SavedTrace, name: str) -> dict[str, Any]:
    answer = saved.answer or {}
    figures = answer.get('figures') or {}
    parts = all(isinstance(answer.get(part), dict) for part in PARTS)
    plain = isinstance(figures, dict) and all(isinstance(one, float | int | None) for one in figures.values())
    if parts and plain and isinstance(figures.get('step'), float) and figures['step'] > 0:
        return answer
    what = 'does not say what it rests on' if saved.origin == 'simulated' else f'is {saved.origin}, not predicted'
    instead = 'write it again with `simpar run FILE --save`'
    if saved.origin != 'simulated':
        instead = 'compare a prediction with a measurement by `simpar compare`'
    raise errors.refusal(name, what, instead)


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield Change(key, old.get(key), new.get(key))


def _by_operator(saved: SavedTrace) -> dict[str, float]:
    """Seconds of the last step by operator and phase, mean over the ranks."""
    ranks = Counter(saved.representative_of_rank)
    seconds: Counter[str] = Counter()
    for number, times in enumerate(saved.representatives):
        share = ranks[number] / len(saved.representative_of_rank)
        lasted = (times.end_KS[-1] - times.start_KS[-1]).tolist()
        for slot, one in zip(saved.roles[times.role], lasted, strict=True):
            where = f' over {slot.partition}' if slot.partition else ''
            seconds[f'{slot.operator}.{slot.phase}{where}'] += one * share
    return dict(seconds)


def _moved(old: dict[str, float], new: dict[str, float]) -> dict[str, tuple[float, float]]:
    pairs = {name: (old.get(name, 0.0), new.get(name, 0.0)) for name in dict.fromkeys([*old, *new])}
    least = _SHORTEST * max(sum(old.values()), sum(new.values()), math.ulp(0.0))
    moved = [name for name, (before, after) in pairs.items() if abs(after - before) > least]
    return {name: pairs[name] for name in sorted(moved, key=lambda name: -abs(pairs[name][1] - pairs[name][0]))}


def render_difference(change: Difference) -> str:
    """The screen: steps, what changed, figures, operators."""
    old, new = change.steps
    lines = [f'step: {units.format_time(old)} → {units.format_time(new)}, {change_in_words(old, new)}', _cause(change)]
    for part in change.changed:
        changes = change.changes[part]
        lines += ['', f'{part}: {len(changes)} changed']
        lines += [f'  {one.key}: {_text(one.old)} → {_text(one.new)}' for one in changes[:_MOST]]
        lines += [f'  and {len(changes) - _MOST} more: see --json'] if len(changes) > _MOST else []
    lines += ['', f'{"":<24}{"old":>12}{"new":>12}']
    for name, (before, after) in change.figures.items():
        label = f'{change.unit} a second' if name == 'rate' else _LABELS[name]
        lines.append(f'{label:<24}{_figure(name, before):>12}{_figure(name, after):>12}')
    if change.operators:
        lines += ['', f'{"busy in a step":<36}{"old":>12}{"new":>12}']
        for name, pair in list(change.operators.items())[:8]:
            lines.append(f'{name:<36}{units.format_time(pair[0]):>12}{units.format_time(pair[1]):>12}')
    return ''.join(f'{line.rstrip()}\n' for line in lines)


_LABELS: Final = {
    'step': 'step',
    'cold_step': 'first step, from cold',
    'computing': 'computing',
    'exposed': 'exposed communication',
    'idle': 'idle',
    'memory': 'memory at the peak',
}


def _cause(change: Difference) -> str:
    """Which of the three the change comes from, as far as it can be told."""
    program = 'the program is the same' if change.same_program else 'the program is another'
    if not change.changed:
        return f'nothing that they rest on changed; {program}'
    if len(change.changed) == 1:
        return f'all of it comes from {_NAMES[change.changed[0]]}: nothing else changed; {program}'
    return f'{" and ".join(_NAMES[part] for part in change.changed)} changed; {program}'


_NAMES: Final[dict[Part, str]] = {'simpar': 'simpar itself', 'profile': 'the profile', 'schedule': 'the schedule'}


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return '-'
    if name == 'memory':
        return units.format_size(value)
    return f'{value:.4g}' if name == 'rate' else units.format_time(value)


def _text(value: Any) -> str:
    if value is None:
        return '-'
    text = f'{value:.6g}' if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f'{text[:57]}...'


def difference_to_dict(change: Difference) -> dict[str, Any]:
    """The difference as one object; pairs are [old, new]."""
    answer = dataclasses.asdict(change)
    return {'format': FORMAT, 'figures': answer.pop('figures'), 'changed': list(change.changed), **answer}
