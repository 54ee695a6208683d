"""Workload: the model, its batch and its optimizer for one training step; knows no hardware and no plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal['fp64', 'fp32', 'fp16', 'bf16']


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """y = x · weightᵀ + bias."""

    inputs: int
    outputs: int
    bias: bool = True
    name: str = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Relu:
    """y = max(x, 0)."""

    name: str = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Flatten:
    """All dims of a sample into one; a change of shape, no work."""

    name: str = ''


Layer = Dense | Relu | Flatten


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Layers one after the other.

    Arguments: ``weight_deviation``, standard deviation of the normal initial weights; biases start at zero.
    """

    layers: tuple[Layer, ...]
    weight_deviation: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A GPT: token and position embedding, pre-norm blocks of causal attention and GELU feed-forward, norm, head.

    Arguments: ``ffn``, width of the feed-forward, 4 × hidden unless given; ``kv_heads``, heads unless given (GQA);
    ``tied``: the head uses the token embedding's weight.
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    sequence: int
    ffn: int = 0
    kv_heads: int = 0
    tied: bool = False
    weight_deviation: float = 0.02

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

    learning_rate: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """Adam without weight decay; two states in fp32 per weight."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one optimizer step computes.

    Arguments: ``batch``, samples over all ranks; ``loss``: mean over the samples of a copy; ``data``: ``random``
    tensors, or ``mnist``: IDX files from the folder DATA_PATH, and generated learnable images where there are none.
    """

    model: Network | Transformer
    batch: int
    loss: Literal['cross-entropy', 'mse'] = 'cross-entropy'
    precision: Precision = 'fp32'
    optimizer: Sgd | Adam = Sgd()
    data: Literal['random', 'mnist'] = 'random'
