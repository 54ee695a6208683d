"""Documents: YAML read with lines, checked against a model, and complaints in words."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from simpar.document.tree import Tree
from simpar.errors import Key, Problem, ScheduleError, dotted, refusal, refuse
from simpar.files import read_csv, read_regular
from simpar.units import EXAMPLES, UNITS, parse

if TYPE_CHECKING:
    from pydantic import TypeAdapter


# Pydantic's errors, told as problems: the user's key, what is wrong there, and what the schema wants instead.

_UNKNOWN: Final = {'unexpected_keyword_argument', 'extra_forbidden'}
_MISSING: Final = {'missing', 'missing_keyword_only_argument', 'missing_argument'}
_CHOSEN: Final = {'literal_error', 'tuple_type', 'float_parsing', 'value_error', 'float_type'}
"""Of values that may be one of a few words."""
_ROWS: Final = tuple(read_csv(Path(__file__).with_name('words.csv')))
_WRONG: Final = tuple((row['of'], row['words']) for row in _ROWS if row['kind'] == 'wrong')
"""Beginnings of pydantic's error types; the first that fits."""
_WORDS: Final = {row['of']: row['words'] for row in _ROWS if row['kind'] == 'type'}
_BOUNDS: Final = tuple((row['of'], row['words'], row['behind']) for row in _ROWS if row['kind'] == 'bound')


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Words of the field that a kind of file does not know: what to say of an unknown key, and of an unknown value.

    Arguments: functions of the user's key, and of the value there, to (what is wrong, what to write) or None.
    """

    key: Callable[[Key], tuple[str, str] | None]
    value: Callable[[Key, str], tuple[str, str] | None]


_NEAR: Final = 0.72
"""Share of letters that a misspelt word has in common with the right one, by difflib: copys and copies have 0.727."""
_MOST_IN_JSON: Final = 12
MOST_ERRORS: Final = 1000
"""More than these are not told one by one, so that a file full of nonsense is refused at once."""


def problems_of(
    errors: Iterable[Any], tree: Tree, schema: Mapping[str, Any], terms: Terms | None = None
) -> list[Problem]:
    """One problem for each key that pydantic complains of, except where the text itself was refused.

    Arguments:
        errors: pydantic's, as ``ValidationError.errors()`` lists them.
        tree: what the user wrote.
        schema: the JSON Schema of what was expected.
        terms: words of the field; they are told before names that are near.
    """
    problems: dict[Key, Problem] = {}
    # A megabyte of nonsense has more errors than anyone reads, and each takes a look into the schema.
    for error in islice(errors, MOST_ERRORS):
        key = user_key(tree.root, error['loc'], 'last' if error['type'] in _MISSING else 'none')
        # A list is also called too short where some of its items are wrong, which is told anyway.
        needless = error['type'] == 'too_short' and len(error['input']) >= error['ctx']['min_length']
        if needless or any(key[:end] in tree.refused for end in range(len(key) + 1)):
            continue
        advice = _term(terms, error, key) if terms else None
        what, instead = advice or _tell(error, *_around(schema, error['loc']))
        # A union complains once for each branch; the first one told is enough for a key.
        problems.setdefault(key, Problem(tree.where(key), f'{dotted(key)}: {what}' if key else what, instead))
    return list(problems.values())


def _term(terms: Terms, error: Mapping[str, Any], key: Key) -> tuple[str, str] | None:
    """What is said of a word of the field, in the place of a key or of a value."""
    if error['type'] in _UNKNOWN:
        return terms.key(key)
    entry = error['input']
    return terms.value(key, entry) if key and isinstance(entry, str) and error['type'] in _CHOSEN else None


def user_key(root: Any, loc: Iterable[str | int], missing: Literal['none', 'last', 'all'] = 'none') -> Key:
    """A place of a value as a key of what the user wrote: without the parts that are not there, e.g. tags of a union.

    Arguments: ``missing``: which of the parts behind the last one that is there belong to the key all the same.
    """
    node, key, absent = root, (), ()  # type: Any, Key, Key
    for part in loc:
        if isinstance(node, dict) and str(part) in node:
            # Keys of a tree are text, but a Mapping[int, ...] reports them as numbers.
            key, node, absent = (*key, str(part)), node[str(part)], ()
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            key, node, absent = (*key, part), node[part], ()
        elif missing == 'all' and key and isinstance(key[-1], int) and isinstance(node, dict) and len(node) == 1:
            # What stands in a list under one key may be read as another kind: ``mul`` of two values as ``multiply``.
            only = next(iter(node))
            key, node, absent = (*key, only), node[only], ()
        else:
            absent = (*absent, part)
    return key + {'none': (), 'last': absent[-1:], 'all': absent}[missing]


def _tell(error: Mapping[str, Any], node: Mapping[str, Any], parent: Mapping[str, Any]) -> tuple[str, str]:
    kind, entry = error['type'], error['input']
    if kind in _UNKNOWN:
        return 'unknown key', _guess(error['loc'][-1], _names(parent), 'known keys: ')
    if kind in _MISSING:
        return 'missing', f'add {error["loc"][-1]}: {_expected(node)}'
    # Our own validators word theirs as "what is wrong; what to write".
    if kind == 'value_error':
        what, _, instead = str(error['ctx']['error']).partition('; ')
        return what if isinstance(entry, (dict, list)) else f'{what} (got {_text(entry)})', instead
    if error['loc'][-1:] == ('[key]',):
        return _tell_key(kind, entry, parent)
    if kind.startswith('string_too'):
        wrong, bound = ('too long', 'at most') if kind.endswith('long') else ('too short', 'at least')
        length = next(iter(error['ctx'].values()))
        return f'{wrong} (got {_text(entry)})', f'write {bound} {length} characters'
    wrong = next((what for start, what in _WRONG if kind.startswith(start)), 'not allowed')
    # A text where one of a few words may stand is a word that is not known, whatever else the union would take.
    choices = _choices(node)
    if choices and isinstance(entry, str):
        return f'unknown value (got {_text(entry)})', _guess(entry, choices, 'one of ')
    is_list_of_clusters = isinstance(entry, list) and error['loc'][:1] == ('cluster',)
    one = ': one, all devices are of one kind' if kind == 'string_type' and is_list_of_clusters else ''
    return f'{wrong} (got {_text(entry)})', f'write {_expected(node)}{_percent(entry, node)}{one}'


def _percent(entry: object, node: Mapping[str, Any]) -> str:
    """How a percentage is written where a share is wanted; nothing elsewhere."""
    shares = [one for one in (node, *node.get('anyOf', ())) if one.get('type') == 'number']
    most = min((one.get('exclusiveMaximum', one.get('maximum', 2)) for one in shares), default=2)
    with suppress(ValueError):
        percent = float(str(entry).rstrip('% '))
        if most == 1 and 1 < percent < 100:
            return f', {percent / 100:g} for {percent:g} %'
    return ''


def _tell_key(kind: str, entry: object, parent: Mapping[str, Any]) -> tuple[str, str]:
    names = _choices(parent.get('propertyNames', {}))
    if names:
        return 'unknown key', _guess(entry, names, 'known keys: ')
    return 'not such a key', 'write whole numbers from 0 as keys' if kind.startswith(('int', 'greater')) else ''


def _guess(word: object, names: list[str], lead: str) -> str:
    text = str(word)[:60]
    # difflib misses shortened words, such as opt for optimizer, so beginnings are compared as well.
    close = difflib.get_close_matches(text, names, 1, _NEAR) or [name for name in names if _begins(text, name)]
    choices = lead + ', '.join(names[:16]) + (', …' if len(names) > 16 else '')
    return f'did you mean {close[0]}? {choices}' if close else choices


def _begins(text: str, name: str) -> bool:
    """Whether two words begin alike: one as the whole other, or both for three quarters of the shorter."""
    short, long = sorted((text, name), key=len)
    alike = next((place for place, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    return 3 * len(short) >= len(long) and alike >= 2 and 4 * alike >= 3 * len(short)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return 'a mapping' if value else 'an empty mapping'
    if isinstance(value, list):
        return 'a list' if value else 'an empty list'
    if value is None:
        return 'nothing'
    text = json.dumps(value, ensure_ascii=False)
    # Escaped, so that a control character of the file cannot reach the terminal.
    text = text if text.isprintable() else json.dumps(value)
    return text if len(text) <= 40 else f'{text[:38]}…"'


def _around(root: Mapping[str, Any], loc: tuple[str | int, ...]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The schema of a place and of the mapping that it is in."""
    return _find(root, loc), _find(root, loc[:-2] if loc[-1:] == ('[key]',) else loc[:-1])


def _find(root: Mapping[str, Any], loc: Iterable[str | int]) -> Mapping[str, Any]:
    """The schema of a place; parts that it does not know are skipped, as in `user_key`."""
    node = _resolve(root, root)
    for part in loc:
        branches = (node, *(_resolve(root, branch) for branch in node.get('anyOf', ())))
        node = next((child for branch in branches if (child := _step(root, branch, part))), node)
    return node


def _step(root: Mapping[str, Any], node: Mapping[str, Any], part: str | int) -> Mapping[str, Any] | None:
    for name, value in node.get('properties', {}).items():
        # A key may have had another name before.
        if part in {name, value.get('x-former')}:
            return _resolve(root, value)
    inner = node.get('items') if isinstance(part, int) else node.get('additionalProperties')
    return _resolve(root, inner) if isinstance(inner, Mapping) and inner else None


def _resolve(root: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    while '$ref' in node:
        rest = {name: value for name, value in node.items() if name != '$ref'}
        # What stands beside a reference, as a description, goes before what is referred to.
        node = {**root['$defs'][node['$ref'].rpartition('/')[2]], **rest}
    return {**node, 'anyOf': [_resolve(root, branch) for branch in node['anyOf']]} if 'anyOf' in node else node


def _names(node: Mapping[str, Any]) -> list[str]:
    return [name for branch in [node, *node.get('anyOf', ())] for name in branch.get('properties', {})]


def _choices(node: Mapping[str, Any]) -> list[str]:
    branches = [node, *node.get('anyOf', ())]
    choices = [choice for branch in branches for choice in branch.get('enum', [branch.get('const')])]
    return [choice for choice in choices if isinstance(choice, str) and choice]


def _expected(node: Mapping[str, Any]) -> str:
    """What a schema wants, in words."""
    if 'anyOf' in node:
        return ', or '.join(_expected(branch) for branch in node['anyOf'])
    if 'enum' in node or 'const' in node:
        return 'one of ' + ', '.join(str(choice) for choice in node.get('enum', [node.get('const')]) if choice != '')
    if 'x-quantity' in node:
        return f'a number and a unit, e.g. "{node["examples"][0]}"'
    if node.get('type') == 'object' and 'properties' in node:
        one = 'exactly one of ' if node.get('maxProperties') == 1 else ''
        return f'a mapping with {one}{", ".join(list(node["properties"])[:16])}'
    if node.get('minimum') is not None and node.get('minimum') == node.get('maximum'):
        return str(node['minimum'])
    example = f', e.g. {node["examples"][0]}' if node.get('examples') else ''
    return f'{_WORDS.get(node.get("type", ""), "a value")}{_range(node)}{example}'


def _range(node: Mapping[str, Any]) -> str:
    if 'minimum' in node and 'maximum' in node:
        return f' from {_figure(node["minimum"])} to {_figure(node["maximum"])}'
    bounds = [f'{word} {_figure(node[bound])}{of}' for bound, word, of in _BOUNDS if bound in node]
    return f' of {" and ".join(bounds)}' if bounds else ''


def _figure(number: float) -> str:
    return str(number) if isinstance(number, int) else f'{number:g}'


# Trees to frozen dataclasses by way of pydantic, whose errors become problems of our own; and their JSON Schema.


def _new_adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(_new_adapter)


def read_json(path: Path, kind: type[T], most: int, called: str, instead: str) -> T:
    """The value of a JSON file that simpar has written.

    Arguments: ``most``, bytes that it may have; what such a file is ``called``; ``instead``, what to do about another.
    Raises ``ScheduleError`` with what is wrong, one screen of it.
    """
    from pydantic import ValidationError

    try:
        # Strict: a time that is a text is a broken file, not a number to be guessed.
        value: T = adapter(kind).validate_json(read_regular(path, most), strict=True)
    except OSError as error:
        raise refusal(path, f'cannot be read: {error.strerror}', 'check the path') from error
    except ValidationError as error:
        # The input may be a whole table, which would fill the screen.
        raise ScheduleError([*_in_json(path, error.errors(include_url=False), called, instead)]) from error
    return value


def _in_json(path: Path, wrong: Sequence[Any], called: str, instead: str) -> Iterator[Problem]:
    # Of another file every field would be missing, and none of them is what is wrong.
    another = next((one for one in wrong if one['loc'] == ('format',) or one['type'] == 'json_invalid'), None)
    if another is not None:
        named = another['type'] not in ('missing', 'json_invalid')
        got = f' (its format is {str(another["input"])[:60]!r})' if named else ''
        yield Problem(str(path), f'is not {called}{got}', instead)
        return
    for one in wrong[:_MOST_IN_JSON]:
        # It continues a sentence of ours.
        what = one['msg'][0].lower() + one['msg'][1:]
        yield Problem(str(path), f'{".".join(map(str, one["loc"]))}: {what}', instead)
    if len(wrong) > _MOST_IN_JSON:
        yield Problem(str(path), f'and {len(wrong) - _MOST_IN_JSON} more')


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

    def pick(self, members: Mapping[str, Any]) -> Any:
        """The only value; raises `ValueError` unless there is exactly one."""
        if len(members) != 1:
            names = ', '.join((*self.written_out, *self.kinds))
            what = f'all of {", ".join(members)} at once' if members else f'none of {names}'
            raise ValueError(f'has {what}; write exactly one of {names}')
        return next(iter(members.values()))

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
        extra = {'description': self.description} if self.description else {}
        return {'anyOf': [short, full], **extra}


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
    refuse(problems)
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


@functools.cache
def _schema_text(kind: Any) -> str:
    return json.dumps(_tidy(adapter(kind).json_schema(by_alias=True)))


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
