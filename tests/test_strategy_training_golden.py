"""Whole training steps as MindSpore's compiler recorded them: with its strategies, our collectives are its own.

Of every step the collectives (kind, ranks, shapes on a rank) and the slices of parameters are equal. Their order is not
compared: the compiler's dump has it as its graph is sorted. Left out are gradients of one number that the compiler did
not fold (``Recorded.of_constant``).
"""

from collections import Counter
from dataclasses import replace
from math import prod

import pytest
from golden_steps import CASES, FOLDER, GROUPS, SHIPPED, Recorded

from simpar.layout import axes_name, operators
from simpar.lower import lower
from simpar.model import Dense, Flatten, Relu

OUT_OF_ORDER = 5
"""Cases of sharding propagation that copy a layout to a ReLU whose strategy alone would name other ranks."""


def test_every_recorded_step_is_compared():
    files = [path for group in GROUPS for path in FOLDER.rglob(f'{group}/*.json')]
    assert len(CASES) == len(files) > 0
    if FOLDER == SHIPPED:
        assert {Recorded(case).group for case in CASES.values()} == set(GROUPS)


@pytest.mark.parametrize('name', CASES)
def test_collectives_of_a_training_step(name):
    recorded = Recorded(CASES[name])
    assert recorded.ours() == recorded.theirs()


@pytest.mark.parametrize('name', [name for name in CASES if not Recorded(CASES[name]).cuts_weights])
def test_shapes_of_messages(name):
    assert Recorded(CASES[name]).unlike() == []


@pytest.mark.parametrize('name', [name for name in CASES if CASES[name].get('parameters_after')])
def test_slices_of_parameters(name):
    recorded = Recorded(CASES[name])
    ours, theirs = recorded.parameters(), recorded.recorded_parameters()
    if recorded.cuts_weights:
        ours, theirs = (sorted(map(prod, shapes)) for shapes in (ours, theirs))
    assert ours == theirs


SLICED = {
    '2.10.0-seed000_interleave2_semi_d8': [('x', tuple(range(8)), (32, 1, 28, 28)), ('labels', tuple(range(8)), (32,))],
    '2.10.0-seed004_rec_pp2_opt_d8': [('x', (0, 1, 2, 3), (32, 1, 28, 28))],
    '2.10.0-seed004_rec_pp2_opt_d8_r4': [('target', (4, 5, 6, 7), (32, 1))],
}
"""Cases that cut copies or micro-batches of a batch in slices: the inputs of the rank's stage, its ranks, its slice."""


@pytest.mark.skipif(FOLDER != SHIPPED, reason='names cases of the shipped ones')
@pytest.mark.parametrize('name', SLICED)
def test_a_batch_in_slices_is_gathered_once_to_be_cut(name):
    recorded = Recorded(CASES[name])
    role, program = recorded.program.role(recorded.rank), recorded.program
    ops = [program.op(role, slot) for slot in range(len(role))]
    once = [op for op in ops if any(read.endswith('.step') for read in op.reads)]
    found = [(op.reads[0].removesuffix('.step'), *next(recorded.members(op))[1:]) for op in once]
    assert found == SLICED[name]


def test_a_layout_that_is_copied_to_an_activation_is_the_compilers():
    """As many slices as x has, on whichever ranks they lie: over others, there would be messages between."""
    copied = [name for name, case in CASES.items() if case['group'] == 'prop' and any(out_of_order(Recorded(case)))]
    assert FOLDER != SHIPPED or len(copied) == OUT_OF_ORDER
    assert all(Recorded(CASES[name]).ours() == Recorded(CASES[name]).theirs() for name in copied)


def out_of_order(recorded):
    """ReLUs of which some dim is not cut over the ranks that their strategy alone names."""
    for layer in recorded.workload().model.layers:
        if isinstance(layer, Relu):
            tensor = recorded.program.tensor[layer.name]
            named = operators.elementwise(layer.name, tensor.shape).sharded(layer.strategy, recorded.world).output
            held = [cut.partition for cut in tensor.splits]
            yield held != [axes_name(recorded.world, dim) for dim in named.dims if dim]


def test_another_strategy_is_noticed():
    recorded = Recorded(CASES['2.10.0-opt_dp4tp2_level3'])
    workload = recorded.workload()
    turned = tuple(
        replace(layer, strategy=((2, 1), (1, 4))) if isinstance(layer, Dense) and layer.name == 'w0' else layer
        for layer in workload.model.layers
    )
    recorded.program = lower(replace(workload, model=replace(workload.model, layers=turned)), recorded.plan(), 8)
    assert recorded.ours() != recorded.theirs()


ALL = tuple(range(8))


@pytest.mark.parametrize(
    ('name', 'ranks'),
    [('2.10.0-opt_dp8_off', ALL), ('2.10.0-opt_accum4_shard1', ALL), ('2.0.0-rec_even_d8', (0, 2, 4, 6))],
)
def test_a_loss_that_is_not_summed_is_noticed(name, ranks):
    recorded = Recorded(CASES[name])
    assert recorded.ours() == recorded.theirs()
    recorded.program = lower(recorded.workload(), replace(recorded.plan(), sum_loss=False), recorded.world)
    assert recorded.theirs() - recorded.ours() == {('all_reduce', ranks, 1): 1}


def test_a_flatten_that_is_not_cut_as_the_compilers_is_noticed():
    recorded = Recorded(CASES['2.10.0-mnist_rec_d8'])
    workload = recorded.workload()
    left = (Flatten(), *workload.model.layers[1:])
    recorded.program = lower(replace(workload, model=replace(workload.model, layers=left)), recorded.plan(), 8)
    assert recorded.theirs() - recorded.ours() == Counter({('all_gather', (0, 1), 32 * 784): 1})


def test_a_weight_cut_along_its_other_dim_is_noticed():
    recorded = Recorded(CASES['2.10.0-opt_dp8_off'])
    assert recorded.unlike() == []
    mine = list(recorded.messages())
    recorded.messages = lambda: ((*what, (2 * shape[0], *shape[1:-1], shape[-1] // 2)) for *what, shape in mine)
    assert recorded.unlike()
