"""Products of two values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from simpar.layers.keys import Layouts, Name, Pair, Recomputed, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class MatMul:
    """The product of two results [batch..., m, k] and [batch..., k, n] for each index of the leading dims."""

    of: Pair
    transpose_a: Annotated[bool, Field(description='the first is [batch..., k, m]')] = False
    transpose_b: Annotated[bool, Field(description='the second is [batch..., n, k]')] = False
    strategy: Annotated[
        Strategy,
        Field(
            max_length=2,
            description='slices of both, e.g. [[2, 4, 1, 1], [2, 4, 1, 1]]; empty: as the first lies',
        ),
    ] = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    name: Name = ''
