"""Trees to frozen dataclasses by way of pydantic, whose errors become problems of our own; and their JSON Schema."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from simpar.document.complain import MOST_ERRORS, Terms, problems_of, user_key
from simpar.document.tree import Tree
from simpar.errors import Problem, ScheduleError
from simpar.units import EXAMPLES, UNITS, parse

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def _new_adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(_new_adapter)


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

        kinds = {name: handler.generate_schema(kind) for name, kind in self.kinds.items()}
        fields = {name: core_schema.typed_dict_field(kind, required=False) for name, kind in kinds.items()}
        mapping = core_schema.typed_dict_schema(fields, extra_behavior='forbid')
        wrapped = core_schema.plain_serializer_function_ser_schema(self.wrap, return_schema=mapping)
        return core_schema.no_info_after_validator_function(self.pick, mapping, serialization=wrapped)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        made: dict[str, Any] = handler(schema)
        for name, kind in self._classes():
            made['properties'][name].setdefault('description', (kind.__doc__ or '').partition('\n')[0])
        made |= {'minProperties': 1, 'maxProperties': 1, **({'x-hoist': True} if self.hoist else {})}
        return {'anyOf': [{'enum': list(self.kinds)}, made]} if self.short else made


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


T = TypeVar('T')
MOST_PROBLEMS = 20
"""More than these do not fit on one screen; the rest is counted."""


def build(
    tree: Tree,
    kind: type[T],
    *,
    prepare: Callable[[Any], Any] | None = None,
    check: Callable[[T], Iterable[Problem]] | None = None,
    terms: Terms | None = None,
) -> T:
    """The value of a tree; raises `ScheduleError` with every problem, however many, and leaves none out.

    Arguments:
        kind: a frozen dataclass with keyword fields, constraints as pydantic's ``Field`` in ``Annotated``; unknown keys
            are refused everywhere.
        prepare: rewrites the plain tree, e.g. a short form in full.
        check: yields what is wrong with a value that is well-formed, at keys of the file.
        terms: the field's words that the file has under other names, or not at all.
    """
    from pydantic import ValidationError

    text = json.dumps(tree.root)
    if prepare:
        # It may write into what it gets, and problems are looked up in what the user wrote.
        text = json.dumps(prepare(json.loads(text)))
    problems = list(tree.problems)
    try:
        # JSON mode is strict about scalars and yet takes lists for tuples and mappings for dataclasses.
        value: T = adapter(kind).validate_json(text, strict=True, extra='forbid')
    except ValidationError as wrong:
        problems += problems_of(wrong.errors(include_url=False), tree, json_schema(kind), terms)
    else:
        problems += [_located(tree, problem) for problem in (check(value) if check else ())]
    if problems:
        raise ScheduleError(problems)
    return value


def _located(tree: Tree, problem: Problem) -> Problem:
    key = user_key(tree.root, problem.key, 'all')
    return problem.at(tree.where(key), key)


def one_screen(problems: list[Problem]) -> list[Problem]:
    """Problems in the order of their file, each once, and no more than fit on a screen."""
    ordered = sorted(dict.fromkeys(problems), key=_place)
    more = len(ordered) - MOST_PROBLEMS
    if more <= 0:
        return ordered
    others = f'{more} more' if len(ordered) < MOST_ERRORS else f'more than {MOST_ERRORS - MOST_PROBLEMS} others'
    return [*ordered[:MOST_PROBLEMS], Problem(ordered[MOST_PROBLEMS].where, f'and {others}')]


def _place(problem: Problem) -> tuple[str, int]:
    name, _, line = problem.place.rpartition(':')
    # Without a line, as --set has none, a problem stands before those of a file.
    return (name, int(line)) if line.isdecimal() else (problem.place, 0)


def dump(value: T, kind: type[T] | None = None) -> Any:
    """The plain tree that is read as this value: dicts, lists and scalars, quantities as text, keys as in a file."""
    return adapter(kind or type(value)).dump_python(value, mode='json', by_alias=True)


def _new_schema(kind: Any) -> str:
    return json.dumps(_tidy(adapter(kind).json_schema(by_alias=True)))


_schema_text: Callable[[Any], str] = functools.cache(_new_schema)


def json_schema(kind: type) -> dict[str, Any]:
    """JSON Schema (2020-12) of what `build` reads as this dataclass, for completion in editors."""
    schema: dict[str, Any] = json.loads(_schema_text(kind))
    return {'$schema': 'https://json-schema.org/draft/2020-12/schema', **schema}


def _tidy(node: Any) -> Any:
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    tidy = {name: _tidy(value) for name, value in node.items()}
    if isinstance(tidy.get('properties'), dict):
        tidy['additionalProperties'] = False
        tidy = _hoist(tidy)
    if tidy.get('type') == 'string' and not isinstance(tidy.get('default', ''), str):
        del tidy['default']  # the default of a quantity is an SI float, which a file may not hold
    if tidy.get('maxProperties') == 1:
        tidy.pop('default', None)  # of a OneOf: it would lack its key
    if isinstance(tidy.get('description'), str):
        tidy['description'] = tidy['description'].split('\n\n')[0]
    if isinstance(tidy.get('title'), str):
        del tidy['title']  # pydantic's, made of the key
    return tidy


def _hoist(node: dict[str, Any]) -> dict[str, Any]:
    for name, inner in list(node['properties'].items()):
        if isinstance(inner, dict) and inner.get('x-hoist'):
            del node['properties'][name]
            node['properties'] = {**inner['properties'], **node['properties']}
            node['required'] = [key for key in node.get('required', []) if key != name]
            node['oneOf'] = [{'required': [key]} for key in inner['properties']]
    return node
