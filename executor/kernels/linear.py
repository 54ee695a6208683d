"""Matrix products with a weight [outputs..., inputs...]; activations keep outputs and inputs as one last dim."""

from __future__ import annotations

from math import prod

import torch
from torch.nn import functional

from executor.kernels.context import Context
from executor.kernels.tiles import rows_of
from simpar.program import OpClass


def matmul_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, weight[, bias] → y."""
    x, weight, *bias = _alike(op, tensors)
    matrix = _matrix(op, weight)
    return [functional.linear(_rows(rows_of(op, x), matrix.shape[1]), matrix, bias[0].flatten() if bias else None)]


def matmul_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, weight → dx."""
    dy, weight = _alike(op, tensors)
    return [rows_of(op, dy) @ _matrix(op, weight)]


def matmul_dw(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x → dweight [outputs, inputs][, dbias]."""
    dy, x = _alike(op, tensors)
    dy_NO = dy.flatten(0, -2)
    x_NI = x.reshape(dy_NO.shape[0], -1)
    # A module may hold its weight as [inputs, outputs].
    gradients = [x_NI.T @ dy_NO if op.attributes.get('transposed') else dy_NO.T @ x_NI]
    # A layer without a bias, or whose bias another op sums, has one gradient.
    return gradients if len(op.writes + op.accumulates) == 1 else [*gradients, dy_NO.sum(0)]


def _alike(op: OpClass, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What products in 8 bits read is held in more; a bias beside it is not."""
    return [tensor.to(tensors[0].dtype) for tensor in tensors] if op.dtype == 'fp8' else tensors


def _matrix(op: OpClass, weight: torch.Tensor) -> torch.Tensor:
    if op.attributes.get('transposed'):
        return weight.T
    outputs = int(op.attributes.get('outputs', 1))
    return weight.reshape(prod(weight.shape[:outputs]), -1)


def _rows(x: torch.Tensor, inputs: int) -> torch.Tensor:
    """x with as many trailing dims made one as the weight's inputs need (a flatten of images is no op of its own)."""
    lead = x.ndim - 1
    # As many trailing dims as the weight needs: heads and head_dim, or an image's channels, rows and columns.
    while lead > 1 and prod(x.shape[lead:]) < inputs:
        lead -= 1
    return x.reshape(*x.shape[:lead], inputs)


KERNELS = {('matmul', 'F'): matmul_forward, ('matmul', 'I'): matmul_dx, ('matmul', 'W'): matmul_dw}
