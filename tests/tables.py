"""Rows and texts of tests, in tests/tables: a file a module, a key a test or a name of it."""

from functools import cache
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent / 'tables'
LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


@cache
def _file(module):
    return yaml.load((FOLDER / f'{module}.yaml').read_text(encoding='utf-8'), LOADER)


def load_tree(file, name):
    """What stands under a name of a module's file."""
    return _file(Path(file).stem)[name]


def load_table(file, name):
    """The same, with every list as a tuple."""
    return _tuples(load_tree(file, name))


def _tuples(value):
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return {key: _tuples(one) for key, one in value.items()} if isinstance(value, dict) else value
