"""Kinds of recorded ops: on which stream of a worker each runs, and who takes part in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Takes = Literal['worker', 'data', 'world', 'ends', 'send', 'recv']
"""Who takes part: the worker alone, its data ranks, all workers, the first and the last stage, or a pair of stages."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of recorded op.

    Arguments: ``name`` in files; ``takes``, who takes part; ``communicates``, whether its usual time is a median
    (of communication) or a mean (of compute); ``family``, the name that answers count it under.
    """

    name: str
    takes: Takes
    communicates: bool
    family: str


def _kinds(*rows: tuple[str, Takes, bool, str]) -> dict[str, Kind]:
    return {name: Kind(name, takes, communicates, family or name) for name, takes, communicates, family in rows}


KINDS: Final = _kinds(
    ('params-all-gather', 'data', True, ''),
    ('forward-recv', 'recv', True, 'forward sends'),
    ('forward-compute', 'worker', False, ''),
    ('forward-send', 'send', True, 'forward sends'),
    ('backward-recv', 'recv', True, 'backward sends'),
    ('backward-compute', 'worker', False, ''),
    ('backward-send', 'send', True, 'backward sends'),
    ('gc', 'worker', False, ''),
    # Among tensor ranks, of which one is recorded.
    ('layernorm-grads-all-reduce', 'worker', True, ''),
    ('embedding-grads-all-reduce', 'ends', True, ''),
    ('grads-reduce-scatter', 'data', True, ''),
    ('optimizer-clip-main-grad', 'world', True, ''),
    ('optimizer', 'worker', False, ''),
)
"""Those of ByteDance's StragglerAnalysis traces, in the order that a step without overlapped gradients runs them."""

TAIL: Final = (
    'gc',
    'layernorm-grads-all-reduce',
    'embedding-grads-all-reduce',
    'grads-reduce-scatter',
    'optimizer-clip-main-grad',
    'optimizer',
)
"""What runs behind the last backward, one after the other."""
