"""Calls of aten as torch.export gives them; their derivatives are torch's, of the call made again."""

import json
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Final

import torch

from executor.draws import OWN, own_operator
from executor.kernels.context import Context, Kernel, Tensor, Tensors
from simpar.errors import ProgramError
from simpar.program import OpClass
from simpar.torch_module.rules import TABLE

_DTYPES: Final = {str(dtype).removeprefix('torch.'): dtype for dtype in (torch.bool, torch.int32, torch.int64)}
_BESIDE: Final = frozenset(
    {'arange', 'full', 'zeros', 'ones', 'scalar_tensor', 'index', 'index_select', 'tril', 'triu'}
)
"""Calls that only tensors without samples go through."""


def forward(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """reads..., weights..., constants... → y."""
    reads = int(op.attributes['reads'])
    return [_run(op, tensors[:reads], tensors[reads:])]


def backward(op: OpClass, where: Context, dy: Tensor, *others: Tensor) -> Tensors:
    """dy, saved reads..., weights..., constants... → the gradient of one read; in W those of all weights."""
    saved = numbers(op.attributes['saved'])
    held = list(others[len(saved) :])
    shapes = [numbers(text) for text in str(op.attributes['shapes']).split('|')]
    full = numbers(op.attributes['result'])
    reads = [_zeros(shape, dy, full) for shape in shapes]
    for place, tensor in zip(saved, others, strict=False):
        reads[place] = tensor
    of, weights = int(op.attributes['of']), int(op.attributes['weights'])
    if of >= 0:
        wanted = [_leaf(reads[of] if reads[of].is_floating_point() else reads[of].to(dy.dtype))]
        reads[of] = wanted[0]
    else:
        held = [*map(_leaf, held[:weights]), *held[weights:]]
        wanted = held[:weights]
    # By the thread that issues to the device: autograd's own threads know neither its stream nor, where the device was
    # made known late, the device.
    with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
        y = _run(op, reads, held)
        try:
            gradients = torch.autograd.grad(y, wanted, dy.reshape(y.shape).to(y.dtype), allow_unused=True)
        except RuntimeError as error:
            if '::' not in str(op.attributes['calls']):
                raise
            what = 'an operator of your own has no derivative: torch.library.register_autograd'
            raise ProgramError(f'{op.name}: {what} ({str(error)[:120]})') from error
    return [torch.zeros_like(one) if d is None else d for one, d in zip(wanted, gradients, strict=True)]


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def _zeros(shape: list[int], dy: Tensor, full: list[int]) -> Tensor:
    """What the derivative needs of a value that was not kept: its shape, of as many samples as the gradient has."""
    # Shapes count the samples of all copies, the gradient those of one.
    rows = shape[0] * (dy.shape[0] if dy.ndim else 1) // full[0]
    return dy.new_zeros(rows, *shape[1:])


def _run(op: OpClass, reads: Sequence[Tensor], held: Sequence[Tensor]) -> Tensor:
    every, results = (*reads, *held), list[Tensor]()
    floating = next((tensor.dtype for tensor in every if tensor.is_floating_point()), torch.float32)
    full = str(op.attributes['shapes']).split('|')[0]
    # How many samples one copy has follows from what it reads.
    rows = prod(every[0].shape[:1])
    count = int(str(op.attributes['result']).split()[0]) * rows // max(1, numbers(full)[0])
    local = [count, *numbers(op.attributes['shape'])[1:]]

    def value(argument: Any) -> Any:
        if isinstance(argument, list):
            return [value(one) for one in argument]
        if not isinstance(argument, dict):
            return argument
        ((kind, which),) = argument.items()
        if kind == 'dtype':
            return _DTYPES.get(which, floating)
        if kind == 'shape':
            return local
        return {'read': reads, 'held': held, 'call': results}[kind][which]

    for target, arguments, named in _calls(str(op.attributes['calls'])):
        own = os.environ.get(OWN, '') if '::' in target else ''
        results.append(_called(target, own)(*map(value, arguments), **{key: value(of) for key, of in named.items()}))
    return results[-1]


@lru_cache(maxsize=4096)
def _calls(text: str) -> list[tuple[str, list[Any], dict[str, Any]]]:
    return [(target, arguments, named) for target, arguments, named in json.loads(text)]


@lru_cache(maxsize=512)
def _called(target: str, own: str) -> Callable[..., Tensor]:
    """The function of aten; only those of the table, and of ``own`` ones those of --op, whatever a text says."""
    if '::' in target:
        return own_operator(target, own)
    name, _, overload = target.partition('.')
    if name not in TABLE and name not in _BESIDE:
        raise ProgramError(f'aten.{name} is no operator of the table of modules')
    function: Callable[..., Tensor] = getattr(getattr(torch.ops.aten, name), overload or 'default')
    return function


def numbers(text: object) -> list[int]:
    """Several numbers of an attribute."""
    return [int(number) for number in str(text).split()]


KERNELS: Final[dict[tuple[str, str], Kernel]] = {
    (name, phase): forward if phase == 'F' else backward
    for name in ('aten', 'aten_view', 'aten_product', 'aten_attention')
    for phase in 'FIW'
}
