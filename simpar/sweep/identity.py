"""identity: what a prediction rests on, as a text that is equal where the prediction is equal."""

from __future__ import annotations

import functools
import json
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from simpar import __version__
from simpar.document import dump
from simpar.errors import ProfileError
from simpar.profiles import COLUMNS, load_profile, profile_path
from simpar.schedule import Schedule, written
from simpar.session import Kept, Same


def identity(schedule: Schedule) -> str:
    """Equal for schedules of which, in one run, the same prediction comes."""
    beside = _beside.get(Same(schedule.workload, schedule.plan), lambda: _without_cluster(schedule))
    return f'{json.dumps(dump(schedule.cluster))} {beside}'


def _without_cluster(schedule: Schedule) -> str:
    """The text of what rows that differ in prices share."""
    # ``against`` and ``sweep`` change no prediction of the row itself.
    return json.dumps({**written(schedule), 'cluster': None, 'against': None, 'sweep': None, 'planner': None})


_beside: Final[Kept[Same, str]] = Kept(4)
"""By the very objects: comparing them takes longer than to write them."""


def content_key(name: str, schedule: Schedule) -> str:
    """Equal for schedules of which the same prediction comes, on any machine and at any time.

    Arguments: ``name``, its ``identity``.
    """
    return _digest([name, read_content(schedule), source_content()])


def places(schedule: Schedule) -> str:
    """Equal where messages about a schedule name the same lines."""
    return _digest(sorted((str(key), place) for key, place in schedule.origins.items()))


def read_content(schedule: Schedule) -> str:
    """Equal where the files that a prediction reads are the same: the profile, its tables, a pipeline's order."""
    order = schedule.plan.order
    files = [schedule.folder / order] if order.endswith('.csv') else []
    # Of a profile that is wrong no prediction comes; what is wrong with it is in its file.
    with suppress(ProfileError):
        files.append(profile_path(schedule.cluster.profile))
        files += map(Path, _tables(str(files[-1]), _stamp(files[-1])))
    return _digest([_content(str(file), _stamp(file)) for file in files])


@functools.cache
def source_content() -> str:
    """Equal for the same simpar: its version and its source files."""
    # A checkout keeps its version while it is worked on.
    package = Path(__file__).parent.parent
    files = sorted(package.rglob('*.py'), key=lambda file: file.relative_to(package).parts)
    named = [(file.relative_to(package).as_posix(), sha256(file.read_bytes()).hexdigest()) for file in files]
    return _digest([__version__, named])


def _stamp(file: Path) -> tuple[int, int]:
    """Time of the last change and size; zeros where there is no such file."""
    try:
        found = os.stat(file)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


@functools.lru_cache(maxsize=256)
def _content(file: str, stamp: tuple[int, int]) -> str:
    """Arguments: ``stamp``, so that a changed file is read again."""
    return sha256(Path(file).read_bytes()).hexdigest() if any(stamp) else ''


@functools.lru_cache(maxsize=64)
def _tables(profile: str, stamp: tuple[int, int]) -> tuple[str, ...]:
    """The files of a profile's tables; ``stamp`` as of ``_content``."""
    tables = load_profile(profile).tables
    found = (getattr(tables, kind) for kind in COLUMNS)
    return tuple(table.file for table in found if table is not None)


def _digest(value: object) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()
