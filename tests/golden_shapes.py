"""What MindSpore's compiler recorded, and shapes of a rank's slice: its reshapes and ours show the same elements."""

import json
import os
from itertools import accumulate
from math import prod
from operator import mul
from pathlib import Path

SHIPPED = Path(__file__).parent / 'golden' / 'mindspore'
FOLDER = Path(os.environ.get('SIMPAR_GOLDEN', SHIPPED))


def cases(group, folder=FOLDER):
    """Recorded cases of a group by version and name."""
    found = (json.loads(path.read_text(encoding='utf-8')) for path in sorted(folder.rglob(f'{group}/*.json')))
    return {f'{case["mindspore"]}-{case["case"]["name"]}': {'group': group, **case} for case in found}


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
