"""Elementwise operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from simpar.layers.keys import Layouts, Name, Of, One, Pair, Recomputed, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Relu:
    """y = max(x, 0)."""

    strategy: Annotated[
        Strategy, Field(max_length=1, description='slices of x [batch, features], e.g. [[2, 4]]; empty: as x lies')
    ] = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Gelu:
    """y = x · Φ(x), the exact (erf) form."""

    strategy: One = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Silu:
    """y = x · σ(x), also called swish."""

    strategy: One = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Mul:
    """y = factor · x."""

    factor: Annotated[float, Field(ge=-1e12, le=1e12, description='a constant')]
    strategy: One = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """The sum of two results of one shape."""

    of: Pair
    strategy: Annotated[
        Strategy, Field(max_length=2, description='slices of both, e.g. [[2, 4], [2, 4]]; empty: as the first lies')
    ] = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiply:
    """The product, element by element, of two results of one shape; by a constant it is ``mul``."""

    of: Pair
    strategy: Annotated[
        Strategy, Field(max_length=2, description='slices of both, e.g. [[2, 4], [2, 4]]; empty: as the first lies')
    ] = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    name: Name = ''
