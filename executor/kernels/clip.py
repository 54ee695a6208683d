"""The sum of squares of all gradients of a rank, and whether one of them is not finite.

Nothing is added up in 16 bits, and what a loss scale has made large is divided by it before it is squared. A sum over
all ranks follows, so a shard that several ranks hold counts as its share.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from executor.kernels.context import Context
from executor.kernels.precision import wide
from simpar.program import OpClass

EPSILON = 1e-6
"""Added to the norm, as torch's clip_grad_norm_ does."""


def square_sum(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """gradients... → Σ (gradient / loss_scale)² / ranks[, how many are not finite].

    Where ranks differ along a packed gradient, ``3x40+1x8@data`` says how many have each so many elements of it.
    """
    scale = _loss_scale(op)
    squares = [
        # Divided before squaring: scaled gradients squared would overflow.
        torch.linalg.vector_norm(wide(part) if scale == 1 else wide(part) / scale).square() / count
        for tensor, ranks in zip(tensors, str(op.attributes['ranks']).split(), strict=True)
        for part, count in _parts(tensor, ranks, where)
    ]
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=where.device)
    return [total, *(finite_check(op, where, tensors) if len(op.writes) > 1 else ())]


def _parts(tensor: torch.Tensor, ranks: str, where: Context) -> Iterator[tuple[torch.Tensor, int]]:
    """A rank's parts of a gradient, and how many ranks have each."""
    runs, _, partition = ranks.partition('@')
    if not partition:
        yield tensor, int(ranks)
        return
    # Runs count elements of the full gradient, of which this rank holds one shard.
    first, begin = where.position[partition] * tensor.numel(), 0
    for run in runs.split('+'):
        count, length = map(int, run.split('x'))
        # Slices end at the tensor's end by themselves; below zero they would count from there.
        yield tensor[max(begin - first, 0) : max(begin + length - first, 0)], count
        begin += length


def finite_check(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """gradients... → how many of them are not finite."""
    if not tensors:
        return [torch.zeros((), device=where.device)]
    # Counted where the gradients are: the host must not wait for it.
    return [torch.stack([tensor.isfinite().all().logical_not() for tensor in tensors]).sum().float()]


def factor(op: OpClass, squares: torch.Tensor | None) -> float | torch.Tensor:
    """Return what an update multiplies gradients by: min(1, clip_norm / (norm + 1e-6)) / loss_scale.

    Arguments: ``squares``, the norm's; None: nothing is clipped. What follows from it stays on the device.
    """
    if squares is None:
        return 1.0 / _loss_scale(op)
    # Epsilon in the denominator, as in torch, or results would differ in the last digits.
    coefficient = float(op.attributes['clip_norm']) / (squares.reshape(()).sqrt() + EPSILON)
    return coefficient.clamp(max=1.0) / _loss_scale(op)


def _loss_scale(op: OpClass) -> float:
    return float(op.attributes.get('loss_scale', 1.0))


KERNELS = {('square_sum', 'U'): square_sum, ('finite_check', 'U'): finite_check}
