"""Reading: a folder of Chakra's files as a Program of recorded nodes, and what it takes to replay it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np

from simpar.chakra import schema
from simpar.chakra.node import COMPUTES, MOST_BYTES, Recorded, nodes_of
from simpar.chakra.write import MOST_NODES
from simpar.cost.costs import Communication, Costs
from simpar.errors import Problem, ScheduleError, shown_part
from simpar.files import read_regular
from simpar.program import OpClass, Partition, Program, ProgramBuilder
from simpar.program.op import OpKind
from simpar.units import quantise

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
            partition = f'group {group}' if group else WORLD
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
