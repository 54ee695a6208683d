"""Muon: the momentum of a shard, and the update by the orthogonalised full matrix (Jordan et al. 2024)."""

from __future__ import annotations

from math import prod, sqrt
from typing import Final

import torch

from executor.kernels.clip import factor
from executor.kernels.context import Context
from executor.kernels.skipped import overflow_of, restore, saved
from simpar.program import OpClass

Tensors = list[torch.Tensor]
COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
EPSILON: Final = 1e-7


def muon_momentum(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """gradient, v[, squares][, overflow] → v, u: v = momentum · v + g; u = v, or with ``nesterov`` g + momentum · v."""
    gradient, v, *numbers = tensors
    squares = numbers[0] if 'clip_norm' in op.attributes else None
    dtype = v.dtype if gradient.dtype == torch.float16 else gradient.dtype
    overflow = overflow_of(op, tensors)
    before = saved(overflow, [v])
    g, mu = gradient.reshape(v.shape).to(v.dtype) * factor(op, squares), float(op.attributes['momentum'])
    v.mul_(mu).add_(g)
    # In memory of its own: the state must not change with what is handed on.
    u = (g.add_(v, alpha=mu) if op.attributes['nesterov'] else v.clone()).to(dtype)
    # Zeros travel in place of what is not finite, for nobody will use them.
    restore(overflow, [v, u], [*before, torch.zeros_like(u)])
    return [v, u]


def muon(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """u, weight[, master][, overflow] → weight[, master]: this rank's shard of the change of the full matrix."""
    full, *rest = tensors
    return muon_step(op, where, [_own(op, where, full), *rest])


def muon_change(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """u → this rank's shard of the change of the full matrix."""
    return [_own(op, where, tensors[0])]


def muon_step(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """change, weight[, master][, overflow] → weight[, master]: decayed, and changed."""
    change, weight, *rest = tensors
    masters = rest[:1] if op.attributes.get('master_weights') else []
    overflow = overflow_of(op, tensors)
    before = saved(overflow, [weight, *masters])
    exact, rate = (masters or [weight])[0], float(op.attributes['learning_rate'])
    exact.mul_(1 - rate * float(op.attributes['weight_decay']))
    exact.add_(change.to(exact.dtype), alpha=-rate)
    if masters:
        weight.copy_(exact)
    restore(overflow, [weight, *masters], before)
    return [weight, *masters]


def _own(op: OpClass, where: Context, full: torch.Tensor) -> torch.Tensor:
    """What of the full change a rank has; a matrix for each of the leading dims that count them."""
    many = int(op.attributes.get('many', 0))
    behind = many + int(op.attributes['rows'])
    rows, columns = prod(full.shape[many:behind]), prod(full.shape[behind:])
    stack = full.reshape(-1, rows, columns)
    changes = [_orthogonal(matrix, int(op.attributes['iterations'])) for matrix in stack]
    change = (torch.stack(changes) * sqrt(max(1.0, rows / columns))).reshape(full.shape)
    splits, partitions = str(op.attributes['splits']).split(), str(op.attributes['partitions']).split()
    for dim, partition in zip(splits, partitions, strict=True):
        change = change.chunk(where.size[partition], int(dim))[where.position[partition]]
    return change


def _orthogonal(matrix: torch.Tensor, iterations: int) -> torch.Tensor:
    """Newton–Schulz of degree 5, on the side of fewer rows."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / (x.norm() + EPSILON)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


KERNELS = {('muon_momentum', 'U'): muon_momentum, ('muon', 'U'): muon,
           ('muon_change', 'U'): muon_change, ('muon_step', 'U'): muon_step}  # fmt: skip
