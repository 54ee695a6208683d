"""Along which dims a collective splits and joins its tensors."""

from __future__ import annotations

from simpar.program import OpClass


def dims_of(op: OpClass) -> tuple[int, ...]:
    """One dim for each tensor that the op works on: ``attributes['dim']`` is a number, or a text with one for each.

    What packs its tensors works on those that it makes.

    Raises ``ValueError`` where a text holds something else, or too few or too many.
    """
    dim = op.attributes.get('dim', 0)
    # Packed tensors are read one by one but split as one buffer, so dims belong to what the op makes.
    packs = op.operator in ('reduce_scatter', 'piece')
    count = len(op.writes + op.accumulates) if packs else len(op.reads)
    if not isinstance(dim, str):
        return (int(dim),) * count
    found = tuple(int(part) for part in dim.split())
    if len(found) != count:
        raise ValueError(f'{op.name}: {len(found)} dims for {count} tensors')
    return found


def exchange_of(op: OpClass) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of an all-to-all ``joins``, ``cuts`` and ``sizes``, each a text with a number for each axis of its group.

    ``sizes`` count a position, and the first counts most. Slices for the positions are split along ``cuts``;
    received slices are joined along ``joins``.
    Raises ``ValueError`` where a text is missing, holds something else or has another length.
    """
    texts = (str(op.attributes.get(key, '')) for key in ('joins', 'cuts', 'sizes'))
    joins, cuts, sizes = (tuple(int(part) for part in text.split()) for text in texts)
    if not sizes or not len(joins) == len(cuts) == len(sizes):
        raise ValueError(f'{op.name}: joins {joins}, cuts {cuts} and sizes {sizes} are not one for each axis')
    return joins, cuts, sizes
