"""A torch recording joined with a Program: what each of its ops took, and what has no match on either side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from simpar.cost.compute import NO_WORK, PRODUCTS
from simpar.kineto.read import Recording
from simpar.program import OpClass, Program
from simpar.recording.recorded_ops import collectives, compute_ops
from simpar.recording.torch_ops import FAMILIES, UPDATE, Key

OPERATOR: Final = 'operator'


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """One kind of op that both have.

    Arguments:
        key: ``matmul`` with m, n, k; ``attention`` with queries, head_dim, sequence, pairs and phase; ``collective``
            with operator, ranks and bytes; ``operator`` with operator, phase and bytes.
        seconds: of one. times: how many were recorded.
        program, recorded: how often in a step of one rank; a collective that the program has not, 0 times.
    """

    key: Key
    seconds: float
    times: int
    program: int
    recorded: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A recording beside a Program.

    Arguments:
        lines: what both have. missing: keys of the program without a match, and how many a step.
        host: whether the host alone was recorded, so that the time of what is missing lies in the ops beside it.
        step: seconds of the median recorded step. matched: of it in compute ops that both have.
    """

    lines: tuple[Joined, ...]
    missing: tuple[tuple[Key, int], ...]
    host: bool
    step: float
    matched: float


def join(program: Program, recordings: Sequence[Recording]) -> Join:
    """Join recordings of a job with the Program of its schedule, by op.

    Arguments: ``recordings``, of one rank or several, by rank.
    Does not model which layer an op is of: ops of one kind and size are alike, and the median of all is taken.
    """
    found: dict[Key, list[float]] = defaultdict(list)
    for recording in recordings:
        for one in compute_ops(recording):
            found[one.key].append(one.seconds)
    for one in collectives(recordings):
        found[one.key].append(one.seconds)
    of_rank = [(recording.steps and len(recording.steps)) or 1 for recording in recordings]
    steps = sum(of_rank)
    wanted = Counter(_keys(program, recordings[0].rank))
    lines = (*_sized(wanted, found, steps), *_streaming(wanted, found, steps))
    known = {line.key for line in lines}
    ends = [each.seconds for recording in recordings for each in recording.steps]
    compute = [line for line in lines if line.key[0] != 'collective']
    return Join(
        lines=lines,
        missing=tuple((key, often) for key, often in wanted.items() if key not in known),
        host=not any(recording.kernels for recording in recordings),
        step=median(ends) if ends else 0.0,
        matched=sum(line.seconds * min(line.program, line.recorded) for line in compute),
    )


def _keys(program: Program, rank: int) -> Iterator[Key]:
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


def _sized(wanted: Mapping[Key, int], found: Mapping[Key, list[float]], steps: int) -> Iterator[Joined]:
    """Products, attention and collectives, told by their sizes; collectives of other sizes than the program's too."""
    apart = {key: 0 for key in found if key[0] == 'collective' and key not in wanted}
    for key, often in (*wanted.items(), *apart.items()):
        times = found.get(key, [])
        if key[0] != OPERATOR and times:
            yield Joined(
                key=key, seconds=median(times), times=len(times), program=often, recorded=len(times) / steps
            )  # fmt: skip


def _streaming(wanted: Mapping[Key, int], found: Mapping[Key, list[float]], steps: int) -> Iterator[Joined]:
    """All others: told by their name; what one call does for several phases or sizes is shared out by bytes."""
    for name, (operators, phases) in (*FAMILIES.items(), (UPDATE, (frozenset(), 'U'))):
        times = found.get((name,), [])
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
            seconds = median(times) * calls * int(key[3]) / moved
            yield Joined(
                key=key, seconds=seconds, times=len(times), program=often, recorded=often * len(times) / (steps * calls)
            )


def named(key: Key) -> str:
    """A kind as people call it."""
    if key[0] == OPERATOR:
        return f'{key[1]}.{key[2]}'
    if key[0] == 'collective':
        return f'{key[1]} of {key[3]} B among {key[2]}'
    return f'{key[0]} {"×".join(map(str, key[1:]))}'
