"""What every recording becomes: kernels of a rank, and ops of its host, as columns; its steps; how busy it was."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.interval_sets import length

COMPUTE: Final = 0
COMMUNICATION: Final = 1
COPY: Final = 2
HOST: Final = 3
"""Kinds of rows."""
NO_STEP: Final = -1
Ints = NDArray[np.int64]
Texts = NDArray[np.object_]
NANOSECOND: Final = 1e-9
_UNTOLD: Final[Mapping[str, int]] = {'step': NO_STEP, 'correlation': -1}
"""What stands in a column of numbers of which a file says nothing; 0 in the others."""


class Call(NamedTuple):
    """A collective that a rank came to: the how-manieth of its group, what it does and of what, whether it is over."""

    number: int
    name: str
    over: bool


class Row(NamedTuple):
    """A kernel, or an op of the host; seconds from an origin. The rest as in ``Kernels``."""

    start: float
    end: float
    kind: int
    name: str
    type: str
    stream: str
    group: str
    shapes: str
    correlation: int
    bytes: int
    ranks: int

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernels:
    """What ran on a device, or on a host, a row each, in the order of their begins.

    Arguments:
        begin, end: nanoseconds on the recording's clock.
        kind: ``COMPUTE``, ``COMMUNICATION``, ``COPY`` or ``HOST``.
        step: an index into the steps of the rank; ``NO_STEP`` for none.
        name, type: as recorded; ``type``, of an operator, a collective or a number, is empty where nothing tells it.
        stream: of the device; of the host, its thread. group: of a collective, its ranks or its communicator.
        shapes, results: of what is read and written, as recorded; of a CUDA kernel its grid.
        correlation: what a launch and its kernel have in common; -1 for none.
        launch: nanoseconds when the host launched it; its begin where nothing tells it.
        bytes, ranks: of a message, the larger of what it takes and gives, and of how many; 0 where nothing tells it.
    """

    begin: Ints
    end: Ints
    kind: Ints
    step: Ints
    name: Texts
    type: Texts
    stream: Texts
    group: Texts
    shapes: Texts
    results: Texts
    correlation: Ints
    launch: Ints
    bytes: Ints
    ranks: Ints

    def __len__(self) -> int:
        return len(self.begin)

    def of(self, rows: NDArray[Any]) -> Kernels:
        """Some of the rows: a mask, or their indices."""
        return Kernels(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})

    def rows(self, origin: int) -> Iterator[Row]:
        """Each row. Arguments: ``origin``, nanoseconds that its times are counted from, so that no digit is lost."""
        times = ((column - origin) * NANOSECOND for column in (self.begin, self.end))
        others = (getattr(self, name) for name in Row._fields[2:])
        return map(Row, *(column.tolist() for column in (*times, *others)))


_TEXTS: Final = frozenset({'name', 'type', 'stream', 'group', 'shapes', 'results'})
_NAMES: Final = tuple(one.name for one in fields(Kernels))


class Listed:
    """Rows, one after the other; what is alike of them but their numbers is held once.

    Arguments: names of further columns of numbers.
    """

    def __init__(self, *names: str) -> None:
        self.numbers: dict[str, array[int]] = {name: array('q') for name in ('begin', 'end', 'codes', *names)}
        self.known: dict[tuple[Any, ...], int] = {}

    def code(self, *told: Any) -> int:
        """The number of what rows have in common. Arguments: as the columns above, from ``kind`` to ``results``."""
        return self.known.setdefault(told, len(self.known))

    def add(self, *row: int) -> None:
        """One more row: its begin, end, code and further numbers."""
        for column, number in zip(self.numbers.values(), row, strict=True):
            column.append(number)

    def extend(self, *columns: Ints) -> None:
        """More of them."""
        for column, more in zip(self.numbers.values(), columns, strict=True):
            column.frombytes(more.tobytes())

    def kernels(self, chosen: NDArray[np.bool_] | None = None) -> Kernels:
        """All of them, sorted by begin, or those of some codes."""
        numbers: dict[str, Any] = {name: np.array(column, dtype=np.int64) for name, column in self.numbers.items()}
        if chosen is not None:
            numbers = {name: column[chosen[numbers['codes']]] for name, column in numbers.items()}
        columns = zip(_NAMES[2:10], zip(*self.known, strict=True), strict=False)
        return table_of(numbers | {name: Coded(values, numbers['codes']) for name, values in columns})


class Coded(NamedTuple):
    """A column of few values. Arguments: ``codes``, which of them stands in each row."""

    values: Sequence[Any]
    codes: Ints


def table_of(columns: Mapping[str, Sequence[Any] | Ints | Coded]) -> Kernels:
    """Kernels of columns, sorted by begin; ``begin`` and ``end`` must be there.

    Raises ``ValueError`` for a row that ends before it begins, and what numpy raises of what is no number.
    """
    begin, end = (np.asarray(columns[name], dtype=np.int64) for name in ('begin', 'end'))
    if (end < begin).any():
        raise ValueError('a row ends before it begins')
    order = np.lexsort((end, begin))
    made: dict[str, Any] = {}
    for name in _NAMES:
        kind = np.object_ if name in _TEXTS else np.int64
        column = columns.get('begin' if name == 'launch' and name not in columns else name)
        if column is None:
            made[name] = np.full(len(order), '' if name in _TEXTS else _UNTOLD.get(name, 0), dtype=kind)
            continue
        values, rows = (column.values, column.codes[order]) if isinstance(column, Coded) else (column, order)
        each = np.empty(len(values), dtype=kind)
        each[:] = values
        made[name] = each[rows]
    return Kernels(**made)


@dataclass(frozen=True, kw_only=True, eq=False)
class RankTrace:
    """What a profiler wrote of one rank.

    Arguments:
        source: the file. format: what wrote it.
        world: ranks of the job; 0 where the file does not say.
        device: its name; empty where the file does not say.
        kernels: None where the profiler's totals alone were written. host: ops of threads, where they were recorded.
        steps: names of the marked steps; empty for a recording without marks.
        marks: begin and end of each step in nanoseconds, where the file says both.
        cut: the index of a step that the profiler cut off, ``NO_STEP`` for none.
        totals: the profiler's own figures by step, where the file has them: name of the figure → nanoseconds.
        calls: of a flight recorder, the collectives of each group that the rank came to.
        notes: what the reader took for granted.
    """

    source: str
    format: str
    rank: int
    world: int = 0
    device: str = ''
    kernels: Kernels | None = None
    host: Kernels | None = None
    steps: tuple[str, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()
    cut: int = NO_STEP
    totals: tuple[dict[str, float], ...] = ()
    calls: Mapping[str, tuple[Call, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def origin(self) -> int:
        """The first begin, in nanoseconds."""
        return min((int(one.begin[0]) for one in (self.kernels, self.host) if one is not None and len(one)), default=0)

    @property
    def on_device(self) -> bool:
        """Whether kernels of a device were recorded."""
        return self.kernels is not None and len(self.kernels) > 0


# How a device spent its time: unions of kernels, by step.


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds of a rank's device.

    Arguments:
        span: from the first begin to the last end. idle: of it without any kernel or copy.
        computing, communication: with a kernel of that kind. overlapped: with both.
        exposed: communication without computation.
        copies: copies of memory beside neither.
    """

    span: float
    computing: float
    communication: float
    overlapped: float
    exposed: float
    copies: float
    idle: float


def figures(kernels: Kernels) -> Figures:
    """Of some kernels; all 0 where there is none.

    Kernels of streams overlap, so each figure is the length of a union, as the profilers' own are.
    """
    return _figures(kernels.begin, kernels.end, kernels.kind)


def _figures(begin: Ints, end: Ints, kind: Ints) -> Figures:
    if not len(begin):
        return Figures(**dict.fromkeys(Figures.__slots__, 0.0))
    first = begin.min()
    # From the first begin on: doubles hold nanoseconds of a hundred days, and their sums, exactly.
    times = np.column_stack((begin - first, end - first)).astype(np.float64)
    computing, communication, both = (
        length(times[rows]) for rows in (kind == COMPUTE, kind == COMMUNICATION, kind != COPY)
    )
    span, busy = float(times[:, 1].max()), length(times)
    sums = (
        span,
        computing,
        communication,
        computing + communication - both,
        both - computing,
        busy - both,
        span - busy,
    )
    return Figures(**{name: value * NANOSECOND for name, value in zip(Figures.__slots__, sums, strict=True)})


def step_figures(trace: RankTrace) -> Iterator[tuple[str, Figures]]:
    """The figures of each whole step by its name; of the whole recording where no step is marked.

    The profiler's own totals stand for a rank whose kernels were not written.
    """
    kernels = trace.kernels
    if kernels is None:
        for name, total in zip(trace.steps, trace.totals, strict=True):
            yield name, Figures(**{figure: value * NANOSECOND for figure, value in total.items()})
    elif not trace.steps:
        yield '', figures(kernels)
    else:
        order = np.argsort(kernels.step, kind='stable')
        bounds = np.searchsorted(kernels.step[order], np.arange(len(trace.steps) + 1))
        for index, name in enumerate(trace.steps):
            if index != trace.cut:
                rows = order[bounds[index] : bounds[index + 1]]
                yield name, _figures(kernels.begin[rows], kernels.end[rows], kernels.kind[rows])


def whole(trace: RankTrace) -> Kernels | None:
    """The kernels of whole steps; all where none is marked."""
    kernels = trace.kernels
    if kernels is None or not trace.steps:
        return kernels
    return kernels.of((kernels.step != NO_STEP) & (kernels.step != trace.cut))
