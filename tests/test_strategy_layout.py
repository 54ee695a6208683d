"""Layouts by the names of a device matrix's axes, in place of strategies."""

from dataclasses import replace

import pytest

from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import Workload

pytest.importorskip('torch', reason='needs the extra torch')


from executor.numerics import check

MATRIX = {'dp': 2, 'sp': 2, 'mp': 2}


def two_products(first, second, **more):
    layers = (
        Dense(inputs=16, outputs=32, name='up', **first),
        Relu(),
        Dense(inputs=32, outputs=16, name='down', **second),
    )
    return Workload(model=Network(layers=layers, init_std=0.3), batch=16, loss='mse', **more)


def collectives(program):
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
    assert collectives(by_names) == collectives(lower(strategies, Plan(), 8))


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


@pytest.mark.parametrize(
    ('layout', 'told'),
    [
        ((('dp', 'mp'), ('sp', 'none')), 'dim 0 of input 1 is sharded by other axes than the dim that it is one with'),
        ((('dp', 'mp'), ('mp', 'dp')), 'an axis shards two dims that are not one'),
        ((('dp', 'tp'), ('tp', 'none')), "no axis is called 'tp'; there are dp, sp, mp"),
        ((('dp',), ('none', 'none')), 'has entries for'),
    ],
)
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
