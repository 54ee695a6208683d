"""What changes the shape or order of dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from simpar.layers.keys import Layouts, Name, Of, One, Recomputed, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Flatten:
    """All dims of a sample into one; a change of shape, no work."""

    strategy: Annotated[
        Strategy,
        Field(max_length=1, description='slices of what it reads, e.g. [[8, 1, 1, 1]]; empty: as it lies'),
    ] = ()
    layout: Layouts = ()
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape:
    """The same elements in another shape; lies as its input does, as far as that can be."""

    shape: Annotated[
        tuple[Annotated[int, Field(ge=-1, le=2**24)], ...],
        Field(
            min_length=2,
            max_length=8,
            examples=[[-1, 128, 8, 64]],
            description='of its result; dim 0 is -1 and follows from the others',
        ),
    ]
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Transpose:
    """Dims in another order, dim 0 as it was."""

    permutation: Annotated[
        tuple[Annotated[int, Field(ge=0, le=7)], ...],
        Field(min_length=2, max_length=8, examples=[[0, 2, 1, 3]], description='which dim each dim of its result is'),
    ]
    strategy: One = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''
