"""Products with a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from simpar.layers.keys import Aliases, Cuts, Fused, Layouts, Name, Of, Recomputed, Stage, Strategy, Width


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """y = x · weightᵀ + bias."""

    inputs: Annotated[Width, Field(alias='in', description='features of a sample')]
    outputs: Annotated[Width, Field(alias='out', description='features of its result')]
    bias: Annotated[bool, Field(description='adds a bias')] = True
    pipeline_stage: Stage = None
    comm_fusion: Fused = None
    recompute: Recomputed = False
    strategy: Annotated[
        Strategy,
        Field(
            max_length=2, description='slices of x [batch, in] and weight [in, out], as [[2, 4], [4, 1]]; empty: none'
        ),
    ] = ()
    layout: Layouts = ()
    out_strategy: Annotated[
        Cuts,
        Field(max_length=2, description='slices of its result, where the sum over ranks is scattered; empty: not'),
    ] = ()
    out_layout: Annotated[
        Aliases, Field(max_length=2, description='in place of out_strategy: the axes that cut each dim of its result')
    ] = ()
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv2d:
    """A convolution of images [batch, channels, height, width] with a square kernel, and a bias."""

    inputs: Annotated[Width, Field(alias='in', description='channels of an image')]
    outputs: Annotated[Width, Field(alias='out', description='channels of its result')]
    kernel: Annotated[int, Field(ge=1, le=2**10, description='height and width of the kernel')]
    stride: Annotated[int, Field(ge=1, le=2**10, description='from one place of the kernel to the next')] = 1
    padding: Annotated[int, Field(ge=0, le=2**10, description='zeros on every side of an image')] = 0
    bias: Annotated[bool, Field(description='adds a bias to every channel')] = True
    pipeline_stage: Stage = None
    comm_fusion: Fused = None
    recompute: Recomputed = False
    strategy: Annotated[
        Strategy,
        Field(
            max_length=2,
            description='slices of x and weight, of which the batch alone is cut: [[8, 1, 1, 1], [1, 1, 1, 1]]',
        ),
    ] = ()
    layout: Layouts = ()
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Rows of a weight [vocab, width] by the tokens of a sample; the first layer."""

    vocab: Annotated[Width, Field(description='tokens in the vocabulary')]
    width: Annotated[Width, Field(description='features of a token')]
    strategy: Annotated[
        Strategy,
        Field(max_length=2, description='slices of the weight and of the tokens, e.g. [[4, 1], [1, 1]]; empty: none'),
    ] = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    name: Name = ''
