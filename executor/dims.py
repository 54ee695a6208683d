"""Along which dim a collective cuts each of its tensors."""

from __future__ import annotations

from simpar.program import OpClass


def dims_of(op: OpClass) -> tuple[int, ...]:
    """One dim for each tensor that the op reads: ``attributes['dim']`` is a number, or a text with one for each.

    Raises ``ValueError`` where a text holds something else, or too few or too many.
    """
    dim = op.attributes.get('dim', 0)
    if not isinstance(dim, str):
        return (int(dim),) * len(op.reads)
    found = tuple(int(part) for part in dim.split())
    if len(found) != len(op.reads):
        raise ValueError(f'{op.name}: {len(found)} dims for {len(op.reads)} tensors')
    return found
