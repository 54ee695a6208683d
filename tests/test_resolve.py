"""Resolving: balanced stages and automatic orders; a resolved plan leaves nothing open."""

from itertools import combinations, pairwise

import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st

from simpar import cli
from simpar.cost.price import price
from simpar.engine import simulate
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.profiles import cluster, load_profile
from simpar.resolve import resolve
from simpar.resolve.resolve import balanced, layer_times
from simpar.workload import Transformer, Workload

HEAVY_HEAD = Workload(
    model=Transformer(layers=16, hidden=1024, heads=16, vocab=128000, sequence=1024), batch=32, precision='bf16'
)
H100 = cluster(load_profile('h100-sxm-8'))
FOUR = cluster(load_profile('h100-sxm-8'), devices=4)


def step(plan, workload=HEAVY_HEAD, hardware=H100):
    program = lower(workload, plan, hardware.world)
    return simulate(program, price(program, hardware)).step


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.integers(1, 5))
def test_the_cut_is_the_best_of_all_cuts(seconds, stages):
    if stages > len(seconds):
        return

    def slowest(edges):
        return max(sum(seconds[begin:end]) for begin, end in pairwise((0, *edges, len(seconds))))

    best = min(slowest(edges) for edges in combinations(range(1, len(seconds)), stages - 1))
    counts = balanced([float(value) for value in seconds], stages)
    assert sum(counts) == len(seconds)
    assert min(counts) >= 1
    edges = [sum(counts[:stage]) for stage in range(1, stages)]
    assert slowest(edges) == best


def test_a_heavy_head_gets_fewer_layers_and_a_faster_step():
    plan = Plan(pipeline=4, data=2, micro_batches=8, stages='balanced')
    found = resolve(HEAVY_HEAD, plan, H100)
    assert found.stages[-1] < 4
    assert sum(found.stages) == 16
    assert step(found) < 0.9 * step(Plan(pipeline=4, data=2, micro_batches=8))


def test_times_of_layers_are_those_of_the_pipelines_work():
    """Seconds of all layers are what one rank alone computes in a micro-batch (sums and updates aside)."""
    plan = Plan(pipeline=4, micro_batches=4)
    times = layer_times(HEAVY_HEAD, plan, FOUR)
    alone = lower(HEAVY_HEAD, Plan(micro_batches=4), 1)
    costs = price(alone, FOUR)
    role = alone.roles[0]
    whole = sum(float(costs.compute[index]) for index in role.op_class.tolist() if alone.op_classes[index].phase != 'U')
    assert times.seconds_LP.sum() * 4 == pytest.approx(whole, rel=1e-6)


@draws(8)
@given(st.sampled_from(['zb-1p', 'zb-2p']), st.sampled_from([4, 6, 8]))
def test_an_automatic_order_is_no_slower_than_1f1b(name, micro_batches):
    workload = Workload(model=Transformer(layers=8, hidden=1024, heads=8, vocab=1024, sequence=512), batch=24 * 4)
    plan = Plan(pipeline=4, micro_batches=micro_batches, order=name)
    found = resolve(workload, plan, FOUR)
    assert len(found.rows) == 4
    assert resolve(workload, found, FOUR) == found
    base = step(Plan(pipeline=4, micro_batches=micro_batches), workload, FOUR)
    assert step(found, workload, FOUR) <= 1.02 * base


def test_a_network_is_balanced_by_its_dense_layers():
    wide = [Dense(inputs=64, outputs=4096), Relu(), Dense(inputs=4096, outputs=4096), Relu()]
    narrow = [Dense(inputs=4096, outputs=64), Relu(), Dense(inputs=64, outputs=64), Dense(inputs=64, outputs=8)]
    workload = Workload(model=Network(layers=(*wide, *narrow)), batch=1024)
    found = resolve(
        workload, Plan(pipeline=2, micro_batches=2, stages='balanced'), cluster(load_profile('h100-sxm-8'), devices=2)
    )
    assert found.stages in ((1, 4), (2, 3))


def test_what_is_open_is_refused_by_lowering():
    with pytest.raises(Infeasible, match='balanced is still to be resolved'):
        lower(HEAVY_HEAD, Plan(pipeline=4, micro_batches=8, stages='balanced'), 4)


def test_a_plan_that_leaves_nothing_open_stays_as_it_is():
    plan = Plan(pipeline=4, data=2, micro_batches=8)
    assert resolve(HEAVY_HEAD, plan, H100) is plan


@pytest.mark.parametrize(
    ('stack', 'told'), [(', stack: none', ''), (', stack: megatron-core', 'at the sustained clock, 0.83')]
)
def test_it_says_at_which_clock_it_prices(stack, told, put, capsys):
    path = put(
        'schedule.yaml',
        f'simpar: 1\ncluster: {{profile: a100-sxm-8, nodes: 1, devices: 2{stack}}}\n'
        'workload: {transformer: {layers: 2, hidden: 64, heads: 2, vocab: 64, sequence: 64}, batch: 2}\n',
    )
    assert cli.main(['resolve', str(path)]) == 0
    found = capsys.readouterr().err
    assert told in found
    assert bool(told) == bool(found)
