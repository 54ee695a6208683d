"""What strategies become: partitions, collectives and slices; what they refuse."""

from dataclasses import replace

import pytest
from tables import load_table

from executor.numerics import check
from simpar import Plan, Workload, load_case
from simpar.commands.check import to_dict
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.lower.graph.record import has_strategies
from simpar.model import Dense, Flatten, Network, Relu


def network(*layers, batch=16, loss='mse'):
    return Workload(model=Network(layers=layers), batch=batch, loss=loss)


def dense(strategy, out_strategy=(), inputs=32, outputs=16, bias=False, name=''):
    return Dense(inputs=inputs, outputs=outputs, bias=bias, strategy=strategy, out_strategy=out_strategy, name=name)


def collectives(program, rank=0):
    """Operator, phase, ranks of the group, and the shape of what a rank brings."""
    role = program.role(rank)
    ops = [program.op(role, slot) for slot in range(len(role))]
    return [
        (op.operator, op.phase, program.partitions[op.partition].members(rank),
         program.local_shape(program.tensor[op.reads[0]]))
        for op in ops if op.kind == 'collective'
    ]  # fmt: skip


TUTORIAL = network(
    dense(((2, 4), (4, 1)), name='matmul'), Relu(strategy=((2, 4),)), dense(((2, 4), (4, 1)), inputs=16, name='matmul2')
)


def test_the_tutorials_network_sums_over_the_ranks_that_its_ir_prints():
    found = collectives(lower(TUTORIAL, Plan(dataset='full-batch'), 8))
    sums = [one for one in found if one[0] == 'all_reduce']
    assert sums == [
        ('all_reduce', 'F', (0, 1, 2, 3), (8, 16)),
        ('all_reduce', 'F', (0, 1, 2, 3), (8, 16)),
        ('all_reduce', 'I', (0, 1, 2, 3), (8, 16)),
        ('all_reduce', 'W', (0, 4), (16, 4)),
        ('all_reduce', 'I', (0, 1, 2, 3), (8, 16)),
        ('all_reduce', 'W', (0, 4), (16, 8)),
    ]


GATHERED = dense(((4, 1), (1, 2)), inputs=784)
IMAGES = Workload(
    model=Network(layers=(Flatten(strategy=((8, 1, 1, 1),)), GATHERED), input=(1, 28, 28)),
    batch=32,
    loss='mse',
    loss_strategy=((4, 2), (4, 2)),
)


def with_flatten(workload, **keys):
    """A workload whose flatten is told something else."""
    _, *others = workload.model.layers
    return replace(workload, model=replace(workload.model, layers=(Flatten(**keys), *others)))


@pytest.mark.parametrize('way', ['cheapest', 'mindspore-2.0', 'mindspore-2.10'])
def test_images_are_gathered_behind_a_flatten_that_cuts_them_further_than_the_product(way):
    """Whole on every rank, their slices are cut for nothing; gradients of images are not asked for."""
    program = lower(IMAGES, Plan(dataset='full-batch', redistribution=way), 8)
    assert program.local_shape(program.tensor['x']) == (32, 1, 28, 28)
    assert program.local_shape(program.tensor['flatten0']) == (4, 784)
    assert [one for one in collectives(program) if one[1] != 'W'] == [('all_gather', 'F', (0, 1), (4, 784))]
    assert not [op for op in program.op_classes if op.phase == 'I' and op.operator in ('matmul', 'reshape', 'pad')]


def test_a_flatten_takes_a_layout_in_place_of_a_strategy():
    given = with_flatten(IMAGES, layout=(('dp+mp', 'none', 'none', 'none'),))
    named = lower(given, Plan(dataset='full-batch', device_matrix={'dp': 4, 'mp': 2}), 8)
    assert collectives(named) == collectives(lower(IMAGES, Plan(dataset='full-batch'), 8))


@pytest.mark.parametrize(
    ('workload', 'plan', 'message'),
    [
        (network(dense(((2, 4), (2, 1)))), Plan(), 'dense0: strategy .* dim 0 of input 1 .* must be split alike'),
        (network(dense(((2, 4), (4, 1)), name='mm', inputs=30)), Plan(), 'mm: .* dim 1 of input 0 of length 30'),
        (network(dense(((2, 4), (4, 1)), (1, 8))), Plan(), 'dense0: out_strategy'),
        (network(Relu(strategy=((3, 1),)), dense(())), Plan(), 'relu0: strategy'),
        (with_flatten(IMAGES, strategy=((2, 1, 4, 1),)), Plan(),
         r'flatten0: .* dim 2 of input 0 is split into 4, but lies inside of a dim .* write e\.g\. \(\(2, 1, 1, 1\)'),
        (network(Flatten(strategy=((2, 1, 1, 1),)), dense(())), Plan(), r'flatten0: .* dims, but the inputs have 2'),
        (TUTORIAL, Plan(tensor=3), r'plan\.tensor: 3 does not divide the 8 ranks of a stage'),
        (TUTORIAL, Plan(pipeline=2), 'matmul: strategy .* takes 8 ranks, which do not divide 4'),
        (TUTORIAL, Plan(pipeline=3), '8 ranks cannot be split into 3 equal stages'),
        (network(dense(((8, 1), (1, 1)))), Plan(zero=1, shard_group=3),
         '3 does not divide the 8 ranks with the same slice of dense0.weight'),
        (TUTORIAL, Plan(copies=3), '16 cannot be split into micro_batches 1 × copies 3'),
        (TUTORIAL, Plan(copies=16), 'matmul: 16 samples cannot be split into 2 slices of 16 copies'),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(workload, plan, message):
    with pytest.raises(Infeasible, match=message):
        lower(workload, plan, 8)


@pytest.mark.parametrize('data', [1, 8])
def test_data_says_nothing_beside_strategies(data):
    assert lower(TUTORIAL, Plan(data=data), 8).hash == lower(TUTORIAL, Plan(), 8).hash


def test_fewer_data_ranks_than_ranks_do_not_go_with_strategies():
    with pytest.raises(Infeasible, match=r'plan\.data: data 2 × tensor 1 are not the 8 ranks of a stage'):
        lower(TUTORIAL, Plan(data=2), 8)


def test_a_network_without_any_strategy_has_none():
    assert has_strategies(TUTORIAL, Plan())
    assert not has_strategies(network(dense(()), Relu()), Plan())


SCHEDULE = load_table(__file__, 'SCHEDULE')


def schedule(tmp_path, batch, plan):
    path = tmp_path / 'schedule.yaml'
    path.write_text(SCHEDULE.format(batch=batch, plan=plan), encoding='utf-8')
    return path


def test_a_full_batch_need_not_divide_over_the_ranks(tmp_path):
    case = load_case(schedule(tmp_path, 12, '{dataset: full-batch}'))
    facts = to_dict(case)
    assert {'feature': 'strategies of operators', 'simulated': 'yes', 'executable': 'yes'} in facts['features']
    assert not any(row['feature'].startswith('data') for row in facts['features'])
    assert case.predict().step > 0


def test_a_transformer_takes_a_strategy_of_its_loss(put):
    text = SCHEDULE.format(batch=16, plan='{}').partition('  network')[0]
    model = '  transformer: {layers: 1, hidden: 8, heads: 2, vocab: 16, sequence: 4}\n  batch: 16\n'
    path = put('schedule.yaml', f'{text}{model}  loss_strategy: [[2, 2, 1], [2, 2]]\n')
    program = load_case(path).program
    assert program.tensor['loss'].shape == (4,)
    path.write_text(f'{text}{model}  loss_strategy: [[2, 1], [2]]\n', encoding='utf-8')
    with pytest.raises(Infeasible, match=r'loss: strategy .* the inputs have 3, 2'):
        load_case(path).predict()


def test_a_loss_is_cut_by_batch_unless_told_otherwise():
    cuts = [
        lower(replace(TUTORIAL, loss_strategy=strategy), Plan(dataset='full-batch'), 8).tensor['loss'].shape
        for strategy in ((), ((2, 4), (2, 4)), ((2, 1), (2, 1)))
    ]
    assert cuts == [(8,), (8,), (2,)]
    with pytest.raises(Infeasible, match='loss: 16 samples cannot be split into 8 slices of 4 copies'):
        lower(replace(TUTORIAL, loss_strategy=((8, 1), (8, 1))), Plan(dataset='full-batch', copies=4), 8)


# Layouts by the names of a device matrix's axes, in place of strategies


MATRIX = {'dp': 2, 'sp': 2, 'mp': 2}


def two_products(first, second, **more):
    layers = (
        Dense(inputs=16, outputs=32, name='up', **first),
        Relu(),
        Dense(inputs=32, outputs=16, name='down', **second),
    )
    return Workload(model=Network(layers=layers, init_std=0.3), batch=16, loss='mse', **more)


def collectives_of_layouts(program):
    found = []
    for op in program.op_classes:
        if op.kind == 'collective':
            groups = program.partitions[op.partition].groups_GP
            found.append((op.operator, op.phase, op.bytes, sorted(sorted(group) for group in groups.tolist())))
    return found


def test_axes_in_the_order_of_a_strategys_are_that_strategy():
    strategies = two_products({'strategy': ((2, 4), (4, 1))}, {'strategy': ((2, 2), (2, 2))})
    layouts = two_products({'layout': (('dp', 'sp+mp'), ('sp+mp', 'none'))}, {'layout': (('dp', 'sp'), ('sp', 'mp'))})
    by_names = lower(layouts, Plan(device_matrix=MATRIX), 8)
    assert collectives_of_layouts(by_names) == collectives_of_layouts(lower(strategies, Plan(), 8))


def test_the_outermost_of_several_axes_on_a_dim_counts_most():
    program = lower(two_products({'layout': (('mp+dp', 'none'), ('none', 'sp'))}, {}), Plan(device_matrix=MATRIX), 8)
    held = program.tensor['up']
    assert [program.partitions[cut.partition].size for cut in held.splits if cut.dim == 0] == [2, 2]
    places = [
        [program.partitions[cut.partition].place(rank)[1] for cut in held.splits if cut.dim == 0] for rank in range(8)
    ]
    # Ranks are dp · 4 + sp · 2 + mp; rows are counted by mp first, then by dp.
    assert places == [[rank % 2, rank // 4] for rank in range(8)]


@pytest.mark.parametrize('scattered', [(), ('dp+mp', 'none')])
@pytest.mark.parametrize('copies', [1, 2])
def test_it_trains_as_the_whole_model_does(scattered, copies):
    first = {'layout': (('dp', 'mp'), ('mp', 'none')), 'out_layout': scattered}
    workload = two_products(first, {'layout': (('sp', 'mp+dp'), ('mp+dp', 'none'))})
    plan = Plan(device_matrix=MATRIX, copies=copies)
    program = lower(workload, plan, 8)
    parameters = sum(tensor.kind == 'parameter' for tensor in program.tensors)
    assert len(check(program, workload, plan, steps=2).deviations) == 2 * (1 + 2 * parameters)


@pytest.mark.parametrize(('layout', 'told'), load_table(__file__, 'test_what_cannot_be_is_told'))
def test_what_cannot_be_is_told(layout, told):
    with pytest.raises(Infeasible, match=told):
        lower(two_products({'layout': layout}, {}), Plan(device_matrix=MATRIX), 8)


def test_a_layout_needs_a_device_matrix_that_divides_the_ranks():
    workload = two_products({'layout': (('dp', 'mp'), ('mp', 'none'))}, {})
    with pytest.raises(Infeasible, match=r'plan\.device_matrix has none'):
        lower(workload, Plan(), 8)
    with pytest.raises(Infeasible, match='do not divide 4'):
        lower(workload, replace(Plan(), device_matrix=MATRIX), 4)


def test_the_axis_of_a_sum_is_scattered_inside_of_what_cuts_the_dim():
    first = {'layout': (('dp', 'mp'), ('mp', 'none')), 'out_layout': ('mp+dp', 'none')}
    with pytest.raises(Infeasible, match='write them last'):
        lower(two_products(first, {}), Plan(device_matrix=MATRIX), 8)
