"""Reading: a folder of Chakra's files as a Program of recorded nodes, and what it takes to replay it."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np

from simpar.chakra.write import (
    COLLECTIVE,
    COMPUTE,
    KINDS,
    LOAD,
    METADATA,
    MOST_NODES,
    RECV,
    SEND,
    STORE,
    unpacked,
    valued,
)
from simpar.cost.costs import Communication, Costs
from simpar.engine import simulate
from simpar.errors import Problem, ScheduleError, shown_part
from simpar.files import read_regular
from simpar.metrics import metrics
from simpar.program import COLLECTIVES, OpClass, OpKind, Partition, Program, ProgramBuilder
from simpar.units import format_time, quantise

NAMED: Final = re.compile(r'(.*)\.(\d+)\.et')
WORLD: Final = 'all ranks'
"""The partition of all; those of groups begin with ``group``."""


@dataclass(frozen=True, eq=False)
class Replayed:
    """What an engine takes of recorded nodes: one step of a program, and what its ops cost.

    Arguments: ``silent``, how many nodes that communicate have no duration.
    """

    program: Program
    costs: Costs
    silent: int


def is_chakra(path: Path) -> bool:
    """Whether a path is a folder of Chakra's files, or one of them."""
    return path.suffix == '.et' or (path.is_dir() and any(path.glob('*.et')))


def read_chakra(path: Path) -> Replayed:
    """The Program of a job in Chakra's files, a role for each rank.

    Arguments: ``path``, a folder with ``NAME.R.et`` for each rank R from 0 on, or one of these files. Groups are those
    of the folder's JSON file, by ``pg_name``; without a name, all ranks are one group.
    Nodes last as recorded, a message as the longer of its ends; nobody waits for a send without a duration. Those of
    one queue run in an order that their waits allow, by their numbers. Raises ``ScheduleError``, with file and node.
    Does not model: what a node without a duration takes.
    """
    folder = path.parent if path.suffix == '.et' else path
    files = _files(path, folder)
    ranks = [nodes_of(file, rank, len(files)) for rank, file in enumerate(files)]
    if (total := sum(map(len, ranks))) > MOST_NODES:
        raise ScheduleError(Problem(str(folder), f'{total:,} nodes, and {MOST_NODES:,} are the most'))
    return _Job(folder, ranks, _groups(folder, len(files))).replayed()


def _files(path: Path, folder: Path) -> list[Path]:
    """A job's files by rank."""
    found = {(told[1], int(told[2])): file for file in folder.glob('*.et') if (told := NAMED.fullmatch(file.name))}
    names = sorted({name for name, _ in found})
    told = NAMED.fullmatch(path.name)
    if told is None and len(names) != 1:
        what = f'files of {len(names)} jobs: {", ".join(names[:4])}' if names else 'no file is named NAME.RANK.et'
        raise ScheduleError(Problem(str(folder), what, 'name one file of the job that is meant'))
    name = told[1] if told else names[0]
    ranks = sorted(rank for one, rank in found if one == name)
    if missing := [rank for rank in range(len(ranks)) if rank not in ranks]:
        raise ScheduleError(Problem(str(folder), f'{name} has no file of rank {missing[0]}', 'add it'))
    return [found[name, rank] for rank in ranks]


def _groups(folder: Path, world: int) -> dict[str, tuple[int, ...]]:
    """Ranks of groups by name, from the folder's JSON file, if there is one."""
    found = {'': tuple(range(world))}
    for file in sorted(folder.glob('*.json')):
        try:
            told = json.loads(read_regular(file, MOST_BYTES))
        except (ValueError, OSError, RecursionError) as error:
            raise ScheduleError(Problem(str(file), f'cannot be read: {error}')) from None
        if not isinstance(told, dict):
            raise ScheduleError(Problem(str(file), 'no mapping of groups to their ranks'))
        for name, ranks in told.items():
            inside = isinstance(ranks, list) and all(isinstance(one, int) and 0 <= one < world for one in ranks)
            if not inside or len(set(ranks)) < len(ranks) or not ranks:
                raise ScheduleError(Problem(str(file), f'group {shown_part(name)}: not a list of ranks below {world}'))
            found[name] = tuple(ranks)
    return found


class _Job:
    """Nodes of all ranks on their way to a Program."""

    def __init__(
        self, folder: Path, ranks: Sequence[Sequence[Recorded]], groups: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._folder, self._ranks, self._groups = folder, ranks, groups
        self._world = len(ranks)
        self._compute: dict[str, float] = {}
        self._talk: dict[str, float] = {}
        self._classes: dict[str, OpClass] = {}

    def replayed(self) -> Replayed:
        """The program, its costs, and how many messages take no time."""
        roles = [list(self._slots(rank, nodes)) for rank, nodes in enumerate(self._ranks)]
        for rank, slots in enumerate(roles):
            if not slots:
                raise ScheduleError(Problem(str(self._folder), f'rank {rank} has no node that is replayed'))
        build = ProgramBuilder(self._world, self._partitions().values())
        for made in self._classes.values():
            build.add_op_class(made)
        for rank, slots in enumerate(roles):
            streams = tuple(dict.fromkeys(slot[1] for slot in slots)) or ('compute',)
            build.add_role(f'rank{rank}', [rank], slots, streams)
        program = build.build()
        silent = sum(not seconds for seconds in self._talk.values())
        return Replayed(program, self._costs(program), silent)

    def _slots(self, rank: int, nodes: Sequence[Recorded]) -> Iterator[tuple[str, str, int, int, tuple[int, ...]]]:
        place = {node.id: at for at, node in enumerate(nodes)}
        turns: dict[str, int] = {}
        for node in nodes:
            turn = turns[node.stream] = turns.get(node.stream, -1) + 1
            made = self._op(rank, node, turn)
            if self._classes.setdefault(made.name, made) != made:
                what = f'{made.name}: ranks call unlike collectives, {made.operator} among them'
                raise ScheduleError(Problem(str(self._folder), what))
            table = self._compute if made.kind == 'compute' else self._talk
            name = _message(made) if made.kind in ('send', 'recv') else made.name
            table[name] = max(table.get(name, 0.0), node.seconds)
            yield made.name, node.stream, 0, 0, tuple(place[one] for one in node.waits)

    def _op(self, rank: int, node: Recorded, turn: int) -> OpClass:
        if node.kind in COMPUTES:
            return OpClass(f'{node.name}.{node.id}.rank{rank}', 'compute', 'recorded', 'F')
        size = node.told.get('comm_size', 0)
        size = float(size) if isinstance(size, int) else 0.0
        if node.kind == COLLECTIVE:
            group = str(node.told.get('pg_name') or '')
            if rank not in self._groups.get(group, ()):
                where = f'rank {rank}, node {node.id}, {shown_part(node.name)}'
                what = f'{where}: group {shown_part(group)} is not told, or has not this rank'
                raise ScheduleError(Problem(str(self._folder), what, 'add a JSON file of groups and their ranks'))
            operator = KINDS[cast('int', node.told['comm_type'])]
            if operator in COLLECTIVES and COLLECTIVES[operator].gives == 'shard':
                # There it is what each rank gives, here what all have then.
                size *= len(self._groups[group])
            partition = f'group {group}' if group else WORLD
            name = f'{operator}.{turn} of {node.stream}'
            # Nobody adds, so that a sum need not be told from a copy.
            return OpClass(name, 'collective', operator, 'F', bytes=size, partition=partition)
        kind: OpKind = 'send' if node.kind == SEND else 'recv'
        ends = [cast('int', node.told[key]) for key in ('comm_src', 'comm_dst')]
        offset = (ends[1] - ends[0]) * (1 if kind == 'send' else -1)
        name = f'{kind}.{turn} of {node.stream}'
        return OpClass(name, kind, kind, 'F', bytes=size, partition=WORLD, peer=offset)

    def _partitions(self) -> dict[str, Partition]:
        used = {op.partition for op in self._classes.values() if op.partition} - {WORLD}
        everyone = np.arange(self._world, dtype=np.int32)[None]
        found = {WORLD: Partition(WORLD, everyone)}
        for name in sorted(used):
            members = self._groups[name.removeprefix('group ')]
            others = [rank for rank in range(self._world) if rank not in members]
            # Every rank stands in a group of a partition: those that have no part stand in groups that never meet.
            if len(others) % len(members):
                what = f'group {name}: {len(members)} of {self._world} ranks, and the others make no groups of its size'
                raise ScheduleError(Problem(str(self._folder), what))
            rows = np.array([*members, *others], dtype=np.int32).reshape(-1, len(members))
            found[name] = Partition(name, rows)
        return found

    def _costs(self, program: Program) -> Costs:
        classes = program.op_classes
        compute = np.array([quantise(self._compute.get(op.name, 0.0)) for op in classes])
        talk: dict[int, list[Communication]] = {}
        for index, op in enumerate(classes):
            if op.kind in ('collective', 'send'):
                seconds = self._talk[_message(op) if op.kind == 'send' else op.name]
                groups = len(program.partitions[op.partition].groups_GP)
                talk[index] = [Communication(quantise(seconds), 0.0)] * groups
        none, ones = np.zeros(len(classes)), np.ones(len(classes))
        return Costs(
            compute=compute, host=none, beside_communication=ones, beside_compute=ones, communication=talk,
            links=(), rank_speed=np.ones(program.world),
        )  # fmt: skip


def _message(op: OpClass) -> str:
    """The name of what is sent and received."""
    return op.name.partition('.')[2]


MOST_BYTES: Final = 2**28
MOST_SECONDS: Final = 1e9
MOST_WAITS: Final = 20_000_000
MOST_LETTERS: Final = 80
COMPUTES: Final = (LOAD, STORE, COMPUTE)
ABOUT: Final = (0, METADATA)
"""Types of nodes that do nothing: astra-sim ends them at once."""


class Recorded(NamedTuple):
    """A node: what it is, and which nodes of its rank it waits for."""

    id: int
    name: str
    kind: int
    waits: tuple[int, ...]
    seconds: float
    told: Mapping[str, object]

    @property
    def stream(self) -> str:
        """Where it runs: the host's nodes apart, all other computation in one queue, a queue for each group or pair."""
        if self.kind == COLLECTIVE:
            return f'group {self.told.get("pg_name") or "of all"}'
        if self.kind in (SEND, RECV):
            return f'{self.told["comm_src"]} to {self.told["comm_dst"]} tag {self.told.get("comm_tag", 0)}'
        return 'host' if self.told.get('is_cpu_op') else 'compute'


def nodes_of(file: Path, rank: int, world: int) -> list[Recorded]:
    """The nodes of a rank's file, in an order in which none waits for a later one.

    What tells only about the trace is left out; whoever waits for it waits for what it waits for. Raises
    ``ScheduleError`` that names file and node.
    """
    return _handed_over(file, _ordered(file, _read(file, rank, world)))


def _read(file: Path, rank: int, world: int) -> list[Recorded]:
    try:
        nodes = list(islice(unpacked(read_regular(file, MOST_BYTES)), MOST_NODES + 1))
    except ValueError as error:
        raise ScheduleError(Problem(str(file), f'is no Chakra trace: {error}')) from None
    except OSError as error:
        raise ScheduleError(Problem(str(file), f'cannot be read: {error.strerror or error}')) from None
    if len(nodes) > MOST_NODES:
        raise ScheduleError(Problem(str(file), f'more than {MOST_NODES:,} nodes'))
    found = []
    for node in nodes:
        # Who sends need not say from where, nor who receives to whom.
        told = {'comm_src': rank, 'comm_dst': rank, **valued(node)}
        if wrong := _wrong(node.type, told, rank, world):
            raise ScheduleError(Problem(str(file), f'node {node.id}, {shown_part(node.name)}: {wrong}'))
        exact = told.get('seconds')
        seconds = exact if isinstance(exact, float) else node.duration_micros * 1e-6
        waits = tuple(dict.fromkeys([*node.data_deps, *node.ctrl_deps]))
        found.append(Recorded(node.id, node.name, node.type, waits, float(seconds), told))
    return found


def _wrong(kind: int, told: Mapping[str, object], rank: int, world: int) -> str:
    """Why a node cannot be replayed."""
    exact = told.get('seconds', 0.0)
    if isinstance(exact, float) and not 0 <= exact <= MOST_SECONDS:
        return f'seconds {exact} is no time of a step'
    if kind in (*COMPUTES, *ABOUT):
        return ''
    # They stand in names of streams, which errors print.
    if long := [key for key in ('pg_name', 'comm_tag') if len(str(told.get(key, ''))) > MOST_LETTERS]:
        return f'{long[0]} is longer than {MOST_LETTERS} letters'
    if kind == COLLECTIVE:
        number = told.get('comm_type')
        known = type(number) is int and 0 <= number < len(KINDS)
        return '' if known else 'comm_type is no collective'
    if kind not in (SEND, RECV):
        return f'type {kind} is none that is replayed'
    ends = [told[key] for key in ('comm_src', 'comm_dst')]
    # True is an integer to Python, and no rank.
    if not all(type(end) is int and 0 <= end < world for end in ends):
        return f'comm_src {shown_part(str(ends[0]))} or comm_dst {shown_part(str(ends[1]))} is none of {world} ranks'
    if ends[0] == ends[1]:
        return f'rank {rank} sends to itself'
    mine = ends[0] if kind == SEND else ends[1]
    return '' if mine == rank else f'it stands in the file of rank {rank}, and is of rank {mine}'


def _ordered(file: Path, nodes: Sequence[Recorded]) -> list[Recorded]:
    """Nodes in an order in which none waits for a later one, by their numbers where they are free."""
    by_id = {node.id: node for node in nodes}
    if len(by_id) < len(nodes):
        raise ScheduleError(Problem(str(file), 'two nodes have one id'))
    left = {node.id: len(node.waits) for node in nodes}
    behind: dict[int, list[int]] = {}
    for node in nodes:
        for one in node.waits:
            if one not in by_id:
                what = f'node {node.id}, {shown_part(node.name)}, waits for node {one}, which is not there'
                raise ScheduleError(Problem(str(file), what))
            behind.setdefault(one, []).append(node.id)
    free = [number for number, count in left.items() if not count]
    heapq.heapify(free)
    found = []
    while free:
        found.append(by_id[heapq.heappop(free)])
        for one in behind.get(found[-1].id, ()):
            left[one] -= 1
            if not left[one]:
                heapq.heappush(free, one)
    if len(found) < len(nodes):
        stuck = next(number for number, count in left.items() if count)
        raise ScheduleError(Problem(str(file), f'nodes wait for each other in a circle, node {stuck} among them'))
    return found


def _handed_over(file: Path, nodes: Sequence[Recorded]) -> list[Recorded]:
    """Nodes of which none waits for one that tells about the trace, nor for a send without a duration.

    Such a send is handed to the network at once. What is behind either waits for what it waits for. Rings are written
    so: all ranks send before they receive, and would wait for each other for ever.
    """
    passed: dict[int, tuple[int, ...]] = {}
    found, total = [], 0
    for node in nodes:
        waits = tuple(dict.fromkeys(behind for one in node.waits for behind in passed.get(one, (one,))))
        total += len(waits)
        if total > MOST_WAITS:
            raise ScheduleError(Problem(str(file), f'its nodes wait for more than {MOST_WAITS:,} others'))
        about = node.kind in ABOUT
        if about or (node.kind == SEND and not node.seconds):
            passed[node.id] = waits
        if not about:
            found.append(node._replace(waits=waits))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """A step of recorded nodes.

    Arguments: ``ranks``, ``nodes`` of all ranks; ``step`` seconds, and of them, means over ranks, those of
    ``compute``, of communication that is ``exposed``, and ``idle``; ``silent``, nodes that communicate in no time.
    """

    ranks: int
    nodes: int
    step: float
    compute: float
    communication: float
    exposed: float
    idle: float
    silent: int


def replayed(path: Path) -> ReplayedStep:
    """Replay a job in Chakra's files; arguments and errors as of ``read_chakra``, and ``Deadlock``."""
    job = read_chakra(path)
    trace = simulate(job.program, job.costs, steps=1)
    found = metrics(trace).cold
    return ReplayedStep(
        ranks=job.program.world,
        nodes=sum(map(len, job.program.roles)),
        step=found.step,
        compute=found.compute,
        communication=found.communication,
        exposed=found.exposed,
        idle=found.idle,
        silent=job.silent,
    )


def render(found: ReplayedStep) -> str:
    """The answer, a line for each part."""
    return '\n'.join(_lines(found)) + '\n'


def to_dict(found: ReplayedStep) -> dict[str, Any]:
    """The answer for programs; seconds."""
    return asdict(found)


def _lines(found: ReplayedStep) -> Iterator[str]:
    yield f'A step of {found.ranks} ranks takes {format_time(found.step)}, by {found.nodes:,} nodes as recorded.'
    yield ''
    parts = (('compute', found.compute), ('exposed communication', found.exposed), ('idle', found.idle))
    for name, seconds in parts:
        share = seconds / found.step if found.step else 0.0
        yield f'{name:22} {format_time(seconds):>9}  {share:4.0%} of the step, mean over ranks'
    yield f'{"communication":22} {format_time(found.communication):>9}  with what computation hides'
    if found.silent:
        yield f'Note: {found.silent:,} messages and collectives have no duration, and take none'
