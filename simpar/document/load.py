"""Trees to frozen dataclasses by way of pydantic, whose errors become problems of our own; and their JSON Schema."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from simpar.document.adapter import adapter
from simpar.document.complain import MOST_ERRORS, Terms, problems_of, user_key
from simpar.document.tree import Tree, override, read
from simpar.errors import Problem, ScheduleError

T = TypeVar('T')
MOST_PROBLEMS = 20
"""More than these do not fit on one screen; the rest is counted."""


def load(
    path: str | os.PathLike[str],
    kind: type[T],
    *,
    overrides: Sequence[str] = (),
    prepare: Callable[[Any], Any] | None = None,
    check: Callable[[T], Iterable[Problem]] | None = None,
    error: type[ScheduleError] = ScheduleError,
) -> T:
    """Read a YAML file into a dataclass.

    Arguments:
        kind: a frozen dataclass with keyword fields, constraints as pydantic's ``Field`` in ``Annotated``; unknown keys
            are refused everywhere.
        overrides: ``a.b=value`` as of `--set`; they go over the file.
        prepare: rewrites the plain tree after the overrides, e.g. a short form in full.
        check: yields what is wrong with a value that is well-formed, at keys of the file.

    Raises ``error`` with every problem, in the order of the file.
    """
    tree = override(read(path, error=error), overrides, error=error)
    try:
        return build(tree, kind, prepare=prepare, check=check)
    except ScheduleError as wrong:
        # A user's mistake has no traceback worth reading.
        raise error(one_screen(wrong.problems)) from None


def build(
    tree: Tree,
    kind: type[T],
    *,
    prepare: Callable[[Any], Any] | None = None,
    check: Callable[[T], Iterable[Problem]] | None = None,
    terms: Terms | None = None,
) -> T:
    """`load` of a tree that has been read already; raises `ScheduleError` with every problem, however many.

    Arguments: ``terms``, the field's words that the file has under other names, or not at all.
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
    """JSON Schema (2020-12) of what `load` reads as this dataclass, for completion in editors."""
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
