"""A torch recording joined with a Program: what each of its ops took, and what has no match on either side."""

import re
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from simpar.cost.compute import NO_WORK, PRODUCTS
from simpar.files import read_csv
from simpar.interval_sets import length, minus, union
from simpar.program import COLLECTIVES, OpClass, Program
from simpar.traces import RankTrace, kineto, whole
from simpar.traces.table import COMMUNICATION, NANOSECOND, Row

Shapes = Sequence[Sequence[int]]
Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class TorchOp:
    """A recorded op.

    Arguments:
        key: ``matmul`` with m, n, k; ``attention`` with queries, head_dim, sequence, pairs and phase; ``collective``
            with operator, ranks and bytes; a name of ``FAMILIES``; ``UPDATE``; or ``MESSAGES``, with what a call is
            named and its shapes.
        issued: seconds, when the host came to it. arrive: when it was there; start: when its last peer was, too; end.
        ran: of an op of a thread when it ended itself, without what is between it and the next one.
    """

    key: Key
    issued: float
    arrive: float
    start: float
    end: float
    ran: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it took, without waiting for peers."""
        return self.end - self.start


FAMILIES: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    row['name']: (frozenset(row['operators'].split()), row['phases'])
    for row in read_csv(Path(__file__).with_name('families.csv'))
}
"""Ops that are told by their name alone: a name of torch, the operators that it may be, and the phases of one call."""
UPDATE: Final = 'update'
"""A step of an optimizer."""
MESSAGES: Final = 'messages'
"""What a program's thread does for its messages: copies into buckets and out of them, and the calls about them."""
_STEP = re.compile(r'Optimizer\.step#')
_FOR_MESSAGES = re.compile(r'FSDP::|torch::distributed::reducer::mul_out|torch\.distributed\.ddp\.reducer::copy_bucket')
_SUMS = re.compile(r'c10d::_?(allreduce|reduce_scatter)')
"""Calls for which gloo sums in full; of a reduce-scatter each rank takes its part then (ProcessGroupGloo.cpp)."""
_ATTENTION = re.compile(r'aten::_(?:scaled_dot_product|flash|efficient)_.*attention.*?(_backward)?$')
MOST_OF_IT: Final = 0.9
"""Of as many as the program has: products that stand for one of it must have been recorded so often."""
_INNER = re.compile(r'aten::_(?:flash|efficient)_')
_OPERATORS: Final = {word: name for name, one in COLLECTIVES.items() for word in one.recorded}


def key_of(each: Row, world: int) -> Key | None:
    """What an op of a thread is; None where nothing priced.

    Arguments: ``world``, ranks of the job, where a collective does not say its own.
    """
    product = _PRODUCTS.get(each.name)
    if product:
        return product(kineto.shapes_of(each.shapes))
    if each.name in FAMILIES:
        return (each.name,)
    if _STEP.match(each.name):
        return (UPDATE,)
    if _FOR_MESSAGES.match(each.name):
        return (MESSAGES, each.name, each.shapes)
    if match := _ATTENTION.match(each.name):
        return _attention(kineto.shapes_of(each.shapes), 'I' if match[1] else 'F', _INNER.match(each.name) is not None)
    return message_key(each, world) if each.name.startswith(kineto.GLOO) else None


def message_key(each: Row, world: int) -> Key | None:
    """What a collective is, by what NCCL's recorder or gloo's annotation tells of it."""
    operator, ranks = _OPERATORS.get(each.type), each.ranks or world
    # Gathers of gloo say what a rank gives; sizes are of the full vector.
    shard = operator and each.name.startswith(kineto.GLOO) and COLLECTIVES[operator].gives == 'shard'
    size = each.bytes * world if shard else each.bytes
    return ('collective', operator, ranks, size) if operator and size and ranks > 1 else None


def _product(first: int) -> Callable[[Shapes], Key | None]:
    """A product of the ``first`` operand and the one behind it; leading dims of a batch count as rows."""

    def key(shapes: Shapes) -> Key | None:
        if len(shapes) < first + 2 or min(map(len, shapes[first : first + 2])) < 2:
            return None
        left, right = shapes[first], shapes[first + 1]
        return ('matmul', prod(left[:-1]), right[-1], left[-1])

    return key


_PRODUCTS: Final[Mapping[str, Callable[[Shapes], Key | None]]] = {
    'aten::mm': _product(0), 'aten::addmm': _product(1), 'aten::bmm': _product(0), 'aten::baddbmm': _product(1),
}  # fmt: skip


def _attention(shapes: Shapes, phase: str, inner: bool) -> Key | None:
    """Of [batch, heads, sequence, head_dim], or of an inner op [batch, sequence, heads, head_dim].

    A backward reads the gradient first.
    """
    place = 1 if phase == 'I' else 0
    if len(shapes) < place + 2 or len(shapes[place]) != 4 or len(shapes[place + 1]) != 4:
        return None
    (batch, heads, sequence, width), keys = shapes[place], shapes[place + 1]
    if inner:
        heads, sequence, keys = sequence, heads, (keys[0], keys[2], keys[1], keys[3])
    return ('attention', heads // max(1, keys[1]), width, sequence, batch * heads, phase)


# The ops of a torch recording that are known, and how long each took.

_Known = list[tuple[Row, Key]]


def steps_of(recording: RankTrace) -> list[tuple[float, float]]:
    """Begin and end of each whole step, in seconds from the recording's origin."""
    origin, marks = recording.origin, enumerate(recording.marks)
    return [((one - origin) * NANOSECOND, (end - origin) * NANOSECOND) for n, (one, end) in marks if n != recording.cut]


def compute_ops(recording: RankTrace) -> Iterator[TorchOp]:
    """The known ops of a recording's whole steps that compute.

    An op of a device lasts as long as the kernels that were launched in it. Where only a host was recorded, an op lasts
    until the next known op of its thread begins: what Python and views take between belongs to it.
    """
    host = [] if recording.host is None else list(recording.host.rows(recording.origin))
    pairs = _op_pairs(recording, host)
    yield from _by_kernels(recording, host, pairs) if recording.on_device else _by_threads(recording, host, pairs)


def _op_pairs(recording: RankTrace, host: Sequence[Row]) -> _Known:
    """Known ops of the steps, the last one too; those of communication are apart."""
    marks, origin = recording.marks, recording.origin
    begin = (marks[0][0] - origin) * NANOSECOND if marks else float('-inf')
    end = (marks[-1][1] - origin) * NANOSECOND if marks else float('inf')
    until: dict[str, float] = {}
    pairs = []
    for each in sorted(host, key=lambda each: (each.start, -each.end)):
        key = key_of(each, recording.world) if begin <= each.start < end else None
        # What a known op calls is part of it: a step of an optimizer adds, and attention calls attention.
        if key is not None and key[0] != 'collective' and each.start >= until.get(each.stream, begin):
            until[each.stream] = each.end
            pairs.append((each, key))
    return pairs


def _by_threads(recording: RankTrace, host: Sequence[Row], pairs: _Known) -> Iterator[TorchOp]:
    """The seconds of each op until the next one; what a thread waits for a collective is not its own."""
    talks = np.array([(each.start, each.end) for each, _ in _talking(recording)]).reshape(-1, 2)
    threads: dict[str, _Known] = defaultdict(list)
    for each, key in pairs:
        threads[each.stream].append((each, key))
    for thread, ops in threads.items():
        # Beside a message that it did not wait for, a thread computes.
        waits = minus(talks, np.array(_inmost(host, thread)).reshape(-1, 2))
        for (each, key), (behind, _) in pairwise(ops):
            # A message is waited for within what is done for it.
            begin = each.start if key[0] == MESSAGES else each.end
            gap = np.array([(begin, max(begin, behind.start))])
            yield TorchOp(key, each.start, each.start, each.start, begin + length(minus(gap, waits)), each.end)
        last, key = ops[-1]
        yield TorchOp(key, last.start, last.start, last.start, last.end, last.end)


def _inmost(host: Sequence[Row], thread: str) -> list[tuple[float, float]]:
    """When a thread was in an op of torch that calls no other: these wait for no message."""
    mine = sorted((each for each in host if each.stream == thread), key=lambda each: (each.start, -each.end))
    pairs = zip(mine, (*mine[1:], None), strict=True)
    return [
        (each.start, each.end)
        for each, behind in pairs
        if each.name.startswith('aten::') and (behind is None or behind.start >= each.end)
    ]


def _by_kernels(recording: RankTrace, host: Sequence[Row], pairs: _Known) -> Iterator[TorchOp]:
    """The device's seconds of each op: of the kernels whose launch lies in it."""
    launches = {each.correlation: each for each in host if each.correlation >= 0}
    threads: dict[str, list[int]] = defaultdict(list)
    for number, (each, _) in enumerate(pairs):
        threads[each.stream].append(number)
    starts = {place: [pairs[number][0].start for number in numbers] for place, numbers in threads.items()}
    begin, seconds = [float('inf')] * len(pairs), [0.0] * len(pairs)
    for kernel in _kernels(recording):
        launch = launches.get(kernel.correlation)
        if launch is None or launch.stream not in starts or kernel.kind == COMMUNICATION:
            continue
        at = bisect_right(starts[launch.stream], launch.start) - 1
        if at >= 0 and launch.start < pairs[number := threads[launch.stream][at]][0].end:
            seconds[number] += kernel.seconds
            begin[number] = min(begin[number], kernel.start)
    for (each, key), start, took in zip(pairs, begin, seconds, strict=True):
        if took:
            yield TorchOp(key, each.start, start, start, start + took)


def _kernels(recording: RankTrace) -> Iterator[Row]:
    kernels = whole(recording)
    return iter(()) if kernels is None else kernels.rows(recording.origin)


def collectives(recordings: Sequence[RankTrace]) -> list[list[TorchOp]]:
    """The collectives of each recording: from the last arrival over all recorded ranks to the end.

    The n-th of a group on one rank meets the n-th on the others. Where ranks hold different numbers of them, or one
    rank alone was recorded, each counts from its own arrival, and the wait for its peers is in it.
    """
    first = min(recording.origin for recording in recordings)
    by_recording: list[list[TorchOp]] = []
    met: dict[tuple[Key, str], list[tuple[int, list[Row]]]] = defaultdict(list)
    for number, recording in enumerate(recordings):
        by_recording.append([])
        mine: dict[tuple[Key, str], list[Row]] = defaultdict(list)
        for each, key in _talking(recording):
            mine[key, each.group].append(each)
        for message, times in mine.items():
            met[message].append((number, times))
    later = [(recording.origin - first) * NANOSECOND for recording in recordings]
    for (key, _), ranks in met.items():
        alike = len({len(times) for _, times in ranks}) == 1
        for number, times in ranks:
            for turn, each in enumerate(times):
                arrived = [later[other] - later[number] + its[turn].start for other, its in ranks] if alike else []
                start = min(max([each.start, *arrived]), each.end)
                by_recording[number].append(TorchOp(key, each.start, each.start, start, each.end))
    return by_recording


def _talking(recording: RankTrace) -> Iterator[tuple[Row, Key]]:
    """Communication kernels; where only a host was recorded, what gloo's threads did."""
    rows = _kernels(recording)
    if not recording.on_device and recording.host is not None:
        rows = _by_gloo(list(recording.host.rows(recording.origin)))
    pairs = ((each, message_key(each, recording.world)) for each in rows)
    yield from ((each, key) for each, key in pairs if key is not None)


def _by_gloo(host: Sequence[Row]) -> Iterator[Row]:
    """What gloo's threads did; a sum that was called as a reduce-scatter is one. Sums run as they are called."""
    called: deque[str] = deque()
    for each in host:
        if match := _SUMS.match(each.name):
            called.append(match[1])
        elif each.name.startswith(kineto.GLOO):
            sums = _OPERATORS.get(each.type) == 'all_reduce' and called
            yield each._replace(type=called.popleft()) if sums else each


# A torch recording joined with a Program: what each of its ops took, and what has no match on either side.

OPERATOR: Final = 'operator'
LITTLE: Final = 0.1
"""An op of which others ran beside a smaller part is alone; one of which they ran beside all but that is within."""


SLOWEST: Final = 0.2
"""A speed beside others below which the machine was busy with something else, so that nothing is told."""
FEW: Final = 8
"""Gaps between launches below which nothing is told of the host."""
ENOUGH: Final = 4
"""One in so many alone is enough to tell what an op takes alone."""


class _Times:
    """Seconds of all recorded ops of one key, and which part of each others ran beside."""

    def __init__(self) -> None:
        self.all: list[float] = []
        self.parts: list[float] = []

    def __len__(self) -> int:
        return len(self.all)

    def add(self, seconds: float, beside: float) -> None:
        """One more."""
        self.all.append(seconds)
        self.parts.append(beside)

    @property
    def alone(self) -> list[float]:
        """Of those beside nothing."""
        return [one for one, part in zip(self.all, self.parts, strict=True) if part <= LITTLE]

    @property
    def within(self) -> list[float]:
        """Of those that others ran beside from begin to end."""
        return [one for one, part in zip(self.all, self.parts, strict=True) if part >= 1 - LITTLE]

    @property
    def usual(self) -> float:
        """The median, of those alone where these are enough."""
        return median(self.alone if self._enough else self.all)

    @property
    def beside(self) -> float:
        """Of what part of ``usual`` others ran beside."""
        return 0.0 if self._enough else median(self.parts)

    @property
    def _enough(self) -> bool:
        return len(self.alone) * ENOUGH >= len(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """One kind of op that both have.

    Arguments:
        key: ``matmul`` with m, n, k; ``attention`` with queries, head_dim, sequence, pairs and phase; ``collective``
            with operator, ranks and bytes; ``operator`` with operator, phase and bytes.
        seconds: of one, of those alone on their rank where there are some. times: how many were recorded.
        program, recorded: how often in a step of one rank; a collective that the program has not, 0 times.
        beside: which part of ``seconds`` communication ran beside computation, or computation beside communication.
    """

    key: Key
    seconds: float
    times: int
    program: int
    recorded: float
    beside: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A recording beside a Program.

    Arguments:
        lines: what both have. missing: keys of the program without a match, and how many a step.
        host: whether the host alone was recorded, so that the time of what is missing lies in the ops beside it.
        step: seconds of the median recorded step. matched: of it in compute ops that both have.
        messages: seconds a step in which a thread worked for messages.
        share: of the time of all recorded ops, what is in ops that both have.
        speeds: of products (``matrix``), other ops (``memory``) and collectives beside the other, where kinds were
            recorded alone, too; 1 is that alone.
        issue: seconds from one launch of the host to the next, ``forward`` and ``backward``; of devices alone.
    """

    lines: tuple[Joined, ...]
    missing: tuple[tuple[Key, int], ...]
    host: bool
    step: float
    matched: float
    messages: float = 0.0
    share: float = 0.0
    speeds: Mapping[str, float] = field(default_factory=dict)
    issue: Mapping[str, float] = field(default_factory=dict)


def join(program: Program, recordings: Sequence[RankTrace]) -> Join:
    """Join recordings of a job with the Program of its schedule, by op.

    Arguments: ``recordings``, of one rank or several, by rank.
    Does not model which layer an op is of: ops of one kind and size are alike, and the median of all is taken.
    """
    by_key: dict[Key, _Times] = defaultdict(_Times)
    for recording, talk in zip(recordings, collectives(recordings), strict=True):
        work = list(_by_names(program, recording) or compute_ops(recording))
        for mine, others in ((work, talk), (talk, [one for one in work if one.key[0] != MESSAGES])):
            for one, beside in zip(mine, _beside(mine, others), strict=True):
                by_key[one.key].add(one.seconds, beside)
    spans = [end - begin for recording in recordings for begin, end in steps_of(recording)]
    steps = sum(max(1, len(steps_of(recording))) for recording in recordings)
    wanted = Counter(keys_of(program, recordings[0].rank))
    lines = (*_sized(wanted, by_key, steps), *_streaming(wanted, by_key, steps))
    keys = {line.key for line in lines}
    compute = [line for line in lines if line.key[0] != 'collective']
    calls = [by_key.pop(key) for key in list(by_key) if key[0] == MESSAGES]
    messages = sum(median(times.all) * len(times) / steps for times in calls)
    spent = sum(times.usual * len(times) / steps for times in by_key.values())
    both = sum(line.seconds * min(line.program, line.recorded) for line in lines)
    return Join(
        lines=lines,
        missing=tuple((key, often) for key, often in wanted.items() if key not in keys),
        host=not any(recording.on_device for recording in recordings),
        step=median(spans) if spans else 0.0,
        matched=sum(line.seconds * min(line.program, line.recorded) for line in compute),
        messages=messages,
        share=min(1.0, both / spent) if spent else 0.0,
        speeds=_speeds(by_key),
        issue=_issue(recordings),
    )


def _issue(recordings: Sequence[RankTrace]) -> dict[str, float]:
    """What the host usually takes from one launch of a phase to the next; nothing where phases are not told."""
    gaps: dict[str, list[float]] = defaultdict(list)
    for recording in recordings:
        kernels = whole(recording)
        if kernels is None:
            continue
        for phase, letter in (('forward', 'F'), ('backward', 'B')):
            mine = kernels.of(kernels.type == letter)
            order = np.lexsort((mine.launch, mine.step))
            apart = np.diff(mine.launch[order]) * NANOSECOND
            gaps[phase] += apart[np.diff(mine.step[order]) == 0].tolist()
    return {phase: median(times) for phase, times in gaps.items() if len(times) >= FEW} if all(gaps.values()) else {}


def _beside(ops: Sequence[TorchOp], others: Sequence[TorchOp]) -> list[float]:
    """Which part of each op others of its rank ran beside."""
    merged = union(np.array([(one.start, one.ran or one.end) for one in others]).reshape(-1, 2))
    if not len(merged):
        return [0.0] * len(ops)
    covered = np.repeat(np.cumsum(np.diff(merged).ravel()), 2)
    covered[::2] -= np.diff(merged).ravel()
    spans = np.array([(one.start, one.ran or one.end) for one in ops]).reshape(-1, 2)
    parts = np.diff(np.interp(spans, merged.ravel(), covered)).ravel()
    shares: list[float] = (parts / np.maximum(np.diff(spans).ravel(), NANOSECOND)).tolist()
    return shares


def slowed_as(key: Key) -> str:
    """Which speed of a profile's ``slow_down`` an op has beside others."""
    return {'collective': 'collective', 'matmul': 'matrix', 'attention': 'matrix'}.get(str(key[0]), 'memory')


def _speeds(by_key: Mapping[Key, _Times]) -> dict[str, float]:
    """How fast ops are beside others, where the same ones were recorded alone."""
    sums: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for key, times in by_key.items():
        if times.alone and times.within:
            kind = slowed_as(key)
            parts = [part for part in times.parts if part >= 1 - LITTLE]
            sums[kind].append((median(times.alone), median(times.within), median(parts) * median(times.within)))
    speeds = {}
    for kind, each in sums.items():
        alone, within, beside = map(sum, zip(*each, strict=True))
        # What was not beside the other ran at full speed.
        speeds[kind] = min(1.0, 1 - (within - alone) / beside)
    return {kind: speed for kind, speed in speeds.items() if speed >= SLOWEST}


def _by_names(program: Program, recording: RankTrace) -> list[TorchOp]:
    """The kernels of simpar's own recordings, which name an op of the program; none where others wrote it."""
    kernels = whole(recording)
    if kernels is None or not set(kernels.shapes.tolist()) & {op.name for op in program.op_classes}:
        return []
    keys = {op.name: program_key(program, op) for op in program.op_classes if op.kind == 'compute'}
    rows = ((keys.get(each.shapes), each) for each in kernels.rows(recording.origin))
    return [TorchOp(key, each.start, each.start, each.start, each.end) for key, each in rows if key is not None]


def keys_of(program: Program, rank: int) -> Iterator[Key]:
    """The key of every op of a rank in one step, but of those that launch nothing and of messages."""
    role = program.role(rank % program.world)
    for index in role.op_class.tolist():
        key = program_key(program, program.op_classes[index])
        if key is not None:
            yield key


def program_key(program: Program, op: OpClass) -> Key | None:
    """What a recording would call an op; None for what launches nothing, and for messages between stages."""
    if op.kind == 'collective':
        return ('collective', op.operator, program.partitions[op.partition].size, int(op.bytes))
    if op.kind != 'compute' or op.operator in NO_WORK:
        return None
    dims = op.dims
    if op.operator in PRODUCTS and 'm' in dims:
        return ('matmul', dims['m'], dims['n'], dims['k'])
    if op.operator == 'attention':
        queries = dims['heads'] // dims.get('kv_heads', dims['heads'])
        return ('attention', queries, dims['head_dim'], dims['sequence'], dims['batch'] * dims['heads'], op.phase)
    return (OPERATOR, op.operator, op.phase, int(op.bytes))


def _sized(wanted: Mapping[Key, int], by_key: Mapping[Key, _Times], steps: int) -> Iterator[Joined]:
    """Products, attention and collectives, told by their sizes; collectives of other sizes than the program's too."""
    apart = {key: 0 for key in by_key if key[0] == 'collective' and key not in wanted}
    # Products that the program has not, or not as often, and how many of them a step has.
    left = {key: len(times) / steps - wanted.get(key, 0) for key, times in by_key.items() if key[0] == 'matmul'}
    for key, often in (*wanted.items(), *apart.items()):
        times = by_key.get(key, _Times())
        if times:
            seconds, recorded = times.usual, len(times) / steps
        elif parts := _parts(key, often, left):
            seconds, recorded = sum(by_key[part].usual for part in parts), float(often)
            times = by_key[parts[0]]
            for part in parts:
                left[part] -= often
        else:
            continue
        yield Joined(key=key, seconds=seconds, times=len(times), program=often, recorded=recorded, beside=times.beside)


def _parts(key: Key, often: int, left: Mapping[Key, float]) -> list[Key]:
    """The products that one of the program was recorded as: queries, keys and values, or gate and up, one by one.

    Their sizes along one dim add up to its own; a gradient of what all read is a sum along that dim, too.
    """
    for dim in (1, 2, 3) if key[0] == 'matmul' else ():
        whole_size = int(key[dim])
        alike = {int(one[dim]): one for one in left if one[:dim] + one[dim + 1 :] == key[:dim] + key[dim + 1 :]}
        for size, part in alike.items():
            rest = (whole_size - size) // 2
            for parts in ([part] * 2, [part] * 3, [part, *[alike.get(rest)] * 2]):
                sizes = sum(int(one[dim]) for one in parts if one)
                enough = all(one and left[one] >= often * parts.count(one) * MOST_OF_IT for one in parts)
                if sizes == whole_size and enough:
                    return [one for one in parts if one]
    return []


def _streaming(wanted: Mapping[Key, int], by_key: Mapping[Key, _Times], steps: int) -> Iterator[Joined]:
    """All others: told by their name; what one call does for several phases or sizes is shared out by bytes."""
    for name, (operators, phases) in (*FAMILIES.items(), (UPDATE, (frozenset(), 'U'))):
        times = by_key.get((name,), _Times())
        mine = {
            key: often
            for key, often in wanted.items()
            if key[0] == OPERATOR and str(key[2]) in phases and (key[1] in operators or name == UPDATE)
        }
        moved = sum(int(key[3]) * often for key, often in mine.items())
        if not times or not moved:
            continue
        # One call of an optimizer does all updates of a step, any other call one op of each phase.
        calls = 1 if name == UPDATE else sum(often for key, often in mine.items() if key[2] == phases[0])
        for key, often in mine.items():
            seconds = times.usual * calls * int(key[3]) / moved
            often_recorded = often * len(times) / (steps * calls)
            yield Joined(
                key=key, seconds=seconds, times=len(times), program=often, recorded=often_recorded, beside=times.beside
            )


def named(key: Key) -> str:
    """A kind as people call it."""
    if key[0] == OPERATOR:
        return f'{key[1]}.{key[2]}'
    if key[0] == 'collective':
        return f'{key[1]} of {key[3]} B among {key[2]}'
    return f'{key[0]} {"×".join(map(str, key[1:]))}'
