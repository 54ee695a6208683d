"""A trace that stands on its own, as a file: times, and the names that they are joined on, without the Program."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from simpar.cost.costs import Costs, costs_from_dict, costs_to_dict
from simpar.document.load import read_json
from simpar.errors import refusal
from simpar.files import write_atomically
from simpar.hardware.net import parse_net
from simpar.program import Program
from simpar.program.text import format_program, parse_program
from simpar.trace import RankTimes, Times, Trace, warm_steps

FORMAT: Final = 'simpar trace 1'
Origin = Literal['simulated', 'emulated', 'measured']
Rows = list[list[float]]
_MOST_BYTES = 2**30
_LONGEST = 1e8
"""Seconds of a trace: beyond them a double does not tell microseconds apart."""


class SavedSlot(NamedTuple):
    """What a slot of a role is: ``op`` names it with its micro-batch and copy, ``op_class`` without."""

    op: str
    op_class: str
    kind: str
    operator: str
    phase: str
    partition: str
    stream: str


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """What a prediction was simulated from."""

    program: Program
    costs: Costs


@dataclass(frozen=True, slots=True, eq=False)
class SavedRank(RankTimes):
    """Times of one rank; ``role`` indexes the saved trace's roles."""

    role: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedTrace:
    """A trace on its own.

    Arguments:
        program: the hash of the Program.
        origin: how the times came about.
        roles: the slots of each role, in issue order.
        representatives: the times of the ranks that stand for all.
        representative_of_rank: for each rank an index into ``representatives``.
        basis: what a prediction was simulated from, where it was kept.
        answer: what a prediction rests on, and its figures, where they were kept (``saved_answer``).
        net: the network of the times, as ``--net`` writes it; empty where the file does not say.
        name, samples: what the plan is called, and how many samples a step takes; empty and 0 where nobody says.
        baseline: the same of the plan that gain is measured from.
    """

    program: str
    origin: Origin
    roles: tuple[tuple[SavedSlot, ...], ...]
    representatives: tuple[SavedRank, ...]
    representative_of_rank: tuple[int, ...]
    basis: Basis | None = None
    answer: dict[str, Any] | None = None
    net: str = ''
    name: str = ''
    samples: int = 0
    baseline: SavedTrace | None = None

    @property
    def step_times(self) -> Times:
        """Shape [steps]: seconds from the end of one step to the end of the next; the first is the cold step."""
        ends = np.max([rank_times.end_KS.max(axis=1) for rank_times in self.representatives], axis=0)
        return np.asarray(np.diff(ends, prepend=0.0))

    def warm(self, first: int = 1) -> slice:
        """The steps that count, behind so many ``first`` ones; see ``warm_steps``."""
        # As of the Program: it ends in messages, or ranks receive.
        followed = any(
            role[-1].kind != 'compute' or any(slot.kind == 'recv' for slot in role) for role in self.roles if role
        )
        return warm_steps(len(self.step_times), first, alone=self.origin != 'simulated' and followed)


def to_saved(trace: Trace, costs: Costs | None = None) -> SavedTrace:
    """A trace on its own.

    Arguments: ``costs`` that it was simulated with, to be kept.
    """
    program = trace.program
    # Only roles that some representative has, so that files stay small.
    used = sorted({int(program.role_of_rank[rank_times.rank]) for rank_times in trace.representatives})
    roles = [
        tuple(
            SavedSlot(
                op=program.action(role, slot),
                op_class=op.name,
                kind=op.kind,
                operator=op.operator,
                phase=op.phase,
                partition=op.partition,
                stream=role.streams[int(role.stream[slot])],
            )
            for slot in range(len(role))
            for op in [program.op(role, slot)]
        )
        for role in (program.roles[index] for index in used)
    ]
    return SavedTrace(
        program=program.hash,
        origin=trace.origin,
        roles=tuple(roles),
        representatives=tuple(
            SavedRank(times.rank, *times.columns, used.index(role))
            for times in trace.representatives
            for role in [int(program.role_of_rank[times.rank])]
        ),
        representative_of_rank=tuple(trace.representative_of_rank.tolist()),
        basis=Basis(program, costs) if costs is not None else None,
    )


def to_trace(saved: SavedTrace, program: Program) -> Trace:
    """The trace that a saved trace of this program is of.

    Raises ``ScheduleError`` where it is of another.
    """
    if saved.program != program.hash:
        what = f'is of program {saved.program[:12]}, not of {program.hash[:12]}'
        raise refusal('the trace', what, 'measure the schedule again')
    return Trace(program, saved.origin, saved.representatives, np.array(saved.representative_of_rank, dtype=np.int32))


def save_trace(
    path: Path, trace: Trace | SavedTrace, costs: Costs | None = None, answer: dict[str, Any] | None = None
) -> None:
    """Write a trace as JSON, whole or not at all; the same trace gives the same bytes. Raises ``OSError``.

    Arguments: ``costs`` as of ``to_saved``; with them a comparison can look for causes. ``answer``, what it rests on.
    """
    saved = to_saved(trace, costs) if isinstance(trace, Trace) else trace
    content = _written(saved if answer is None else replace(saved, answer=answer))
    write_atomically(path, json.dumps(content) + '\n')


def _written(saved: SavedTrace) -> dict[str, Any]:
    # Columns instead of rows: names of fields stand once, not once a slot.
    content: dict[str, Any] = {
        'format': FORMAT,
        'program': saved.program,
        'origin': saved.origin,
        'lane_of_rank': list(saved.representative_of_rank),
        'roles': [{name: [getattr(slot, name) for slot in role] for name in SavedSlot._fields} for role in saved.roles],
        'lanes': [
            {
                'rank': rank_times.rank,
                'role': rank_times.role,
                **dict(
                    zip(('arrive', 'start', 'end'), (column.tolist() for column in rank_times.columns), strict=True)
                ),
            }
            for rank_times in saved.representatives
        ],
    }
    if saved.basis is not None:
        content['basis'] = {'program': format_program(saved.basis.program), 'costs': costs_to_dict(saved.basis.costs)}
    extra = {'answer': saved.answer, 'net': saved.net, 'name': saved.name, 'samples': saved.samples}
    content |= {key: value for key, value in extra.items() if value}
    if saved.baseline is not None:
        content['baseline'] = _written(saved.baseline)
    return content


def load_trace(path: Path) -> SavedTrace:
    """Read a trace that ``save_trace`` wrote.

    Raises ``ScheduleError`` with what is wrong, if it is no such file or does not fit together.
    """
    instead = 'write one by `simpar run FILE --save` or `simpar measure FILE --save`'
    return _checked(path, read_json(path, _Content, _MOST_BYTES, 'a saved answer or trace', instead))


def _checked(path: Path, content: _Content) -> SavedTrace:
    """The trace of a file's content. Raises ``ScheduleError`` where it does not fit together."""
    wrong = _inconsistency(content)
    if wrong:
        raise refusal(path, wrong, 'write the trace again with --save')
    return SavedTrace(
        roles=tuple(
            tuple(map(SavedSlot, *(getattr(role, name) for name in SavedSlot._fields))) for role in content.roles
        ),
        representatives=tuple(
            SavedRank(one.rank, np.array(one.arrive), np.array(one.start), np.array(one.end), one.role)
            for one in content.lanes
        ),
        representative_of_rank=tuple(content.lane_of_rank),
        basis=_basis(path, content),
        **{key: getattr(content, key) for key in ('program', 'origin', 'answer', 'net', 'name', 'samples')},
        baseline=_checked(path, content.baseline) if content.baseline else None,
    )


def _basis(path: Path, content: _Content) -> Basis | None:
    """What the file says that the trace was simulated from."""
    if content.basis is None:
        return None
    program = parse_program(content.basis.program, f'{path}: basis.program')
    if program.hash != content.program:
        raise refusal(path, 'basis.program: is another program than that of the trace')
    try:
        return Basis(program, costs_from_dict(content.basis.costs, program))
    except ValueError as error:
        raise refusal(path, f'basis.costs: {error}', 'write the trace again with --save') from None


@dataclass(frozen=True, slots=True)
class _BasisContent:
    program: str
    costs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _RoleContent:
    op: list[str]
    op_class: list[str]
    kind: list[str]
    operator: list[str]
    phase: list[str]
    partition: list[str]
    stream: list[str]


@dataclass(frozen=True, slots=True)
class _RankContent:
    rank: int
    role: int
    arrive: Rows
    start: Rows
    end: Rows


@dataclass(frozen=True, slots=True)
class _Content:
    """The file, as it is checked."""

    format: Literal['simpar trace 1']
    program: str
    origin: Origin
    lane_of_rank: list[int]
    roles: list[_RoleContent]
    lanes: list[_RankContent]
    basis: _BasisContent | None = None
    answer: dict[str, Any] | None = None
    net: str = ''
    name: str = ''
    samples: int = 0
    baseline: _Content | None = None


def _inconsistency(content: _Content) -> str:
    """Why the parts do not fit together, or nothing."""
    if not content.lanes or not content.lane_of_rank:
        return 'has no ranks'
    if any(not 0 <= place < len(content.lanes) for place in content.lane_of_rank):
        return 'lane_of_rank: names an entry of lanes that is not there'
    for number, role in enumerate(content.roles):
        if not role.op or len({len(getattr(role, name)) for name in _RoleContent.__slots__}) > 1:
            return f'roles.{number}: its columns are empty or differ in length'
    # All ranks have the same steps, so the first tells how many.
    steps = len(content.lanes[0].end)
    for number, times in enumerate(content.lanes):
        if not 0 <= times.role < len(content.roles) or not 0 <= times.rank < len(content.lane_of_rank):
            return f'lanes.{number}: names a role or a rank that is not there'
        if wrong := _wrong_times(times, steps, len(content.roles[times.role].op)):
            return f'lanes.{number}: {wrong}'
    try:
        parse_net(content.net or 'none')
    except ValueError as error:
        return f'net: {error}'
    return ''


def _wrong_times(times: _RankContent, steps: int, slots: int) -> str:
    """Why the times of a rank cannot be a trace of so many steps and slots, or nothing."""
    tables = (times.arrive, times.start, times.end)
    if not steps or any(len(table) != steps or any(len(row) != slots for row in table) for table in tables):
        return f'its times are not {steps} steps of {slots} ops'
    arrive, start, end = (np.array(table) for table in tables)
    if not (np.isfinite(arrive).all() and np.isfinite(start).all() and np.isfinite(end).all()):
        return 'some time is not a finite number'
    if max(np.abs(table).max() for table in (arrive, start, end)) > _LONGEST:
        return f'some time is longer than {_LONGEST:g} s'
    # An op that waits for its peers starts after it arrives; it must end after both.
    if (end < arrive).any() or (end < start).any():
        return 'some op ends before it arrives or starts'
    return ''
