"""The tables of configs that the docs have, made from the code."""

from __future__ import annotations

from collections.abc import Iterable

from simpar.huggingface.families import FAMILIES
from simpar.huggingface.family import NOT_YET, ONLY, WITHOUT_EFFECT, Family

READ = '| `model_type` | keys that are read | only with these values | what all its models have |'
IGNORED = '| keys without effect | why |'
LATER = '| `model_type` that is refused | what it has |'


def read_table() -> list[str]:
    """A line for each family."""
    return [READ, '|---|---|---|---|', *(_family(name, family) for name, family in FAMILIES.items())]


def ignored_table() -> list[str]:
    """A line for each reason to read no key."""
    return [IGNORED, '|---|---|', *(f'| {_keys(keys.split())} | {why} |' for why, keys in WITHOUT_EFFECT.items())]


def later_table() -> list[str]:
    """A line for each part that is not modelled yet."""
    return [LATER, '|---|---|', *(f'| {_keys(names.split())} | {what} |' for what, names in NOT_YET.items())]


def _family(name: str, family: Family) -> str:
    only = ', '.join(f'`{key}`: {_values(values)}' for key, values in {**family.only, **ONLY, **family.only}.items())
    has = ', '.join(f'`{key}: {_value(value)}`' for key, value in family.always.items())
    return f'| `{name}` | {_keys(dict.fromkeys((*family.copied, *family.reads)))} | {only} | {has} |'


def _keys(keys: Iterable[str]) -> str:
    return ', '.join(f'`{key}`' for key in keys)


def _values(values: tuple[object, ...]) -> str:
    return ' or '.join(map(_value, values))


def _value(value: object) -> str:
    if isinstance(value, list):
        return f'[{", ".join(value)}]'
    return 'null' if value is None else str(value).lower()
