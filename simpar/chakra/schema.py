"""The messages of Chakra's files, as protobuf packs them: numbers and types of fields are those of its et_def.proto.

Source: github.com/mlcommons/chakra, schema/protobuf/et_def.proto. A file is GlobalMetadata and then Nodes, each behind
its length. Lists as values of attributes, inputs and outputs are not read, nor is storage.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from io import BytesIO
from types import SimpleNamespace
from typing import Any, Final

from simpar.errors import Problem, ScheduleError

VERSION: Final = '0.0.4'
METADATA, LOAD, STORE, COMPUTE, SEND, RECV, COLLECTIVE = range(1, 8)
"""Types of nodes; 0 is none."""
COLLECTIVES: Final = {'all_reduce': 0, 'all_gather': 2, 'all_to_all': 6, 'reduce_scatter': 7}
"""Types of collectives that both have."""
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
