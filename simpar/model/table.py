"""The table of operators that the docs have, made from the registry."""

from __future__ import annotations

from simpar.model.operators import OPERATORS
from simpar.model.operators.base import Operator

HEAD = (
    '| layer | what it is | as MindSpore has it | inputs of its strategy | stays unsharded | bound by |',
    '|---|---|---|---|---|---|',
)
BOUND = {
    'matrix': 'matrix units',
    'attention': 'its own table',
    'streaming': 'bytes moved',
    'view': 'nothing: a view',
}
"""What bounds an operator, in words."""


def operator_table() -> list[str]:
    """The lines of the table, a row for each operator in the order of the registry."""
    return [*HEAD, *map(_row, OPERATORS)]


def _row(kind: type[Operator]) -> str:
    told = (kind.__doc__ or '').partition('\n')[0]
    named = ', '.join(f'`{primitive.name}`' for primitive in kind.primitives.values())
    cells = (f'`{kind.key}`', told, named, kind.inputs_told, kind.unsharded, BOUND[kind.pricing()])
    return f'| {" | ".join(cells)} |'
