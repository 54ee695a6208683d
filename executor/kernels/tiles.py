"""Tiles of tensors: rows of a whole, cut out of it or joined again; on a device these are views."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.context import Context
from simpar.program import OpClass


def cut_out(whole: torch.Tensor, dim: int, tile: int, tiles: int, blocks: int) -> torch.Tensor:
    """One tile: of each of so many equal blocks along ``dim`` the ``tile``-th of ``tiles`` equal parts."""
    return whole.unflatten(dim, (blocks, tiles, -1)).select(dim + 1, tile).flatten(dim, dim + 1)


def put_together(parts: Sequence[torch.Tensor], dim: int, blocks: int) -> torch.Tensor:
    """The whole of all its tiles, in memory of its own."""
    return torch.stack([part.unflatten(dim, (blocks, -1)) for part in parts], dim + 1).flatten(dim, dim + 2)


def rows_of(op: OpClass, operand: torch.Tensor) -> torch.Tensor:
    """The rows that an op works on: its tile, where ``attributes['tiles']`` says that it is one; else all."""
    if 'tiles' not in op.attributes:
        return operand
    dim, tile, tiles, blocks = (int(op.attributes[key]) for key in ('tile_dim', 'tile', 'tiles', 'tile_blocks'))
    return cut_out(operand, dim, tile, tiles, blocks)


def split(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """whole → tiles..., as many as the op writes."""
    dim, blocks, tiles = int(op.attributes['dim']), int(op.attributes['blocks']), len(op.writes)
    return [cut_out(tensors[0], dim, tile, tiles, blocks).contiguous() for tile in range(tiles)]


def join(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """tiles... → whole."""
    return [put_together(tensors, int(op.attributes['dim']), int(op.attributes['blocks']))]


KERNELS = {('split', 'F'): split, ('split', 'I'): split, ('join', 'F'): join, ('join', 'I'): join}
