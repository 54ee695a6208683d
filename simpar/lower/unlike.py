"""Unlike: which ops do other work than those of other layers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from simpar.lower.layered import Table, seen_from
from simpar.lower.period import Ints
from simpar.program import OpClass

_plain: Final = attrgetter(
    'flops', 'bytes', 'operator', 'kind', 'phase', 'stage', 'dtype', 'partition', 'peer', 'reduce', 'dims'
)
"""All of an op but names and attributes, which may tell names."""


def unlike_work(ops: Sequence[OpClass], table: Table) -> Ints:
    """Ops that do other work than those of other layers."""
    layer = table.rows.layer.tolist()

    def differs(row: int, model: int) -> bool:
        op, other = ops[row], ops[model]
        if _plain(op) != _plain(other):
            return True
        # Most ops say nothing besides.
        if not op.attributes and not other.attributes:
            return False
        return _attributes(op, layer[row]) != _attributes(other, layer[model])

    pairs = [(row, model) for row, model in enumerate(table.model.tolist()) if row != model]
    return table.told_unlike([row for row, model in pairs if differs(row, model)])


def _attributes(op: OpClass, layer: int) -> dict[str, object]:
    """What an op says besides, as seen from its layer."""
    return {key: seen_from(value, layer) if isinstance(value, str) else value for key, value in op.attributes.items()}
