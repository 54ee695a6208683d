"""Transformer blocks, every product cut by a strategy, over pipeline stages."""

from dataclasses import replace

import pytest

from simpar.lower import lower
from simpar.model.library.blocks import block_network
from simpar.plans import Plan
from simpar.workload import Workload

pytest.importorskip('torch', reason='needs the extra torch')

from executor.numerics import check

TOKENS, HIDDEN, HEADS, FFN = 4, 16, 4, 32


def blocks(layers, changes):
    """Blocks whose layers are changed, by name or its last word."""
    network = block_network(TOKENS, HIDDEN, HEADS, FFN, layers, init_std=0.3)

    def changed(layer):
        words = (layer.name.rpartition('_')[2], layer.name)
        return replace(layer, **{key: value for word in words for key, value in changes.get(word, {}).items()})

    network = replace(network, layers=tuple(map(changed, network.layers)))
    return Workload(model=network, batch=16 * TOKENS, loss='mse')


def megatron(data, tensor):
    """Columns, then rows (Shoeybi et al. 2019)."""
    columns, rows = ((data, 1), (1, tensor)), ((data, tensor), (tensor, 1))
    return {
        word: {'strategy': rows if word in ('o', 'down') else columns} for word in ('q', 'k', 'v', 'o', 'up', 'down')
    }


@pytest.mark.parametrize('copies', [1, 2])
@pytest.mark.parametrize(('data', 'tensor'), [(4, 1), (2, 2), (1, 4)])
def test_two_blocks_train_in_two_stages(data, tensor, copies):
    workload = blocks(2, megatron(data, tensor) | {'layer1_norm1': {'pipeline_stage': 1}})
    plan = Plan(pipeline=2, micro_batches=2, copies=copies)
    program = lower(workload, plan, 8)
    sends = [op for op in program.op_classes if op.kind == 'send']
    assert sorted((op.phase, op.stage) for op in sends) == [('F', 0), ('I', 1)]
    parameters = sum(tensor.kind == 'parameter' for tensor in program.tensors)
    assert len(check(program, workload, plan, steps=2).deviations) == 2 * (1 + 2 * parameters)


def test_a_stage_that_begins_inside_of_a_block_gets_both_values_that_it_reads():
    workload, plan = blocks(2, megatron(2, 2) | {'layer1_q': {'pipeline_stage': 1}}), Plan(pipeline=2, micro_batches=2)
    program = lower(workload, plan, 8)
    sends = [op for op in program.op_classes if op.kind == 'send']
    assert [(op.phase, len(op.reads)) for op in sends] == [('F', 2), ('I', 2)]
    check(program, workload, plan)


@pytest.mark.parametrize(('data', 'tensor'), [(1, 4), (2, 2)])
def test_a_block_cut_by_heads_sums_twice_forward_and_twice_backward(data, tensor):
    """Of activations [rows / data, hidden], where the residuals are whole (Shoeybi et al. 2019)."""
    norm, add = {'strategy': ((data, 1), (1,), (1,))}, {'strategy': ((data, 1), (data, 1))}
    changes = megatron(data, tensor) | {'norm1': norm, 'norm2': norm, 'add1': add, 'add2': add}
    workload = replace(blocks(1, changes), loss_strategy=((data, 1), (data, 1)))
    program = lower(workload, Plan(dataset='full-batch'), data * tensor)
    sums = [op for op in program.op_classes if op.operator == 'all_reduce' and op.phase in 'FI']
    size = workload.batch // data * HIDDEN * 4
    found = [(op.phase, op.bytes, program.partitions[op.partition].size) for op in sums]
    assert found == [(phase, size, tensor) for phase in 'FFII']
