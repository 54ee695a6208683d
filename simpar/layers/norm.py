"""Operators that normalise the last dim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from simpar.layers.keys import Layouts, Name, Of, One, Recomputed, Stage, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """LayerNorm over the last dim, with gain and bias."""

    strategy: Annotated[
        Strategy,
        Field(max_length=3, description='slices of x, gain and bias, e.g. [[4, 1], [1], [1]]; empty: as x lies'),
    ] = ()
    layout: Layouts = ()
    pipeline_stage: Stage = None
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNorm:
    """Division by the root mean square over the last dim, with a gain (Zhang and Sennrich 2019)."""

    strategy: Annotated[
        Strategy, Field(max_length=2, description='slices of x and gain, e.g. [[4, 1], [1]]; empty: as x lies')
    ] = ()
    layout: Layouts = ()
    pipeline_stage: Stage = None
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """Softmax over the last dim."""

    strategy: One = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''
