"""Matrix products with a weight [outputs..., inputs...], convolutions, and chunks of what products read and give."""

from collections.abc import Sequence
from math import prod

import torch
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from executor.kernels.context import Context, Tensor, Tensors, rows
from simpar.program import OpClass


def chunk_of(full: Tensor, dim: int, tile: int, tiles: int, blocks: int) -> Tensor:
    """Return one chunk of a full tensor.

    Along ``dim`` the tensor has ``blocks`` equal blocks; the chunk is part ``tile`` of ``tiles`` in each.
    """
    return full.unflatten(dim, (blocks, tiles, -1)).select(dim + 1, tile).flatten(dim, dim + 1)


def join_chunks(parts: Sequence[Tensor], dim: int, blocks: int) -> Tensor:
    """Join all chunks of a tensor, in memory of its own."""
    # Chunks alternate within each block, so they are stacked inside of it, not put one after the other.
    return torch.stack([part.unflatten(dim, (blocks, -1)) for part in parts], dim + 1).flatten(dim, dim + 2)


def rows_of(op: OpClass, operand: Tensor) -> Tensor:
    """Return the rows that an op works on: its chunk where ``attributes['tiles']`` is there, else all rows."""
    if 'tiles' not in op.attributes:
        return operand
    dim, tile, tiles, blocks = (int(op.attributes[key]) for key in ('tile_dim', 'tile', 'tiles', 'tile_blocks'))
    return chunk_of(operand, dim, tile, tiles, blocks)


def split(op: OpClass, where: Context, full: Tensor) -> Tensors:
    """full tensor → chunks..., as many as the op writes."""
    dim, blocks, tiles = int(op.attributes['dim']), int(op.attributes['blocks']), len(op.writes)
    return [chunk_of(full, dim, tile, tiles, blocks).contiguous() for tile in range(tiles)]


def join(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """chunks... → full tensor."""
    return [join_chunks(tensors, int(op.attributes['dim']), int(op.attributes['blocks']))]


# Matrix products with a weight [outputs..., inputs...]; activations keep outputs and inputs as one last dim.


def matmul_forward(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """x, weight[, bias] → y."""
    x, weight, *bias = _alike(op, *tensors)
    matrix = _matrix(op, weight)
    return [functional.linear(_as_rows(rows_of(op, x), matrix.shape[1]), matrix, bias[0].flatten() if bias else None)]


def matmul_dx(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dy, weight → dx."""
    dy, weight = _alike(op, *tensors)
    return [rows_of(op, dy) @ _matrix(op, weight)]


def matmul_dw(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dy, x → dweight [outputs, inputs][, dbias]."""
    dy, x = _alike(op, *tensors)
    dy_NO = dy.flatten(0, -2)
    x_NI = x.reshape(dy_NO.shape[0], -1)
    # A module may hold its weight as [inputs, outputs].
    gradients = [x_NI.T @ dy_NO if op.attributes.get('transposed') else dy_NO.T @ x_NI]
    # A layer without a bias, or whose bias another op sums, has one gradient.
    return gradients if len(op.writes + op.accumulates) == 1 else [*gradients, dy_NO.sum(0)]


def _alike(op: OpClass, *tensors: Tensor) -> Tensors:
    """What products in 8 bits read is held in more; a bias beside it is not."""
    return [tensor.to(tensors[0].dtype) for tensor in tensors] if op.dtype == 'fp8' else list(tensors)


def _matrix(op: OpClass, weight: Tensor) -> Tensor:
    if op.attributes.get('transposed'):
        return weight.T
    outputs = int(op.attributes.get('outputs', 1))
    return weight.reshape(prod(weight.shape[:outputs]), -1)


def _as_rows(x: Tensor, inputs: int) -> Tensor:
    """x with as many trailing dims made one as the weight's inputs need (a flatten of images is no op of its own)."""
    lead = x.ndim - 1
    # As many trailing dims as the weight needs: heads and head_dim, or an image's channels, rows and columns.
    while lead > 1 and prod(x.shape[lead:]) < inputs:
        lead -= 1
    return x.reshape(*x.shape[:lead], inputs)


# Convolutions of images [batch, channels, height, width].


def conv2d_forward(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """x, weight[, bias] → y."""
    return [functional.conv2d(*tensors, **_window(op))]


def conv2d_dx(op: OpClass, where: Context, dy: Tensor, weight: Tensor) -> Tensors:
    """dy, weight → dx of ``shape``."""
    # The first number is the batch as lowered; copies make it smaller, so dy's batch is taken.
    _, *image = (int(number) for number in str(op.attributes['shape']).split())
    return [conv2d_input([dy.shape[0], *image], weight, dy, **_window(op))]


def conv2d_dw(op: OpClass, where: Context, dy: Tensor, x: Tensor) -> Tensors:
    """dy, x → dweight[, dbias]."""
    kernel = int(op.attributes['kernel'])
    dweight = conv2d_weight(x, [dy.shape[1], x.shape[1], kernel, kernel], dy, **_window(op))
    return [dweight] if len(op.writes + op.accumulates) == 1 else [dweight, dy.sum((0, 2, 3))]


def _window(op: OpClass) -> dict[str, int]:
    return {key: int(op.attributes[key]) for key in ('stride', 'padding')}


KERNELS = {
    **rows('split', F=split, I=split),
    **rows('join', F=join, I=join),
    **rows('matmul', F=matmul_forward, I=matmul_dx, W=matmul_dw),
    **rows('conv2d', F=conv2d_forward, I=conv2d_dx, W=conv2d_dw),
}
