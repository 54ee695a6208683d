"""Workload: the model, its batch and its optimizer for one training step; knows no hardware and no plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from simpar.document import OneOf, Short

Precision = Literal['fp64', 'fp32', 'fp16', 'bf16']
MODEL: Final = '\0model'
"""Where a file's ``transformer:`` or ``network:`` is put before it is read: a key that no file can hold."""

# The limits keep every size of a tensor below 2⁶² bytes, so that no count overflows.
Name = Annotated[
    str,
    Field(
        max_length=40,
        pattern='^[A-Za-z0-9_-]*$',
        examples=['matmul'],
        description='in traces and programs: letters, digits, _ and -; made from the kind unless given',
    ),
]
Width = Annotated[int, Field(ge=1, le=2**24)]
Size = Annotated[int, Field(ge=1, le=2**20)]
Deviation = Annotated[
    float, Field(ge=0, le=1e6, description='standard deviation of the normal initial weights; biases start at zero')
]
LearningRate = Annotated[float, Field(ge=0, le=1e6, description='step size')]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """y = x · weightᵀ + bias."""

    inputs: Annotated[Width, Field(alias='in', description='features of a sample')]
    outputs: Annotated[Width, Field(alias='out', description='features of its result')]
    bias: Annotated[bool, Field(description='adds a bias')] = True
    pipeline_stage: Annotated[
        int | None, Field(ge=0, le=2**12, description='stage of the pipeline, from this layer on; none: as before')
    ] = None
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Relu:
    """y = max(x, 0)."""

    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Flatten:
    """All dims of a sample into one; a change of shape, no work."""

    name: Name = ''


Layer = Annotated[Dense | Relu | Flatten, OneOf(flatten=Flatten, dense=Dense, relu=Relu)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Layers one after the other.

    Arguments: ``weight_deviation``, standard deviation of the normal initial weights; biases start at zero.
    """

    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=4096, description='in order')]
    weight_deviation: Deviation = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A GPT: token and position embedding, pre-norm blocks of causal attention and GELU feed-forward, norm, head.

    Arguments: ``ffn``, width of the feed-forward, 4 × hidden unless given; ``kv_heads``, heads unless given (GQA);
    ``tied``: the head uses the token embedding's weight; ``attention``: ``flash`` keeps no probabilities, ``unfused``
    keeps them; ``dropout``, probability of zeros behind the embedding, in the probabilities of attention and behind
    both halves of a layer, before they are added (Megatron-LM).
    """

    layers: Annotated[int, Field(ge=1, le=4096, description='blocks')]
    hidden: Annotated[Size, Field(description='width of the residual stream; a multiple of heads')]
    heads: Annotated[Size, Field(description='attention heads')]
    vocab: Annotated[Size, Field(description='tokens in the vocabulary')]
    sequence: Annotated[Size, Field(description='tokens in a sample')]
    ffn: Annotated[int, Field(ge=0, le=2**22, description='width of the feed-forward; 0: 4 × hidden')] = 0
    kv_heads: Annotated[int, Field(ge=0, le=2**20, description='heads of keys and values (GQA); 0: heads')] = 0
    tied: Annotated[bool, Field(description="the head uses the token embedding's weight")] = False
    attention: Annotated[
        Literal['flash', 'unfused'], Field(description='flash keeps no probabilities; unfused writes and keeps them')
    ] = 'flash'
    dropout: Annotated[
        float, Field(ge=0, lt=1, description='probability of zeros, of attention and behind embedding and half-layers')
    ] = 0.0
    weight_deviation: Deviation = 0.02

    @property
    def ffn_width(self) -> int:
        """Width of the feed-forward."""
        return self.ffn or 4 * self.hidden

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    """w ← w − learning_rate · gradient."""

    learning_rate: LearningRate = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """Adam without weight decay; two states in fp32 per weight, and a third with ``master_weights``."""

    learning_rate: LearningRate = 1e-4
    beta1: Annotated[float, Field(ge=0, lt=1, description='decay of the first moment')] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1, description='decay of the second moment')] = 0.999
    epsilon: Annotated[float, Field(gt=0, le=1, description='added to the root of the second moment')] = 1e-8
    master_weights: Annotated[
        bool, Field(description='updates weights kept in fp32, and casts them to the precision (mixed precision)')
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one optimizer step computes.

    Arguments: ``batch``, samples over all ranks; ``loss``: mean over the samples of a copy; ``data``: ``random``
    tensors, or ``mnist``: IDX files from the folder DATA_PATH, and generated learnable images where there are none.
    """

    model: Annotated[
        Network | Transformer,
        OneOf(
            hoist=True,
            transformer=Transformer,
            network=Annotated[Network, Short('layers', 'layers, as a list, or a mapping of these')],
        ),
        Field(alias=MODEL),
    ]
    batch: Annotated[Size, Field(description='samples in a step, over all ranks; a multiple of data × copies')]
    loss: Annotated[
        Literal['cross-entropy', 'mse'], Field(description='mean over the samples of a copy; mse for a network only')
    ] = 'cross-entropy'
    precision: Annotated[Precision, Field(description='of activations, weights and gradients')] = 'fp32'
    gradients: Annotated[
        Precision | None, Field(description='precision in which gradients of weights are summed; none: as precision')
    ] = None
    optimizer: Annotated[
        Sgd | Adam, OneOf(sgd=Sgd, adam=Adam), Field(description='what updates the weights; sgd unless given')
    ] = Sgd()
    data: Annotated[
        Literal['random', 'mnist'],
        Field(
            description='random tensors, or the IDX files in the folder DATA_PATH (generated learnable images without)'
        ),
    ] = 'random'
