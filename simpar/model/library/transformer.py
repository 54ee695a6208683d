"""A GPT as files write it: ``transformer:``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from simpar.model.keys import Deviation, Size


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
