"""Findings: what rules say of a launcher's settings, and the words for what becomes of each setting."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

IDLE: Final = "no effect on a step's time"
NOT_MODELLED: Final = 'not modelled'
UNSEEN: Final = 'unknown'
NOT_TAKEN: Final = 'not used by the script'
MAPPED: Final = 'mapped'
REFUSED: Final = 'refused: another model'


class Entry(NamedTuple):
    """A key of the schedule, its value, the settings that say so, and what a reader should know of it."""

    key: str
    value: Any
    by: tuple[str, ...] = ()
    note: str = ''


class Unmapped(NamedTuple):
    """A setting that has no key as it stands, why, and whether it is not modelled or has no effect."""

    by: str
    note: str = ''
    reason: str = NOT_MODELLED


class Guess(NamedTuple):
    """What the file does not say and the schedule needs; ``of_cluster``, where it is the size of the cluster."""

    what: str
    of_cluster: bool = False


class Mistake(NamedTuple):
    """What keeps a schedule from being written: a setting, or none, what is wrong and what to do."""

    by: str
    what: str
    instead: str


Finding = Entry | Unmapped | Guess | Mistake


def value_of(key: str, findings: Iterable[Finding]) -> Any:
    """The value that a key has after findings: that of the last one; None where none has it."""
    values = [one.value for one in findings if isinstance(one, Entry) and one.key == key]
    return values[-1] if values else None
