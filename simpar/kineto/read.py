"""Kineto files read back: the kernels, host ops and steps of one rank's recording."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from simpar.errors import Problem, ScheduleError
from simpar.files import read_regular
from simpar.interval_sets import Intervals, length, minus, union
from simpar.kineto.names import KernelKind, kind_of

MOST_BYTES: Final = 2**31
"""Of a recording, unpacked."""
MICROSECOND: Final = 1e-6
STEP: Final = re.compile(r'ProfilerStep#\d+')
DEVICE: Final = frozenset({'kernel', 'gpu_memcpy', 'gpu_memset', 'memcpy', 'memset', 'mtia_ccp_events'})
"""Categories, in lower case, of what runs on a device; launches and waits of a host may have a stream, too."""
_COPIES: Final = DEVICE - {'kernel', 'mtia_ccp_events'}
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Interval:
    """Something from ``start`` to ``end`` seconds, on a thread or a stream.

    Arguments: ``category`` and ``args`` as recorded.
    """

    name: str
    category: str
    place: int
    start: float
    end: float
    args: Event

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.end - self.start

    @property
    def kind(self) -> KernelKind:
        """Of a kernel, by its category or its name."""
        return 'memory' if self.category.lower() in _COPIES else kind_of(self.name)

    @property
    def on_device(self) -> bool:
        """Whether it ran on a device; launches and waits of a host may name a stream, too."""
        return self.category.lower() in DEVICE


@dataclass(frozen=True, eq=False)
class Recording:
    """What a profiler wrote of one rank; all in the order of their starts.

    Arguments:
        rank, world: which rank of how many; of one where the file does not say.
        device: its name; empty where nothing but the host was recorded.
        origin: seconds on the recording's clock that all times are counted from.
        kernels: what ran on device streams. host: what ran on threads: ops, launches and annotations.
    """

    rank: int
    world: int
    device: str
    origin: float
    kernels: tuple[Interval, ...]
    host: tuple[Interval, ...]

    @cached_property
    def steps(self) -> tuple[Interval, ...]:
        """The profiler's steps, each once."""
        found: dict[str, Interval] = {}
        for each in self.host:
            if STEP.fullmatch(each.name):
                found.setdefault(each.name, each)
        return tuple(found.values())

    @cached_property
    def whole_kernels(self) -> tuple[Interval, ...]:
        """The kernels of whole steps: a profiler's last step is cut, so what was launched in it or later is left out.

        As Holistic Trace Analysis: all kernels where there is no more than one step.
        """
        if len(self.steps) < 2:
            return self.kernels
        last = max(step.start for step in self.steps)
        launched = {correlation(each) for each in self.host if each.start < last} - {None}
        return tuple(kernel for kernel in self.kernels if correlation(kernel) in launched)


def correlation(each: Interval) -> int | None:
    """What a launch and its kernel have in common; None for what has none."""
    found = each.args.get('correlation')
    try:
        return None if found is None else int(found)
    except (TypeError, ValueError):
        return None


def is_recording(path: Path) -> bool:
    """Whether a file looks like a Kineto recording, or a folder holds one."""
    if path.is_dir():
        return any(map(is_recording, sorted(_files(path))[:1]))
    try:
        with gzip.open(path) if path.name.endswith('.gz') else path.open('rb') as file:
            head = file.read(2**16)
    except (OSError, EOFError, zlib.error):
        return False
    return b'"traceEvents"' in head or b'"schemaVersion"' in head or b'"deviceProperties"' in head


def read_recordings(path: Path) -> list[Recording]:
    """The recordings of a file or of a folder with a file for each rank, by rank.

    Raises ``ScheduleError`` for what is no Kineto JSON, or where two files are of one rank.
    """
    files = sorted(_files(path)) if path.is_dir() else [path]
    found = [(file, read_recording(file)) for file in files]
    if not found:
        raise ScheduleError(Problem(str(path), 'holds no file that ends in .json or .json.gz'))
    ranks = [recording.rank for _, recording in found]
    twice = [str(file) for (file, recording), rank in zip(found, ranks, strict=True) if ranks.count(rank) > 1]
    if twice:
        raise ScheduleError(
            Problem(str(path), f'{", ".join(twice[:4])} are of one rank', 'keep one file for each rank')
        )
    return sorted((recording for _, recording in found), key=lambda recording: recording.rank)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.iterdir() if file.name.endswith(('.json', '.json.gz')))


def read_recording(path: Path) -> Recording:
    """The recording of one file, ``.json`` or ``.json.gz``."""
    root = _json(path)
    told = root.get('distributedInfo') or {}
    events = root.get('traceEvents')
    if not isinstance(events, list) or not isinstance(told, dict):
        raise ScheduleError(Problem(str(path), 'has no list traceEvents', 'write a trace by torch.profiler'))
    origin, found = _intervals(path, events)
    intervals = sorted(found, key=lambda each: (each.start, -each.end))
    devices = root.get('deviceProperties') or [{}]
    name = devices[0].get('name', '') if isinstance(devices, list) and isinstance(devices[0], dict) else ''
    kernels = tuple(each for each in intervals if each.on_device)
    if not intervals:
        raise ScheduleError(Problem(str(path), 'has no event that lasts', 'record at least one step by torch.profiler'))
    return Recording(
        rank=_whole(told.get('rank'), 0),
        world=_whole(told.get('world_size'), 1),
        device=str(name) if kernels else '',
        origin=origin * MICROSECOND,
        kernels=kernels,
        host=tuple(each for each in intervals if not each.on_device),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        data = read_regular(path, MOST_BYTES)
        if path.name.endswith('.gz'):
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(MOST_BYTES + 1)
    except OSError as error:
        raise ScheduleError(Problem(str(path), f'cannot be read: {error.strerror or error}')) from None
    except (EOFError, zlib.error) as error:
        raise ScheduleError(Problem(str(path), f'is no gzip file: {error}')) from None
    if len(data) > MOST_BYTES:
        raise ScheduleError(Problem(str(path), f'holds more than {MOST_BYTES} bytes', 'record fewer steps'))
    try:
        root = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ScheduleError(Problem(str(path), f'is no JSON: {error}', 'write a trace by torch.profiler')) from None
    if not isinstance(root, dict):
        raise ScheduleError(Problem(str(path), 'is no JSON object', 'write a trace by torch.profiler'))
    return root


def _intervals(path: Path, events: list[Any]) -> tuple[float, list[Interval]]:
    """All that lasts, and the microseconds that it is counted from; what has no numbers is told."""
    lasting = [(number, event) for number, event in enumerate(events) if _lasts(event)]
    times = [_times(path, number, event) for number, event in lasting]
    # From the first on: of microseconds since 1970, seconds in doubles would lose the last three digits.
    origin = min((begin for begin, _ in times), default=0.0)
    return origin, [
        Interval(
            str(event.get('name')), str(event['cat']), _place(event),
            (begin - origin) * MICROSECOND, (begin + seconds - origin) * MICROSECOND, _args(event),
        )
        for (_, event), (begin, seconds) in zip(lasting, times, strict=True)
    ]  # fmt: skip


def _lasts(event: Any) -> bool:
    return isinstance(event, dict) and event.get('ph') == 'X' and event.get('cat') not in {None, 'Trace'}


def _times(path: Path, number: int, event: Event) -> tuple[float, float]:
    """When an event begins and how long it lasts, in microseconds."""
    try:
        begin, lasts = float(event['ts']), float(event.get('dur', 0.0))
    except (KeyError, TypeError, ValueError):
        raise ScheduleError(Problem(f'{path}: traceEvents.{number}', 'has no numbers ts and dur')) from None
    if not (abs(begin) < 1e18 and 0 <= lasts < 1e18):
        raise ScheduleError(Problem(f'{path}: traceEvents.{number}', 'ts or dur is no time'))
    return begin, lasts


def _args(event: Event) -> Event:
    args = event.get('args')
    return args if isinstance(args, dict) else {}


def _place(event: Event) -> int:
    return _whole(_args(event).get('stream', event.get('tid')), -1)


def _whole(found: Any, otherwise: int) -> int:
    """A number as files of any age write it: also as text."""
    try:
        return int(found)
    except (TypeError, ValueError):
        return otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Seconds of a rank's device, of whole steps.

    Arguments:
        span: from the first kernel's start to the last one's end. idle: of it without any kernel.
        compute: with a compute kernel. exposed: busy without a compute kernel: communication and memory alone.
        communication: with a communication kernel. overlap: the share of that beside compute.
    """

    span: float
    idle: float
    compute: float
    exposed: float
    communication: float
    overlap: float


def busy(recording: Recording) -> Busy:
    """How the device of a recording spent its time; all 0 where no kernel was recorded."""
    kernels = recording.whole_kernels
    everything = _of(kernels)
    if not len(everything):
        return Busy(span=0.0, idle=0.0, compute=0.0, exposed=0.0, communication=0.0, overlap=0.0)
    compute = _of([kernel for kernel in kernels if kernel.kind == 'compute'])
    communication = _of([kernel for kernel in kernels if kernel.kind == 'communication'])
    span = float(everything[:, 1].max() - everything[:, 0].min())
    busy_seconds, computing, talking = length(everything), length(compute), length(communication)
    alone = length(minus(communication, compute)) if talking else 0.0
    return Busy(
        span=span,
        idle=span - busy_seconds,
        compute=computing,
        exposed=busy_seconds - computing,
        communication=talking,
        overlap=1 - alone / talking if talking else 0.0,
    )


def _of(kernels: Sequence[Interval]) -> Intervals:
    return union(np.array([(kernel.start, kernel.end) for kernel in kernels]).reshape(-1, 2))
