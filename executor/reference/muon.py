"""The reference of Muon: Jordan et al. 2024 over full matrices, written apart from the kernel."""

from __future__ import annotations

from typing import Protocol, cast

import torch

from executor.reference.model import Parameters
from simpar.model import Conv2d, Dense, Network, layer_names
from simpar.workload import Muon, Workload

EXPERTS = '.experts.'
"""In the names of their weights."""


class Steps(Protocol):
    """What the reference asks of an optimizer."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self) -> object:
        """Update the weights."""


class MuonSteps:
    """Muon for weights of products and convolutions, torch's SGD with momentum for the others."""

    def __init__(self, workload: Workload, parameters: Parameters) -> None:
        self._rule = cast('Muon', workload.optimizer)
        names = _matrices(workload, parameters)
        self._matrices = [(parameters[name], _count(name, parameters), _rows(name, parameters)) for name in names]
        self._sums = [torch.zeros_like(weight) for weight, *_ in self._matrices]
        others = [weight for name, weight in parameters.items() if name not in names]
        rule = self._rule
        self._others = torch.optim.SGD(
            # A model without biases has no others, and torch refuses an empty list.
            others or [torch.zeros(1, requires_grad=True)],
            lr=rule.learning_rate, momentum=rule.momentum, nesterov=rule.nesterov, weight_decay=rule.weight_decay,
        )  # fmt: skip

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._others.zero_grad()
        for weight, *_ in self._matrices:
            weight.grad = None

    def step(self) -> None:
        """Update the weights."""
        self._others.step()
        rule = self._rule
        for (weight, count, rows), total in zip(self._matrices, self._sums, strict=True):
            # As torch's optimizers do with what has no part in the loss.
            if weight.grad is None:
                continue
            total.copy_(rule.momentum * total + weight.grad)
            ahead = weight.grad + rule.momentum * total if rule.nesterov else total
            change = torch.stack([newton_schulz(matrix) for matrix in ahead.reshape(count, rows // count, -1)])
            scale = max(1.0, change.shape[1] / change.shape[2]) ** 0.5
            with torch.no_grad():
                weight.sub_(rule.learning_rate * (rule.weight_decay * weight + scale * change.reshape(weight.shape)))


def newton_schulz(matrix: torch.Tensor) -> torch.Tensor:
    """X ← 3.4445 X − 4.775 (X·Xᵀ) X + 2.0315 (X·Xᵀ)² X, five times; a tall matrix is transposed."""
    if matrix.shape[0] > matrix.shape[1]:
        return newton_schulz(matrix.T).T
    x = matrix / ((matrix * matrix).sum().sqrt() + 1e-7)
    for _ in range(5):
        once = torch.matmul(x, torch.matmul(x.T, x))
        twice = torch.matmul(torch.matmul(once, x.T), x)
        x = 3.4445 * x - 4.7750 * once + 2.0315 * twice
    return x


def _matrices(workload: Workload, parameters: Parameters) -> set[str]:
    """Names of the weights that are no tables and no vectors."""
    model = workload.model
    if isinstance(model, Network):
        named = zip(layer_names(model), model.layers, strict=True)
        return {f'{name}.weight' for name, layer in named if isinstance(layer, Dense | Conv2d)}
    tables = ('embedding.weight', 'position.weight')
    return {name for name in parameters if name.endswith('.weight') and name not in tables}


def _count(name: str, parameters: Parameters) -> int:
    """Matrices of a weight: one for each expert."""
    return int(parameters[name].shape[0]) if EXPERTS in name else 1


def _rows(name: str, parameters: Parameters) -> int:
    """How many outputs of all its matrices: as many as biases, which are by heads as well."""
    bias = parameters.get(name.removesuffix('weight') + 'bias')
    weight = parameters[name]
    if bias is not None:
        return int(bias.numel())
    # Queries, keys and values, or a gate and its other half, are one matrix of all their outputs.
    by_parts = name.rpartition('.')[0].endswith(('.qkv', '.fc1', '.q_up', '.kv_up'))
    return weight.numel() // int(weight.shape[-1]) if by_parts or EXPERTS in name else int(weight.shape[0])
