"""The reference: the unsharded model in plain torch with autograd, built from the workload alone, never from a Program.

Shares with the machines only the names of parameters and how global tensors are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from executor.draws import batch_of, draw, single_thread
from executor.reference.gpt import REFERENCE_OF_GPT
from executor.reference.network import REFERENCE_OF_MODULE, REFERENCE_OF_NETWORK, OfModel, Parameters, Slices
from executor.state import Result
from simpar.lower.graph.stages import in_both_directions
from simpar.lower.issue import by_heads
from simpar.model import Conv2d, Dense, Network, layer_names
from simpar.model.library.gpt import Transformer
from simpar.model.model import FromModule
from simpar.plans import Plan
from simpar.workload import Adam, AdamW, Momentum, Muon, Sgd, Workload


class Reference:
    """Trains the full model on the full batch in one process, or with ``phase: forward`` computes its losses alone.

    Arguments: ``plan``: its copies and whether their losses are averaged or summed; where experts are balanced by an
    auxiliary loss, also its micro-batches and data ranks; where they drop tokens, its slices of a sequence. All else
    of it must not matter.
    """

    def __init__(self, workload: Workload, plan: Plan, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        self._workload = workload
        self._model = OF_MODELS[type(workload.model)]
        # An auxiliary loss of all data ranks is one of both directions of a pipeline.
        self._plan = in_both_directions(plan)
        self._seed = seed
        self._dtype = dtype
        self.parameters: Parameters = {
            name: draw(initial, shape, dtype, seed, name).requires_grad_()
            for name, shape, initial in self._model.parameters(workload)
        }
        self._optimizer = _optimizer(workload, self.parameters)
        self._gradients: Parameters = {}
        self._step = 0

    def run(self, steps: int = 1) -> Result:
        """Train ``steps`` more steps."""
        # One thread gives the same bits on any machine.
        with single_thread():
            losses = tuple(self._train() for _ in range(steps))
        return Result(
            losses=losses,
            parameters={name: parameter.detach().clone() for name, parameter in self.parameters.items()},
            gradients=self._gradients,
        )

    def _train(self) -> float:
        inputs = [self._input(*named) for named in self._model.inputs(self._workload)]
        copies, plan = self._plan.copies, self._plan
        # An auxiliary loss is one of each group of tokens: the loss of the batch is the mean of those of its groups.
        slices = copies * plan.micro_batches * max(plan.data, 1) if _in_groups(self._workload) else copies
        # Drawn even without dropout: that changes no other draw, for each has a seed of its own.
        keys = self._input('dropout.keys', f'tokens:{2**62}', (self._workload.batch,), True)
        losses = [
            self._model.loss(self._workload, self.parameters, *own, _of_sequence(plan))
            for own in zip(*(self._sliced(one, slices) for one in (*inputs, keys)), strict=True)
        ]
        # Each copy's loss is a mean over its own samples, so the copies' mean is that of the batch.
        loss = torch.stack(losses).mean() * (1 if plan.copies_loss == 'mean' else copies)
        if self._workload.phase == 'forward':
            self._step += 1
            return float(loss.detach())
        self._optimizer.zero_grad()
        (loss * self._workload.loss_scale).backward()
        self._gradients = {
            # What is a constant to the model has none.
            f'd:{name}': parameter.grad.clone()
            for name, parameter in self.parameters.items()
            if parameter.grad is not None
        }
        self._update()
        self._step += 1
        return float(loss.detach())

    def _sliced(self, samples: torch.Tensor, slices: int) -> list[torch.Tensor]:
        """Samples in slices; those of all data ranks together where these are balanced together."""
        model, plan = self._workload.model, self._plan
        experts = model.experts if _in_groups(self._workload) and isinstance(model, Transformer) else None
        if experts is None or experts.aux_group != 'global':
            return list(samples.chunk(slices))
        # Micro-batches, the data ranks of each, the copies of each of these.
        parts = samples.unflatten(0, (plan.micro_batches, max(plan.data, 1), plan.copies, -1)).transpose(1, 2)
        return list(parts.flatten(0, 3).chunk(plan.micro_batches * plan.copies))

    def _update(self) -> None:
        """Unscale, look whether all is finite, clip, step; with a loss scale nothing is updated where it is not."""
        workload = self._workload
        gradients = [one.grad for one in self.parameters.values() if one.grad is not None]
        if workload.loss_scale != 1:
            # Looked at before unscaling, as the program does.
            if not all(bool(gradient.isfinite().all()) for gradient in gradients):
                return
            torch._foreach_div_(gradients, workload.loss_scale)
        if workload.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), workload.clip_norm)
        self._optimizer.step()

    def _input(self, name: str, initial: str, shape: tuple[int, ...], integer: bool) -> torch.Tensor:
        dtype = torch.int64 if integer else self._dtype
        return batch_of(name, initial, shape, dtype, self._seed, self._step)


def _in_groups(workload: Workload) -> bool:
    """Whether the loss is not the mean of those of its samples."""
    model = workload.model
    return isinstance(model, Transformer) and model.experts is not None and model.experts.aux_loss > 0


def _of_sequence(plan: Plan) -> Slices:
    """Slices of a sequence that ranks hold: each counts the slots of experts for itself."""
    inner = by_heads(plan)
    parts = plan.context // inner if inner < plan.context else plan.context
    balanced = parts if plan.context > 1 and plan.context_split == 'balanced' else 0
    return Slices(plan.context * (plan.tensor if plan.sequence_parallel else 1), balanced)


def _optimizer(workload: Workload, parameters: Parameters) -> Any:
    """One of torch's, or Muon."""
    rule = workload.optimizer
    if isinstance(rule, Muon):
        return MuonSteps(rule, _matrices(workload, parameters), parameters)
    if not isinstance(rule, Adam | AdamW):
        return _sgd(rule, parameters.values())
    how: dict[str, Any] = {'lr': rule.learning_rate, 'betas': (rule.beta1, rule.beta2), 'eps': rule.epsilon}
    if isinstance(rule, Adam):
        return torch.optim.Adam(parameters.values(), **how)
    return torch.optim.AdamW(parameters.values(), **how, weight_decay=rule.weight_decay)


def _sgd(rule: Sgd | Momentum | Muon, weights: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    if isinstance(rule, Sgd):
        return torch.optim.SGD(weights, lr=rule.learning_rate)
    how: dict[str, Any] = {key: getattr(rule, key) for key in ('momentum', 'nesterov', 'weight_decay')}
    return torch.optim.SGD(weights, lr=rule.learning_rate, **how)


# Muon: Jordan et al. 2024 over full matrices, written apart from the kernel.

EXPERTS = '.experts.'
"""In the names of their weights."""


class MuonSteps:
    """Muon for weights of products and convolutions, torch's SGD with momentum for the others."""

    def __init__(self, rule: Muon, names: set[str], parameters: Parameters) -> None:
        self._rule = rule
        self._matrices = [(parameters[name], _count(name, parameters), _rows(name, parameters)) for name in names]
        self._sums = [torch.zeros_like(weight) for weight, *_ in self._matrices]
        others = [weight for name, weight in parameters.items() if name not in names]
        # A model without biases has no others, and torch refuses an empty list.
        self._others = _sgd(rule, others or [torch.zeros(1, requires_grad=True)])

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


OF_MODELS: Final[dict[type, OfModel]] = {
    Network: REFERENCE_OF_NETWORK,
    Transformer: REFERENCE_OF_GPT,
    FromModule: REFERENCE_OF_MODULE,
}
"""By kind of model, what computes it in plain torch."""
