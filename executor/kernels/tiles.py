"""Chunks of a matmul's tensors: rows that an op takes out of a tensor or joins again; on a device they are views."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.context import Context
from simpar.program import OpClass


def chunk_of(full: torch.Tensor, dim: int, tile: int, tiles: int, blocks: int) -> torch.Tensor:
    """Return one chunk of a full tensor.

    Along ``dim`` the tensor has ``blocks`` equal blocks; the chunk is part ``tile`` of ``tiles`` in each.
    """
    return full.unflatten(dim, (blocks, tiles, -1)).select(dim + 1, tile).flatten(dim, dim + 1)


def join_chunks(parts: Sequence[torch.Tensor], dim: int, blocks: int) -> torch.Tensor:
    """Join all chunks of a tensor, in memory of its own."""
    # Chunks alternate within each block, so they are stacked inside of it, not put one after the other.
    return torch.stack([part.unflatten(dim, (blocks, -1)) for part in parts], dim + 1).flatten(dim, dim + 2)


def rows_of(op: OpClass, operand: torch.Tensor) -> torch.Tensor:
    """Return the rows that an op works on: its chunk where ``attributes['tiles']`` is there, else all rows."""
    if 'tiles' not in op.attributes:
        return operand
    dim, tile, tiles, blocks = (int(op.attributes[key]) for key in ('tile_dim', 'tile', 'tiles', 'tile_blocks'))
    return chunk_of(operand, dim, tile, tiles, blocks)


def split(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """full tensor → chunks..., as many as the op writes."""
    dim, blocks, tiles = int(op.attributes['dim']), int(op.attributes['blocks']), len(op.writes)
    return [chunk_of(tensors[0], dim, tile, tiles, blocks).contiguous() for tile in range(tiles)]


def join(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """chunks... → full tensor."""
    return [join_chunks(tensors, int(op.attributes['dim']), int(op.attributes['blocks']))]


KERNELS = {('split', 'F'): split, ('split', 'I'): split, ('join', 'F'): join, ('join', 'I'): join}
