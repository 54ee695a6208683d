"""Settings of a launcher's file, and the table that says what each of them is in a schedule.

``tables/*.csv`` have a row for each setting: its key, its value there, its default, and when it has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from simpar import files, profiles
from simpar.importing.findings import IDLE, NOT_MODELLED, REFUSED, Entry, Finding, Mistake, Unmapped
from simpar.importing.shell import UNKNOWN, shown

NODE_SIZE: Final = 'node-size'
"""A setting that no file has: devices of a node of the profile."""
DEVICE_MEMORY: Final = 'device-memory'
"""Another: bytes of memory of a device of the profile."""
ACCELERATOR: Final = 'accelerator'
"""Another: the accelerator that a job or a comment names."""
SPEED_UP: Final = 'speed-up'
"""What a file of overlap passes says begins so."""
NOW: Final = 9999
"""The year of a framework whose file does not tell its age."""
FOLDER: Final = Path(__file__).parent / 'tables'
_REASONS: Final = {'no effect': IDLE, 'another model': REFUSED, 'not modelled': NOT_MODELLED}
_OFF: Final = ('false', '0', 'none', 'no', '[]', 'null', 'off', '')
_ON: Final = ('true', '1', 'yes', 'on')
_ELSE: Final = re.compile(r'else \((.*)\)')
_CONDITION: Final = re.compile(r'((?:with|without) )?(\S+)( 1)?(?: \((.*)\))?')


@dataclass(frozen=True, slots=True)
class Setting:
    """One flag or key of a file.

    Arguments: ``name``, as the tables have it; ``value``, True for a bare flag; ``where``, file:line; ``written``, the
    name as the file has it.
    """

    name: str
    value: Any
    where: str
    written: str = ''

    @property
    def open(self) -> list[str]:
        """Names of variables in its value that nobody assigns."""
        values = self.value if isinstance(self.value, list) else [self.value]
        return [name for value in values if isinstance(value, str) for name in UNKNOWN.findall(value)]

    @property
    def called(self) -> str:
        """Its name as the file has it."""
        return self.written or self.name

    @property
    def shown(self) -> str:
        """Its value as a person reads it."""
        if isinstance(self.value, list):
            return ' '.join(shown(str(one)) for one in self.value)
        if isinstance(self.value, bool) or self.value is None:
            return {True: 'true', False: 'false', None: 'null'}[self.value]
        return shown(str(self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """What a launcher's table says of a setting.

    Arguments:
        setting: its name.
        key: of the schedule.
        value: in the schedule: ``count`` or ``number``, as the file has it, with ``> 0`` where others say nothing;
            ``switch``, true; ``= word``, this word where the setting is on; words of both, ``p2p: ring``, with ``*``
            for all others; nothing where a rule computes it.
        rule: the function that reads it, with other settings; nothing: it says its key by itself.
        words: how the value comes about, where ``value`` does not say it.
        default: what the launcher takes where a file is silent, in the launcher's own words; of a setting without a
            key, words that are as good as off.
        since: the version of the launcher that has it.
        idle: when it has no effect, as ``with other``, ``without other`` or ``other 1``; ``else`` where no
            rule says anything of it; in brackets, how it is told.
        note: more for the docs.
        aliases: its other names; ``name=value`` is one where that setting has this value.
    """

    setting: str
    key: str = ''
    value: str = ''
    rule: str = ''
    words: str = ''
    default: str = ''
    since: str = ''
    idle: str = ''
    note: str = ''
    aliases: str = ''

    @property
    def outcome(self) -> str:
        """What becomes of a setting that has no key."""
        return _REASONS[self.value]

    @property
    def choices(self) -> dict[str, Any]:
        """Words of the launcher, in small letters, and the values that they have in a schedule."""
        pairs = [pair.split(': ') for pair in self.value.split(', ')] if ': ' in self.value else []
        return {word.lower(): _scalar(value) for word, value in pairs}

    def copied(self, value: Any) -> Any:
        """The value of the key where no rule reads the setting. Raises ``ValueError``."""
        if self.value == 'switch':
            return str(value).lower() not in _OFF[:3]
        return (whole if self.value == 'count' else real)(value)


def _scalar(text: str) -> Any:
    return {'true': True, 'false': False}.get(text, int(text) if text.isdecimal() else text)


@dataclass(frozen=True, slots=True)
class Table:
    """The settings of a launcher.

    Arguments: ``rows``, settings that have a key; ``listed``, those that have none, by name or the beginning of names
    that ends with ``*``; ``aliases``, other names of settings.
    """

    rows: Mapping[str, SettingRow] = field(default_factory=dict)
    listed: tuple[SettingRow, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def over(self, base: Table) -> Table:
        """The settings of a launcher that is built on another."""
        # What has no effect goes before what is not modelled, whichever launcher says so.
        listed = sorted((*base.listed, *self.listed), key=lambda row: list(_REASONS).index(row.value))
        return Table({**base.rows, **self.rows}, tuple(listed), {**base.aliases, **self.aliases})

    def renamed(self, one: Setting) -> Setting:
        """A setting by the name that the table has it by; an alias may be of one value alone, as ``bias=false``."""
        name = self.aliases.get(f'{one.name}={str(one.value).lower()}')
        if name is not None:
            return replace(one, name=name, value=True, written=f'{one.called} {one.shown}')
        return replace(one, name=self.aliases.get(one.name, one.name), written=one.called)

    def reason(self, name: str) -> SettingRow | None:
        """The row of a setting that has no key, by the longest pattern that fits; None where the table has none."""
        fitting = ((len(one), row) for row in self.listed for one in row.setting.split() if fits(name, one))
        return max(fitting, key=itemgetter(0), default=(0, None))[1]


def table_of(launcher: str) -> Table:
    """The table of a launcher."""
    rows = [SettingRow(**row) for row in files.read_csv(FOLDER / f'{launcher}.csv')]
    return Table(
        {row.setting: row for row in rows if row.key},
        tuple(row for row in rows if row.value in _REASONS),
        {alias: row.setting for row in rows for alias in row.aliases.split()},
    )


def shaping(name: str) -> str:
    """What of model or plan the name of an unknown setting speaks of; nothing where no word of it does."""
    parts = set(re.split(r'[-_.]', name.lower()))
    rows = files.read_csv(FOLDER / 'shaping_words.csv')
    return next((row['what'] for row in rows if parts & set(row['words'].split())), '')


def accelerator(text: str) -> tuple[str, str] | None:
    """The accelerator that words of a text name, and the profile that stands for it, if any does."""
    said = re.sub(r'(?<![a-z0-9])\d+x(?=[a-z])|ascend(?=\d)', ' ', text.lower())
    if profile := profiles.profile_of_hardware(said):
        return profile.partition('-')[0].removeprefix('ascend'), profile
    parts = re.split(r'[^a-z0-9]+', said)
    rows = files.read_csv(FOLDER / 'other_accelerators.csv')
    return next(((row['word'], '') for row in rows if row['word'] in parts), None)


def fits(name: str, pattern: str) -> bool:
    """Whether a name is one of a table, where ``*`` stands for any letters at its begin or its end."""
    if pattern.startswith('*'):
        return name.endswith(pattern[1:])
    return name.startswith(pattern[:-1]) if pattern.endswith('*') else name == pattern


class Settings:
    """The settings of a file by name; of two of one name the last counts, as in argparse.

    What is asked of a setting that the file does not have, or whose value cannot be read, is its default of the table.
    """

    def __init__(self, every: list[Setting], table: Table) -> None:
        self.table = table
        self.every = [table.renamed(one) for one in every]
        self.named = {one.name: one for one in self.every}

    def __contains__(self, name: str) -> bool:
        return name in self.named

    def default(self, name: str) -> str:
        """What the launcher takes where the file is silent."""
        row = self.table.rows.get(name)
        return row.default if row is not None else ''

    def text(self, name: str) -> str:
        """A value as text; a list's first."""
        one = self.named.get(name)
        if one is None or one.value is None or one.open:
            return self.default(name)
        return str(one.value[0] if isinstance(one.value, list) and one.value else one.value)

    def shown(self, name: str) -> str:
        """A value as the file has it, all words of a list; nothing where it does not."""
        return self.named[name].shown if name in self else ''

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        one = self.named.get(name)
        return one is not None and str(one.value).lower() not in _OFF and _read(real, str(one.value)) != 0

    def is_off(self, name: str) -> bool:
        """Whether a setting without a key is switched off, or says what is so without it."""
        row = self.table.reason(name)
        if not self.on(name) or row is None:
            return not self.on(name)
        return self._idle(row) is not None or self.text(name).lower() in row.default.lower().split()

    def unreadable(self) -> Iterator[Mistake]:
        """Settings that are numbers or switches, and neither is written: a template that nobody filled in."""
        for one in self.named.values():
            row, word = self.table.rows.get(one.name), self.text(one.name).lower()
            if row is None or one.open or one.value is None or word == 'auto':
                continue
            kind = row.value.partition(' ')[0]
            if kind == 'count' and isinstance(one.value, list) and len({*one.value}) > 1:
                yield Mistake(one.name, f'several numbers, where one is read (got {one.shown[:40]})', 'give one')
            elif kind in ('count', 'number') and _read(real, self.text(one.name)) is None:
                yield Mistake(one.name, f'not a number (got {one.shown[:40]!r})', f'--set {one.name}=N says one')
            elif (kind == 'switch' or row.value.startswith('= ')) and word not in (*_ON, *_OFF):
                yield Mistake(
                    one.name, f'neither on nor off (got {one.shown[:40]!r})', f'--set {one.name}=true or false'
                )

    def doubled(self) -> Iterator[Mistake]:
        """Settings that no launcher takes beside one another, and those that say another value by another name."""
        for never in (row for row in files.read_csv(FOLDER / 'never_both.csv') if self.on(row['setting'])):
            if self.on(never['beside']):
                other = self.named[never['beside']]
                yield Mistake(never['setting'], f'never beside {other.called} ({other.where})', 'take one of them away')
            if (needs := never['needs']) and not self.on(needs):
                yield Mistake(never['setting'], f'nobody takes it without {needs}', f'--set {needs}=true')
        for one in self.every:
            last, row = self.named[one.name], self.table.rows.get(one.name)
            # What ``--set`` says goes over all files.
            is_set = last.where.startswith('--set ')
            if row is None or is_set or last.called == one.called or same(one.value, last.value):
                continue
            # A launcher goes over what its job says, and samples of NeMo are as long as its data.
            if not (row.key.startswith('cluster.') or '.data.' in f'{one.called} {last.called}'):
                what = f'{last.shown}, and {one.called} is {one.shown} ({one.where}); both are one setting'
                yield Mistake(one.name, what, 'leave one of them')

    def number(self, name: str) -> int:
        """A whole number; 0 where there is none and no default."""
        number = _read(whole, self.text(name))
        return number if number is not None else _read(whole, self.default(name)) or 0

    def real(self, name: str) -> float:
        """A number; 0 where there is none and no default."""
        number = _read(real, self.text(name))
        return number if number is not None else _read(real, self.default(name)) or 0.0

    def numbers(self, name: str) -> list[int]:
        """All whole numbers of a text, such as a list; none where the file does not have it."""
        return [int(one) for one in re.findall(r'(?<!\d)-?\d{1,9}', self.shown(name))]

    def choice(self, name: str) -> Any:
        """What a word is in the schedule; None where the table does not have it."""
        choices = self.table.rows[name].choices
        return choices.get(self.text(name).lower(), choices.get('*'))

    def given(self, *names: str) -> tuple[str, ...]:
        """Those of the names that the file has."""
        return tuple(name for name in names if name in self.named)

    def left(self, why: str, *names: str) -> Iterator[Finding]:
        """Those of the names that the file has, as without effect."""
        return (Unmapped(name, why, IDLE) for name in self.given(*names))

    def said(self, *names: str, by: tuple[str, ...] = (), silent: bool = False) -> Iterator[Finding]:
        """What settings say that no other one changes, in this order; or why they have no effect.

        Arguments: ``silent``, that defaults are said, too, where the file is silent; ``by``, the settings that then say
        so.
        """
        for name in names:
            row = self.table.rows[name]
            if (why := self._idle(row)) is not None:
                yield from self.left(why, name)
            elif name in self or (silent and row.default):
                value = self.value(name)
                if value is not None:
                    yield Entry(row.key, value, self.given(name) or by)
                if '*' in row.choices and self.text(name).lower() not in row.choices:
                    yield Unmapped(name, f'{self.text(name)}; {row.choices["*"]} is written')

    def said_where(self, holds: bool, why: str, *names: str, silent: bool = False) -> Iterator[Finding]:
        """What settings say where that holds, else why they have no effect."""
        return self.said(*names, silent=silent) if holds else self.left(why, *names)

    def value(self, name: str) -> Any:
        """What the key of a setting is, or what its default makes of it; None where it says nothing."""
        row = self.table.rows[name]
        kind, _, least = row.value.partition(' > ')
        if kind in ('count', 'number'):
            value = self.number(name) if kind == 'count' else self.real(name)
            return value if not least or value > 0 else None
        if row.choices:
            return self.choice(name)
        said = _scalar(row.value.removeprefix('= ')) if kind != 'switch' else True
        return said if self.on(name) else _scalar(row.default) if row.default else None

    def idle(self, name: str) -> str | None:
        """Why a setting has no effect of which no rule says anything; None where the table does not tell."""
        row = self.table.rows[name]
        match = _ELSE.fullmatch(row.idle)
        return match[1] if match else self._idle(row)

    def _idle(self, row: SettingRow) -> str | None:
        """Why a setting has no effect beside the others; None where it has one."""
        match = _CONDITION.fullmatch(row.idle)
        if match is None or _ELSE.fullmatch(row.idle):
            return None
        other, why = match[2], match[4] or row.idle
        if match[3]:
            return why if self.number(other) <= 1 else None
        return why if (self.number(other) > 0 or self.on(other)) == (match[1] == 'with ') else None


Rule = Callable[[Settings], Iterator[Finding]]
Number = TypeVar('Number', int, float)


@dataclass(frozen=True, slots=True)
class Source:
    """A kind of file.

    Arguments:
        name: of the launcher.
        table: its settings.
        rules: read several settings together, or what follows from one that is not there.
        framework: that runs such a file, as the table of stacks has it; a function also says the last year of its
            release.
        profile: of the cluster where the file names none.
        nodes: profiles in its place, by how many devices of a node a file takes.
        names: profiles in its place, by a word in the name of a file.
    """

    name: str
    table: Table
    rules: tuple[Rule, ...]
    framework: str | Callable[[Settings], tuple[str, int]]
    profile: str = 'h100-sxm-8'
    nodes: Mapping[int, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


def first_layers(stages: Sequence[int], counts: Sequence[int]) -> list[int]:
    """The first layers of each stage. Arguments: ``stages``, layers of each; ``counts``, how many of them are taken."""
    starts = accumulate(stages, initial=0)
    spans = zip(starts, stages, counts, strict=False)
    return [start + layer for start, layers, count in spans for layer in range(min(count, layers))]


def same(one: Any, other: Any) -> bool:
    """Whether two names or values are the same: numbers by their value, words by their letters."""
    numbers = [_read(real, str(value)) for value in (one, other)]
    if None not in numbers:
        return numbers[0] == numbers[1]
    words = [re.sub(r'^[-+]+', '', str(value).lower()).replace('_', '-') for value in (one, other)]
    return words[0] == words[1]


def whole(value: Any) -> int:
    """A whole number; 1e3 is one, too. Raises ``ValueError``."""
    try:
        number = float(str(value).replace('_', ''))
    except ValueError:
        number = 0.5
    if not number.is_integer():
        raise ValueError('not a whole number')
    if abs(number) >= 10**15:
        raise ValueError('too large a number')
    return int(number)


def _read(convert: Callable[[Any], Number], text: str) -> Number | None:
    try:
        return convert(text)
    except ValueError:
        return None


def real(value: Any) -> float:
    """A number. Raises ``ValueError``."""
    try:
        number = float(str(value))
    except ValueError:
        raise ValueError('not a number') from None
    if not abs(number) < 1e38:
        raise ValueError('not a finite number')
    return number
