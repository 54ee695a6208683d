"""Op classes of attention over a sequence that context ranks share; no operator of a graph, for plans make them."""

from __future__ import annotations

from typing import Final

from simpar.model.operators.attention import AttentionCore, Qkv

CONTEXT_ATTENTION: Final = 'context_attention'
"""Attention of a rank's queries with keys and values that are there."""
SPLIT_QKV: Final = 'split_qkv'
"""Queries apart from keys and values, which go to other ranks; backward their gradients become one again."""
OP_CLASSES: Final = {
    CONTEXT_ATTENTION: AttentionCore('ContextAttention', 'attention'),
    SPLIT_QKV: Qkv('SplitQkv'),
}
"""By the operator of an op class, what bounds it."""
