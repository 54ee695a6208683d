"""Strategies of single operators in a plan: on any model, mixed with degrees, trained to the reference."""

from dataclasses import replace

import pytest
from tables import load_table
from trains import ONCE, trains

from simpar import Plan, Transformer
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import Dense, Gelu, Network
from simpar.workload import Adam, Workload

GPT = Workload(
    model=Transformer(layers=2, hidden=24, heads=6, vocab=36, sequence=12, kv_heads=3), batch=12, optimizer=Adam()
)
DROPPED = replace(GPT, model=replace(GPT.model, dropout=0.1, attention='unfused', kv_heads=6))
FEED_FORWARD = load_table(__file__, 'FEED_FORWARD')


@pytest.mark.parametrize('ranks', FEED_FORWARD)
@pytest.mark.parametrize('workload', [GPT, DROPPED], ids=['flash', 'unfused, dropout'])
@pytest.mark.parametrize('copies', [2])
def test_a_transformer_with_strategies_of_single_operators_trains(workload, ranks, copies):
    plan = Plan(strategies=FEED_FORWARD[ranks], copies=copies, copies_loss='mean')
    program = trains(workload, plan, ranks, steps=ONCE)
    assert any(op.partition.startswith(f'{ranks}x') or op.operator == 'all_reduce' for op in program.op_classes)


@pytest.mark.parametrize(
    ('ranks', 'plan'),
    [
        (6, Plan(tensor=3, strategies={'layer0.fc1': ((6, 1, 1), (1, 1))})),
        (6, Plan(tensor=3, sequence_parallel=True, strategies={'layer*.fc1': ((2, 1, 1), (1, 3))})),
        (4, Plan(tensor=2, sequence_parallel=True, copies=2, strategies={'layer1.norm2': ((1, 4, 1), (1,), (1,))})),
        (4, Plan(pipeline=2, micro_batches=2, strategies={'layer1.*fc1': ((1, 1, 1), (1, 2))})),
        (4, Plan(tensor=2, zero=2, strategies={'layer0.attention': ((4, 1, 1),)})),
        (4, Plan(zero=1, strategies={'layer0.proj': ((1, 1, 2), (2, 1))})),
        (4, Plan(zero=3, strategies={'layer0.proj': ((1, 1, 2), (2, 1))})),
        (3, Plan(dataset='full-batch', strategies={'position': ((1, 3, 1), (1, 1))})),
    ],
)
def test_degrees_give_what_strategies_leave_open(ranks, plan):
    workload = replace(GPT, model=replace(GPT.model, kv_heads=6))
    trains(workload, plan, ranks, steps=ONCE)


def test_degrees_written_as_strategies_are_the_same_work():
    """Flops and bytes of every product are those of the degrees."""
    workload = replace(GPT, model=replace(GPT.model, kv_heads=6))
    by_degrees = lower(workload, Plan(data=2, tensor=2, reduce='late'), 4)
    rows = (2, 1, 1)
    strategies = {
        'embedding': ((2, 1), (2, 1)),
        'layer*.qkv': (rows, (1, 2)),
        'layer*.proj': ((2, 1, 2), (2, 1)),
        'layer*.fc1': (rows, (1, 2)),
        'layer*.fc2': ((2, 1, 2), (2, 1)),
        'head': (rows, (1, 2)),
        'position': (rows, (1, 1)),
    }
    by_hand = lower(workload, Plan(strategies=strategies), 4)

    def products(program):
        ops = (op for op in program.op_classes if op.operator == 'matmul')
        return sorted((op.phase, op.flops, op.bytes, tuple(op.dims.items())) for op in ops)

    assert products(by_hand) == products(by_degrees)


def test_a_network_takes_them_too():
    layers = (Dense(inputs=8, outputs=16, name='up'), Gelu(), Dense(inputs=16, outputs=8, name='down'))
    inside = tuple(replace(layer, strategy=((2, 1), (1, 2))) if layer.name == 'up' else layer for layer in layers)
    workload = Workload(model=Network(layers=layers), batch=8)
    given = lower(workload, Plan(strategies={'u*': ((2, 1), (1, 2))}), 4)
    assert given.hash == lower(replace(workload, model=Network(layers=inside)), Plan(), 4).hash


@pytest.mark.parametrize(('strategies', 'said'), load_table(__file__, 'test_what_does_not_fit_is_told_by_operator'))
def test_what_does_not_fit_is_told_by_operator(strategies, said):
    with pytest.raises(Infeasible, match=said):
        lower(GPT, Plan(strategies=strategies), 4)
