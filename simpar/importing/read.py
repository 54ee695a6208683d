"""A file of another launcher, by what it is: the schedule that it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from simpar.errors import Problem, ScheduleError
from simpar.files import read_regular
from simpar.importing.command_line import settings_of
from simpar.importing.mapping import Imported, mapped
from simpar.importing.megatron import MEGATRON
from simpar.profiles import load_profile

MOST_BYTES: Final = 2**20


def imported(path: Path, *, given: Mapping[str, str], profile: str = '') -> Imported:
    """What a file says, as a schedule.

    Arguments: ``given``, what ``--set`` says of the file's variables and settings; ``profile`` of the cluster.
    Raises ``ScheduleError``.
    """
    text = _text(path)
    source = MEGATRON
    settings, skipped, notes = settings_of(text, str(path), source, given)
    name = profile or source.profile
    made = mapped(source, settings, profile=load_profile(name), name=name, skipped=skipped)
    return Imported(made.kind, made.values, made.comments, made.lines, made.assumed, notes)


def _text(path: Path) -> str:
    try:
        return read_regular(path, MOST_BYTES).decode('utf-8-sig')
    except UnicodeDecodeError:
        raise ScheduleError(Problem(str(path), 'not text in UTF-8', 'save it as UTF-8')) from None
    except (OSError, ValueError) as error:
        why = getattr(error, 'strerror', None) or error
        raise ScheduleError(Problem(str(path), f'cannot be read: {why}', 'check the path')) from None
