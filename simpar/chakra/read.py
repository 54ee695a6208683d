"""Reading: a folder of Chakra's files as a Program of recorded nodes, and what it takes to replay it."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, cast

import numpy as np

from simpar.chakra import schema
from simpar.chakra.write import MOST_NODES
from simpar.cost.costs import Communication, Costs
from simpar.errors import Problem, ScheduleError, shown_part
from simpar.files import read_regular
from simpar.program import OpClass, Partition, Program, ProgramBuilder
from simpar.program.op import OpKind
from simpar.units import quantise

NAMED: Final = re.compile(r'(.*)\.(\d+)\.et')
MOST_BYTES: Final = 2**28
MOST_SECONDS: Final = 1e9
WORLD: Final = 'world'
COMPUTES: Final = (schema.LOAD, schema.STORE, schema.COMPUTE)


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
        if self.kind == schema.COLLECTIVE:
            return f'group {self.told.get("pg_name") or WORLD}'
        if self.kind in (schema.SEND, schema.RECV):
            return f'{self.told["comm_src"]} to {self.told["comm_dst"]} tag {self.told.get("comm_tag", 0)}'
        return 'host' if self.told.get('is_cpu_op') else 'compute'


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
    ranks = [_handed_over(_ordered(file, _nodes(file, rank, len(files)))) for rank, file in enumerate(files)]
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


def _nodes(file: Path, rank: int, world: int) -> list[Recorded]:
    try:
        nodes = list(schema.unpacked(read_regular(file, MOST_BYTES)))
    except ValueError as error:
        raise ScheduleError(Problem(str(file), f'is no Chakra trace: {error}')) from None
    except OSError as error:
        raise ScheduleError(Problem(str(file), f'cannot be read: {error.strerror or error}')) from None
    found = []
    for node in nodes:
        if node.type == schema.METADATA:
            continue
        # Who sends need not say from where, nor who receives to whom.
        told = {'comm_src': rank, 'comm_dst': rank, **schema.valued(node)}
        if wrong := _wrong(node.type, told, world):
            raise ScheduleError(Problem(str(file), f'node {node.id}, {shown_part(node.name)}: {wrong}'))
        exact = told.get('seconds')
        seconds = exact if isinstance(exact, float) else node.duration_micros * 1e-6
        waits = tuple(dict.fromkeys([*node.data_deps, *node.ctrl_deps]))
        found.append(Recorded(node.id, node.name, node.type, waits, float(seconds), told))
    return found


def _wrong(kind: int, told: Mapping[str, object], world: int) -> str:
    """Why a node cannot be replayed."""
    exact = told.get('seconds', 0.0)
    if isinstance(exact, float) and not 0 <= exact <= MOST_SECONDS:
        return f'seconds {exact} is no time of a step'
    if kind in COMPUTES:
        return ''
    if kind == schema.COLLECTIVE:
        number = told.get('comm_type')
        known = isinstance(number, int) and 0 <= number < len(schema.KINDS)
        return '' if known else 'comm_type is no collective'
    if kind not in (schema.SEND, schema.RECV):
        return f'type {kind} is none that is replayed'
    ends = [told[key] for key in ('comm_src', 'comm_dst')]
    inside = all(isinstance(end, int) and 0 <= end < world for end in ends)
    return '' if inside else f'comm_src {ends[0]} or comm_dst {ends[1]} is none of {world} ranks'


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


def _handed_over(nodes: Sequence[Recorded]) -> list[Recorded]:
    """Nodes of which none waits for a send without a duration: it is handed to the network at once.

    What is behind such a send waits for what the send waits for. Rings are written so: all ranks send before they
    receive, and would wait for each other for ever.
    """
    sent: dict[int, tuple[int, ...]] = {}
    found = []
    for node in nodes:
        waits = tuple(dict.fromkeys(behind for one in node.waits for behind in sent.get(one, (one,))))
        found.append(node._replace(waits=waits))
        if node.kind == schema.SEND and not node.seconds:
            sent[node.id] = waits
    return found


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
        if node.kind == schema.COLLECTIVE:
            group = str(node.told.get('pg_name') or '')
            if rank not in self._groups.get(group, ()):
                where = f'rank {rank}, node {node.id}, {shown_part(node.name)}'
                what = f'{where}: group {shown_part(group)} is not told, or has not this rank'
                raise ScheduleError(Problem(str(self._folder), what, 'add a JSON file of groups and their ranks'))
            operator = schema.KINDS[cast('int', node.told['comm_type'])]
            if operator == 'all_gather':
                # There it is what each rank gives, here what all have then.
                size *= len(self._groups[group])
            partition = group or WORLD
            name = f'{operator}.{turn} of {node.stream}'
            # Nobody adds, so that a sum need not be told from a copy.
            return OpClass(name, 'collective', operator, 'F', bytes=size, partition=partition)
        kind: OpKind = 'send' if node.kind == schema.SEND else 'recv'
        ends = [cast('int', node.told[key]) for key in ('comm_src', 'comm_dst')]
        offset = (ends[1] - ends[0]) * (1 if kind == 'send' else -1)
        name = f'{kind}.{turn} of {node.stream}'
        return OpClass(name, kind, kind, 'F', bytes=size, partition=WORLD, peer=offset)

    def _partitions(self) -> dict[str, Partition]:
        used = {op.partition for op in self._classes.values() if op.partition} - {WORLD}
        everyone = np.arange(self._world, dtype=np.int32)[None]
        found = {WORLD: Partition(WORLD, everyone)}
        for name in sorted(used):
            members = self._groups[name]
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
