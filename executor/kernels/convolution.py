"""Convolutions of images [batch, channels, height, width]."""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from executor.kernels.context import Context
from simpar.program import OpClass


def conv2d_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, weight[, bias] → y."""
    return [functional.conv2d(*tensors, **_window(op))]


def conv2d_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, weight → dx of ``shape``."""
    dy, weight = tensors
    # The first number is the batch as lowered; copies make it smaller, so dy's batch is taken.
    _, *image = (int(number) for number in str(op.attributes['shape']).split())
    return [conv2d_input([dy.shape[0], *image], weight, dy, **_window(op))]


def conv2d_dw(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x → dweight[, dbias]."""
    dy, x = tensors
    kernel = int(op.attributes['kernel'])
    dweight = conv2d_weight(x, [dy.shape[1], x.shape[1], kernel, kernel], dy, **_window(op))
    return [dweight] if len(op.writes + op.accumulates) == 1 else [dweight, dy.sum((0, 2, 3))]


def _window(op: OpClass) -> dict[str, int]:
    return {key: int(op.attributes[key]) for key in ('stride', 'padding')}


KERNELS = {('conv2d', 'F'): conv2d_forward, ('conv2d', 'I'): conv2d_dx, ('conv2d', 'W'): conv2d_dw}
