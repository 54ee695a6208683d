"""Joint projections: a product that is split into equal parts, as queries, keys and values, is as many products.

A split of its outputs over tensor ranks would run through the parts; each part alone is split by heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simpar.torch_module.call import RESHAPES
from simpar.torch_module.graph import Node


@dataclass(frozen=True, slots=True)
class Joint:
    """A product with its parts.

    Arguments: ``skipped``, the product and what changes its shape before the split; ``parts``, which one a slice is.
    """

    product: Node
    skipped: tuple[Node, ...]
    parts: Mapping[int, int]
    count: int


def joint(product: Node, read_by: Mapping[int, Sequence[Node]]) -> Joint | None:
    """The parts that all readers of a product take of its last dim; None where one takes anything else."""
    node, skipped = product, [product]
    while len(readers := read_by.get(id(node), ())) == 1 and readers[0].base in RESHAPES:
        if readers[0].shapes[0][-1] != node.shapes[0][-1]:
            return None
        node = readers[0]
        skipped.append(node)
    width, last = node.shapes[0][-1], len(node.shapes[0]) - 1
    lengths = {one.shapes[0][-1] for one in readers}
    if len(readers) < 2 or len(lengths) != 1 or width % (length := lengths.pop()) or length == width:
        return None
    parts = {}
    for one in readers:
        said = one.arguments
        if one.base != 'slice' or said['dim'] % (last + 1) != last or said['step'] != 1 or said['start'] % length:
            return None
        parts[id(one)] = said['start'] // length
    return Joint(product, tuple(skipped), parts, width // length)


def part_of(tensor: Node, which: int, count: int, dim: int) -> Node:
    """An equal part of a weight along a dim."""
    shape = list(tensor.shapes[0])
    shape[dim] //= count
    start = which * shape[dim]
    said: dict[str, Any] = {'self': tensor, 'dim': dim, 'start': start, 'end': start + shape[dim], 'step': 1}
    made = tuple(shape)
    return replace(tensor, name=f'{tensor.name}_{which}', held='', shapes=(made, made), target='slice.Tensor',
                   arguments=said, positional=(tensor, dim, start, start + shape[dim]))  # fmt: skip
