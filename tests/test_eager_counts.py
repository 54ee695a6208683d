"""What eager PyTorch launches for a Llama's norm, activation and rotary embedding, counted by torch's own dispatcher.

`hw_profiles/stacks/torch-fsdp.yaml` says kernels and passes of these operators. Here torch runs them, and each operator
that reads or writes memory is a kernel.
"""

import dataclasses

import pytest
import torch
from kernel_counts import Kernels

from simpar.case import load_case
from simpar.profiles import load_stack

TOKENS, HIDDEN, HEADS = 256, 4096, 32


@dataclasses.dataclass(frozen=True)
class Count:
    """Kernels, and bytes an element."""

    kernels: int
    bytes: float


def counted(run, elements):
    with Kernels() as kernels:
        result = run()
    return result, Count(kernels.number, kernels.moved / elements)


def forward_and_backward(function, inputs, elements, wanted):
    """Counts of a forward, and of a backward towards the wanted inputs."""
    results, forward = counted(lambda: function(*inputs), elements)
    results = results if isinstance(results, tuple) else (results,)
    gradients = [torch.ones_like(one) for one in results]
    _, backward = counted(lambda: torch.autograd.grad(results, wanted, gradients, retain_graph=True), elements)
    return forward, backward


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True)


def rms_norm(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * weight


def swiglu(gate, up):
    return torch.nn.functional.silu(gate) * up


def rotary(queries, keys, turns):
    def turned(x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2).type_as(x)

    return turned(queries), turned(keys)


@pytest.fixture(scope='module')
def counts():
    """Counts by the words of a stack: an operator and its pass, I towards inputs, W towards weights."""
    x, weight = leaf(TOKENS, HIDDEN), leaf(HIDDEN)
    elements = TOKENS * HIDDEN
    norm, towards_input = forward_and_backward(rms_norm, (x, weight), elements, [x])
    _, towards_both = forward_and_backward(rms_norm, (x, weight), elements, [x, weight])
    gate, up = leaf(TOKENS, HIDDEN), leaf(TOKENS, HIDDEN)
    activation, activation_back = forward_and_backward(swiglu, (gate, up), elements, [gate, up])
    queries, keys = (leaf(TOKENS, HEADS, HIDDEN // HEADS) for _ in range(2))
    turns = torch.polar(torch.ones(TOKENS, 1, HIDDEN // HEADS // 2), torch.randn(TOKENS, 1, HIDDEN // HEADS // 2))
    turned, turned_back = forward_and_backward(rotary, (queries, keys, turns), 2 * elements, [queries, keys])
    return {
        'rms_norm.F': norm,
        'rms_norm.I': towards_input,
        'rms_norm.W': Count(towards_both.kernels - towards_input.kernels, towards_both.bytes - towards_input.bytes),
        'swiglu.F': activation,
        'swiglu.I': activation_back,
        'rotary.F': turned,
        'rotary.I': turned_back,
    }


@pytest.fixture(scope='module')
def operators():
    """Bytes of one layer's operators on one device of no framework: the least that must move, once."""
    model = {
        'layers': 1, 'hidden': HIDDEN, 'heads': HEADS, 'ffn': HIDDEN, 'vocab': 512, 'sequence': TOKENS,
        'norm': 'rms_norm', 'activation': 'swiglu', 'position': 'rotary', 'bias': [],
    }  # fmt: skip
    cluster = {'profile': 'h100-sxm-8', 'devices': 1, 'stack': 'none'}
    work = {'transformer': model, 'batch': 1, 'precision': 'bf16'}
    program = load_case({'simpar': 1, 'cluster': cluster, 'workload': work}).program
    return {f'{op.operator}.{op.phase}': op.bytes for op in program.op_classes}


@pytest.mark.parametrize(
    ('name', 'elements'),
    [
        ('rms_norm.F', 1), ('rms_norm.I', 1), ('rms_norm.W', 1), ('swiglu.F', 1), ('swiglu.I', 1),
        ('rotary.F', 2), ('rotary.I', 2),
    ],
)  # fmt: skip
def test_eager_kernels_and_their_bytes_are_those_that_torch_dispatches(name, elements, counts, operators):
    """``elements``: of the operator, in tensors of tokens × hidden; rotary turns queries and keys."""
    told = load_stack('torch-fsdp').launches[name]
    assert told.kernels == counts[name].kernels
    assert told.passes * operators[name] == pytest.approx(counts[name].bytes * elements * TOKENS * HIDDEN, rel=0.03)
