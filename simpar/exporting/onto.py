"""Onto: a plan in the user's own file, of which only the lines change that say something else; the rest stays."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simpar import document, errors
from simpar.exporting import export, megatron
from simpar.exporting.settings import Said, Target, Values, values_of, word_of
from simpar.importing import command_line, findings, mapping, read
from simpar.importing.settings import Setting, Settings, Source
from simpar.schedule import Schedule, load_schedule

_SUMS: Final = 'plan.reduce_gradients'
_ROUNDS: Final = 3
"""Of edits: the number of devices may follow from the degrees, and show with them alone."""
_TOKEN: Final = r'(?:"[^"]*"|\'[^\']*\'|\$\{[^}]*\}|[^\s\\)"\']+)'
_VARIABLE: Final = re.compile(r'["\']?\$\{?(\w+)\}?["\']?')


@dataclass(frozen=True, slots=True)
class Edited:
    """A file with a plan.

    Arguments: ``framework``, its title; ``text``, all of it; ``difference``, its changed lines as diff writes them;
    ``unsaid``, what the framework cannot say; ``back``, what import makes of the plan's own file.
    """

    framework: str
    text: str
    difference: str
    unsaid: tuple[export.Unsaid, ...]
    back: Schedule | None

    def __str__(self) -> str:
        return self.difference


def onto(schedule: Schedule, to: str, path: Path, *, given: Mapping[str, str] | None = None) -> Edited:
    """The user's own file with the plan of a schedule.

    Arguments: ``to``, its framework; ``given``, variables of the file, as of ``simpar import --set``.
    Raises ``ScheduleError`` where the file is not one of that framework, or where it cannot be made to say the plan.
    """
    target, wanted = export.target_of(to), values_of(schedule)
    if target.source is None:
        what = f'simpar reads no file of {target.title} back'
        raise errors.refusal('--onto', what, 'leave it out, and copy the lines')
    said = target.settings(wanted)
    back, goal = export.read_back(target, said, wanted)
    text = document.text_of(path).replace('\r\n', '\n')
    variables = dict(given or {})
    edited = text
    for _ in range(_ROUNDS):
        made = _imported(target, edited, path, wanted, variables)
        now = _values(made, path)
        keys = {one.key for one in export.different(goal, now, full=True)}
        # Nodes are written where the file comes to another number of them beside its degrees.
        keys |= {'cluster.nodes', 'cluster.devices'} if now.ranks != goal.ranks else set()
        if not keys:
            break
        settings = _settings(target.source, edited, path, variables)
        edited = _edited(target, edited, settings, _changes(said, settings, made, keys))
    else:
        now = _values(_imported(target, edited, path, wanted, variables), path)
        raise errors.ScheduleError([_by_hand(path, one) for one in export.different(goal, now, full=True)])
    name = path.name
    lines = difflib.unified_diff(text.splitlines(True), edited.splitlines(True), name, f'{name} with the plan', n=1)
    return Edited(target.title, edited, ''.join(lines), tuple(export.different(wanted, goal, target=target)), back)


def _imported(target: Target, text: str, path: Path, wanted: Values, variables: Mapping[str, str]) -> mapping.Import:
    made = read.imported(path, given=variables, profile=str(wanted.every['cluster.profile']), text=text)
    if target.source is not None and made.kind != target.source.name:
        what = f'a file of {made.kind}, not of {target.title}'
        raise errors.refusal(path, what, 'write its framework as --to')
    return made


def _values(made: mapping.Import, path: Path) -> Values:
    return values_of(load_schedule(mapping.schedule_text(made, path.name)))


def _settings(source: Source, text: str, path: Path, variables: Mapping[str, str]) -> Settings:
    """The settings of the file, each with its line."""
    if path.suffix in ('.yaml', '.yml', '.json'):
        return Settings(read.settings_of_yaml(text.replace('\t', ' '), str(path)), source.table)
    if path.suffix == '.toml':
        return Settings(read.settings_of_toml(text, str(path)), source.table)
    return command_line.settings_of(text, str(path), source, variables)[0]


def _by_hand(path: Path, one: export.Unsaid) -> errors.Problem:
    what = f'{one.key}: the file comes to {json.dumps(one.nearest, default=str)} where simpar edits it'
    return errors.Problem(str(path), what, f'change it by hand to {json.dumps(one.value, default=str)}')


@dataclass(frozen=True, slots=True)
class _Change:
    """A setting of the file that says something else.

    Arguments: ``value``, its new one, None where it goes; ``old``, as it stands, None where it is new.
    """

    name: str
    value: Any
    old: Setting | None


def _changes(said: list[Said], settings: Settings, made: mapping.Import, keys: set[str]) -> Iterator[_Change]:
    """Settings that say keys that differ: those to change, to add, and to take out."""
    wanted = {one.name: one for one in said}
    for one in said:
        old = settings.named.get(one.name)
        if keys & _family(one.keys) and (old is None or old.shown != _text(one.value)):
            yield _Change(one.name, one.value, old)
    mapped = {line.where + line.name: line.keys for line in made.lines if line.outcome == findings.MAPPED}
    for name, setting in settings.named.items():
        by = mapped.get(setting.where + setting.called, ())
        if name not in wanted and keys & _family(by) and not setting.where.startswith('--set'):
            yield _Change(name, None, setting)


def _family(keys: tuple[str, ...]) -> set[str]:
    """Keys, and those that are another word for the same."""
    # Gathers behind the update want sums under the backward (tables/never_both.csv of importing).
    sharded = {'plan.zero', 'plan.shard', 'plan.hsdp', 'plan.gather', 'plan.shard_form', 'plan.accumulate', _SUMS}
    batch = {'plan.micro_batches', 'workload.batch', 'plan.data', 'plan.copies'}
    synonyms = set(keys)
    for family in (sharded, batch):
        synonyms |= family if family & synonyms else set()
    return synonyms


def _text(value: Any) -> str:
    return 'true' if value is True else ' '.join(map(word_of, value)) if isinstance(value, list) else word_of(value)


def _edited(target: Target, text: str, settings: Settings, changes: Iterator[_Change]) -> str:
    """The text with all changes, from its last line to its first, so that places stay."""
    lines = text.split('\n')
    edit: _Script | _Keys = _Script(lines, settings) if target.suffix == '.sh' else _Keys(lines, settings)
    for one in sorted(changes, key=lambda one: -_line(one.old) if one.old else 0):
        if one.old is None:
            edit.add(one)
        else:
            edit.replace(one, one.old)
    return '\n'.join(line for line in edit.lines if line is not None)


def _line(setting: Setting) -> int:
    number = setting.where.rpartition(':')[2]
    return int(number) if number.isdecimal() else 0


class _Lines:
    """Lines of a file that is edited; mutable, None for a line that goes."""

    def __init__(self, lines: list[str], settings: Settings) -> None:
        self.lines: list[str | None] = [*lines]
        self.settings = settings


class _Script(_Lines):
    """Lines of a shell script."""

    def replace(self, one: _Change, old: Setting) -> None:
        """Where the file has the flag, or where it assigns its variable."""
        flag = re.escape(old.called.split()[-1])
        at = self.place(old, rf'(?<![\w-]){flag}(?![\w-])')
        if at < 0:
            # A variable of the environment, such as CUDA_DEVICE_MAX_CONNECTIONS.
            if one.value is not None:
                self.assigned(old.called, _text(one.value))
            return
        line = self.lines[at] or ''
        # Of a list as many words as it has; the last one may end a line that goes on.
        count = 0 if old.value is True else len(old.value) if isinstance(old.value, list) else 1
        match = re.search(rf'(?<![\w-]){flag}(?![\w-])((?:=|\s+){_TOKEN}){{0,{count}}}', line)
        assert match is not None
        head, _, value = match[0].partition('=') if '=' in match[0] else match[0].partition(' ')
        if one.value is None:
            rest = line[: match.start()] + line[match.end() :].lstrip(' ')
            self.lines[at] = None if rest.strip() in ('', '\\') else rest
        elif not ((named := _VARIABLE.fullmatch(value.strip())) and self.assigned(named[1], _text(one.value))):
            new = megatron.flag_of(Said(one.name, one.value, ())).partition(' ')[2]
            sign = '=' if '=' in match[0] else ' '
            self.lines[at] = line[: match.start()] + f'{head}{sign}{new}'.rstrip('= ') + line[match.end() :]

    def place(self, setting: Setting, pattern: str) -> int:
        """The line that has a flag: the one that is told, or another one, as of a text in several lines; -1: none."""
        at = _line(setting) - 1
        near = [at, *range(len(self.lines))] if 0 <= at < len(self.lines) else range(len(self.lines))
        rows = (row for row in near if not (self.lines[row] or '').lstrip().startswith('#'))
        return next((row for row in rows if re.search(pattern, self.lines[row] or '')), -1)

    def assigned(self, name: str, value: str) -> bool:
        """Whether a variable has one plain assignment, which then has the new value."""
        pattern = re.compile(
            rf'^(\s*(?:export\s+)?{name}=)(\$\{{\w+:-)?(["\']?)[\w.,*+|()\[\]-]+\3(\}})?(\s*(?:#.*|;)?)$'
        )
        matches = [(at, match) for at, line in enumerate(self.lines) if (match := pattern.match(line or ''))]
        if len(matches) != 1:
            return False
        at, match = matches[0]
        self.lines[at] = f'{match[1]}{match[2] or ""}{match[3]}{value}{match[3]}{match[4] or ""}{match[5]}'
        return True

    def add(self, one: _Change) -> None:
        """Write a flag before another one of the command, on a line of its own where that one begins a line."""
        words = megatron.flag_of(Said(one.name, one.value, ()))
        for row in reversed(self.settings.every):
            flag = rf'(?<![\w-]){re.escape(row.called)}(?![\w-])'
            at = self.place(row, flag) if row.called.startswith('--') else -1
            entry = self.settings.table.rows.get(row.name)
            if at < 0 or entry is None or not entry.key.startswith(('plan.', 'workload.')):
                continue
            line, before = self.lines[at] or '', self.lines[at - 1] or '' if at else ''
            match = re.search(flag, line)
            assert match is not None
            if line.lstrip().startswith(row.called):
                # What ends the line before ends the new one, too.
                goes_on = before.rstrip().endswith('\\') or line.rstrip().endswith('\\')
                self.lines.insert(at, f'{line[: match.start()]}{words}{" " + chr(92) if goes_on else ""}')
            else:
                self.lines[at] = f'{line[: match.start()]}{words} {line[match.start() :]}'
            return


class _Keys(_Lines):
    """Lines of YAML, JSON or TOML."""

    def replace(self, one: _Change, old: Setting) -> None:
        """At the key's line."""
        at, leaf = _line(old) - 1, re.escape(old.called.rpartition('.')[2])
        line = self.lines[at] if 0 <= at < len(self.lines) else None
        match = re.match(rf'^(\s*["\']?{leaf}["\']?\s*[:=]\s*)([^#]*?)(\s*,?\s*(?:#.*)?)$', line or '')
        if match is None:
            return
        self.lines[at] = None if one.value is None else f'{match[1]}{self.value(one.value, match[1])}{match[3]}'

    @staticmethod
    def value(value: Any, key: str) -> str:
        """A value as the file writes it; JSON is YAML, and TOML for plain values."""
        bare = isinstance(value, str) and re.fullmatch(r'[A-Za-z][\w.]*', value) and key.rstrip().endswith(':')
        return value if bare and '"' not in key else json.dumps(value)

    def add(self, one: _Change) -> None:
        """Write a key beside the first one of its section, or its sections behind all."""
        *above, leaf = one.name.split('.')
        for depth in range(len(above), 0, -1):
            prefix = '.'.join(above[:depth])
            rows = (row for row in self.settings.every if row.name.startswith(f'{prefix}.') and _line(row))
            beside = next(rows, None)
            place = self._section(beside, depth) if beside else None
            if place is not None:
                at, indent = place
                self.lines[at:at] = _nested(above[depth:], leaf, one.value, indent)
                return
        self.lines += _nested(above, leaf, one.value, '')

    def _section(self, row: Setting, depth: int) -> tuple[int, str] | None:
        """The line of the first key of a section, and its indent."""
        names, at = row.called.split('.'), _line(row) - 1
        # Above a key that lies deeper stand the lines of its sections.
        for name in reversed(names[depth:]):
            pattern = re.compile(rf'^(\s*)["\']?{re.escape(name)}["\']?\s*[:=]')
            while at >= 0 and not pattern.match(self.lines[at] or ''):
                at -= 1
            if name == names[depth]:
                match = pattern.match(self.lines[at] or '') if at >= 0 else None
                return (at, match[1]) if match else None
        return None


def _nested(above: list[str], leaf: str, value: Any, indent: str) -> list[str]:
    """A key under sections, as lines of YAML."""
    lines = [f'{indent}{"  " * depth}{name}:' for depth, name in enumerate(above)]
    return [*lines, f'{indent}{"  " * len(above)}{leaf}: {_Keys.value(value, ":")}']
