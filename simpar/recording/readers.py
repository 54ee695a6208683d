"""Readers: what a recording of a job says of its program, by the tool that wrote it."""

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from math import prod
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import numpy as np
import yaml

from simpar import hardware, profiles
from simpar.cost.formula import share, steps
from simpar.cost.tables import is_grid
from simpar.errors import Problem, refuse
from simpar.files import read_csv, read_regular, write_atomically
from simpar.program import Program, Role
from simpar.recording import join
from simpar.trace import RankTimes, Times, Trace
from simpar.traces import Kernels, RankTrace, kineto, step_figures, whole
from simpar.traces.table import COMPUTE, NANOSECOND

# A profile with what a recording measured: tables of another profile, with the recorded rows in their place.

MOST_BYTES: Final = 2**22
NOTHING: Final = 1e-9
"""Seconds of an op whose time lies in others; rows must be above 0."""
APART: Final = 4.0
"""How many times the smallest message the largest must be, to tell latency from rate."""
SAME: Final = {'matmul': 3, 'operator': 2, 'collective': 3}
"""How many leading columns tell which rows of the other profile a recorded row stands for."""


class Copies(NamedTuple):
    """Seconds a step for messages: what goes with their ``bytes``, and what each of their ``calls`` takes."""

    bytes: float
    calls: float


NO_COPIES: Final = Copies(0.0, 0.0)


def write_measured(
    path: Path, base: str, matches: join.Join, source: str, dtype: str, copies: Copies = NO_COPIES
) -> list[Path]:
    """Write a profile and its tables, each whole or not at all, the profile last.

    Arguments:
        base: name or path of the profile that the rest is from.
        source: where the recorded rows are from, in one line. dtype: of the recorded products.
        copies: what the base takes copies for messages to last, by which its memory's rate is scaled, and where they
            are calls, too, what a call takes.
    Returns the files. Raises ``ProfileError``, ``OSError``.
    """
    profile = profiles.load_profile(base)
    tree: dict[str, Any] = yaml.safe_load(read_regular(profiles.profile_path(base), MOST_BYTES))
    matches = replace(matches, lines=tuple(_isolated(line, matches.speeds, profile) for line in matches.lines))
    for kind, speed in matches.speeds.items():
        seen = f'{source}: beside others, and alone'
        tree['slow_down'][kind] = {'value': round(speed, 3), 'source': seen, 'grade': 'measured'}
    tables: dict[str, Any] = {}
    written = []
    for kind in profiles.COLUMNS:
        rows, entry = _table(profile, kind, _rows(kind, matches, profile), source, dtype)
        if rows:
            file = path.with_name(f'{path.stem}.{kind}.csv')
            write_atomically(file, _text(kind, rows, entry['source']))
            tables[kind] = {'file': file.name, **entry}
            written.append(file)
    tree |= {'name': path.stem, 'description': f'{profile.name}, with {source}', 'tables': tables}
    if factor := _backward(matches):
        tree['device']['attention']['backward'] = {'value': factor, 'source': source, 'grade': 'measured'}
    if 'links' in tree and (fitted := _link(matches, profile)):
        # What was recorded in one node tells the innermost link, for kinds and sizes that were not.
        tree['links'][0] |= {
            name: {'value': value, 'source': f'{source}: fitted to its collectives', 'grade': 'estimate'}
            for name, value in fitted.items()
        }
    if any(copies) and matches.messages:
        entry = {'source': f'{source}: copies for messages', 'grade': 'estimate'}
        device, factor = tree['device'], matches.messages / sum(copies)
        rate = profile.device.memory.bandwidth.value / factor
        device['memory']['bandwidth'] = {'value': f'{rate / 1e9:.6g} GB/s', **entry}
        if copies.calls:
            call = profile.device.kernel.memory.value * factor
            device['kernel']['memory'] = {'value': f'{call * 1e6:.6g} us', **entry}
    if not matches.host:
        # What was recorded in steps of a training ran at the clock that the device keeps under that load.
        tree['device']['sustained'] = {'value': 1.0, 'source': f'{source}: at its clock', 'grade': 'measured'}
    head = f'# {profile.name} with the ops of a recording: {source}.\n'
    write_atomically(path, head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120))
    return [path, *written]


def write_stack(path: Path, base: hardware.Stack, matches: join.Join, source: str) -> None:
    """Write a stack with what the host takes to launch. Arguments: ``base``, a shipped stack that the rest is of."""
    seen = f'{source}: from one launch to the next, with what the profiler takes'
    step = base.host.step.value if base.host else 0.0
    host: dict[str, Any] = {
        phase: {'value': f'{1e6 * seconds:.6g} us', 'source': seen, 'grade': 'measured'}
        for phase, seconds in matches.issue.items()
    }
    host['step'] = {'value': f'{1e6 * step:.6g} us', 'source': f'as {base.name} has it', 'grade': 'estimate'}
    head = {'format': 1, 'name': path.stem, 'extends': base.name, 'source': source, 'host': host}
    tree = head | {'description': f'{base.name}, with the host of a recording'}
    write_atomically(path, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120))


def _rows(kind: str, matches: join.Join, profile: hardware.Profile) -> list[profiles.Row]:
    """The recorded rows of a table."""
    rows = [row for line in matches.lines for row in _row(kind, line, profile.devices)]
    if kind == 'collective':
        rows += [*(_summed_in_full(rows) if matches.host else ()), *_between(rows)]
    if kind == 'operator' and matches.host:
        # On a thread an op lasts until the next known one: the time of those between is in it already.
        rows += [(*key[1:], NOTHING) for key, _ in matches.missing if key[0] == join.OPERATOR]
    return rows


def _between(rows: Sequence[profiles.Row]) -> Iterator[profiles.Row]:
    """Rows on the line between two recorded sizes that lie far apart: a power of the size would bend it."""
    groups: dict[profiles.Row, list[tuple[float, float]]] = defaultdict(list)
    for *group, size, seconds in rows:
        groups[tuple(group)].append((size, seconds))
    for head, points in groups.items():
        for (small, least), (large, most) in pairwise(sorted(points)):
            size = 2 * small
            while size * APART <= large * 2:
                yield (*head, size, least + (most - least) * (size - small) / (large - small))
                size *= 2


def _isolated(line: join.Joined, speeds: Mapping[str, float], profile: hardware.Profile) -> join.Joined:
    """What an op would take alone, where it was never recorded so, by how fast it is beside others."""
    kind = join.slowed_as(line.key)
    speed = speeds.get(kind, getattr(profile.slow_down, kind).value)
    return replace(line, seconds=line.seconds * (1 - line.beside * (1 - speed)))


def _summed_in_full(rows: Sequence[profiles.Row]) -> Iterator[profiles.Row]:
    """Gloo's reduce-scatters are all-reduces (ProcessGroupGloo.cpp): what was recorded of one holds for the other."""
    names = {row[0] for row in rows}
    for own, other in (('all_reduce', 'reduce_scatter'), ('reduce_scatter', 'all_reduce')):
        if own in names and other not in names:
            yield from ((other, *row[1:]) for row in rows if row[0] == own)


def _row(kind: str, line: join.Joined, devices: int) -> Iterator[profiles.Row]:
    name, *key = line.key
    if name != kind or not line.seconds or (kind == 'attention' and key[-1] != 'F'):
        return
    if kind == 'attention':
        yield (*key[:-1], line.seconds)
    elif kind == 'collective':
        operator, ranks, size = key
        # Neighbouring ranks are on one node, as launchers place them.
        yield (operator, ranks, -(-int(ranks) // devices), size, line.seconds)
    else:
        yield (*key, line.seconds)


def _table(
    profile: hardware.Profile, kind: str, recorded: list[profiles.Row], source: str, dtype: str
) -> tuple[list[profiles.Row], dict[str, Any]]:
    """The rows of a table, and what the profile says of it."""
    table = getattr(profile.tables, kind)
    rows = list(profiles.read_table(table, kind)) if table else []
    entry = (
        {'source': table.source, 'grade': table.grade} | ({'dtype': str(table.dtype)} if table.dtype else {})
        if table
        else {}
    )
    mine = {'source': source, 'grade': 'measured'} | ({'dtype': dtype} if kind in {'matmul', 'attention'} else {})
    if not recorded:
        return rows, entry
    if kind == 'attention':
        # It is read as a grid, which rows of another place would break.
        return (recorded, mine) if is_grid(recorded) else (rows, entry)
    if kind == 'matmul' and table and str(table.dtype) != dtype:
        return recorded, mine
    same = {row[: SAME[kind]] for row in recorded}
    others = [row for row in rows if row[: SAME[kind]] not in same]
    return [*others, *recorded], mine | ({'source': f'{source}; other rows: {table.source}'} if others else {})


def _link(matches: join.Join, profile: hardware.Profile) -> dict[str, Any]:
    """Latency and rate of a ring that takes what was recorded; empty where nothing tells them.

    Of least relative squares of t = α · steps + β · bytes over a link. Where sizes lie within a factor of 4 they do not
    tell α from β, and both are as many times as long as the profile has them.
    """
    rows = [
        (steps('ring', str(operator), int(ranks)), share('ring', str(operator), int(ranks)) * int(size), line.seconds)
        for line in matches.lines
        if line.key[0] == 'collective' and line.seconds
        for _, operator, ranks, size in [line.key]
        if int(ranks) <= profile.devices
    ]
    if not rows:
        return {}
    table, link = np.array(rows), profile.links[0]
    if table[:, 1].max() < APART * table[:, 1].min():
        alpha, beta = link.latency.value, 1 / (link.bandwidth.value * link.share.value)
        times = float(np.median(table[:, 2] / (table[:, 0] * alpha + table[:, 1] * beta)))
        return _line(alpha * times, beta * times)
    scaled = table[:, :2] / table[:, 2:]
    (alpha, beta), *_ = np.linalg.lstsq(scaled, np.ones(len(rows)), rcond=None)
    if alpha < 0 or beta <= 0:
        alpha, beta = 0.0, float((scaled[:, 1] @ np.ones(len(rows))) / (scaled[:, 1] @ scaled[:, 1]))
    return _line(alpha, beta)


def _line(alpha: float, beta: float) -> dict[str, Any]:
    return {'latency': f'{alpha * 1e6:.6g} us', 'bandwidth': f'{1e-9 / beta:.6g} GB/s', 'share': 1.0}


def _backward(matches: join.Join) -> float:
    """How many forwards a backward of attention takes; 0 where it was not recorded."""
    seconds = {line.key: line.seconds for line in matches.lines if line.key[0] == 'attention'}
    pairs = [(seconds[key], seconds.get((*key[:-1], 'F'), 0.0)) for key in seconds if key[-1] == 'I']
    factors = [backward / forward for backward, forward in pairs if forward]
    return round(sum(factors) / len(factors), 3) if factors else 0.0


def _text(kind: str, rows: Sequence[profiles.Row], source: str) -> str:
    out = io.StringIO()
    out.write(f'# {source}\n')
    writer = csv.writer(out, lineterminator='\n')
    writer.writerow(profiles.COLUMNS[kind])
    writer.writerows((*row[:-1], f'{row[-1]:.6g}') for row in sorted(rows, key=lambda row: tuple(map(str, row))))
    return out.getvalue()


# A torch recording as a measured Trace of a Program: when each of its ops arrived, started and ended.

_Slots = Mapping[str | join.Key, list[list[int]]]
"""For what a recording calls an op, its turns: the slots of the program that one call does."""


def measured_trace(program: Program, recordings: Sequence[RankTrace]) -> tuple[Trace, float]:
    """The Trace of a recorded job, and the share of its ops that were found in the recording.

    The n-th op of a kind and size in a step is the program's n-th. What one call does for several ops is shared out by
    bytes. An op that was not found takes no time, where the one before it on its stream ended.
    Raises ``ScheduleError`` for ranks that the program has not, roles of which no rank was recorded, and recordings
    without whole steps.
    """
    refuse(_problems(program, recordings))
    steps = min(len(join.steps_of(recording)) for recording in recordings)
    first = min(recording.marks[0][0] for recording in recordings)
    talking = join.collectives(recordings)
    filled = [
        _filled(
            program, recording, [*join.compute_ops(recording), *talk], steps, (recording.origin - first) * NANOSECOND
        )
        for recording, talk in zip(recordings, talking, strict=True)
    ]
    every, recorded = tuple(one for one, _ in filled), sum(many for _, many in filled)
    of_role = {int(program.role_of_rank[one.rank]): number for number, one in enumerate(every)}
    of_rank = {one.rank: number for number, one in enumerate(every)}
    representative = [of_rank.get(rank, of_role[int(program.role_of_rank[rank])]) for rank in range(program.world)]
    trace = Trace(program, 'measured', every, np.array(representative, dtype=np.int32))
    return trace, recorded / sum(len(program.role(one.rank)) for one in every)


def _problems(program: Program, recordings: Sequence[RankTrace]) -> Iterator[Problem]:
    """Why there can be no trace."""
    recorded = {int(program.role_of_rank[each.rank]) for each in recordings if each.rank < program.world}
    for each in recordings:
        if each.rank >= program.world:
            yield Problem(f'rank {each.rank}', f'is recorded, and the schedule has {program.world} ranks')
        elif not join.steps_of(each):
            yield Problem(f'rank {each.rank}', 'has no whole step', 'call profiler.step() behind every step')
    if len(recorded) < len(program.roles):
        lacks = [role.name for number, role in enumerate(program.roles) if number not in recorded]
        yield Problem('--save', f'of the roles {", ".join(lacks[:8])} no rank is recorded', 'record a rank of each')


def _filled(
    program: Program, recording: RankTrace, ops: Sequence[join.TorchOp], steps: int, later: float
) -> tuple[RankTimes, int]:
    """A rank's times, and how many of its slots were found in each step.

    Arguments: ``later``, seconds from the trace's beginning to the recording's.
    """
    role = program.role(recording.rank)
    turns = _turns(program, role)
    times: list[list[Times]] = []
    op_count = 0
    for begin, until in join.steps_of(recording)[:steps]:
        mine = sorted((op for op in ops if begin <= op.issued < until), key=lambda op: op.issued)
        table = np.full((3, len(role)), np.nan)
        for slot, *when in _placed(program, role, turns, mine):
            table[:, slot] = when
        op_count = int(np.isfinite(table[2]).sum())
        _fill(table, role, begin)
        times.append([row + later for row in table])
    arrive, start, end = (np.array(rows) for rows in zip(*times, strict=True))
    return RankTimes(recording.rank, arrive, start, end), op_count


def _turns(program: Program, role: Role) -> _Slots:
    """The slots of each call, by what a recording calls it."""
    keys = [join.program_key(program, program.op_classes[index]) for index in role.op_class.tolist()]
    turns: dict[str | join.Key, list[list[int]]] = defaultdict(list)
    streaming: dict[tuple[str, str], list[int]] = defaultdict(list)
    for slot, key in enumerate(keys):
        if key is not None and key[0] == join.OPERATOR:
            streaming[str(key[1]), str(key[2])].append(slot)
        elif key is not None:
            turns[key].append([slot])
    for name, (operators, phases) in join.FAMILIES.items():
        of_phase = [
            sorted(
                slot
                for (operator, phase), slots in streaming.items()
                if operator in operators and phase == its
                for slot in slots
            )
            for its in phases
        ]
        turns[name,] = [list(each) for each in zip(*filter(None, of_phase), strict=False)]
    updates = sorted(slot for (_, phase), slots in streaming.items() if phase == 'U' for slot in slots)
    turns[join.UPDATE,] = [updates] if updates else []
    return turns


def _placed(
    program: Program, role: Role, turns: _Slots, ops: Sequence[join.TorchOp]
) -> Iterator[tuple[int, float, float, float]]:
    """(slot, arrive, start, end) of every op of a step that the program has."""
    called: dict[join.Key, int] = defaultdict(int)
    for op in ops:
        turn = called[op.key]
        called[op.key] += 1
        slots = turns.get(op.key, [])
        if turn >= len(slots):
            continue
        size = [program.op_classes[int(role.op_class[slot])].bytes or 1.0 for slot in slots[turn]]
        ends = op.start + op.seconds * np.cumsum(size) / sum(size)
        begin, arrive = op.start, op.arrive
        for slot, end in zip(slots[turn], ends.tolist(), strict=True):
            yield slot, arrive, begin, end
            begin = arrive = end


def _fill(table: Times, role: Role, begin: float) -> None:
    """Let ops that were not found take no time, where the one before on their stream ended."""
    ended: dict[int, float] = {}
    for slot, stream in enumerate(role.stream.tolist()):
        if np.isnan(table[2, slot]):
            table[:, slot] = ended.get(stream, begin)
        ended[stream] = float(table[2, slot])


# An Ascend recording joined with a Program: kernels told by type and shapes, and what each op of the program took.

Shape = tuple[int, ...]
_TILE: Final = 16
"""Width of the tiles of FRACTAL_NZ: [columns / 16, rows / 16, 16, 16]."""
_READ_AND_WRITTEN: Final = 3
"""Tensors that an addition touches: two are read, one is written."""
_HALF: Final = 2
"""Bytes of a number of 16 bits, which activations are."""


class _Family(NamedTuple):
    """What kernels of a type do.

    Arguments:
        operators: of the program; none: all that an update does.
        phases: that one call does. bytes: of the op, where they tell it; else 0.
    """

    operators: frozenset[str]
    phases: str
    bytes: int = 0

    def does(self, key: join.Key) -> bool:
        """Whether it is what an op of the program does."""
        _, operator, phase, size = key
        return str(phase) in self.phases and operator in (self.operators or {operator}) and self.bytes in (0, size)


_FAMILIES: Final = {
    row['type']: _Family(frozenset(row['operators'].split()), row['phases'])
    for row in read_csv(Path(__file__).with_name('ascend_ops.csv'))
}


_ADDITIONS: Final = frozenset({'residual', 'add'})
_UPDATE: Final = _Family(frozenset(), 'U')


def joined(program: Program, traces: Sequence[RankTrace]) -> join.Join:
    """Join recordings of any kind, by rank, with the Program of their schedule."""
    torch = all(trace.format == kineto.KINETO for trace in traces)
    return join.join(program, traces) if torch else join_ascend(program, traces)


def join_ascend(program: Program, traces: Sequence[RankTrace]) -> join.Join:
    """Join an Ascend recording with the Program of its schedule, by type and shapes of kernels.

    Products and attention are told by their sizes. Kernels of other operators share what their type took by bytes. A
    kernel that no operator is called by (a slice, a cast, zeros) counts with the memory-bound operator before it on the
    device, and with the update where none was before it.
    Does not model which layer a kernel is of; collectives, whose bytes a table of kernels does not have.
    """
    wanted = Counter(join.keys_of(program, traces[0].rank))
    exact: dict[join.Key, list[float]] = defaultdict(list)
    spent: dict[_Family, float] = defaultdict(float)
    calls: Counter[_Family] = Counter()
    steps = 0
    lasts: list[float] = []
    for trace in traces:
        kernels = whole(trace)
        if kernels is None:
            continue
        spans = [one.span for _, one in step_figures(trace)]
        steps, lasts = steps + len(spans), lasts + spans
        for key, family, seconds in _keys_of_kernels(kernels.of(kernels.kind == COMPUTE), wanted):
            if key:
                exact[key].append(seconds)
            else:
                spent[family] += seconds
                calls[family] += 1
    sized = (
        join.Joined(key=key, seconds=fmean(times), times=len(times), program=wanted[key], recorded=len(times) / steps)
        for key, times in exact.items()
    )
    lines = (*sized, *_shared(wanted, spent, calls, steps))
    keys = {line.key for line in lines}
    return join.Join(
        lines=lines,
        missing=tuple((key, often) for key, often in wanted.items() if key not in keys),
        host=False,
        step=median(lasts) if lasts else 0.0,
        matched=sum(line.seconds * line.program for line in lines),
    )


def _keys_of_kernels(
    kernels: Kernels, wanted: Mapping[join.Key, int]
) -> Iterator[tuple[join.Key | None, _Family, float]]:
    """The key of each product and attention, else the family that its seconds count with."""
    before = _UPDATE
    sums = {int(key[3]) for key in wanted if key[0] == join.OPERATOR and key[1] in _ADDITIONS}
    columns = (kernels.type.tolist(), kernels.shapes.tolist(), kernels.results.tolist())
    seconds = ((kernels.end - kernels.begin) * NANOSECOND).tolist()
    for kind, read, written, took in zip(*columns, seconds, strict=True):
        key = _product(kind, read, written, wanted) or _attention(kind, read, wanted)
        family = _FAMILIES.get(kind)
        if kind == 'Add' and (moved := _READ_AND_WRITTEN * _HALF * _size(written)) in sums:
            family = _Family(_ADDITIONS, 'FIW', moved)
        if not key:
            before = family or before
        yield key, before, took


def _shapes(text: str) -> list[Shape]:
    """``"4096,1024;6144,1024"``, with its own quotes, as shapes; absent tensors are empty."""
    parts = text.strip().strip('"').split(';')
    return [tuple(int(n) for n in part.split(',') if n.strip().isdigit()) for part in parts]


def _size(text: str) -> int:
    shapes = _shapes(text)
    return prod(shapes[0]) if shapes and shapes[0] else 0


def _matrix(shape: Shape) -> tuple[int, int] | None:
    """Rows and columns of an operand; leading dims count as rows, tiles as what they cover."""
    if len(shape) == 4 and shape[2:] == (_TILE, _TILE):
        return shape[1] * _TILE, shape[0] * _TILE
    return (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else None


def _product(kind: str, read: str, written: str, wanted: Mapping[join.Key, int]) -> join.Key | None:
    """The product of the program that two operands and a result are of, whichever of them lies transposed."""
    if not kind.startswith(('MatMul', 'BatchMatMul')):
        return None
    operands = [one for shape in _shapes(read)[:2] if (one := _matrix(shape))]
    results = [one for shape in _shapes(written)[:1] if (one := _matrix(shape))]
    if len(operands) < 2 or not results:
        return None
    (left, right), result = operands, results[0]
    for m, k in permutations(left):
        for other, n in permutations(right):
            if other == k and (m, n) == result:
                for key in (('matmul', m, n, k), ('matmul', n, m, k)):
                    if key in wanted:
                        return key
    return None


def _attention(kind: str, read: str, wanted: Mapping[join.Key, int]) -> join.Key | None:
    """The program's attention whose queries have as many numbers, in any layout."""
    if not kind.startswith('FlashAttention'):
        return None
    phase, numbers = 'I' if 'Grad' in kind else 'F', _size(read)
    for key in wanted:
        if key[0] == 'attention' and key[-1] == phase and prod(int(n) for n in key[2:5]) == numbers:
            return key
    return None


def _shared(
    wanted: Mapping[join.Key, int], spent: Mapping[_Family, float], calls: Counter[_Family], steps: int
) -> Iterator[join.Joined]:
    """What kernels of a family took, shared by bytes among the ops of the program that they do."""
    for family, seconds in spent.items():
        mine = {key: often for key, often in wanted.items() if key[0] == join.OPERATOR and family.does(key)}
        moved = sum(int(key[3]) * often for key, often in mine.items())
        for key, often in mine.items() if moved else ():
            share = seconds / steps * int(key[3]) / moved
            yield join.Joined(
                key=key, seconds=share, times=calls[family], program=often, recorded=calls[family] / steps
            )
