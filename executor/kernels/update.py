"""Optimizer updates, in place and for all weights of an op at once, as fused optimizers do.

An update reads gradients..., weights..., the states of its rule..., masters... (fp32 weights, which it updates and
casts to the weights), where a loss scale can leave it out the count of updates done, and of all ranks' gradients the
squares, to clip by their norm, and how many are not finite: then it changes nothing.
"""

from collections.abc import Iterator, Sequence
from math import prod, sqrt
from typing import Final

import torch

from executor.devices.fused import fused
from executor.kernels.context import Context, Tensor, Tensors, position, rows, wide
from executor.validate import dims_of
from simpar.program import OpClass

EPSILON = 1e-6
"""Added to the norm, as torch's clip_grad_norm_ does."""


def square_sum(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
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
    return [total, *(finite_check(op, where, *tensors) if len(op.writes) > 1 else ())]


def _parts(tensor: Tensor, ranks: str, where: Context) -> Iterator[tuple[Tensor, int]]:
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


def finite_check(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """gradients... → how many of them are not finite."""
    if not tensors:
        return [torch.zeros((), device=where.device)]
    # Counted where the gradients are: the host must not wait for it.
    return [torch.stack([tensor.isfinite().all().logical_not() for tensor in tensors]).sum().float()]


def factor(op: OpClass, squares: Tensor | None) -> float | Tensor:
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


# Updates that are left out where a gradient is not finite: decided on the device, so that no host waits for it.


def overflow_of(op: OpClass, tensors: Sequence[Tensor]) -> Tensor | None:
    """How many gradients of all ranks are not finite, where the op reads that: behind all others."""
    return tensors[-1] if 'loss_scale' in op.attributes else None


def saved(overflow: Tensor | None, tensors: Tensors) -> Tensors:
    """What an update will change, as it was; nothing where nothing can be left out."""
    return [] if overflow is None else [tensor.clone() for tensor in tensors]


def restore(overflow: Tensor | None, tensors: Tensors, before: Tensors) -> None:
    """Put all back where something is not finite."""
    if overflow is not None:
        # A choice, not a product: NaN times zero is NaN.
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(overflow.reshape(()) > 0, old, tensor))


# Optimizer updates, in place and for all weights of an op at once, as fused optimizers do.

STATES: Final = {'sgd': 0, 'momentum': 1, 'adam': 2}
"""Operator → states of a weight, without its master."""


class _Operands:
    """What an update reads, by kind.

    Arguments:
        states: as the rule computes them, in fp32 where they are held in 16 bits.
        held: what is kept between steps: the states, and the masters.
        exact: what the rule changes: the masters, or the weights themselves.
        shares: the masters are held as what the weights lack of them.
        count: how many updates were done.
        factor: what gradients are multiplied by.
        overflow: how many gradients on all ranks are not finite; None where this is not asked.
        before: what the op changes, as it was, where all of it may have to be put back.
    """

    def __init__(self, op: OpClass, *tensors: Tensor) -> None:
        attributes = op.attributes
        # Read from the back: what is optional stands last, so its places are known.
        self.overflow = overflow_of(op, tensors)
        tensors = tensors[:-1] if self.overflow is not None else tensors
        squares = tensors[-1] if 'clip_norm' in attributes else None
        tensors = tensors[:-1] if 'clip_norm' in attributes else tensors
        counts = 'loss_scale' in attributes and op.operator == 'adam'
        self.count: Tensor | None = tensors[-1] if counts else None
        tensors = tensors[:-1] if counts else tensors
        masters, states = attributes.get('master_weights', False), STATES[op.operator]
        each = len(tensors) // (2 + states + bool(masters))
        kinds = [list(tensors[first : first + each]) for first in range(0, len(tensors), each)]
        self.gradients, self.weights, *self.held = kinds
        self.exact, self.shares = self.held[-1] if masters else self.weights, masters == 'shared'
        if self.shares:
            self.exact = [wide(one) + wide(rest) for one, rest in zip(self.weights, self.exact, strict=True)]
        self.states = [list(map(wide, kind)) for kind in self.held[:states]]
        self.factor = factor(op, squares)
        # A gradient that is not finite leaves all as it was, on every rank: the count was summed over all of them.
        self.before = saved(self.overflow, self.written)

    @property
    def written(self) -> Tensors:
        """All but gradients and the numbers of all ranks, in order."""
        held = [tensor for kind in (self.weights, *self.held) for tensor in kind]
        return held + ([] if self.count is None else [self.count])

    @property
    def plain(self) -> bool:
        """Whether gradients are neither unscaled nor clipped."""
        return not isinstance(self.factor, torch.Tensor) and self.factor == 1

    def scaled(self) -> Tensors:
        """The gradients, unscaled and clipped, in the form of the states; new tensors."""
        return list(torch._foreach_mul(_like(self.gradients, self.states[0]), self.factor))

    def change(self, by: Tensors, rate: float | Tensor) -> None:
        """Take ``rate`` times something from the weights."""
        by = _like(by, self.exact)
        if isinstance(rate, torch.Tensor):
            # The coefficient is on the device, where an ``alpha`` cannot be.
            torch._foreach_sub_(self.exact, torch._foreach_mul(by, rate))
        else:
            torch._foreach_add_(self.exact, by, alpha=-rate)

    def cast(self) -> Tensors:
        """The weights follow their masters, if all gradients are finite; what the op writes."""
        if self.exact is not self.weights:
            torch._foreach_copy_(self.weights, self.exact)
        if self.shares:
            # What the cast has lost.
            torch._foreach_copy_(self.held[-1], torch._foreach_sub(self.exact, list(map(wide, self.weights))))
        for narrow, state in zip(self.held, self.states, strict=False):
            if narrow[0] is not state[0]:
                torch._foreach_copy_(narrow, state)
        restore(self.overflow, self.written, self.before)
        return self.written


def sgd(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """→ weights...[, masters...]"""
    operands = _Operands(op, *tensors)
    # SGD is linear in its gradients, so unscaling and clipping go into the rate.
    operands.change(operands.gradients, float(op.attributes['learning_rate']) * operands.factor)
    return operands.cast()


def momentum(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """→ weights..., v...[, masters...]: v = momentum · v + g, and w −= learning_rate · v.

    g has weight_decay · w added; with ``nesterov``, w −= learning_rate · (g + momentum · v).
    """
    operands = _Operands(op, *tensors)
    (v,), gradients = operands.states, operands.scaled()
    decay, mu = float(op.attributes['weight_decay']), float(op.attributes['momentum'])
    if decay:
        # Before the momentum, as torch's SGD does it (L2, not decoupled).
        torch._foreach_add_(gradients, _like(operands.exact, gradients), alpha=decay)
    torch._foreach_mul_(v, mu)
    torch._foreach_add_(v, gradients)
    if op.attributes['nesterov']:
        torch._foreach_add_(gradients, v, alpha=mu)
    change = gradients if op.attributes['nesterov'] else v
    operands.change(change, float(op.attributes['learning_rate']))
    return operands.cast()


def adam(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """→ weights..., m..., v...[, masters...][, count]; Kingma and Ba 2014, algorithm 1.

    With ``weight_decay``, weights first lose learning_rate · weight_decay of themselves: AdamW, Loshchilov and Hutter
    2019, algorithm 2.
    """
    operands = _Operands(op, *tensors)
    # Where steps may be skipped, the bias correction counts updates, not steps.
    step = where.step + 1 if operands.count is None else operands.count.add_(1).double().reshape(())
    gradients = _like(operands.gradients, operands.states[0]) if operands.plain else operands.scaled()
    exact, (m, _) = operands.exact, operands.states
    # One kernel takes weights and states of one dtype.
    alike = exact[0].dtype == m[0].dtype and fused('adam', op, m[0])
    (_fused_adam if alike else _composed_adam)(op, operands, gradients, step)
    return operands.cast()


def _fused_adam(op: OpClass, operands: _Operands, gradients: Tensors, step: int | Tensor) -> None:
    """One kernel for all weights of the op."""
    (m, v), attributes = operands.states, op.attributes
    exact = [weight.view(state.shape) for weight, state in zip(operands.exact, m, strict=True)]
    number = step.float() if isinstance(step, torch.Tensor) else torch.full((), float(step), device=exact[0].device)
    rule = {key: float(attributes.get(key, 0.0)) for key in ('beta1', 'beta2', 'weight_decay')}
    rule |= {'lr': float(attributes['learning_rate']), 'eps': float(attributes['epsilon'])}
    numbers = [number] * len(exact)
    torch.ops.aten._fused_adamw_(exact, gradients, m, v, [], numbers, **rule, amsgrad=False, maximize=False)


def _composed_adam(op: OpClass, operands: _Operands, gradients: Tensors, step: int | Tensor) -> None:
    """A kernel for each product and sum of all weights."""
    m, v = operands.states
    rate, decay = float(op.attributes['learning_rate']), float(op.attributes.get('weight_decay', 0.0))
    if decay:
        # Decoupled decay comes first, as in torch's AdamW.
        torch._foreach_mul_(operands.exact, 1 - rate * decay)
    beta1, beta2 = float(op.attributes['beta1']), float(op.attributes['beta2'])
    torch._foreach_lerp_(m, gradients, 1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, gradients, gradients, 1 - beta2)
    # In torch's order of operations, so that results agree to the last digits.
    denominator = torch._foreach_sqrt(v)
    torch._foreach_div_(denominator, (1 - beta2**step) ** 0.5)
    torch._foreach_add_(denominator, float(op.attributes['epsilon']))
    change = torch._foreach_div(m, denominator)
    operands.change(change, rate / (1 - beta1**step))


def _like(tensors: Tensors, others: Tensors) -> Tensors:
    """The tensors in the shapes and dtypes of the others."""
    return [tensor.reshape(other.shape).to(other.dtype) for tensor, other in zip(tensors, others, strict=True)]


# Muon: the momentum of a shard, and the update by the orthogonalised full matrix (Jordan et al. 2024).

COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
MUON_EPSILON: Final = 1e-7


def muon_momentum(op: OpClass, where: Context, gradient: Tensor, v: Tensor, *numbers: Tensor) -> Tensors:
    """gradient, v[, squares][, overflow] → v, u: v = momentum · v + g; u = v, or with ``nesterov`` g + momentum · v."""
    squares = numbers[0] if 'clip_norm' in op.attributes else None
    dtype = v.dtype if gradient.dtype == torch.float16 else gradient.dtype
    overflow = overflow_of(op, numbers)
    before = saved(overflow, [v])
    g, mu = gradient.reshape(v.shape).to(v.dtype) * factor(op, squares), float(op.attributes['momentum'])
    v.mul_(mu).add_(g)
    # In memory of its own: the state must not change with what is handed on.
    u = (g.add_(v, alpha=mu) if op.attributes['nesterov'] else v.clone()).to(dtype)
    # Zeros travel in place of what is not finite, for nobody will use them.
    restore(overflow, [v, u], [*before, torch.zeros_like(u)])
    return [v, u]


def muon(op: OpClass, where: Context, full: Tensor, *rest: Tensor) -> Tensors:
    """u, weight[, master][, overflow] → weight[, master]: this rank's shard of the change of the full matrix."""
    return muon_step(op, where, _own(op, where, full), *rest)


def muon_change(op: OpClass, where: Context, full: Tensor) -> Tensors:
    """u → this rank's shard of the change of the full matrix."""
    return [_own(op, where, full)]


def muon_step(op: OpClass, where: Context, change: Tensor, weight: Tensor, *rest: Tensor) -> Tensors:
    """change, weight[, master][, overflow] → weight[, master]: decayed, and changed."""
    masters = rest[:1] if op.attributes.get('master_weights') else ()
    overflow = overflow_of(op, rest)
    before = saved(overflow, [weight, *masters])
    exact, rate = (masters or [weight])[0], float(op.attributes['learning_rate'])
    exact.mul_(1 - rate * float(op.attributes['weight_decay']))
    exact.add_(change.reshape(exact.shape).to(exact.dtype), alpha=-rate)
    if masters:
        weight.copy_(exact)
    restore(overflow, [weight, *masters], before)
    return [weight, *masters]


def _own(op: OpClass, where: Context, full: Tensor) -> Tensor:
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


def _orthogonal(matrix: Tensor, iterations: int) -> Tensor:
    """Newton–Schulz of degree 5, on the side of fewer rows."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / (x.norm() + MUON_EPSILON)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


# What optimizer parallelism does on a rank alone: shards of full weights, and the freeing of gathered ones.


def shard(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """weights... → this position's shards of them in ``partition``, which the update changes.

    In memory of their own, so that a weight changes nowhere but where its op says so.
    """
    own, size = position(op, where), where.size[str(op.attributes['partition'])]
    return [
        # A view would be updated along with the weight, and would keep the full weight in memory.
        tensor.chunk(size, dim)[own].clone(memory_format=torch.contiguous_format)
        for tensor, dim in zip(tensors, dims_of(op), strict=True)
    ]


def reshard(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """Nothing: the op frees."""
    return []


KERNELS = {
    ('square_sum', 'U'): square_sum,
    ('finite_check', 'U'): finite_check,
    ('sgd', 'U'): sgd,
    ('momentum', 'U'): momentum,
    ('adam', 'U'): adam,
    ('muon_momentum', 'U'): muon_momentum,
    ('muon', 'U'): muon,
    ('muon_change', 'U'): muon_change,
    ('muon_step', 'U'): muon_step,
    ('piece', 'U'): shard,
    ('keep', 'F'): shard,
    **rows('reshard', F=reshard, I=reshard, U=reshard),
}
