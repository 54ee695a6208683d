"""What an eager framework launches for SwiGLU, GeGLU and rotary embedding, counted by torch's own dispatcher."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip('torch')
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simpar.stacks import load_stack

TOKENS, WIDTH, HEADS, HEAD = 512, 256, 4, 64
VIEWS = ('split', 'slice', 'view', 'detach', 'alias', 'expand', 'unsqueeze', 'chunk', 'transpose', 'narrow')


class Counted(TorchDispatchMode):
    """Elements that kernels read and write, and how many kernels there are; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0
        self.kernels = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.__name__.split('.')[0]
        # A gradient of a slice is a kernel, the slice itself a view.
        if name not in VIEWS:
            touched = [leaf for leaf in (*tree_leaves(args), *tree_leaves(result)) if isinstance(leaf, torch.Tensor)]
            self.moved += sum(leaf.numel() for leaf in touched)
            self.kernels += 1
        return result


def counted(network, *shape):
    """What the forward and the backward of a network move, in elements, and their kernels."""
    given = torch.zeros(shape, requires_grad=True)
    with Counted() as forward:
        result = network(given)
    gradient = torch.zeros_like(result)
    with Counted() as backward:
        result.backward(gradient)
    return forward, backward


def gated(activation):
    def network(x):
        gate, up = torch.chunk(x, 2, dim=-1)
        return activation(gate) * up

    return network


def tanh(x):
    """GELU by its tanh, in the seven steps of a framework that has no kernel for it."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def rotary(t):
    cosine = torch.ones(TOKENS, 1, 1, HEAD)
    turned, rest = t[..., :HEAD], t[..., HEAD:]
    near, far = torch.chunk(turned, 2, dim=-1)
    turned = (turned * cosine) + (torch.cat((-far, near), dim=-1) * cosine)
    return torch.cat((turned, rest), dim=-1)


@pytest.mark.parametrize(
    ('stack', 'operator', 'network', 'shape', 'fused', 'off'),
    [
        # Fused: forward reads a gate and its other half and writes one; backward reads three and writes two.
        ('mindspeed-unfused-swiglu', 'swiglu', gated(torch.nn.functional.silu), (TOKENS, 2 * WIDTH), (3, 5), 0.02),
        ('mindspeed', 'geglu', gated(torch.nn.functional.gelu), (TOKENS, 2 * WIDTH), (3, 5), 0.02),
        ('mindspeed', 'geglu_tanh', gated(tanh), (TOKENS, 2 * WIDTH), (3, 5), 0.1),
        # Cosines have no heads, and so a HEADS-th of the bytes: theirs are left out of the stack's count.
        ('mindspeed-unfused', 'rotary', rotary, (TOKENS, 1, HEADS, HEAD), (2, 2), 0.1),
    ],
)  # fmt: skip
def test_passes_of_a_stack_are_those_that_torch_makes(stack, operator, network, shape, fused, off):
    launches = load_stack(stack).launches
    result = TOKENS * (WIDTH if operator != 'rotary' else HEADS * HEAD)
    for part, units, phase in zip(counted(network, *shape), fused, 'FI', strict=True):
        passes = part.moved / result / units
        assert launches[f'{operator}.{phase}'].passes == pytest.approx(passes, rel=off), (phase, passes, part.kernels)
