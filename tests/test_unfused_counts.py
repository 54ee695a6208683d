"""What a framework launches where nothing is fused, counted by torch's own dispatcher.

SwiGLU, GeGLU and rotary embedding op by op from Python; GELU and dropout by TorchScript that has no fuser.
"""

import math

import pytest
import torch
from kernel_counts import Kernels

from simpar.profiles import load_stack

TOKENS, WIDTH, HEADS, HEAD = 512, 256, 4, 64


def counted(network, *shape):
    """What the forward and the backward of a network move, in bytes, and their kernels."""
    given = torch.zeros(shape, requires_grad=True)
    with Kernels() as forward:
        result = network(given)
    gradient = torch.zeros_like(result)
    with Kernels() as backward:
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
    result = torch.float32.itemsize * TOKENS * (WIDTH if operator != 'rotary' else HEADS * HEAD)
    for part, units, phase in zip(counted(network, *shape), fused, 'FI', strict=True):
        passes = part.moved / result / units
        assert launches[f'{operator}.{phase}'].passes == pytest.approx(passes, rel=off), (phase, passes, part.number)


def bias_gelu(bias, y):
    """GELU by its tanh of y + bias, in the steps of Megatron-LM of 2023."""
    x = bias + y
    return x * 0.5 * (1.0 + torch.tanh(0.8 * x * (1 + 0.04 * x * x)))


def bias_gelu_back(gradient, bias, y):
    """The derivative of ``bias_gelu``, in the steps of Megatron-LM of 2023."""
    x = bias + y
    t = torch.tanh(0.8 * x * (1 + 0.04 * x * x))
    slope = 0.5 * x * ((1 - t * t) * (0.8 + 0.1 * x * x)) + 0.5 * (1 + t)
    return slope * gradient


def bias_dropout_add(x, bias, residual):
    return residual + torch.nn.functional.dropout(x + bias, p=0.1, training=True)


@pytest.mark.filterwarnings('ignore:.torch.jit.script. is deprecated')
@pytest.mark.parametrize(
    ('key', 'function', 'tensors', 'fused', 'beside'),
    [
        # What a fused kernel moves, in tensors of 16 bits; beside: the gradient of the bias, no part of it.
        # Derivatives of GELU are written by hand, so TorchScript does not differentiate; those of dropout are its own.
        ('gelu.F', bias_gelu, 'bx', 2, (0, 0)),
        ('gelu.I', bias_gelu_back, 'xbx', 3, (2, 1)),
        ('residual.F', bias_dropout_add, 'XBX', 3.5, (0, 0)),
    ],
)
def test_torchscript_without_a_fuser_runs_kernel_by_kernel(key, function, tensors, fused, beside):
    shapes = {'x': (TOKENS, WIDTH), 'b': (WIDTH,)}
    given = [torch.zeros(shapes[one.lower()], dtype=torch.bfloat16, requires_grad=one.isupper()) for one in tensors]
    script = torch.jit.script(function)
    for _ in range(3):  # The first calls are profiled, and only then does TorchScript optimise.
        with Kernels() as found:
            script(*given)
    stack = load_stack('megatron-2023-no-nvfuser').launches[key]
    assert stack.kernels == found.number + beside[0]
    passes = (found.moved / (TOKENS * WIDTH * torch.bfloat16.itemsize) + beside[1]) / fused
    # t * t reads one tensor, which the dispatcher shows twice.
    assert stack.passes == pytest.approx(passes, rel=0.03)
