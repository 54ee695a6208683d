"""Op classes of attention over a sequence that context ranks share; no operator of a graph, for plans make them."""

from __future__ import annotations

from typing import Final

from simpar.model.operators.attention import AttentionCore, Qkv

CONTEXT_ATTENTION: Final = 'context_attention'
"""Attention of a rank's queries with keys and values that are there."""
SPLIT_QKV: Final = 'split_qkv'
"""Queries apart from keys and values, which go to other ranks; backward their gradients become one again."""
REPEAT_KV: Final = 'repeat_kv'
"""Groups of heads as several with fewer queries, each with the group's key and value; backward these are summed."""
CONTEXT_SCORES: Final = 'context_scores'
"""Unfused: a rank's queries times keys that are there; backward also the gradient of their values."""
CONTEXT_VALUES: Final = 'context_values'
"""Unfused: probabilities of a rank's queries times values that are there, added to those before."""
CHUNK_ATTENTION: Final = 'chunk_attention'
"""Attention of one chunk of a sequence with keys and values of all chunks so far."""
JOIN_KEYS: Final = 'join_keys'
"""Unfused: blocks of scores, or of their gradients, one for each rank's keys, as one."""
OP_CLASSES: Final = {
    CONTEXT_ATTENTION: AttentionCore('ContextAttention', 'attention'),
    SPLIT_QKV: Qkv('SplitQkv'),
    REPEAT_KV: Qkv('RepeatKv'),
    CONTEXT_SCORES: AttentionCore('ContextScores', 'matrix'),
    CONTEXT_VALUES: AttentionCore('ContextValues', 'matrix'),
    CHUNK_ATTENTION: AttentionCore('ChunkAttention', 'attention'),
    JOIN_KEYS: AttentionCore('JoinKeys'),
}
"""By the operator of an op class, what bounds it."""
