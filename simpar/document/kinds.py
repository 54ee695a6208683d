"""Kinds of values that a file can hold beyond numbers and text: quantities with a unit, one of several things.

Each is a marker for `Annotated`, so that dataclasses stay plain; pydantic is imported when a file is read, not before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from simpar.document.adapter import adapter
from simpar.units import EXAMPLES, UNITS, parse

_SI = {'time': 's', 'size': 'B', 'rate': 'B/s', 'flops': 'FLOP/s'}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A float of SI units inside, text with a unit such as ``"200 GB/s"`` in a file.

    Arguments: ``kind``, one of time, size, rate, flops; ``positive``: zero is refused.
    """

    kind: str
    positive: bool = False

    def read(self, text: object) -> float:
        """The value of a text; raises `ValueError` that says what to write."""
        value = parse(text, self.kind)
        # Written so that NaN is refused, too.
        if self.positive and not value > 0:
            raise ValueError(f'a {self.kind} of nothing; write more than 0, e.g. {EXAMPLES[self.kind]}')
        return value

    def write(self, value: Any) -> Any:
        """The text that is read as exactly this value; what is no number, e.g. ``auto`` beside a quantity, as it is."""
        return f'{value!r} {_SI[self.kind]}' if isinstance(value, (int, float)) else value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        written = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        units = '|'.join(re.escape(unit) for unit in sorted(UNITS[self.kind]))
        number = r'([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?'
        example = EXAMPLES[self.kind].strip('"')
        return {
            'type': 'string',
            'pattern': rf'^\s*{number}\s*({units})\s*$',
            'examples': [example],
            'x-quantity': self.kind,
        }


Seconds = Annotated[float, Quantity('time')]
Bytes = Annotated[float, Quantity('size')]
Rate = Annotated[float, Quantity('rate', positive=True)]
Flops = Annotated[float, Quantity('flops', positive=True)]


class OneOf:
    """A mapping with exactly one of these keys; its value is the dataclass that stands under the key.

    ``OneOf(sgd=Sgd, adam=Adam)`` reads ``{sgd: {learning_rate: 0.1}}``. With ``hoist`` the keys stand in the mapping
    around it, not in one of their own: the JSON Schema says so, and the reader's `prepare` moves them. With ``short`` a
    key alone stands for all defaults of its dataclass; `prepare` writes it out, too. ``written_out``, keys that stand
    for one of the others, written out before it is read; messages name them, too.
    """

    def __init__(
        self, *, hoist: bool = False, short: bool = False, written_out: tuple[str, ...] = (), **kinds: Any
    ) -> None:
        self.hoist = hoist
        self.short = short
        self.written_out = written_out
        self.kinds = kinds

    def pick(self, found: Mapping[str, Any]) -> Any:
        """The only value; raises `ValueError` unless there is exactly one."""
        if len(found) != 1:
            names = ', '.join((*self.written_out, *self.kinds))
            what = f'all of {", ".join(found)} at once' if found else f'none of {names}'
            raise ValueError(f'has {what}; write exactly one of {names}')
        return next(iter(found.values()))

    def wrap(self, value: Any) -> dict[str, Any]:
        """The value under its key again."""
        # The nearest kind: some are another one under a name of their own.
        kinds = type(value).__mro__
        return {min((kinds.index(kind), name) for name, kind in self._classes() if kind in kinds)[1]: value}

    def _classes(self) -> Iterator[tuple[str, type]]:
        for name, kind in self.kinds.items():
            yield name, getattr(kind, '__origin__', kind)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        # A schema of all kinds at once takes as long to make as everything else of a file; a file uses a few.
        mapping = _mapping({name: _deferred(kind) for name, kind in self.kinds.items()})
        wrapped = core_schema.plain_serializer_function_ser_schema(self.wrap, return_schema=mapping)
        return core_schema.no_info_after_validator_function(self.pick, mapping, serialization=wrapped)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        made: dict[str, Any] = handler(_mapping({name: adapter(kind).core_schema for name, kind in self.kinds.items()}))
        for name, kind in self._classes():
            made['properties'][name].setdefault('description', (kind.__doc__ or '').partition('\n')[0])
        made |= {'minProperties': 1, 'maxProperties': 1, **({'x-hoist': True} if self.hoist else {})}
        return {'anyOf': [{'enum': list(self.kinds)}, made]} if self.short else made


def _mapping(kinds: Mapping[str, Any]) -> Any:
    """The schema of a mapping with any of these keys."""
    from pydantic_core import core_schema

    fields = {name: core_schema.typed_dict_field(kind, required=False) for name, kind in kinds.items()}
    return core_schema.typed_dict_schema(fields, extra_behavior='forbid')


def _deferred(kind: Any) -> Any:
    """The schema of a class, made when a value of it is first read or written."""
    from pydantic_core import core_schema

    def read(value: Any) -> Any:
        # Through text, for only in JSON mode strict reading takes lists for tuples; errors keep their places.
        return adapter(kind).validate_json(json.dumps(value), strict=True, extra='forbid')

    def write(value: Any) -> Any:
        return adapter(kind).dump_python(value, mode='json', by_alias=True)

    written = core_schema.plain_serializer_function_ser_schema(write)
    return core_schema.no_info_plain_validator_function(read, serialization=written)


@dataclass(frozen=True, slots=True)
class Short:
    """Says in the JSON Schema that a value may be written short: what is not a mapping stands for ``{key: value}``.

    Does not read it: the reader's `prepare` writes it out in full. Arguments: ``description`` of both forms.
    """

    key: str
    description: str = ''

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        full = handler(schema)
        short = handler.resolve_ref_schema(full)['properties'][self.key]
        told = {'description': self.description} if self.description else {}
        return {'anyOf': [short, full], **told}
