"""What a launcher's settings come to: keys of a schedule, or a reason why they have none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from simpar.importing.shell_values import UNKNOWN, shown

IDLE: Final = "no effect on a step's time"
NOT_MODELLED: Final = 'not modelled'
UNSEEN: Final = 'unknown'
NOT_TAKEN: Final = 'not used by the script'
MAPPED: Final = 'mapped'
NODE_SIZE: Final = 'node-size'
"""A setting that no file has: devices of a node of the profile."""
DEVICE_MEMORY: Final = 'device-memory'
"""Another: bytes of memory of a device of the profile."""
SPEED_UP: Final = 'speed-up'
"""What a file of overlap passes says begins so."""


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


class Says(NamedTuple):
    """A key of the schedule, its value, the settings that say so, and what a reader should know of it."""

    key: str
    value: Any
    by: tuple[str, ...] = ()
    note: str = ''


class Left(NamedTuple):
    """A setting that has no key as it stands, and why."""

    by: str
    reason: str
    note: str = ''


class Assumed(NamedTuple):
    """What the file does not say and the schedule needs; ``of_cluster``, where it is the size of the cluster."""

    what: str
    of_cluster: bool = False


class Wrong(NamedTuple):
    """What keeps a schedule from being written: a setting, or none, what is wrong and what to do."""

    by: str
    what: str
    instead: str


Told = Says | Left | Assumed | Wrong


class Row(NamedTuple):
    """A line of a table of flags.

    Arguments: ``key`` of the schedule; ``how`` the value becomes that of the key, in words; ``convert`` does it, or
    None where a rule reads the setting; ``note`` for the docs.
    """

    key: str
    how: str
    convert: Callable[[Any], Any] | None = None
    note: str = ''


class Settings:
    """The settings of a file by name; of two of one name the last counts, as in argparse."""

    def __init__(self, every: list[Setting], aliases: Mapping[str, str]) -> None:
        self.every = [replace(one, name=aliases.get(one.name, one.name)) for one in every]
        self.named = {one.name: one for one in self.every}

    def __contains__(self, name: str) -> bool:
        return name in self.named

    def text(self, name: str, default: str = '') -> str:
        """A value as text; a list's first."""
        one = self.named.get(name)
        if one is None or one.value is None:
            return default
        value = one.value[0] if isinstance(one.value, list) and one.value else one.value
        return default if one.open else str(value)

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        one = self.named.get(name)
        return one is not None and str(one.value).lower() not in ('false', '0', 'none', 'no', '[]')

    def number(self, name: str, default: int) -> int:
        """A whole number; the default where there is none, or none that can be read (then it is told elsewhere)."""
        try:
            return whole(self.text(name, str(default)))
        except ValueError:
            return default

    def real(self, name: str, default: float) -> float:
        try:
            return real(self.text(name, str(default)))
        except ValueError:
            return default

    def given(self, *names: str) -> tuple[str, ...]:
        """Those of the names that the file has."""
        return tuple(name for name in names if name in self.named)


Rule = Callable[[Settings], Iterator[Told]]
NOW: Final = 9999
"""The year of a framework whose file does not tell its age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A kind of file.

    Arguments:
        name: of the launcher.
        profile: of the cluster where the file names none.
        nodes: profiles in its place, by how many devices of a node a file takes.
        rows: settings that have a key.
        idle: settings that change nothing of a step's time, by why.
        not_modelled: settings that do and have no key, by what they are.
        aliases: other names of settings.
        rules: read several settings together, or what follows from one that is not there.
        framework: the framework that runs such a file, and the last year of its release, as the table of stacks has it.
    """

    name: str
    profile: str
    rows: Mapping[str, Row]
    idle: Mapping[str, str] = field(default_factory=dict)
    not_modelled: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    nodes: Mapping[int, str] = field(default_factory=dict)
    framework: Callable[[Settings], tuple[str, int]] = lambda _: ('', NOW)

    def reason(self, name: str) -> tuple[str, str] | None:
        """Why a setting has no key, and what it is; None where no table has it."""
        for reason, table in ((IDLE, self.idle), (NOT_MODELLED, self.not_modelled)):
            for what, names in table.items():
                if any(_fits(name, one) for one in names.split()):
                    return reason, what.strip()
        return None


def _fits(name: str, pattern: str) -> bool:
    """Whether a name is one of a table, or begins as one that ends with ``*``."""
    return name.startswith(pattern[:-1]) if pattern.endswith('*') else name == pattern


# conversions: the docs name them, the rows use them


def whole(value: Any) -> int:
    """A whole number; 1e3 is one, too. Raises ``ValueError``."""
    if isinstance(value, bool) or value is None:
        raise ValueError('not a whole number')
    try:
        number = int(str(value).replace('_', ''))
    except ValueError:
        try:
            real_number = float(str(value))
            number = int(real_number)
        except (ValueError, OverflowError):
            raise ValueError('not a whole number') from None
        if number != real_number:
            raise ValueError('not a whole number') from None
    if abs(number) >= 10**15:
        raise ValueError('too large a number')
    return number


def real(value: Any) -> float:
    """A number. Raises ``ValueError``."""
    try:
        number = float(str(value))
    except ValueError:
        raise ValueError('not a number') from None
    if not abs(number) < 1e38:
        raise ValueError('not a finite number')
    return number


def switch(value: Any) -> bool:
    """A switch that is given is on."""
    return str(value).lower() not in ('false', '0', 'none')


COUNT: Final = 'the same number'
SHARE: Final = 'the same number'
ON: Final = 'true'


def count(key: str, note: str = '') -> Row:
    """A row of a whole number that is taken as it is."""
    return Row(key, COUNT, whole, note)


def number(key: str, note: str = '') -> Row:
    """A row of a number that is taken as it is."""
    return Row(key, SHARE, real, note)


def flag(key: str, note: str = '') -> Row:
    """A row of a switch."""
    return Row(key, ON, switch, note)


def ruled(key: str, how: str, note: str = '') -> Row:
    """A row that a rule reads."""
    return Row(key, how, None, note)
