"""A sequence as context ranks hold it balanced: of 2 N chunks rank i has chunks i and 2 N − 1 − i.

Tensors of a program have the tokens of rank 0 first, then those of rank 1, and so on.
"""

from __future__ import annotations

import torch


def in_sequence(index: torch.Tensor, sequence: int, ranks: int) -> torch.Tensor:
    """Places in a sequence of what stands at some indices where it lies balanced; ``ranks`` 0: the same."""
    if not ranks:
        return index
    length = sequence // (2 * ranks)
    number, inside = index // length, index % length
    rank = number // 2
    return torch.where(number % 2 == 0, rank, 2 * ranks - 1 - rank) * length + inside
