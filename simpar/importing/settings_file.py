"""Settings of TOML, JSON and YAML files: every value by its dotted name, with its line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from simpar.document.compose import Unreadable
from simpar.document.tree import Tree, parse
from simpar.errors import Problem, ScheduleError
from simpar.importing.flags import Setting

_SECTION: Final = re.compile(r'\s*\[+\s*([^\]]+?)\s*\]+')
_KEY: Final = re.compile(r'\s*([A-Za-z0-9_."-]+)\s*=')
MOST_SETTINGS: Final = 5000


def settings_of_toml(text: str, name: str) -> list[Setting]:
    """The settings of a TOML file. Raises ``ScheduleError``."""
    # Python 3.10 has it as a package of its own.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        root = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ScheduleError(Problem(name, f'not TOML: {error}', 'check the file')) from None
    lines = _lines(text)
    return [Setting(key, value, f'{name}:{lines.get(key, 1)}') for key, value in _flat(root)]


def settings_of_yaml(text: str, name: str) -> list[Setting]:
    """The settings of a YAML or JSON file. Raises ``ScheduleError``."""
    try:
        tree = parse(text, name)
    except Unreadable as error:
        where = f'{name}:{error.line}' if error.line else name
        raise ScheduleError(Problem(where, *error.fault)) from None
    if not isinstance(tree.root, dict):
        raise ScheduleError(Problem(name, 'not a mapping', 'name the file that the launcher reads'))
    return [Setting(key, value, _where(tree, key)) for key, value in _flat(tree.root)]


def _where(tree: Tree, key: str) -> str:
    at: tuple[str | int, ...] = ()
    for part in key.split('.'):
        at = (*at, int(part) if part.isdigit() and isinstance(tree.get(at), list) else part)
    return tree.where(at)


def _flat(node: Any, at: str = '') -> Iterator[tuple[str, Any]]:
    """Values by dotted name; a list of plain values is one value."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _flat(value, f'{at}.{key}' if at else str(key))
    elif isinstance(node, list) and any(isinstance(one, (dict, list)) for one in node):
        for place, value in enumerate(node):
            yield from _flat(value, f'{at}.{place}')
    else:
        yield at, None if node == {} else node


def _lines(text: str) -> dict[str, int]:
    """The line of each key of a TOML file, as far as a line begins with it."""
    section = ''
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _KEY.match(line):
            key = match[1].replace('"', '')
            found.setdefault(f'{section}.{key}' if section else key, number)
        elif match := _SECTION.match(line):
            section = match[1].replace('"', '').replace(' ', '')
    return found
