"""The operators of cross-entropy where it is no single one: see ``simpar.model.library.cross_entropy``."""

from __future__ import annotations

import torch

from executor.kernels.context import Context
from executor.kernels.precision import wide
from executor.kernels.reduction import reduced
from executor.kernels.shape import numbers
from simpar.program import OpClass


def maximum(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → its maximum over ``dims``, which stay with length 1."""
    return [tensors[0].amax(numbers(op, 'dims'), keepdim=True)]


def subtract(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, z [..., 1] → x − z."""
    x, z = tensors
    return [x - z]


def subtract_dz(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy → dz [..., 1]."""
    # z was broadcast over the last dim, so its gradient is summed there.
    return [-wide(tensors[0]).sum(-1, keepdim=True)]


def exp(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → y."""
    return [tensors[0].exp()]


def exp_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, y → dx."""
    return [torch.mul(*tensors)]


def log(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → y."""
    return [tensors[0].log()]


def log_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x → dx."""
    return [torch.div(*tensors)]


def negate(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → −x."""
    return [-tensors[0]]


def spread(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy → the same everywhere along what was summed, in memory of its own."""
    # An expanded view shares one element; a later op that works in place would change all of them.
    return [tensors[0].expand(numbers(op, 'shape')).contiguous()]


def equal(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → where it is ``value``."""
    return [tensors[0] == int(op.attributes['value'])]


def masked_fill(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, mask → x, zeros where the mask is true; a mask alone: ones, zeros where it is."""
    *x, mask = tensors
    return [x[0].masked_fill(mask, 0) if x else ~mask]


def gather_elements(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, index → of each row the elements that the index names."""
    return [tensors[0].gather(-1, tensors[1])]


def gather_elements_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, index → dx of ``shape``, zeros but for what was named."""
    dy, index = tensors
    return [dy.new_zeros(numbers(op, 'shape')).scatter_(-1, index, dy)]


def mean(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Σ likelihoods, Σ smoothing, count → loss; nothing is smoothed."""
    likelihood, _, count = map(wide, tensors)
    return [float(op.attributes['scale']) * likelihood / count]


def mean_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """count → the gradients of both sums."""
    share = float(op.attributes['scale']) * float(op.attributes['partial_share'])
    gradient = share / wide(tensors[0])
    # Label smoothing is off, but the compiler's graph still has its sum, which therefore gets a gradient.
    return [gradient, torch.zeros_like(gradient)]


KERNELS = {
    ('maximum', 'F'): maximum,
    ('subtract', 'F'): subtract,
    ('subtract', 'I'): subtract_dz,
    ('exp', 'F'): exp,
    ('exp', 'I'): exp_dx,
    ('log', 'F'): log,
    ('log', 'I'): log_dx,
    ('negate', 'F'): negate,
    ('negate', 'I'): negate,
    ('reduce_sum', 'F'): reduced,
    ('reduce_sum', 'I'): spread,
    ('equal', 'F'): equal,
    ('masked_fill', 'F'): masked_fill,
    ('masked_fill', 'I'): masked_fill,
    ('gather_elements', 'F'): gather_elements,
    ('gather_elements', 'I'): gather_elements_dx,
    ('cross_entropy_mean', 'F'): mean,
    ('cross_entropy_mean', 'I'): mean_dx,
}
