"""Keys: what is known of each key of a schedule file, one row a key in ``keys.csv``; classes have types and defaults.

Columns of the table:

- ``key``, dotted, as in a file. Keys that all optimizers have, and those of layers of a network, have one row together.
- ``limits`` of its value: ``>=1 <=4096``, ``length<=64``; ``unit`` that a number has in a file; ``examples``, as JSON.
- ``meaning``: one sentence, which the JSON Schema and the tables of the docs show.
- ``words``: what other programs call it, for "unknown key; write …".
- ``chosen``: a value is found for it where it is not written; ``training``: it is of the backward or the update.
- ``inert``: when no value has any effect, and why; ``idle``: when no value but the default has one, and why.
- ``effect``: when a value other than the default surely has one.
- ``alike``: what is told where the program is found to be the same without it.

The last four are about facts of a program (``simpar.ablation.rules.Facts``): ``!sends & copies → why | … → why``. The
first condition that holds counts. ``as plan.zero`` stands for the rules of another key.
"""

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

from pydantic import Field

from simpar import errors, files

T = TypeVar('T')
_OPTIMIZER: Final = 'workload.optimizer'
_LIMITS: Final = {
    'length>=': 'min_length', 'length<=': 'max_length', '>=': 'ge', '<=': 'le', '>': 'gt', '<': 'lt',
}  # fmt: skip
"""How limits are written, the longest first, and what pydantic calls them."""


class Row(NamedTuple):
    """What is known of a key; columns as in the table."""

    key: str
    limits: str
    unit: str
    examples: str
    meaning: str
    words: str
    chosen: str
    training: str
    inert: str
    idle: str
    effect: str
    alike: str

    @property
    def field(self) -> Any:
        """Limits, examples and meaning as pydantic takes them."""
        options: dict[str, Any] = {'description': self.meaning} if self.meaning else {}
        for limit in self.limits.split():
            sign = next(sign for sign in _LIMITS if limit.startswith(sign))
            options[_LIMITS[sign]] = json.loads(limit.removeprefix(sign))
        return Field(**options, **({'examples': json.loads(self.examples)} if self.examples else {}))


def _table() -> Mapping[str, Row]:
    rows = {row['key']: row for row in files.read_csv(Path(__file__).with_suffix('.csv'))}
    for row in rows.values():
        for column in ('inert', 'idle', 'alike'):
            parts = row[column].split(' | ')
            row[column] = ' | '.join(rows[part[3:]][column] if part.startswith('as ') else part for part in parts)
    return MappingProxyType({key: Row(**row) for key, row in rows.items()})


ROWS: Final = _table()
"""By dotted key."""


def row_of(key: str) -> Row | None:
    """The row of a dotted key; None where the table has none."""
    if key not in ROWS and key.startswith(f'{_OPTIMIZER}.'):
        return ROWS.get(f'{_OPTIMIZER}.{key.rpartition(".")[2]}')
    return ROWS.get(key)


def described(owner: str) -> Callable[[type[T]], type[T]]:
    """Give the fields of a class what the table says of them; it stands below ``@dataclass``.

    Arguments: ``owner``, the dotted key that the class is the value of; empty: the file.
    """

    def with_fields(kind: type[T]) -> type[T]:
        hints = get_type_hints(kind, include_extras=True)
        for name in kind.__annotations__:
            row = row_of(f'{owner}.{name}' if owner else name)
            if row and (row.meaning or row.limits):
                kind.__annotations__[name] = Annotated[hints[name], row.field]
        return kind

    return with_fields


# Conflicts: values of keys that do not go together, one row each in ``conflicts.csv``: under which key a problem stands
# (``key``), when (``when``: conditions that all hold, ``plan.tensor = 1 & !plan.rows``), what is wrong, and what to
# write instead; words in braces are values. ``of`` tells who asks, and so which values there are.

_SIGNS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    '=': operator.eq, '!=': operator.ne, '<': operator.lt, '>': operator.gt, '>=': operator.ge,
    'in': lambda item, values: item in values,
}  # fmt: skip
_Values = Mapping[str, object]


def _reader(word: str) -> Callable[[_Values], Any]:
    """What a dotted name stands for (None where a value has no such part), else the number or word itself."""
    name, *parts = word.split('.')
    own = int(word) if word.isdecimal() else word

    def read(values: _Values) -> Any:
        return reduce(lambda value, part: getattr(value, part, None), parts, values[name]) if name in values else own

    return read


def condition(text: str) -> Callable[[_Values], bool]:
    """Whether a condition of a table holds, by the values that it speaks of."""
    left, sign, right = (*text.removeprefix('!').split(' '), '', '')[:3]
    one, other, compared, wanted = _reader(left), _reader(right), _SIGNS.get(sign), not text.startswith('!')
    if compared is None:
        return lambda values: bool(one(values)) == wanted
    return lambda values: compared(one(values), other(values))


_CONFLICTS: Final = tuple(
    (row['of'], tuple(map(condition, row['when'].split(' & '))), row)
    for row in files.read_csv(Path(__file__).with_name('conflicts.csv'))
)


def conflicts_of(asks: str, **values: object) -> Iterator[errors.Problem]:
    """What does not go together, by the table of conflicts.

    Arguments: ``asks``, whose rows count; ``values`` that these rows speak of, e.g. ``plan``.
    """
    for of, conditions, row in _CONFLICTS:
        if of == asks and all(holds(values) for holds in conditions):
            key, what, instead = (row[column].format(**values) for column in ('key', 'what', 'instead'))
            yield errors.Problem(tuple(key.split('.')), what, instead)


_LONGEST = 40
"""Letters of a value on the screen."""
_MOST = 6
"""Keys that are told together."""


class WithoutEffect(NamedTuple):
    """A key of a schedule without which the program, and what it costs, would be the same.

    Arguments:
        key: dotted, as in `--set`.
        value: as a file holds it.
        why: in words.
    """

    key: str
    value: Any
    why: str

    @property
    def shown(self) -> str:
        """The value, of a long one its beginning."""
        text = json.dumps(self.value, ensure_ascii=False).replace('"', '')
        return text if len(text) <= _LONGEST else f'{text[: _LONGEST - 1]}…'


def without_effect_line(idle_keys: Sequence[WithoutEffect]) -> str:
    """All of them in one line; empty where there are none."""
    # Layers alike often have one reason: they are told together.
    alike: dict[tuple[str, str], list[str]] = {}
    for one in idle_keys:
        alike.setdefault((one.shown, one.why), []).append(one.key)
    parts = (f'{_several(keys)} ({text}): {why}' for (text, why), keys in alike.items())
    return f'without effect here: {"; ".join(parts)}' if idle_keys else ''


def _several(keys: Sequence[str]) -> str:
    """Keys that are told together; of many the first."""
    more = f' and {len(keys) - _MOST} more' if len(keys) > _MOST else ''
    return ', '.join(keys[:_MOST]) + more


def without_effect_json(idle_keys: Sequence[WithoutEffect]) -> list[dict[str, Any]]:
    """Each as an object, as in `--json`."""
    return [one._asdict() for one in idle_keys]
