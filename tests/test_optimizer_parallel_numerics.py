"""Plans that cut states, gradients and weights compute what torch autograd computes on the whole model, to 1e-10."""

from dataclasses import replace
from itertools import product

import pytest
from every import some
from plain_cases import MLP
from sabotage import change_ops
from trains import trains

from executor.numerics import check
from simpar.errors import NumericsWrong
from simpar.lower import lower
from simpar.plans import Plan
from simpar.workload import AdamW, Transformer, Workload

GPT = Workload(
    model=Transformer(layers=3, hidden=8, heads=2, vocab=12, sequence=4, tied=True, dropout=0.2, init_std=0.3),
    batch=16,
    precision='fp64',
    optimizer=AdamW(learning_rate=0.01),
    clip_norm=0.5,
)


CUT = [Plan(zero=3, prefetch=1), Plan(hsdp='level1'), Plan(zero=2, shard_group=2)]


@pytest.mark.parametrize(('plan', 'recompute'), some(product(CUT, ('full', 'selective'))), ids=str)
def test_with_recomputation_clipping_dropout_and_a_pipeline(plan, recompute):
    plan = replace(plan, data=2, pipeline=2, tensor=2, sequence_parallel=True, micro_batches=2, recompute=recompute)
    trains(GPT, plan, 8, steps=2)


def test_weights_that_are_recomputed_with_are_gathered_for_the_backward():
    plan = Plan(data=2, zero=3, recompute='full', micro_batches=2)
    program = lower(GPT, plan, 2)
    again = next(op for op in program.op_classes if op.name == 'layer0.weights.data.all_gather.I')
    assert 'layer0.fc1.bias' in again.reads
    check(program, GPT, plan)


# What is wrong is found wrong.


def test_a_piece_cut_elsewhere_is_found():
    plan = Plan(data=4, shard=('state',), shard_group=2)
    program = lower(MLP, plan, 4)
    with pytest.raises(NumericsWrong):
        check(change_ops(program, 'dense1.piece.U', attributes={'partition': 'replica'}), MLP, plan)


@pytest.mark.parametrize(
    'choices',
    some([
        {'micro_batches': 2},
        {'tensor': 2, 'sequence_parallel': True, 'recompute': 'full'},
        {'pipeline': 2, 'micro_batches': 4, 'prefetch': 2},
        {'copies': 2, 'shard_form': 'flat', 'fusion': 'none'},
        {'shard_form': 'padded', 'fusion': 'fsdp', 'micro_batches': 2},
        {'shard_form': 'dim', 'fusion': 'all', 'hsdp': 'level3', 'shard_threshold': 0.0, 'zero': 0},
    ], 2),
    ids=str,
)  # fmt: skip
def test_second_shards_of_neighbours(choices):
    """Each weight is gathered from four data ranks once, and from two from then on."""
    plan = Plan(**{'data': 4, 'zero': 3, 'second_shards': 2, **choices})
    program = trains(GPT, plan, 4 * plan.tensor * plan.pipeline, steps=2)
    assert any(op.partition.endswith('.near') for op in program.op_classes)


def test_second_shards_in_groups_of_shards():
    program = trains(GPT, Plan(data=8, zero=3, shard_group=4, second_shards=2), 8)
    assert program.partitions['shard.near'].groups_GP.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_second_shards_of_other_weights_are_found():
    plan = Plan(data=4, zero=3, second_shards=2)
    program = lower(MLP, plan, 4)
    with pytest.raises(NumericsWrong):
        check(change_ops(program, 'dense1.weights.second.F', attributes={'dim': '1 0'}), MLP, plan)
