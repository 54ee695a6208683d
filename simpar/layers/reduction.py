"""Sums and means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from simpar.layers.keys import Layouts, Name, Of, One, Recomputed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """The sum or the mean over dims behind dim 0, which counts samples."""

    dims: Annotated[
        tuple[Annotated[int, Field(ge=1, le=7)], ...],
        Field(min_length=1, max_length=7, examples=[[2, 3]], description='over which dims, by number; dim 0 stays'),
    ]
    mean: Annotated[bool, Field(description='the mean, else the sum')] = True
    keep: Annotated[bool, Field(description='these dims stay, with length 1')] = False
    strategy: One = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''
