"""Kineto recordings (torch.profiler on CUDA, ROCm, MTIA and hosts) as tables of kernels and of the host's ops."""

import json
import re
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from itertools import chain
from math import prod
from pathlib import Path
from sys import intern
from typing import Any, Final, Literal

import msgspec
import numpy as np

from simpar.errors import Problem, ScheduleError, refusal
from simpar.files import read_csv
from simpar.traces.stream import Plain, Stream
from simpar.traces.table import COMMUNICATION, COMPUTE, COPY, HOST, NO_STEP, Ints, Kernels, RankTrace, table_of

# Names of kernels: which of them communicate or copy, whatever library they are of.


KernelKind = Literal['compute', 'communication', 'memory', 'other']
_WAITS = re.compile(r'.*Sync')
_KINDS_OF: Final = read_csv(Path(__file__).with_name('kernels.csv'))
_NAMED: Final[tuple[KernelKind, ...]] = ('compute', 'communication', 'memory')
_PATTERNS: Final = tuple(
    (kind, re.compile('|'.join(f'(?:{row["pattern"]})' for row in _KINDS_OF if row['kind'] == kind), re.IGNORECASE))
    for kind in _NAMED
)


@lru_cache(maxsize=4096)
def kind_of(name: str) -> KernelKind:
    """What a kernel does, by its name. Source: the table ``kernels.csv`` beside this file."""
    for kind, pattern in _PATTERNS:
        if pattern.search(name):
            return kind
    return 'other' if _WAITS.match(name) else 'compute'


DEVICE: Final = frozenset({'kernel', 'gpu_memcpy', 'gpu_memset', 'memcpy', 'memset', 'mtia_ccp_events'})
"""Categories, in lower case, of what runs on a device; launches and waits of a host may have a stream, too."""
_COPIES: Final = DEVICE - {'kernel', 'mtia_ccp_events'}
_NOBODY: Final = frozenset({None, 'Trace', 'gpu_user_annotation', 'overhead'})
"""Categories of what neither a device nor a host does: annotations drawn a second time, the profiler's own."""
KINETO: Final = 'Kineto'
GLOO: Final = 'gloo:'
_STEP = re.compile(r'ProfilerStep#(\d+)')
_KINDS: Final = {'communication': COMMUNICATION, 'memory': COPY}
_EXACT: Final = 2.0**53 / 1000
"""Microseconds of which a double holds the nanoseconds."""
SIZES: Final = {
    'float': 4, 'double': 8, 'c10::BFloat16': 2, 'c10::Half': 2, 'long int': 8, 'int': 4, 'Float': 4, 'BFloat16': 2,
    'Half': 2, 'Double': 8, 'Long': 8, 'Int': 4, 'Float8_e4m3fn': 1, 'Byte': 1, 'Char': 1,
}  # fmt: skip
"""Bytes of torch's numbers, by both of their names."""


class _Arguments(msgspec.Struct, gc=False):
    """What is kept of an event's arguments; older files write numbers as texts."""

    stream: Any = None
    correlation: Any = -1
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name='Input Dims')
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name='Input type')
    collective: Any = msgspec.field(default='', name='Collective name')
    taken: Any = msgspec.field(default=0, name='In msg nelems')
    given: Any = msgspec.field(default=0, name='Out msg nelems')
    size: Any = msgspec.field(default=0, name='Group size')
    dtype: Any = ''
    ranks: Any = msgspec.field(default='', name='Process Group Ranks')
    group: Any = msgspec.field(default='', name='Process Group Name')
    sender: Any = msgspec.field(default=None, name='Src Rank')
    receiver: Any = msgspec.field(default=None, name='Dst Rank')
    phase: Any = None
    grid: msgspec.Raw = msgspec.Raw()
    item: Any = msgspec.field(default=0, name='micro-batch')
    op: Any = ''


class _Event(msgspec.Struct, gc=False):
    ph: Plain = ''
    cat: Plain = None
    name: Plain = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = 0
    args: _Arguments | list[Any] | Plain = None


class _Exact(_Event, gc=False):
    """The same with the digits of its time; of microseconds since 1970 a double holds a quarter of one."""

    ts: msgspec.Raw = msgspec.Raw()


_BARE: Final = _Arguments()


def read_kineto(path: Path, extra: re.Pattern[str] | None = None) -> RankTrace:
    """The kernels and the host's ops of a recording; each kernel is of the step in which it was launched.

    Arguments: ``extra``, further names of communication.
    Raises ``ScheduleError`` for what is no Kineto JSON.
    """
    try:
        return _read(path, extra, _Event)
    except _NeedsDigits:
        return _read(path, extra, _Exact)


class _NeedsDigits(Exception):
    """A time has more digits than a double."""


def _read(path: Path, extra: re.Pattern[str] | None, kind: type[_Event]) -> RankTrace:
    stream = Stream(path, kind)
    made = _Columns(path, extra, kind is _Exact)
    for batch in stream.batches():
        made.add(batch)
    root, table = stream.root, made.table()
    job, devices = root.get('distributedInfo') or {}, root.get('deviceProperties') or [{}]
    if not isinstance(job, dict):
        raise refusal(path, 'has no object distributedInfo', 'write a trace by torch.profiler')
    if not len(table):
        raise refusal(path, 'has no event that lasts', 'record at least one step by torch.profiler')
    name = devices[0].get('name', '') if isinstance(devices, list) and isinstance(devices[0], dict) else ''
    host, kernels = table.of(table.kind == HOST), table.of(table.kind != HOST)
    steps = _steps(host)
    launch = _launches(kernels, host)
    _tell_phases(kernels, host, launch)
    begins = np.array([begin for _, begin, _ in steps], dtype=np.int64)
    kernels.launch[launch >= 0] = host.begin[launch[launch >= 0]]
    kernels.step[:] = np.searchsorted(begins, kernels.launch, side='right') - 1
    host.step[:] = np.searchsorted(begins, host.begin, side='right') - 1
    return RankTrace(
        source=str(path),
        format=KINETO,
        rank=whole_number(job.get('rank'), 0),
        world=whole_number(job.get('world_size'), 1),
        device=str(name) if len(kernels) else '',
        kernels=kernels,
        host=host,
        steps=tuple(number for number, _, _ in steps),
        marks=tuple((begin, end) for _, begin, end in steps),
        # What a device was told in the last of several steps runs on when the profiler has stopped.
        cut=len(steps) - 1 if len(steps) > 1 and len(kernels) else NO_STEP,
        notes=tuple(_said(made.devices)),
    )


def _said(devices: Set[str]) -> Iterator[str]:
    if not devices:
        yield 'no device was recorded'
    if len(devices) > 1:
        names = ', '.join(sorted(devices)[:8])
        yield f'what ran on devices {names} counts together: figures are of their union, not of one device'


def _steps(host: Kernels) -> list[tuple[str, int, int]]:
    """Number, begin and end of the profiler's steps, each once, by begin."""
    by_number: dict[str, tuple[str, int, int]] = {}
    marked = np.flatnonzero(np.fromiter((name.startswith('ProfilerStep#') for name in host.name), bool, len(host)))
    for at in marked.tolist():
        if step := _STEP.fullmatch(host.name[at]):
            by_number.setdefault(step[1], (step[1], int(host.begin[at]), int(host.end[at])))
    return list(by_number.values())


def _launches(kernels: Kernels, host: Kernels) -> Ints:
    """The host's row that launched each kernel, of several of one number the last; -1 where there is none."""
    rows = np.flatnonzero(host.correlation >= 0)
    if not len(rows):
        return np.full(len(kernels), -1)
    rows = rows[np.argsort(host.correlation[rows], kind='stable')]
    numbers = host.correlation[rows]
    at = np.searchsorted(numbers, kernels.correlation, side='right') - 1
    mask = (kernels.correlation >= 0) & (at >= 0) & (numbers[at] == kernels.correlation)
    return np.where(mask, rows[at], -1)


def _tell_phases(kernels: Kernels, host: Kernels, launch: Ints) -> None:
    """Call what autograd's thread launched B, and what the thread of the steps launched F, where nothing says more."""
    marked = next((at for at, name in enumerate(host.name) if name.startswith('ProfilerStep#')), None)
    rows = np.flatnonzero((kernels.kind == COMPUTE) & (launch >= 0) & (kernels.type == ''))
    if marked is not None:
        own = host.stream[launch[rows]] == host.stream[marked]
        # Of one thread alone nothing is told; recordings of simpar launch from another one.
        if own.any():
            kernels.type[rows] = np.where(own, 'F', 'B')


def kind_of_kernel(name: str, extra: re.Pattern[str] | None) -> int:
    """What a kernel does by its name. Arguments: ``extra``, further names of communication."""
    return COMMUNICATION if extra and extra.search(name) else _KINDS.get(kind_of(name), COMPUTE)


class _Columns:
    """The columns of a table, batch by batch."""

    def __init__(self, path: Path, extra: re.Pattern[str] | None, exact: bool) -> None:
        self.path, self.extra, self.exact = path, extra, exact
        self.seen = 0
        self.parts: list[dict[str, Any]] = []
        # Of each value once; a call of these takes less than one of a method.
        self.shape = lru_cache(maxsize=None)(bytes.decode)
        self.kind = lru_cache(maxsize=None)(self._event_kind)
        self.gloo: set[Any] = set()
        self.devices: set[str] = set()

    def add(self, batch: Sequence[_Event]) -> None:
        """Append what lasts."""
        rows = [event for event in batch if event.ph == 'X' and event.cat not in _NOBODY]
        if any(str(event.cat).lower() in DEVICE for event in [event for event in batch if event.ph == 'B']):
            what = 'has kernels as begins and ends apart'
            raise refusal(self.path, what, 'write it by torch.profiler, an event for each kernel')
        args = [event.args if isinstance(event.args, _Arguments) else _BARE for event in rows]
        begin, lasts = self._times(rows, batch)
        kind = np.array([self.kind(event.cat, event.name) for event in rows], dtype=np.int64)
        self.seen += len(batch)
        # What runs on a device is drawn in a process of this device.
        self.devices.update({str(rows[at].pid) for at in np.flatnonzero(kind != HOST).tolist()})
        ranks, size = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        types, groups = [''] * len(rows), [''] * len(rows)
        for at in np.flatnonzero(kind == COMMUNICATION).tolist():
            one = args[at]
            elements = max(whole_number(one.taken, 0), whole_number(one.given, 0))
            size[at], ranks[at] = elements * SIZES.get(str(one.dtype), 0), whole_number(one.size, 0)
            types[at], groups[at] = str(one.collective), str(one.ranks or one.group or '')
            if one.sender is not None and one.receiver is not None:
                groups[at] = f'{one.sender}→{one.receiver}'
        for at in np.flatnonzero(kind == COMPUTE).tolist():
            # What simpar's own files say; others, the thread of the launch.
            if args[at].phase is not None:
                types[at] = f'{args[at].phase}{args[at].item}'
        for at in [at for at, event in enumerate(rows) if event.name in self.gloo] if self.gloo else ():
            size[at], groups[at] = _moved(bytes(args[at].dims), bytes(args[at].types)), str(args[at].ranks or '')
            types[at] = str(rows[at].name).removeprefix(GLOO)
        correlations = [one.correlation for one in args]
        numbers = [
            number if number.__class__ is int and number < 2**63 else whole_number(number, -1)
            for number in correlations
        ]
        places = [event.tid if one.stream is None else one.stream for event, one in zip(rows, args, strict=True)]
        self.parts.append({
            'begin': begin, 'end': begin + lasts, 'kind': kind, 'bytes': size, 'ranks': ranks, 'type': types,
            'correlation': np.array(numbers, dtype=np.int64),
            'name': [intern(str(event.name)) for event in rows],
            'stream': [intern(str(place)) for place in places],
            'group': list(map(intern, groups)),
            # Simpar's own recordings name the op of their schedule.
            'shapes': [intern(str(one.op)) if one.op else self.shape(bytes(one.dims or one.grid)) for one in args],
        })  # fmt: skip

    def table(self) -> Kernels:
        """All of it."""
        columns = {name: [part[name] for part in self.parts] for name in self.parts[0]}
        return table_of({
            name: np.concatenate(each) if isinstance(each[0], np.ndarray) else [*chain.from_iterable(each)]
            for name, each in columns.items()
        })  # fmt: skip

    def _event_kind(self, category: Plain, named: Plain) -> int:
        place, name = str(category).lower(), str(named)
        if place not in DEVICE:
            if name.startswith(GLOO):
                self.gloo.add(named)
            return HOST
        if place in _COPIES:
            return COPY
        return kind_of_kernel(name, self.extra)

    def _times(self, rows: Sequence[_Event], batch: Sequence[_Event]) -> tuple[Ints, Ints]:
        """Begins and durations in whole nanoseconds."""
        try:
            lasts = np.array([event.dur for event in rows], dtype=np.float64)
            if self.exact:
                begin = np.array([_digits(bytes(event.ts)) for event in rows], dtype=np.int64)
            else:
                begin = _nanoseconds([event.ts for event in rows])
        except (TypeError, ValueError, OverflowError):
            raise ScheduleError(self._untimed(batch)) from None
        if not ((np.abs(begin) < 2**62) & (lasts >= 0) & (lasts < 2.0**52)).all():
            raise ScheduleError(self._untimed(batch))
        return begin, np.rint(lasts * 1000).astype(np.int64)

    def _untimed(self, batch: Sequence[_Event]) -> Problem:
        """The first event whose times are none."""
        for number, event in enumerate(batch, self.seen):
            if event.ph == 'X' and event.cat not in _NOBODY:
                try:
                    _digits(bytes(event.ts) if self.exact else str(event.ts).encode())
                    wrong = not 0 <= float(event.dur) < 2.0**52
                except (TypeError, ValueError, OverflowError):
                    return Problem(f'{self.path}: traceEvents.{number}', 'has no numbers ts and dur')
                if wrong:
                    return Problem(f'{self.path}: traceEvents.{number}', 'ts or dur is no time')
        return Problem(str(self.path), 'ts or dur is no time')


def _nanoseconds(times: Sequence[Any]) -> Ints:
    """Of microseconds, whole ones exactly. Raises ``_NeedsDigits``, and what numpy raises of what is no number."""
    microseconds = np.array(times, dtype=np.float64)
    if (np.abs(microseconds) < _EXACT).all():
        return np.rint(microseconds * 1000).astype(np.int64)
    if not all(one.__class__ is int for one in times):
        raise _NeedsDigits
    return np.array(times, dtype=np.int64) * 1000


def _digits(text: bytes) -> int:
    """Nanoseconds of microseconds as written, also within quotes. Raises ``ValueError``."""
    number = text.strip(b'" ').decode()
    before, point, part = number.partition('.')
    if before.lstrip('-').isdecimal() and len(before) <= 16 and (not point or part.isdecimal()):
        digits = int((part + '000')[:3]) + (len(part) > 3 and part[3] >= '5')
        return int(before) * 1000 + (-digits if number.startswith('-') else digits)
    microseconds = float(number)
    if not abs(microseconds) < _EXACT * 500:
        raise ValueError(f'no time: {number[:40]}')
    return round(microseconds * 1000)


@lru_cache(maxsize=4096)
def _moved(dims: bytes, types: bytes) -> int:
    """Bytes of the tensors that an op of gloo names."""
    names = json.loads(types) if types else []
    size = SIZES.get(str(names[0]), 0) if isinstance(names, list) and names else 0
    return sum(prod(shape) for shape in shapes_of(dims.decode())) * size


@lru_cache(maxsize=4096)
def shapes_of(text: str) -> tuple[tuple[int, ...], ...]:
    """``[[4096, 1024], []]`` as shapes; lists of tensors, and what is none, are empty."""
    shapes = json.loads(text) if text else []
    if not isinstance(shapes, list):
        return ()
    return tuple(tuple(one) if isinstance(one, list) and all(isinstance(n, int) for n in one) else () for one in shapes)


def whole_number(raw: Any, otherwise: int) -> int:
    """A number as files of any age write it: also as text; what is none, or has more than 63 bits, is ``otherwise``."""
    if raw.__class__ is int and -(2**63) <= raw < 2**63:
        return int(raw)
    try:
        number = int(raw)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if -(2**63) <= number < 2**63 else otherwise
