"""Shapes of a rank's slice, as the compiler's reshapes and ours show the same elements."""

from itertools import accumulate
from math import prod
from operator import mul


def bare(shape):
    """A shape without dims of length 1, which come and go with the compiler's reshapes."""
    return tuple(length for length in shape if length > 1)


def is_view_of(shape, other):
    """Whether one shape is the other with dims parted, or with its two dims transposed."""
    ends = set(accumulate(bare(shape), mul))
    return prod(shape) == prod(other) and any(set(accumulate(bare(way), mul)) <= ends for way in (other, other[::-1]))


def are_views(shapes, others):
    """Whether every shape is a view of another of the others, and none is left."""
    if not shapes:
        return not others
    first, *rest = shapes
    return any(
        is_view_of(first, other) and are_views(rest, others[:place] + others[place + 1 :])
        for place, other in enumerate(others)
    )
