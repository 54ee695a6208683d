"""Journal: the finished rows of a sweep in a file, each by what its prediction rests on."""

from __future__ import annotations

import errno
import functools
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from simpar import __version__, profiles
from simpar.document import Tree, build, dump, one_screen
from simpar.errors import Problem, ProfileError, ScheduleError, refuse
from simpar.schedule import Schedule, written
from simpar.session import Session
from simpar.sweep.answer import Outcome

FILES: Final = 64
"""Results of a session that reads files of schedules: more than those of one."""


def identity(schedule: Schedule) -> str:
    """Equal for schedules of which, in one run, the same prediction comes."""
    # ``against`` and ``sweep`` change no prediction of the row itself.
    beside = json.dumps({**written(schedule), 'cluster': None, 'against': None, 'sweep': None, 'planner': None})
    return f'{json.dumps(dump(schedule.cluster))} {beside}'


def content_key(name: str, schedule: Schedule, session: Session | None = None) -> str:
    """Equal for schedules of which the same prediction comes, on any machine and at any time.

    Arguments: ``name``, its ``identity``; ``session``, as of ``read_content``.
    """
    return _digest([name, read_content(schedule, session), source_content()])


def places(schedule: Schedule) -> str:
    """Equal where messages about a schedule name the same lines."""
    return _digest(sorted((str(key), place) for key, place in schedule.origins.items()))


def read_content(schedule: Schedule, session: Session | None = None) -> str:
    """Equal where the files that a prediction reads are the same: profile and stack with those that they extend, the
    profile's tables, a pipeline's order, and the tables beside the profiles that come with simpar.

    Arguments: ``session`` of many rows, of ``FILES`` results, which reads a file again where it has changed.
    """
    shared = session or Session(FILES)
    order, cluster = schedule.plan.order, schedule.cluster
    files = [schedule.folder / order] if order.endswith('.csv') else []
    files += sorted(profiles.profile_folder().glob('*.csv'))
    # Of a profile that is wrong no prediction comes; what is wrong with it is in its file.
    with suppress(ProfileError):
        own = tuple(Path(name) for name, _ in profiles.profile_files(cluster.profile))
        files += own
        files += shared.once(_tables, profile=str(own[0]), stamps=[_stamp(file) for file in own])
    with suppress(ProfileError):
        files += (Path(name) for name, _ in (profiles.stack_files(cluster.stack) if cluster.has_stack else ()))
    return _digest([shared.once(_content, file=file, stamp=_stamp(file)) for file in files])


@functools.cache
def source_content() -> str:
    """Equal for the same simpar: its version, its source files and the tables among them."""
    # A checkout keeps its version while it is worked on.
    package = Path(__file__).parent.parent
    paths = (file for file in package.rglob('*') if file.suffix in ('.py', '.csv', '.yaml'))
    files = sorted(paths, key=lambda file: file.relative_to(package).parts)
    named = [(file.relative_to(package).as_posix(), sha256(file.read_bytes()).hexdigest()) for file in files]
    return _digest([__version__, named])


def _stamp(file: Path) -> tuple[int, int]:
    """Time of the last change and size; zeros where there is no such file."""
    try:
        status = os.stat(file)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _content(file: Path, stamp: tuple[int, int]) -> str:
    """Arguments: ``stamp``, so that a changed file is read again."""
    return sha256(file.read_bytes()).hexdigest() if any(stamp) else ''


def _tables(profile: str, stamps: list[tuple[int, int]]) -> list[Path]:
    """The files of a profile's tables; ``stamps`` as of ``_content``, of it and of those that it extends."""
    tables = profiles.load_profile(profile).tables
    entries = (getattr(tables, kind) for kind in profiles.COLUMNS)
    return [Path(table.file) for table in entries if table is not None]


def _digest(value: object) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()


# Journal: the finished rows of a sweep in a file, a line each as they come, so that an interrupted sweep goes on.


HEAD: Final = b'{"format": "simpar sweep rows 1"}\n'
_SECONDS: Final = 1.0
"""Longest time for which finished rows are not yet on the disk itself, but with the operating system."""
_MEND: Final = 'delete the line, and its row is predicted again'


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a row is known by.

    Arguments:
        key: as of ``content_key``.
        places: as of ``places``.
        settings: dotted keys and what the row sets them to, for readers of the file; None of a baseline.
    """

    key: str
    places: str
    settings: Mapping[str, Any] | None = None


def wanted_of(schedule: Schedule, settings: Mapping[str, Any] | None, session: Session) -> Wanted:
    """What a schedule is known by; arguments: ``settings``, as of ``Wanted``; ``session``, as of ``read_content``."""
    key = content_key(identity(schedule), schedule, session)
    return Wanted(key=key, places=places(schedule), settings=settings)


class Journal:
    """A file of finished rows; nothing is made before the first row is written.

    A line that was torn when the process ended is left out, and so is a row of another schedule, profile or simpar.

    Arguments: ``path``, in a folder that exists.
    Raises ``ScheduleError`` with file:line of every broken line, ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._kept: dict[str, tuple[int, dict[str, Any]]] = {}
        """By key: line and content."""
        self._whole = 0
        """Bytes of whole lines."""
        self._synced = time.monotonic()
        self._read()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, wanted: Sequence[Wanted]) -> dict[str, Outcome]:
        """The outcomes, by key, of those rows that are finished; raises ``ScheduleError`` with all that is wrong."""
        outcomes: dict[str, Outcome] = {}
        problems: list[Problem] = []
        for row in wanted:
            number, line = self._kept.get(row.key, (0, {}))
            # A message about a row names lines of the schedule's file: it holds as long as they stay where they are.
            if not line or line.get('places') not in ('', row.places):
                continue
            try:
                outcomes[row.key] = build(Tree(root=line.get('outcome'), origins={(): self._place(number)}), Outcome)
            except ScheduleError as wrong:
                problems += [Problem(one.place, one.what, _MEND) for one in wrong.problems]
        refuse(one_screen(problems))
        return outcomes

    def write(self, row: Wanted, outcome: Outcome) -> None:
        """Append a finished row; it stays whatever becomes of this process."""
        line = {
            'settings': row.settings,
            'outcome': dump(outcome),
            'key': row.key,
            'places': row.places if outcome.detail else '',
        }
        data = json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b'\n'
        try:
            self._append(data)
        except OSError as wrong:
            raise OSError(wrong.errno, wrong.strerror, str(self.path)) from None

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            # A torn line would make the next one unreadable, too.
            os.ftruncate(self._file, self._whole)
            data = data if self._whole else HEAD + data
        # In one write, so that a line is there or not.
        if os.write(self._file, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        now = time.monotonic()
        # Only a machine that fails loses what is not yet on the disk, and each wait for it takes milliseconds.
        if now - self._synced > _SECONDS:
            os.fsync(self._file)
            self._synced = now

    def _read(self) -> None:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        # ``torn`` is what follows the last whole line: mostly nothing.
        *lines, torn = data.split(b'\n')
        first = lines[0] + b'\n' if lines else torn
        # Someone else's file is neither read nor written.
        if not (first == HEAD or (not lines and HEAD.startswith(torn))):
            raise ScheduleError(Problem(self._place(1), 'not rows of a simpar sweep', 'name another file as --journal'))
        read = {number: _row(text) for number, text in enumerate(lines[1:], 2)}
        broken = [number for number, line in read.items() if line is None]
        if broken:
            raise ScheduleError(
                one_screen([Problem(self._place(number), 'not a finished row', _MEND) for number in broken])
            )
        self._kept = {line['key']: (number, line) for number, line in read.items() if line is not None}
        self._whole = len(data) - len(torn)

    def _place(self, number: int) -> str:
        return f'{self.path}:{number}'


def _row(text: bytes) -> dict[str, Any] | None:
    """What a line holds; None where that is no row."""
    try:
        line = json.loads(text)
    # Brackets without end nest deeper than Python does.
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and isinstance(line.get('key'), str) else None
