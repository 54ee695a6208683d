"""Writing: the last step of a trace as Chakra's files, one a rank, and a file of the groups that communicate."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from simpar.errors import Problem, ScheduleError
from simpar.files import write_atomically
from simpar.program import COLLECTIVES, OpClass, Role
from simpar.trace import Trace

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
        raise ScheduleError(Problem('--chakra', what, 'write a plan of fewer ranks or micro-batches'))
    folder.mkdir(parents=True, exist_ok=True)
    groups = _Groups(trace)
    paths = [folder / f'{name}.{rank}.et' for rank in range(program.world)]
    head = {'simpar program': ('string_val', program.hash)}
    for rank, path in enumerate(paths):
        write_atomically(path, packed(_Rank(trace, rank, groups).nodes(), head))
    # Behind the nodes, which are what numbers the groups.
    write_atomically(folder / GROUPS, json.dumps(groups.ranks) + '\n')
    return [*paths, folder / GROUPS]


class _Groups:
    """Numbers of groups, as texts, and their ranks; from 1, as 0 stands for nothing; ``tags``, of streams by name."""

    def __init__(self, trace: Trace) -> None:
        self._partitions = trace.program.partitions
        streams = sorted({name for role in trace.program.roles for name in role.streams})
        self.tags = {name: tag for tag, name in enumerate(streams)}
        self._number: dict[tuple[int, ...], str] = {}

    def of(self, op: OpClass, rank: int) -> tuple[int, ...]:
        """The ranks of a rank's group."""
        return self._partitions[op.partition].members(rank)

    def number(self, members: tuple[int, ...]) -> str:
        """Its number."""
        return self._number.setdefault(members, str(len(self._number) + 1))

    @property
    def ranks(self) -> dict[str, list[int]]:
        """The ranks of every group by its number."""
        return {number: list(members) for members, number in self._number.items()}


class _Rank:
    """The nodes of one rank, numbered as they are issued."""

    def __init__(self, trace: Trace, rank: int, groups: _Groups) -> None:
        self._trace, self._rank, self._groups = trace, rank, groups
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
            work = {'num_ops': ('int64_val', int(op.flops)), 'tensor_size': ('uint64_val', int(op.bytes))}
            yield self._node(slot, COMPUTE, waits, work)
        elif (known := COLLECTIVES.get(op.operator)) and known.chakra is not None:
            members = self._groups.of(op, self._rank)
            # What each rank gives: of an all-gather its part.
            size = known.part(known.gives, op.bytes, len(members))
            talk = {
                'comm_type': ('int64_val', known.chakra),
                'comm_size': ('int64_val', int(size)),
                'pg_name': ('string_val', self._groups.number(members)),
            }
            yield self._node(slot, COLLECTIVE, waits, talk)
        else:
            yield from self._messages(slot, op, waits)

    def _messages(self, slot: int, op: OpClass, waits: list[int]) -> Iterator[Any]:
        """A send or a receive, or both: a step of a ring, to the rank behind and from the one before."""
        members = self._groups.of(op, self._rank)
        place = members.index(self._rank)
        # The two ends of a message name their streams alike, so that streams tell messages of one pair apart.
        tag = self._groups.tags[self._role.streams[int(self._role.stream[slot])]]
        ends = {'send': [(SEND, op.peer)], 'recv': [(RECV, op.peer)]}.get(op.kind, [(SEND, 1), (RECV, -1)])
        for kind, offset in ends:
            peer = members[(place + offset) % len(members)]
            source, target = (self._rank, peer) if kind == SEND else (peer, self._rank)
            talk = {
                'comm_src': ('int32_val', source),
                'comm_dst': ('int32_val', target),
                'comm_tag': ('int32_val', tag),
                'comm_size': ('int64_val', int(op.bytes)),
            }
            yield self._node(slot, kind, waits, talk)

    def _node(self, slot: int, kind: int, waits: list[int], more: dict[str, tuple[str, Any]]) -> Any:
        role, seconds = self._role, float(self._seconds[slot])
        number, self._next = self._next, self._next + 1
        op = self._trace.program.op(role, slot)
        # Only what is split has a number behind its name.
        parts = [('micro-batch', int(role.micro_batch[slot])), ('copy', int(role.copy[slot]))]
        said = ''.join(f' {word} {one}' for word, one in parts if one)
        told = {
            'is_cpu_op': ('bool_val', False),
            **more,
            'stream': ('string_val', role.streams[int(role.stream[slot])]),
            'seconds': ('double_val', seconds),
        }
        return messages().Node(
            id=number,
            name=op.name + said,
            type=kind,
            data_deps=waits,
            start_time_micros=round(max(0.0, float(self._start[slot])) * 1e6),
            duration_micros=max(1, round(seconds * 1e6)) if seconds > 0 else 0,
            attr=attributes(told),
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
_VALUES: Final = {
    'double_val': (3, 1), 'float_val': (5, 2), 'int32_val': (7, 5), 'int64_val': (9, 3), 'uint32_val': (11, 13),
    'uint64_val': (13, 4), 'sint32_val': (15, 17), 'sint64_val': (17, 18), 'fixed32_val': (19, 7),
    'fixed64_val': (21, 6), 'sfixed32_val': (23, 15), 'sfixed64_val': (25, 16), 'bool_val': (27, 8),
    'string_val': (29, _TEXT), 'bytes_val': (31, _BYTES),
}  # fmt: skip
"""Values of an attribute: number and type of the field, the type as descriptor.proto counts them."""
_ATTRIBUTES: Final = '.simpar.chakra.AttributeProto'
_MESSAGES: Final[dict[str, tuple[tuple[str, int, int, bool], ...]]] = {
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
        raise ScheduleError(Problem('Chakra traces', 'protobuf is not installed', instead)) from None
    pools = importlib.import_module('google.protobuf.descriptor_pool')
    described = importlib.import_module('google.protobuf.descriptor_pb2')
    file = described.FileDescriptorProto(name='simpar/chakra.proto', package='simpar.chakra', syntax='proto3')
    attribute = file.message_type.add(name='AttributeProto')
    attribute.oneof_decl.add(name='value')
    attribute.field.add(name='name', number=1, type=_TEXT, label=1)
    for name, (number, kind) in _VALUES.items():
        attribute.field.add(name=name, number=number, type=kind, label=1, oneof_index=0)
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for name, number, kind, several in fields:
            of = {'type_name': _ATTRIBUTES} if kind == _MESSAGE else {}
            made.field.add(name=name, number=number, type=kind, label=3 if several else 1, **of)
    pool = pools.DescriptorPool()
    pool.Add(file)
    names = ('AttributeProto', *_MESSAGES)
    found = {name: pool.FindMessageTypeByName(f'simpar.chakra.{name}') for name in names}
    return SimpleNamespace(**{name: factory.GetMessageClass(one) for name, one in found.items()})


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
    broken: Sequence[type[Exception]] = (importlib.import_module('google.protobuf.message').DecodeError, ValueError)
    try:
        while source.tell() < len(data):
            found = proto.parse_length_prefixed(kind, source)
            if found is None:
                raise ValueError('it breaks off')
            if kind is not messages().GlobalMetadata:
                yield found
            kind = messages().Node
    except tuple(broken) as error:
        raise ValueError(str(error) or 'it breaks off') from None
