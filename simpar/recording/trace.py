"""A torch recording as a measured Trace of a Program: when each of its ops arrived, started and ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simpar.errors import Problem, ScheduleError
from simpar.program import Program, Role
from simpar.recording.join import (
    FAMILIES,
    OPERATOR,
    UPDATE,
    Key,
    TorchOp,
    collectives,
    compute_ops,
    program_key,
    steps_of,
)
from simpar.trace import RankTimes, Times, Trace
from simpar.traces import RankTrace
from simpar.traces.table import NANOSECOND

_Slots = Mapping[str | Key, list[list[int]]]
"""For what a recording calls an op, its turns: the slots of the program that one call does."""


class _Filled(NamedTuple):
    """A rank's times, and how many of its slots were found in each step."""

    times: RankTimes
    found: int


def measured_trace(program: Program, recordings: Sequence[RankTrace]) -> tuple[Trace, float]:
    """The Trace of a recorded job, and the share of its ops that were found in the recording.

    The n-th op of a kind and size in a step is the program's n-th. What one call does for several ops is shared out by
    bytes. An op that was not found takes no time, where the one before it on its stream ended.
    Raises ``ScheduleError`` for ranks that the program has not, roles of which no rank was recorded, and recordings
    without whole steps.
    """
    problems = list(_problems(program, recordings))
    if problems:
        raise ScheduleError(problems)
    steps = min(len(steps_of(recording)) for recording in recordings)
    first = min(recording.marks[0][0] for recording in recordings)
    talking = collectives(recordings)
    filled = [
        _filled(program, recording, [*compute_ops(recording), *talk], steps, (recording.origin - first) * NANOSECOND)
        for recording, talk in zip(recordings, talking, strict=True)
    ]
    of_role = {int(program.role_of_rank[one.times.rank]): number for number, one in enumerate(filled)}
    of_rank = {one.times.rank: number for number, one in enumerate(filled)}
    representative = [of_rank.get(rank, of_role[int(program.role_of_rank[rank])]) for rank in range(program.world)]
    slots = sum(len(program.role(one.times.rank)) for one in filled)
    trace = Trace(program, 'measured', tuple(one.times for one in filled), np.array(representative, dtype=np.int32))
    return trace, sum(one.found for one in filled) / slots


def _problems(program: Program, recordings: Sequence[RankTrace]) -> Iterator[Problem]:
    """Why there can be no trace."""
    recorded = {int(program.role_of_rank[each.rank]) for each in recordings if each.rank < program.world}
    for each in recordings:
        if each.rank >= program.world:
            yield Problem(f'rank {each.rank}', f'is recorded, and the schedule has {program.world} ranks')
        elif not steps_of(each):
            yield Problem(f'rank {each.rank}', 'has no whole step', 'call profiler.step() behind every step')
    if len(recorded) < len(program.roles):
        lacks = [role.name for number, role in enumerate(program.roles) if number not in recorded]
        yield Problem('--save', f'of the roles {", ".join(lacks[:8])} no rank is recorded', 'record a rank of each')


def _filled(program: Program, recording: RankTrace, ops: Sequence[TorchOp], steps: int, later: float) -> _Filled:
    """A rank's times. Arguments: ``later``, seconds from the trace's beginning to the recording's."""
    role = program.role(recording.rank)
    turns = _turns(program, role)
    times: list[list[Times]] = []
    found = 0
    for begin, until in steps_of(recording)[:steps]:
        mine = sorted((op for op in ops if begin <= op.issued < until), key=lambda op: op.issued)
        table = np.full((3, len(role)), np.nan)
        for slot, *when in _placed(program, role, turns, mine):
            table[:, slot] = when
        found = int(np.isfinite(table[2]).sum())
        _fill(table, role, begin)
        times.append([row + later for row in table])
    arrive, start, end = (np.array(rows) for rows in zip(*times, strict=True))
    return _Filled(RankTimes(recording.rank, arrive, start, end), found)


def _turns(program: Program, role: Role) -> _Slots:
    """The slots of each call, by what a recording calls it."""
    keys = [program_key(program, program.op_classes[index]) for index in role.op_class.tolist()]
    turns: dict[str | Key, list[list[int]]] = defaultdict(list)
    streaming: dict[tuple[str, str], list[int]] = defaultdict(list)
    for slot, key in enumerate(keys):
        if key is not None and key[0] == OPERATOR:
            streaming[str(key[1]), str(key[2])].append(slot)
        elif key is not None:
            turns[key].append([slot])
    for name, (operators, phases) in FAMILIES.items():
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
    turns[UPDATE,] = [updates] if updates else []
    return turns


def _placed(
    program: Program, role: Role, turns: _Slots, ops: Sequence[TorchOp]
) -> Iterator[tuple[int, float, float, float]]:
    """(slot, arrive, start, end) of every op of a step that the program has."""
    called: dict[Key, int] = defaultdict(int)
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
