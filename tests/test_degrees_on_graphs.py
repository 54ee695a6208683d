"""Degrees split any graph: a user's own blocks train as the unsharded model does, on any number of ranks."""

import random
from dataclasses import replace
from itertools import product

import pytest
from every import some
from tables import load_table
from trains import ONCE

from executor.numerics import check
from simpar import model as ops
from simpar.lower import lower
from simpar.model.library.blocks import block_network
from simpar.plans import Plan
from simpar.workload import Workload

TOKENS = 6


def embedded():
    """Token embedding, a gelu feed-forward with a residual, a head."""
    layers = (
        ops.Embedding(vocab=12, width=12, name='tokens'),
        ops.LayerNorm(name='norm'),
        ops.Reshape(shape=(-1, 12), name='rows'),
        ops.Dense(inputs=12, outputs=24, name='up'),
        ops.Gelu(name='gelu'),
        ops.Dense(inputs=24, outputs=12, name='down'),
        ops.Add(of=('rows', 'down'), name='sum'),
        ops.LayerNorm(name='last'),
        ops.Dense(inputs=12, outputs=12, name='head'),
    )
    return ops.Network(layers=layers, input=(TOKENS,))


def convolved():
    """A convolution, a mean over width, two dense layers."""
    layers = (
        ops.Conv2d(inputs=1, outputs=4, kernel=3, padding=1, name='conv'),
        ops.Relu(name='relu'),
        ops.Reduce(dims=(3,), name='mean'),
        ops.Flatten(name='flat'),
        ops.Dense(inputs=24, outputs=24, name='one'),
        ops.Silu(name='silu'),
        ops.Dense(inputs=24, outputs=12, name='two'),
    )
    return ops.Network(layers=layers, input=(1, 6, 6))


def chained():
    """Three dense layers with relus between them."""
    return ops.Network(
        layers=(
            ops.Dense(inputs=12, outputs=24),
            ops.Relu(),
            ops.Dense(inputs=24, outputs=24),
            ops.Relu(),
            ops.Dense(inputs=24, outputs=12),
        )
    )


MODELS = {
    'block': lambda: block_network(TOKENS, 12, 6, 24, 2, bias=True),
    'llama': lambda: block_network(TOKENS, 12, 6, 24, llama=True),
    'embedded': embedded,
    'convolved': convolved,
    'chained': chained,
}


def workload_of(name, network=None):
    rows = TOKENS if name in ('block', 'llama') else 1
    loss = 'cross-entropy' if name == 'embedded' else 'mse'
    return Workload(model=network or MODELS[name](), batch=12 * rows, loss=loss, precision='fp64')


def with_strategies(network, **given):
    """The network, some of its layers with strategies."""
    named = zip(ops.layer_names(network), network.layers, strict=True)
    layers = (replace(layer, strategy=given[name]) if name in given else layer for name, layer in named)
    return replace(network, layers=tuple(layers))


def test_graphs_of_users_train_by_degrees_on_any_number_of_ranks():
    every = list(product(MODELS, (1, 2, 3), (2, 3, 4, 5), (False, True), (1, 2), ('early', 'late'), (0, 1, 3)))
    for name, data, tensor, sequence, copies, reduce, zero in some(random.Random(10).sample(every, 24)):
        workload = workload_of(name)
        plan = Plan(data=data, tensor=tensor, sequence_parallel=sequence, copies=copies, reduce=reduce, zero=zero)
        report = check(lower(workload, plan, data * tensor), workload, plan, steps=ONCE)
        assert report.worst.error < 1e-12, (name, plan)


@pytest.mark.parametrize(
    ('name', 'given', 'data', 'tensor'),
    load_table(__file__, 'test_strategies_of_single_operators_stand_beside_degrees'),
)
def test_strategies_of_single_operators_stand_beside_degrees(name, given, data, tensor):
    workload = workload_of(name, with_strategies(MODELS[name](), **given))
    for sequence, copies in ((False, 1), (True, 2)):
        plan = Plan(data=data, tensor=tensor, sequence_parallel=sequence, copies=copies, zero=3)
        program = lower(workload, plan, data * tensor)
        assert check(program, workload, plan, steps=ONCE).worst.error < 1e-12
        (operator, strategy), *_ = given.items()
        split = {cut.partition for cut in program.tensor[operator if name != 'embedded' else 'tokens.weight'].splits}
        assert split or max(strategy[0]) == 1


@pytest.mark.parametrize('name', some(list(MODELS), 2))
@pytest.mark.parametrize('order', ['1f1b', 'zb-v'])
def test_any_number_of_values_crosses_a_stage_boundary(name, order):
    for tensor in (1, 2):
        plan = Plan(data=1, tensor=tensor, pipeline=2, micro_batches=3, order=order)
        workload = workload_of(name)
        program = lower(workload, plan, 2 * tensor)
        assert check(program, workload, plan, steps=ONCE).worst.error < 1e-12
    crossing = max(len(op.reads) for op in program.op_classes if op.kind == 'send')
    assert crossing > 1 or name in ('embedded', 'convolved', 'chained')


@pytest.mark.parametrize('recompute', ['full', 'selective'])
def test_layers_and_attention_of_a_users_graph_are_run_again(recompute):
    workload = workload_of('block')
    plan = Plan(data=2, tensor=2, recompute=recompute, copies=2)
    program = lower(workload, plan, 4)
    again = {op.name.removesuffix('.F.recompute') for op in program.op_classes if op.name.endswith('.recompute')}
    core = {f'layer{layer}_{part}' for layer in (0, 1) for part in ('scores', 'scale', 'softmax', 'values')}
    assert again == core if recompute == 'selective' else core < again
    assert check(program, workload, plan, steps=ONCE).worst.error < 1e-12
