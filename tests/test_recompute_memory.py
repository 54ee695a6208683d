"""Recomputation keeps what it is published to keep.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4 and table 2: a
layer in 16 bits keeps s b h (34 + 5 a s / h) bytes, without the matrices of attention 34 s b h, and its input alone
2 s b h; over t tensor ranks 34 becomes 10 + 24 / t and the rest is cut but the input; with sequence parallelism all of
it is. The paper leaves out mean and rstd of the norms.
"""

import pytest
from every import some
from test_memory_formulas import kept_by_the_forward

from simpar.lower import lower
from simpar.memory import memory, sequential
from simpar.plans import Plan
from simpar.workload import Adam, Transformer, Workload

S, B, H, A, V = 32, 4, 64, 4, 128
"""Sequence, batch, hidden width, heads, vocabulary."""
SPLITS = [(1, False), (2, False), (4, False), (2, True), (4, True)]
"""Tensor ranks, and whether sequence parallelism is on."""


def lowered(plan, *, layers=2, batch=B, **model):
    model = {'attention': 'unfused', 'dropout': 0.1, **model}
    workload = Workload(
        model=Transformer(layers=layers, hidden=H, heads=A, vocab=V, sequence=S, **model),
        batch=batch,
        precision='fp16',
        optimizer=Adam(),
    )
    return lower(workload, plan, max(1, plan.data) * plan.tensor * plan.pipeline)


def kept(plan, layers, model):
    """Bytes of activations that are there when the backward's first op starts, without the gradient that it writes."""
    program = lowered(plan, layers=layers, **model)
    role = program.roles[0]
    turn = next(slot for slot in range(len(role)) if program.op(role, slot).phase == 'I')
    return kept_by_the_forward(memory(sequential(program)).ranks[0], turn)


def kept_by_a_layer(plan, **model):
    """Bytes that one more layer keeps from forward to backward."""
    return kept(plan, 3, model) - kept(plan, 2, model)


def published(recompute, t, *, sequence_parallel):
    """The paper's bytes of a layer over s b h."""
    matrices = 5 * A * S / H
    if sequence_parallel:
        return {'none': 34 + matrices, 'selective': 34, 'full': 2}[recompute] / t
    return {'none': 10 + (24 + matrices) / t, 'selective': 10 + 24 / t, 'full': 2}[recompute]


def norms(t, *, sequence_parallel):
    """Mean and rstd of two norms over s b h."""
    return 2 * 2 * 2 / H / (t if sequence_parallel else 1)


@pytest.mark.parametrize(('t', 'sequence_parallel'), some(SPLITS, 2))
@pytest.mark.parametrize('recompute', ['none', 'selective', 'full'])
def test_a_layer_keeps_the_published_bytes(recompute, t, sequence_parallel):
    found = kept_by_a_layer(Plan(data=1, tensor=t, sequence_parallel=sequence_parallel, recompute=recompute))
    paper = S * B * H * published(recompute, t, sequence_parallel=sequence_parallel)
    assert found == pytest.approx(paper, rel=0.01)
    assert found - paper == (recompute != 'full') * S * B * H * norms(t, sequence_parallel=sequence_parallel)


@pytest.mark.parametrize('t', [1, 4])
def test_flash_attention_recomputed_keeps_what_the_paper_counts_without_its_matrices(t):
    """Its logsumexp is made again, and its result kept, as the input of the projection."""
    found = kept_by_a_layer(Plan(data=1, tensor=t, recompute='selective'), attention='flash')
    assert found == S * B * H * (10 + 24 / t + norms(t, sequence_parallel=False))
    assert found < kept_by_a_layer(Plan(data=1, tensor=t), attention='flash')


@pytest.mark.parametrize('dropout', [0.0, 0.1])
@pytest.mark.parametrize(('t', 'sequence_parallel'), some(SPLITS, 2))
def test_kept_communication_keeps_the_results_of_collectives(t, sequence_parallel, dropout):
    """The input and both sums of a layer; with sequence parallelism what both gathers give, whole, as well.

    The second sum only for the mask of the dropout behind it: without, nobody reads it again.
    """
    plan = Plan(data=1, tensor=t, sequence_parallel=sequence_parallel, recompute='full', recompute_communication=False)
    sums = 0 if t == 1 else 2 if dropout else 1
    gathers = 2 if sequence_parallel else 0
    expected = S * B * H * (2 * (1 + sums) / (t if sequence_parallel else 1) + 2 * gathers)
    assert kept_by_a_layer(plan, dropout=dropout) == expected


def test_dropped_operators_give_back_what_they_wrote():
    """GELU's result, 8 s b h, and the norms' mean and rstd with both results."""
    everything = kept_by_a_layer(Plan(data=1))
    gelu = kept_by_a_layer(Plan(data=1, recompute=('layer*.gelu',)))
    assert everything - gelu == 8 * S * B * H
    both = kept_by_a_layer(Plan(data=1, recompute=('layer*.gelu', 'layer*.norm?')))
    assert gelu - both == S * B * H * (4 + norms(1, sequence_parallel=False))


def test_some_layers_by_name():
    """Recomputing every operator of a layer is recomputing the layer."""
    one, all_ = (kept(Plan(data=1, recompute=names), 3, {}) for names in (('layer1.*',), ('layer*',)))
    none, full = (kept(Plan(data=1, recompute=how), 3, {}) for how in ('none', 'full'))
    assert all_ == full
    assert none - one == (none - full) / 3


def activations(plan, layers):
    """The most bytes of activations that a rank holds."""
    line = memory(sequential(lowered(plan, layers=layers))).ranks[0].by_kind()
    return int(line.bytes[:, line.names.index('activation')].max())


@pytest.mark.parametrize(('t', 'sequence_parallel'), SPLITS)
def test_one_more_layer_costs_its_input_at_the_peak(t, sequence_parallel):
    """All else of a layer is there for one layer at a time."""
    plan = Plan(data=1, tensor=t, sequence_parallel=sequence_parallel, recompute='full')
    more = activations(plan, 6) - activations(plan, 5)
    assert more == 2 * S * B * H / (t if sequence_parallel else 1)


def layers_alive(program):
    """For each op that goes backward through the layers, those of which more than the input is there."""
    role, rank = program.roles[0], memory(sequential(program)).ranks[0]
    names = [program.op(role, slot).name for slot in range(len(role))]
    for slot in range(names.index('norm.I') + 1, names.index('position.dropout.I')):
        there = (program.tensors[one] for one in rank.lives.tensor[rank.there(slot + 0.5)])
        live = {one.name for one in there if one.kind == 'activation'}
        live = {name for name in live if name.startswith('layer') and not name.endswith('residual2')}
        yield {name.partition('.')[0] for name in live}


def test_one_layer_is_alive_at_a_time():
    alive = list(layers_alive(lowered(Plan(data=1, recompute='full'), layers=4)))
    assert max(map(len, alive)) == 1
    assert set.union(*alive) == {f'layer{index}' for index in range(4)}
    assert max(map(len, layers_alive(lowered(Plan(data=1), layers=4)))) == 4


@pytest.mark.parametrize('order', ['1f1b', 'gpipe'])
def test_one_more_layer_costs_its_input_for_each_micro_batch_in_flight(order):
    """On every pipeline rank; in flight are stages − stage of them with 1F1B, and all with GPipe."""
    stages, micro_batches = 3, 5
    peaks = []
    for layers in (2, 3):
        plan = Plan(data=1, pipeline=stages, micro_batches=micro_batches, order=order, recompute='full')
        program = lowered(plan, layers=stages * layers, batch=B * micro_batches)
        lines = [rank.by_kind() for rank in memory(sequential(program)).ranks]
        peaks.append([int(line.bytes[:, line.names.index('activation')].max()) for line in lines])
    in_flight = [stages - stage if order == '1f1b' else micro_batches for stage in range(stages)]
    assert [more - less for less, more in zip(*peaks, strict=True)] == [2 * S * B * H * count for count in in_flight]


@pytest.mark.parametrize('t', [2, 4])
def test_tensor_ranks_keep_slices_of_the_inputs_of_layers(t):
    """The paper's section 4.2.2: of full recomputation 2 s b h / t are left, for an all-gather more of each layer."""
    plan = Plan(tensor=t, recompute='full', recompute_inputs='sharded')
    assert kept_by_a_layer(plan) == 2 * S * B * H / t
