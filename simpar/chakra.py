"""Chakra execution traces: one file a rank, with the ops of a step and what each waits for; written, and replayed."""

from __future__ import annotations

import heapq
import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from io import BytesIO
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from simpar import hardware, metrics, profiles, units
from simpar.cost.collective import ClusterCollectives
from simpar.cost.costs import Communication, Costs
from simpar.engine import simulate
from simpar.errors import refusal, shown_part
from simpar.files import read_regular, write_atomically
from simpar.program import COLLECTIVES, OpClass, OpKind, Partition, Program, ProgramBuilder, Role
from simpar.trace import Times, Trace

# Writing: the last step of a trace as Chakra's files, one a rank, and a file of the groups that communicate.

GROUPS: Final = 'comm_groups.json'
MOST_NODES: Final = 2_000_000
"""Of all files together: they take a few hundred bytes each, and some 10 us to write."""


def write_chakra(folder: Path, trace: Trace, name: str) -> list[Path]:
    """Write ``NAME.R.et`` for each rank R, and ``comm_groups.json``; returns the files.

    Arguments:
        folder: made if it does not exist.
        trace: its last step is written; ops last as they do there.
        name: what the files begin with.
    A node waits, by ``data_deps``, for what its op needs and for the op before on its stream. Durations are whole
    microseconds, as the format has them, and exact in the attribute ``seconds``. ``comm_size`` is what each
    rank gives, as astra-sim reads it: the full vector, of an all-gather the rank's part. A step of a ring is a send
    and a receive. Raises ``ScheduleError`` for more than two million nodes, or where protobuf is missing.
    Does not write: what an op needs of the step before, tensors, the host's launches.
    """
    program = trace.program
    total = sum(len(program.role(rank)) for rank in range(program.world))
    if total > MOST_NODES:
        what = f'{total:,} nodes in {program.world:,} files, and two million are the most'
        raise refusal('--chakra', what, 'write a plan of fewer ranks or micro-batches')
    folder.mkdir(parents=True, exist_ok=True)
    # Numbers of groups, as texts, from 1, as 0 stands for nothing; and tags of streams by name.
    groups: dict[tuple[int, ...], str] = {}
    tags = {name: tag for tag, name in enumerate(sorted({one for role in program.roles for one in role.streams}))}
    paths = [folder / f'{name}.{rank}.et' for rank in range(program.world)]
    head = {'simpar program': ('string_val', program.hash)}
    for rank, path in enumerate(paths):
        write_atomically(path, packed(_Rank(trace, rank, groups, tags).nodes(), head))
    # Behind the nodes, which are what numbers the groups.
    write_atomically(folder / GROUPS, json.dumps({number: list(ranks) for ranks, number in groups.items()}) + '\n')
    return [*paths, folder / GROUPS]


class _Rank:
    """The nodes of one rank, numbered as they are issued."""

    def __init__(self, trace: Trace, rank: int, groups: dict[tuple[int, ...], str], tags: Mapping[str, int]) -> None:
        self._trace, self._rank, self._groups, self._tags = trace, rank, groups, tags
        times = trace.times_of(rank)
        self._role: Role = trace.role(times)
        # Seconds of the last step; a message's begin when its last rank has come.
        self._start = times.start_KS[-1]
        self._seconds = times.end_KS[-1] - self._start
        self._of_slot: list[list[int]] = []
        self._next = 0

    def nodes(self) -> Iterator[Any]:
        """The nodes, in issue order."""
        before: dict[int, int] = {}
        needs, streams = self._role.needs(), self._role.stream.tolist()
        for slot, stream in enumerate(streams):
            behind = {*needs[slot], *([before[stream]] if stream in before else [])}
            waits = sorted(node for one in behind for node in self._of_slot[one])
            made = list(self._made(slot, waits))
            self._of_slot.append([one.id for one in made])
            before[stream] = slot
            yield from made

    def _made(self, slot: int, waits: list[int]) -> Iterator[Any]:
        op = self._trace.program.op(self._role, slot)
        if op.kind == 'compute':
            yield self._node(slot, COMPUTE, waits, {'num_ops': int(op.flops), 'tensor_size': int(op.bytes)})
        elif (collective := COLLECTIVES.get(op.operator)) and collective.chakra is not None:
            members = self._trace.program.partitions[op.partition].members(self._rank)
            # What each rank gives: of an all-gather its part.
            size = collective.part(collective.gives, op.bytes, len(members))
            group = self._groups.setdefault(members, str(len(self._groups) + 1))
            talk = {'comm_type': collective.chakra, 'comm_size': int(size), 'pg_name': group}
            yield self._node(slot, COLLECTIVE, waits, talk)
        else:
            yield from self._messages(slot, op, waits)

    def _messages(self, slot: int, op: OpClass, waits: list[int]) -> Iterator[Any]:
        """A send or a receive, or both: a step of a ring, to the rank behind and from the one before."""
        members = self._trace.program.partitions[op.partition].members(self._rank)
        place = members.index(self._rank)
        # The two ends of a message name their streams alike, so that streams tell messages of one pair apart.
        tag = self._tags[self._role.streams[int(self._role.stream[slot])]]
        ends = {'send': [(SEND, op.peer)], 'recv': [(RECV, op.peer)]}.get(op.kind, [(SEND, 1), (RECV, -1)])
        for kind, offset in ends:
            peer = members[(place + offset) % len(members)]
            source, target = (self._rank, peer) if kind == SEND else (peer, self._rank)
            ends_of = {'comm_src': source, 'comm_dst': target, 'comm_tag': tag, 'comm_size': int(op.bytes)}
            yield self._node(slot, kind, waits, ends_of)

    def _node(self, slot: int, kind: int, waits: list[int], more: dict[str, Any]) -> Any:
        role, seconds = self._role, float(self._seconds[slot])
        number, self._next = self._next, self._next + 1
        op = self._trace.program.op(role, slot)
        # Only what is split has a number behind its name.
        parts = [('micro-batch', int(role.micro_batch[slot])), ('copy', int(role.copy[slot]))]
        said = ''.join(f' {word} {one}' for word, one in parts if one)
        stream = role.streams[int(role.stream[slot])]
        fields = {'is_cpu_op': False, **more, 'stream': stream, 'seconds': seconds}
        return messages().Node(
            id=number,
            name=op.name + said,
            type=kind,
            data_deps=waits,
            start_time_micros=round(max(0.0, float(self._start[slot])) * 1e6),
            duration_micros=max(1, round(seconds * 1e6)) if seconds > 0 else 0,
            attr=attributes({key: (_FIELDS[key], value) for key, value in fields.items()}),
        )


VERSION: Final = '0.0.4'
METADATA, LOAD, STORE, COMPUTE, SEND, RECV, COLLECTIVE = range(1, 8)
"""Types of nodes; 0 is none."""
KINDS: Final = (
    *('all_reduce', 'reduce', 'all_gather', 'gather', 'scatter', 'broadcast', 'all_to_all', 'reduce_scatter'),
    *('reduce_scatter_block', 'barrier'),
)
"""All types of collectives, by number."""

_TEXT, _BYTES, _MESSAGE = 9, 12, 11
_FIELDS: Final = {
    'num_ops': 'int64_val', 'tensor_size': 'uint64_val', 'comm_type': 'int64_val', 'comm_size': 'int64_val',
    'pg_name': 'string_val', 'comm_src': 'int32_val', 'comm_dst': 'int32_val', 'comm_tag': 'int32_val',
    'is_cpu_op': 'bool_val', 'stream': 'string_val', 'seconds': 'double_val',
}  # fmt: skip
"""Fields of the attributes that are written."""
_VALUES: Final = {
    'double_val': (3, 1), 'float_val': (5, 2), 'int32_val': (7, 5), 'int64_val': (9, 3), 'uint32_val': (11, 13),
    'uint64_val': (13, 4), 'sint32_val': (15, 17), 'sint64_val': (17, 18), 'fixed32_val': (19, 7),
    'fixed64_val': (21, 6), 'sfixed32_val': (23, 15), 'sfixed64_val': (25, 16), 'bool_val': (27, 8),
    'string_val': (29, _TEXT), 'bytes_val': (31, _BYTES),
}  # fmt: skip
"""Values of an attribute: number and type of the field, the type as descriptor.proto counts them."""
_ATTRIBUTES: Final = '.simpar.chakra.AttributeProto'
_MESSAGES: Final[dict[str, tuple[tuple[str, int, int, bool], ...]]] = {
    'AttributeProto': (
        ('name', 1, _TEXT, False), *((name, number, kind, False) for name, (number, kind) in _VALUES.items()),
    ),
    'GlobalMetadata': (('version', 1, _TEXT, False), ('attr', 2, _MESSAGE, True)),
    'Node': (
        ('id', 1, 4, False), ('name', 2, _TEXT, False), ('type', 3, 5, False), ('ctrl_deps', 4, 4, True),
        ('data_deps', 5, 4, True), ('start_time_micros', 6, 4, False), ('duration_micros', 7, 4, False),
        ('attr', 10, _MESSAGE, True),
    ),
}  # fmt: skip
"""Fields of messages: name, number, type, whether there are several."""


@cache
def messages() -> SimpleNamespace:
    """The classes of the messages. Raises ``ScheduleError`` where protobuf is not installed."""
    try:
        factory = importlib.import_module('google.protobuf.message_factory')
    except ImportError:
        instead = 'install the extra: pip install "simpar-parallel[chakra]"'
        raise refusal('Chakra traces', 'protobuf is not installed', instead) from None
    pools = importlib.import_module('google.protobuf.descriptor_pool')
    described = importlib.import_module('google.protobuf.descriptor_pb2')
    file = described.FileDescriptorProto(name='simpar/chakra.proto', package='simpar.chakra', syntax='proto3')
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        if message == 'AttributeProto':
            made.oneof_decl.add(name='value')
        for name, number, kind, several in fields:
            of: dict[str, Any] = {'oneof_index': 0} if name in _VALUES else {}
            of |= {'type_name': _ATTRIBUTES} if kind == _MESSAGE else {}
            made.field.add(name=name, number=number, type=kind, label=3 if several else 1, **of)
    pool = pools.DescriptorPool()
    pool.Add(file)
    descriptors = {name: pool.FindMessageTypeByName(f'simpar.chakra.{name}') for name in _MESSAGES}
    return SimpleNamespace(**{name: factory.GetMessageClass(one) for name, one in descriptors.items()})


def attributes(values: dict[str, tuple[str, Any]]) -> list[Any]:
    """Attributes of a node. Arguments: ``values``, by name the field and the value."""
    made = messages().AttributeProto
    return [made(name=name, **{field: value}) for name, (field, value) in values.items()]


def valued(node: Any) -> dict[str, Any]:
    """The attributes of a node or of a file's head, whatever type a value has."""
    return {one.name: getattr(one, field) for one in node.attr if (field := one.WhichOneof('value'))}


def packed(nodes: Iterable[Any], head: dict[str, tuple[str, Any]]) -> bytes:
    """A file. Arguments: ``head``, attributes of the whole."""
    # First of all, as this says where protobuf is missing.
    first = messages().GlobalMetadata(version=VERSION, attr=attributes(head))
    proto, out = importlib.import_module('google.protobuf.proto'), BytesIO()
    for one in (first, *nodes):
        proto.serialize_length_prefixed(one, out)
    return out.getvalue()


def unpacked(data: bytes) -> Iterator[Any]:
    """The nodes of a file. Raises ``ValueError`` where it is none."""
    source, kind = BytesIO(data), messages().GlobalMetadata
    proto = importlib.import_module('google.protobuf.proto')
    decode = importlib.import_module('google.protobuf.message').DecodeError
    broken: Sequence[type[Exception]] = (decode, ValueError, OverflowError)
    try:
        while source.tell() < len(data):
            message = proto.parse_length_prefixed(kind, source)
            if message is None:
                raise ValueError('it breaks off')
            if kind is not messages().GlobalMetadata:
                yield message
            kind = messages().Node
    except tuple(broken) as error:
        raise ValueError(str(error) or 'it breaks off') from None


# Reading: a folder of Chakra's files as a Program of recorded nodes, and what it takes to replay it.

NAMED: Final = re.compile(r'(.*)\.(\d+)\.et')
_ENDS: Final = re.compile(r' of (\d+) to (\d+) tag ')
WORLD: Final = 'all ranks'
"""The partition of all; those of groups begin with ``group``."""


@dataclass(frozen=True, eq=False)
class Replayed:
    """What an engine takes of recorded nodes: one step of a program, and what its ops cost.

    Arguments: ``silent``, how many nodes that communicate have no duration and no price.
    """

    program: Program
    costs: Costs
    silent: int


def is_chakra(path: Path) -> bool:
    """Whether a path is a folder of Chakra's files, or one of them."""
    return path.suffix == '.et' or (path.is_dir() and any(path.glob('*.et')))


def read_chakra(path: Path, profile: hardware.Profile | None = None) -> Replayed:
    """The Program of a job in Chakra's files, a role for each rank.

    Arguments: ``path``, a folder with ``NAME.R.et`` for each rank R from 0 on, or one of these files. Groups are those
    of the folder's JSON file, by ``pg_name``; without a name, all ranks are one group. ``profile``, of devices whose
    links price messages and collectives without a duration.
    Nodes last as recorded, a message as the longer of its ends; nobody waits for a send without a duration. Those of
    one queue run in an order that their waits allow, by their numbers. Raises ``ScheduleError``, with file and node.
    Does not model: links that priced messages share.
    """
    folder = path.parent if path.suffix == '.et' else path
    files = _files(path, folder)
    ranks = [nodes_of(file, rank, len(files)) for rank, file in enumerate(files)]
    if (total := sum(map(len, ranks))) > MOST_NODES:
        raise refusal(folder, f'{total:,} nodes, and {MOST_NODES:,} are the most')
    links = ClusterCollectives(_cluster(folder, profile, len(files))) if profile else None
    return _Job(folder, ranks, _groups(folder, len(files)), links).replayed()


def _cluster(folder: Path, profile: hardware.Profile, world: int) -> hardware.Cluster:
    """As many devices as the job has ranks, node by node."""
    nodes, rest = divmod(world, profile.devices)
    if nodes and rest:
        what = f'{world} ranks fill no nodes of {profile.devices} devices'
        raise refusal(f'{folder}: --cluster', what, 'name a profile whose nodes they fill')
    return profiles.cluster(profile, max(nodes, 1), devices=None if nodes else world)


def _files(path: Path, folder: Path) -> list[Path]:
    """A job's files by rank."""
    by_rank = {(match[1], int(match[2])): file for file in folder.glob('*.et') if (match := NAMED.fullmatch(file.name))}
    names = sorted({name for name, _ in by_rank})
    match = NAMED.fullmatch(path.name)
    if match is None and len(names) != 1:
        what = f'files of {len(names)} jobs: {", ".join(names[:4])}' if names else 'no file is named NAME.RANK.et'
        raise refusal(folder, what, 'name one file of the job that is meant')
    name = match[1] if match else names[0]
    ranks = sorted(rank for one, rank in by_rank if one == name)
    if missing := [rank for rank in range(len(ranks)) if rank not in ranks]:
        raise refusal(folder, f'{name} has no file of rank {missing[0]}', 'add it')
    return [by_rank[name, rank] for rank in ranks]


def _groups(folder: Path, world: int) -> dict[str, tuple[int, ...]]:
    """Ranks of groups by name, from the folder's JSON file, if there is one."""
    groups = {'': tuple(range(world))}
    for file in sorted(folder.glob('*.json')):
        try:
            document = json.loads(read_regular(file, MOST_BYTES))
        except (ValueError, OSError, RecursionError) as error:
            raise refusal(file, f'cannot be read: {error}') from None
        if not isinstance(document, dict):
            raise refusal(file, 'no mapping of groups to their ranks')
        for name, ranks in document.items():
            inside = isinstance(ranks, list) and all(isinstance(one, int) and 0 <= one < world for one in ranks)
            if not inside or len(set(ranks)) < len(ranks) or not ranks:
                raise refusal(file, f'group {shown_part(name)}: not a list of ranks below {world}')
            groups[name] = tuple(ranks)
    return groups


@dataclass(eq=False)
class _Job:
    """Nodes of all ranks on their way to a Program."""

    _folder: Path
    _ranks: Sequence[Sequence[Recorded]]
    _groups: Mapping[str, tuple[int, ...]]
    _links: ClusterCollectives | None
    _compute: dict[str, float] = field(default_factory=dict)
    _talk: dict[str, float] = field(default_factory=dict)
    _stated: set[str] = field(default_factory=set)
    _classes: dict[str, OpClass] = field(default_factory=dict)

    def replayed(self) -> Replayed:
        """The program, its costs, and how many messages take no time."""
        roles = [list(self._slots(rank, nodes)) for rank, nodes in enumerate(self._ranks)]
        for rank, slots in enumerate(roles):
            if not slots:
                raise refusal(self._folder, f'rank {rank} has no node that is replayed')
        build = ProgramBuilder(len(self._ranks), self._partitions().values())
        for made in self._classes.values():
            build.add_op_class(made)
        for rank, slots in enumerate(roles):
            streams = tuple(dict.fromkeys(slot[1] for slot in slots)) or ('compute',)
            build.add_role(f'rank{rank}', [rank], slots, streams)
        program = build.build()
        silent = {name for name, seconds in self._talk.items() if not seconds} - self._stated
        return Replayed(program, self._costs(program), 0 if self._links else len(silent))

    def _slots(self, rank: int, nodes: Sequence[Recorded]) -> Iterator[tuple[str, str, int, int, tuple[int, ...]]]:
        place = {node.id: at for at, node in enumerate(nodes)}
        turns: dict[str, int] = {}
        for node in nodes:
            turn = turns[node.stream] = turns.get(node.stream, -1) + 1
            made = self._op(rank, node, turn)
            if self._classes.setdefault(made.name, made) != made:
                raise refusal(self._folder, f'{made.name}: ranks call unlike collectives, {made.operator} among them')
            table = self._compute if made.kind == 'compute' else self._talk
            name = _message(made) if made.kind in ('send', 'recv') else made.name
            table[name] = max(table.get(name, 0.0), node.seconds)
            if 'seconds' in node.told:
                self._stated.add(name)
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
                raise refusal(self._folder, what, 'add a JSON file of groups and their ranks')
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
        world = len(self._ranks)
        everyone = np.arange(world, dtype=np.int32)[None]
        partitions = {WORLD: Partition(WORLD, everyone)}
        for name in sorted(used):
            members = self._groups[name.removeprefix('group ')]
            others = [rank for rank in range(world) if rank not in members]
            # Every rank stands in a group of a partition: those that have no part stand in groups that never meet.
            if len(others) % len(members):
                what = f'group {name}: {len(members)} of {world} ranks, and the others make no groups of its size'
                raise refusal(self._folder, what)
            rows = np.array([*members, *others], dtype=np.int32).reshape(-1, len(members))
            partitions[name] = Partition(name, rows)
        return partitions

    def _costs(self, program: Program) -> Costs:
        classes = program.op_classes
        compute = np.array([units.quantise(self._compute.get(op.name, 0.0)) for op in classes])
        talk: dict[int, list[Communication]] = {}
        for index, op in enumerate(classes):
            if op.kind in ('collective', 'send'):
                seconds = self._talk[_message(op) if op.kind == 'send' else op.name]
                groups = program.partitions[op.partition].groups_GP
                talk[index] = [self._message_cost(op, seconds, group) for group in groups]
        return recorded_costs(program, compute, talk)

    def _message_cost(self, op: OpClass, seconds: float, group: NDArray[np.int32]) -> Communication:
        """As long as recorded; without a duration, what the cluster's links and library make of it."""
        if self._links is None or seconds:
            return Communication(units.quantise(seconds), 0.0)
        # The stream of a message is named by its ends.
        ranks = group.tolist() if op.kind == 'collective' else list(map(int, _ENDS.findall(op.name)[0]))
        cost = self._links.cost(op, ranks)
        return Communication(units.quantise(cost.alpha), units.quantise(cost.transfer))


def recorded_costs(program: Program, compute: Times, communication: Mapping[int, list[Communication]]) -> Costs:
    """Costs of ops that last as long as recorded, whatever runs beside them, and whose host takes no time."""
    none, ones = np.zeros(len(compute)), np.ones(len(compute))
    return Costs(
        compute=compute, host=none, beside_communication=ones, beside_compute=ones, communication=dict(communication),
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
        raise refusal(file, f'is no Chakra trace: {error}') from None
    except OSError as error:
        raise refusal(file, f'cannot be read: {error.strerror or error}') from None
    if len(nodes) > MOST_NODES:
        raise refusal(file, f'more than {MOST_NODES:,} nodes')
    records = []
    for node in nodes:
        # Who sends need not say from where, nor who receives to whom.
        fields = {'comm_src': rank, 'comm_dst': rank, **valued(node)}
        if wrong := _wrong(node.type, fields, rank, world):
            raise refusal(file, f'node {node.id}, {shown_part(node.name)}: {wrong}')
        exact = fields.get('seconds')
        seconds = exact if isinstance(exact, float) else node.duration_micros * 1e-6
        waits = tuple(dict.fromkeys([*node.data_deps, *node.ctrl_deps]))
        records.append(Recorded(node.id, node.name, node.type, waits, float(seconds), fields))
    return records


def _wrong(kind: int, fields: Mapping[str, object], rank: int, world: int) -> str:
    """Why a node cannot be replayed."""
    exact = fields.get('seconds', 0.0)
    if isinstance(exact, float) and not 0 <= exact <= MOST_SECONDS:
        return f'seconds {exact} is no time of a step'
    if kind in (*COMPUTES, *ABOUT):
        return ''
    # They stand in names of streams, which errors print.
    if long := [key for key in ('pg_name', 'comm_tag') if len(str(fields.get(key, ''))) > MOST_LETTERS]:
        return f'{long[0]} is longer than {MOST_LETTERS} letters'
    if kind == COLLECTIVE:
        number = fields.get('comm_type')
        is_kind = type(number) is int and 0 <= number < len(KINDS)
        return '' if is_kind else 'comm_type is no collective'
    if kind not in (SEND, RECV):
        return f'type {kind} is none that is replayed'
    ends = [fields[key] for key in ('comm_src', 'comm_dst')]
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
        raise refusal(file, 'two nodes have one id')
    for node in nodes:
        if lacking := [one for one in node.waits if one not in by_id]:
            what = f'node {node.id}, {shown_part(node.name)}, waits for node {lacking[0]}, which is not there'
            raise refusal(file, what)
    try:
        return [by_id[number] for number in lowest_first({node.id: node.waits for node in nodes})]
    except CycleError as error:
        raise refusal(file, f'nodes wait for each other in a circle, node {min(error.args[1])} among them') from None


def lowest_first(waits: Mapping[int, Iterable[int]]) -> Iterator[int]:
    """Numbers, each behind those that it waits for, else the lowest first. Raises ``CycleError``."""
    sorter = TopologicalSorter(waits)
    sorter.prepare()
    free: list[int] = []
    while sorter.is_active():
        for one in sorter.get_ready():
            heapq.heappush(free, one)
        yield (number := heapq.heappop(free))
        sorter.done(number)


def _handed_over(file: Path, nodes: Sequence[Recorded]) -> list[Recorded]:
    """Nodes of which none waits for one that tells about the trace, nor for a send without a duration.

    Such a send is handed to the network at once. What is behind either waits for what it waits for. Rings are written
    so: all ranks send before they receive, and would wait for each other for ever.
    """
    passed: dict[int, tuple[int, ...]] = {}
    records, total = [], 0
    for node in nodes:
        waits = tuple(dict.fromkeys(behind for one in node.waits for behind in passed.get(one, (one,))))
        total += len(waits)
        if total > MOST_WAITS:
            raise refusal(file, f'its nodes wait for more than {MOST_WAITS:,} others')
        about = node.kind in ABOUT
        if node.kind == COMPUTE and not node.seconds and 'seconds' not in node.told and node.told.get('num_ops'):
            what = f'node {node.id}, {shown_part(node.name)}, computes and has no duration'
            raise refusal(file, what, 'write duration_micros, or the attribute seconds')
        if about or (node.kind == SEND and not node.seconds):
            passed[node.id] = waits
        if not about:
            records.append(node._replace(waits=waits))
    return records


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


def replayed(path: Path, profile: hardware.Profile | None = None) -> ReplayedStep:
    """Replay a job in Chakra's files; arguments and errors as of ``read_chakra``, and ``Deadlock``."""
    job = read_chakra(path, profile)
    trace = simulate(job.program, job.costs, steps=1)
    figures = metrics.metrics(trace).cold
    return ReplayedStep(
        ranks=job.program.world,
        nodes=sum(map(len, job.program.roles)),
        silent=job.silent,
        **{key: getattr(figures, key) for key in ('step', 'compute', 'communication', 'exposed', 'idle')},
    )


def render(replay: ReplayedStep) -> str:
    """The answer, a line for each part."""
    return '\n'.join(_lines(replay)) + '\n'


def to_dict(replay: ReplayedStep) -> dict[str, Any]:
    """The answer for programs; seconds."""
    return asdict(replay)


def _lines(replay: ReplayedStep) -> Iterator[str]:
    step = units.format_time(replay.step)
    yield f'A step of {replay.ranks} ranks takes {step}, by {replay.nodes:,} nodes as recorded.'
    yield ''
    parts = (('compute', replay.compute), ('exposed communication', replay.exposed), ('idle', replay.idle))
    for name, seconds in parts:
        share = seconds / replay.step if replay.step else 0.0
        yield f'{name:22} {units.format_time(seconds):>9}  {share:4.0%} of the step, mean over ranks'
    yield f'{"communication":22} {units.format_time(replay.communication):>9}  with what computation hides'
