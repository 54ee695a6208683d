"""Collectives: closed forms of the algorithms, measured curves, and how groups without a curve are priced."""

import dataclasses
from math import log2
from statistics import median
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import load_table

from simpar.cost.collective import ClusterCollectives, demand
from simpar.cost.costs import Block, Entries
from simpar.cost.formula import share, steps
from simpar.hardware import Tables
from simpar.layout import Axis, Step, StepKind
from simpar.profiles import cluster, load_profile, read_table, shaped
from simpar.program import COLLECTIVES, OpClass

MIB = 2.0**20
GIB = 2.0**30
OPERATORS = ('all_reduce', 'all_gather', 'reduce_scatter')


def collective(operator, size, dtype='fp16', kind='collective'):
    return OpClass(operator, kind, operator, 'F', bytes=float(size), dtype=dtype, partition='p')


def model(name, nodes=1, tables=True, tuning=None, **arguments):
    profile = load_profile(name)
    if tuning:
        profile = dataclasses.replace(profile, library=dataclasses.replace(profile.library, tuning=tuning))
    if not tables:
        profile = dataclasses.replace(profile, tables=Tables())
    return ClusterCollectives(cluster(profile, nodes, **arguments))


def seconds(cost):
    return cost.alpha + cost.transfer


H100 = model('h100-sxm-8')
WIRE = ClusterCollectives(cluster(shaped(load_profile('cpu-gloo'), 'paced', 125e6, 50e-6), devices=8))


@pytest.mark.parametrize('ranks', [2, 3, 4, 8])
@pytest.mark.parametrize(('operator', 'passes'), [('all_reduce', 2), ('all_gather', 1), ('reduce_scatter', 1)])
def test_a_ring_over_one_link_for_each_rank(ranks, operator, passes):
    """Each of passes · (w − 1) steps: a latency, and a w-th of the vector at the rate of the link."""
    cost = WIRE.cost(collective(operator, 4 * MIB), range(ranks))
    assert cost.alpha == pytest.approx(passes * (ranks - 1) * 50e-6)
    assert cost.transfer == pytest.approx(passes * (ranks - 1) * 4 * MIB / ranks / 125e6)
    assert cost.links == tuple((f'wire/{rank}', 1.0) for rank in range(ranks))


def test_over_a_shaped_link_there_is_the_executors_ring_whatever_library_the_devices_have():
    wire = ClusterCollectives(cluster(shaped(load_profile('h100-sxm-8'), 'paced', 125e6, 50e-6), devices=8))
    for ranks in (2, 4):
        for operator, passes in (('all_reduce', 2), ('all_gather', 1)):
            transfer = wire.cost(collective(operator, 4 * MIB), range(ranks)).transfer
            assert transfer == pytest.approx(passes * (ranks - 1) * 4 * MIB / ranks / 125e6)


@pytest.mark.parametrize('p', [2, 3, 4, 5, 8, 16])
def test_the_algorithms_of_the_hccl_manual(p):
    """Steps and bytes (of n) for each algorithm as in HCCL's tables, for all-reduce; the others have half."""
    # Where p is no power of two, a whole vector goes before and another behind.
    near, odd = 2 ** int(log2(p)), not log2(p).is_integer()
    expected = {
        'mesh': (2, 2 / p),
        'ring': (2 * (p - 1), 2 * (p - 1) / p),
        'nhr': (2 * (p - 1).bit_length(), 2 * (p - 1) / p),
        'halving_doubling': (2 * log2(near) + 2 * odd, 2 * (near - 1) / near + 2 * odd),
    }
    for algorithm, (count, part) in expected.items():
        assert steps(algorithm, 'all_reduce', p) == count
        assert share(algorithm, 'all_reduce', p) == pytest.approx(part)
        if algorithm == 'halving_doubling' and odd:
            continue
        for operator in ('all_gather', 'reduce_scatter'):
            assert steps(algorithm, operator, p) == count / 2
            assert share(algorithm, operator, p) == pytest.approx(part / 2)


def test_a_part_by_halving_where_the_group_is_no_power_of_two():
    """HCCL's manual, p = 5: a whole vector to a neighbour, ⌈5 / 2⌉ and ⌈5 / 4⌉ fifths, and a fifth back."""
    for operator in ('all_gather', 'reduce_scatter'):
        assert steps('halving_doubling', operator, 5) == 1 + 2 + 1
        assert share('halving_doubling', operator, 5) == pytest.approx(1 + (3 + 2) / 5 + 1 / 5)


@pytest.mark.parametrize('p', [2, 3, 4, 8])
def test_an_all_to_all_is_pairwise_whatever_the_algorithm(p):
    """HCCL's manual: (p - 1) steps, each a p-th of the vector; on a mesh all pairs at once."""
    for algorithm in ('ring', 'nhr', 'halving_doubling', 'nvls'):
        assert steps(algorithm, 'all_to_all', p) == p - 1
        assert share(algorithm, 'all_to_all', p) == pytest.approx((p - 1) / p)
    assert (steps('mesh', 'all_to_all', p), share('mesh', 'all_to_all', p)) == (1, pytest.approx(1 / p))
    cost = WIRE.cost(collective('all_to_all', 4 * MIB), range(p))
    assert cost.alpha == pytest.approx((p - 1) * 50e-6)
    assert cost.transfer == pytest.approx((p - 1) / p * 4 * MIB / 125e6)


def test_an_all_to_all_over_nodes_goes_to_near_peers_by_the_inner_link_and_to_far_ones_by_the_outer():
    """Two 910B nodes of eight: an eighth of 16 at once over each HCCS link, then eight of 16 over the port, in turn."""
    cluster_of_two = model('ascend910b-8', 2, tuning='none')
    hccs, roce = cluster_of_two.topology.links
    cost = cluster_of_two.cost(collective('all_to_all', 64 * MIB), range(16))
    assert cost.transfer == pytest.approx(64 * MIB * (1 / 16 / hccs.rate + 8 / 16 / roce.rate))
    start = cluster_of_two.library.start.value
    assert cost.alpha == pytest.approx(start + hccs.latency.value + 8 * roce.latency.value)


def test_four_ascend_910a_on_their_mesh():
    """fp32 is added on the way; each pair's link carries a quarter of the vector, twice."""
    cost = model('ascend910a-8').cost(collective('all_reduce', 64 * MIB, 'fp32'), range(4))
    assert cost.alpha == pytest.approx(10e-6 + 2 * 2.5e-6)
    assert cost.transfer == pytest.approx(2 * 16 * MIB / (30e9 * 0.333))
    assert len(cost.links) == 6
    assert {part for _, part in cost.links} == {1.0}


def test_eight_ascend_910a_in_phases():
    """Reduce-scatter in fours, all-reduce of a quarter across PCIe, all-gather in fours; one after the other."""
    cost = model('ascend910a-8').cost(collective('all_reduce', 64 * MIB, 'fp32'), range(8))
    hccs, pcie = 2 * 16 * MIB / (30e9 * 0.333), 16 * MIB / (16e9 * 0.85)
    assert cost.transfer == pytest.approx(hccs + pcie)
    assert cost.alpha == pytest.approx(10e-6 + 4 * 2.5e-6)
    links = dict(cost.links)
    assert len(links) == 12 + 8
    assert links['hccs/0-1'] == pytest.approx(hccs / (hccs + pcie), abs=1 / 1024)
    assert links['pcie/0'] == pytest.approx(pcie / (hccs + pcie), abs=1 / 1024)


def test_fp16_on_the_910a_is_added_by_kernels():
    model_a = model('ascend910a-8')
    half, single = (model_a.cost(collective('all_reduce', 64 * MIB, dtype), range(4)) for dtype in ('fp16', 'fp32'))
    assert half.transfer - single.transfer == pytest.approx(0.75 * 64 * MIB / 240e9)
    gathers = [model_a.cost(collective('all_gather', 64 * MIB, dtype), range(4)).transfer for dtype in ('fp16', 'fp32')]
    assert gathers[0] == gathers[1]


def test_hccl_gathers_inside_first():
    """All-gather over two nodes: a half of the vector inside each node, then the whole of it between them."""
    cost = model('ascend910b-8', 2, tuning='none').cost(collective('all_gather', 64 * MIB), range(16))
    inside, between = 32 * MIB / 8 / (28e9 * 0.654), 32 * MIB / (25e9 * 0.8)
    assert cost.transfer == pytest.approx(inside + between)


# algorithm bandwidth in GB/s of large messages on an 8-card 910B server, measured by others ("limulidae" benchmark);
# the profile's rates are HCCL's own, so nothing here was fitted on these. All-reduce of 4 is the worst, 22 % too fast.
@pytest.mark.parametrize(
    ('operator', 'measured'), [('all_reduce', {2: 18, 4: 30, 8: 72}), ('all_gather', {2: 38, 4: 64, 8: 149})]
)
def test_the_mesh_against_measurements_of_a_910b(operator, measured):
    made = model('ascend910b-8')
    for ranks, rate in measured.items():
        cost = made.cost(collective(operator, 512 * MIB), range(ranks))
        assert 512 * MIB / seconds(cost) / 1e9 == pytest.approx(rate, rel=0.15 if ranks != 4 else 0.25)


# all-reduce in one node of A100 by vTrain's tables (MIT licence), microseconds at 16, 64 and 512 MiB: group sizes that
# the profile has no curve of, in another library version.
@pytest.mark.parametrize(('ranks', 'measured'), load_table(__file__, 'test_group_sizes_between_measured_ones'))
def test_group_sizes_between_measured_ones(ranks, measured):
    a100 = model('a100-sxm-8')
    for size, microseconds in measured.items():
        cost = a100.cost(collective('all_reduce', size * MIB), range(ranks))
        assert seconds(cost) == pytest.approx(microseconds * 1e-6, rel=0.12)
        assert cost.grade == 'estimate'


@pytest.mark.parametrize('name', ['h100-sxm-8', 'a100-sxm-8'])
def test_exact_on_measured_rows(name):
    for operator, ranks, nodes, size, measured in read_table(load_profile(name).tables.collective, 'collective')[::7]:
        made = model(name, int(nodes))
        cost = made.cost(collective(operator, size), range(int(ranks)))
        assert seconds(cost) == pytest.approx(measured, rel=1e-9)
        assert cost.grade == 'measured'


def test_alpha_is_the_time_of_small_messages():
    cost = H100.cost(collective('all_reduce', 64 * MIB), range(8))
    assert cost.alpha == pytest.approx(15.6e-6, rel=0.02)
    assert H100.cost(collective('all_reduce', 8), range(8)).transfer < 1e-6


def test_below_all_that_was_recorded_a_message_is_at_best_as_quick_as_the_largest(tmp_path):
    path = tmp_path / 'collective.csv'
    rows = f'all_reduce,8,1,{MIB},1e-3\nall_reduce,8,1,{4 * MIB},25e-4\n'
    path.write_text(f'operator,ranks,nodes,bytes,seconds\n{rows}')
    profile = load_profile('h100-sxm-8')
    table = dataclasses.replace(profile.tables.collective, file=str(path))
    recorded = cluster(dataclasses.replace(profile, tables=Tables(collective=table)))
    cost = ClusterCollectives(recorded).cost(collective('all_reduce', MIB / 16), range(8))
    assert 'extrapolated' in cost.why
    # The largest takes 1.5 ms beyond the latency.
    assert cost.best == pytest.approx(1.5e-3 / 4 / 16)
    assert cost.best < seconds(cost)


# Halving an 8-GPU all-reduce on H100: about 2.0 below 0.5 MiB, 1.2 to 1.5 at 4 to 64 MiB, little at 256 MiB.
@pytest.mark.parametrize(('size', 'low', 'high'), [(0.25, 1.9, 2.1), (4, 1.2, 1.55), (64, 1.2, 1.5), (256, 1.0, 1.12)])
def test_what_halving_an_all_reduce_costs(size, low, high):
    whole, half = (seconds(H100.cost(collective('all_reduce', part * MIB), range(8))) for part in (size, size / 2))
    assert low < 2 * half / whole < high


def test_two_nodes_of_h100_at_the_pace_of_their_network():
    """One ring: each of eight ports carries an eighth of what crosses; 365 of 400 GB/s as measured on H200."""
    cost = model('h100-sxm-8', 2).cost(collective('all_reduce', 16 * GIB), range(16))
    bus = 2 * 15 / 16 * 16 * GIB / seconds(cost) / 1e9
    assert bus == pytest.approx(0.91 * 400, rel=0.02)
    assert dict(cost.links)['infiniband/0'] == pytest.approx(1.0, abs=0.01)


def test_alpha_between_nodes_as_nccl_counts_it():
    """NCCL's ring latency: base, 28 steps inside nodes and 2 between, for all-reduce of 16; a tree's is shorter."""
    bare = model('h100-sxm-8', 2, tables=False, tuning='none').cost(collective('all_reduce', 8), range(16))
    assert bare.alpha == pytest.approx(6.6e-6 + 28 * 0.6e-6 + 2 * 2.7e-6)
    tree = model('h100-sxm-8', 2, tables=False).cost(collective('all_reduce', 8), range(16))
    assert tree.alpha == pytest.approx(6.8e-6 + 2 * (7 * 0.6e-6 + 5.0e-6))
    assert 'tree of 16, LL:' in tree.why


def test_a_large_message_pays_for_the_barriers_of_its_protocol():
    """Simple: 14 us a hop between nodes where LL has 2.7; a ring of 64 nodes has 63 hops for a gather."""
    made = model('a100-sxm-8', 64, tables=False)
    small, large = (made.cost(collective('all_gather', size), range(0, 512, 8)) for size in (64, 4 * GIB))
    assert small.alpha == pytest.approx(6.6e-6 + 63 * 2.7e-6)
    assert large.alpha == pytest.approx(8.4e-6 + 63 * 14e-6)
    assert 'LL:' in small.why
    assert 'Simple:' in large.why


def test_a_ring_in_a_node_has_one_step_in_which_nothing_is_sent():
    """Blocks of threads go through p steps for a gather, 2p - 1 for an all-reduce, and send in all but the last."""
    made, plain = (model('a100-sxm-8', 2, tables=False, tuning=tuning) for tuning in (None, 'none'))
    for operator, ranks, longer in (('all_gather', 2, 2), ('all_reduce', 4, 7 / 6), ('reduce_scatter', 8, 8 / 7)):
        found, at_best = (one.cost(collective(operator, 4 * GIB), range(ranks)) for one in (made, plain))
        assert found.transfer == pytest.approx(at_best.transfer * longer)
        assert dict(found.links)['nvlink/0'] == pytest.approx(1 / longer, abs=1 / 512)
    across = [one.cost(collective('all_gather', 4 * GIB), range(16)).transfer for one in (made, plain)]
    assert across[0] == pytest.approx(across[1])


@pytest.mark.parametrize(('name', 'rate'), [('h100-sxm-8', 0.85), ('b200-sxm-8', 0.74)])
def test_the_switch_adds_at_its_own_rate(name, rate):
    """NCCL's nvlsEfficiency; each device sends the vector and gets an eighth of the result besides."""
    profile = load_profile(name)
    found = model(name, tables=False).cost(collective('all_reduce', 4 * GIB), range(8))
    assert found.transfer == pytest.approx(4 * GIB * 9 / 8 / profile.links[0].rate / rate)
    assert 'nvls of 8' in found.why


@pytest.mark.parametrize('name', ['a100-sxm-8', 'h100-sxm-8', 'h200-sxm-8', 'b200-sxm-8'])
def test_choosing_as_nccl_does_comes_nearer_to_what_was_measured(name):
    """Without its measured curves, on every second row of them above 64 KiB."""
    errors = {'chosen': [], 'none': []}
    for operator, ranks, nodes, size, measured in read_table(load_profile(name).tables.collective, 'collective')[::2]:
        if operator in OPERATORS and size > 2**16:
            inner = int(ranks) // int(nodes)
            group = [place // inner * 8 + place % inner for place in range(int(ranks))]
            for tuning, found in errors.items():
                made = model(name, int(nodes), tables=False, tuning=None if tuning == 'chosen' else tuning)
                found.append(abs(seconds(made.cost(collective(operator, size), group)) / measured - 1))
    assert median(errors['chosen']) < 0.75 * median(errors['none'])


def test_groups_beyond_the_measured_ones_scale_by_formula():
    made = model('a100-sxm-8', 32, tuning='none')
    at_128, at_256 = (made.cost(collective('all_reduce', 1024 * MIB), range(ranks)) for ranks in (128, 256))
    assert 'scaled to 256' in at_256.why
    assert at_256.transfer == pytest.approx(at_128.transfer * (255 / 256) / (127 / 128), rel=1e-6)
    assert at_256.alpha > at_128.alpha


def test_a_card_shared_by_a_node():
    """With one card for each node, all members of the node send through it."""
    profile = load_profile('h100-sxm-8')
    card = dataclasses.replace(profile.links[1], per='node')
    own = model('h100-sxm-8', 2, tables=False)
    shared = ClusterCollectives(
        cluster(dataclasses.replace(profile, links=(profile.links[0], card), tables=Tables()), nodes=2)
    )
    op = collective('all_gather', 16 * GIB)
    assert shared.cost(op, range(16)).transfer == pytest.approx(8 * own.cost(op, range(16)).transfer)
    assert shared.cost(op, [0, 8]).transfer == pytest.approx(own.cost(op, [0, 8]).transfer)
    assert [name for name, _ in shared.cost(op, range(16)).links if name.startswith('inf')] == [
        'infiniband/node0',
        'infiniband/node1',
    ]


def test_a_fatpipe_is_shared_by_nobody():
    profile = load_profile('cpu-gloo')
    fat = dataclasses.replace(profile.links[0], sharing='fatpipe')
    made = ClusterCollectives(cluster(dataclasses.replace(profile, links=(fat,))))
    cost = made.cost(collective('all_reduce', MIB), range(2))
    assert cost.transfer > 0
    assert cost.links == ()


def test_a_message_between_two_ranks():
    cost = WIRE.cost(collective('send', MIB, kind='send'), [0, 1])
    assert (cost.alpha, cost.transfer) == (pytest.approx(50e-6), pytest.approx(MIB / 125e6))


def test_nothing_to_send_costs_nothing():
    assert seconds(WIRE.cost(collective('all_reduce', 0), [0, 1])) == 0


@pytest.mark.parametrize(
    ('load', 'transfer', 'part'), [(1, 1, 1), (3, 1, 1), (1, 2, 0.5), (1e-9, 1, 1 / 1024), (1, 3, 341 / 1024)]
)
def test_demand_is_a_multiple_of_1_in_1024(load, transfer, part):
    assert demand(load, transfer) == part


SIZE = st.floats(1, 2**32)
GROUP = st.sets(st.integers(0, 15), min_size=2, max_size=16).map(sorted)
LAWS = {
    name: model(name, 8 if name == 'cpu-gloo' else 2, tuning='none')
    for name in ('ascend910a-8', 'ascend910b-8', 'cpu-gloo')
}
LAWS['h100 by formula'] = model('h100-sxm-8', 2, tables=False, tuning='none')
CHOSEN = model('h100-sxm-8', 2, tables=False)
MEASURED = model('h100-sxm-8', 2)


def by_exchange(name, size):
    """Whether all-reduces of a size are exchanged in one step."""
    exchange = LAWS[name].library.exchange
    return exchange is not None and size <= exchange.value


@pytest.mark.parametrize('name', LAWS)
@given(operator=st.sampled_from(OPERATORS), group=GROUP, size=SIZE, more=SIZE)
def test_formulas_rise_with_size_and_demand_what_they_may(name, operator, group, size, more):
    small, large = (LAWS[name].cost(collective(operator, n), group) for n in (size, size + more))
    # Where a larger message goes by another algorithm, either may take less.
    if operator != 'all_reduce' or not by_exchange(name, size) or by_exchange(name, size + more):
        assert small.transfer <= large.transfer
        assert small.alpha == large.alpha
    for _, part in small.links:
        assert 0 < part <= 1
        assert (part * 1024).is_integer()


@given(operator=st.sampled_from(OPERATORS), group=GROUP, size=SIZE, more=SIZE)
def test_a_larger_message_is_never_over_sooner(operator, group, size, more):
    small, large = (seconds(CHOSEN.cost(collective(operator, n), group)) for n in (size, size + more))
    assert small <= large


@given(operator=st.sampled_from(OPERATORS), group=GROUP, size=SIZE)
def test_measured_costs_are_sane_for_any_group(operator, group, size):
    cost = MEASURED.cost(collective(operator, size), group)
    assert cost.alpha > 0
    assert cost.transfer >= 0
    assert 0 < cost.best <= seconds(cost) * (1 + 1e-9)


@given(group=GROUP, size=st.integers(1, 16384))
def test_a_small_all_reduce_is_one_message_to_every_other_rank(group, size):
    cost = LAWS['cpu-gloo'].cost(collective('all_reduce', size), group)
    link = LAWS['cpu-gloo'].topology.links[0]
    assert cost.alpha == link.latency.value
    assert cost.transfer == pytest.approx((len(group) - 1) * size / link.rate)


def test_the_shipped_profile_knows_where_the_executor_changes_its_algorithm():
    from executor.ranks.collectives import SMALL

    assert load_profile('cpu-gloo').library.exchange.value == SMALL


@given(group=GROUP, size=SIZE)
def test_a_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather(group, size):
    ring = size + 16384
    both, gather, scatter = (LAWS['cpu-gloo'].cost(collective(operator, ring), group) for operator in OPERATORS)
    assert both.transfer == pytest.approx(scatter.transfer + gather.transfer)
    assert both.alpha == pytest.approx(scatter.alpha + gather.alpha)


@pytest.mark.parametrize(('factor', 'rate'), [(1.0, 128.0), (0.9, 128.0), (0.5, 86.0), (0.25, 43.0), (2.0, 240.0)])
def test_a_slower_network_reaches_what_its_cards_alone_do(factor, rate):
    """Others measured 86 and 84.8 GB/s where two A100 share a card; half of what one with its own reaches is 64."""
    # Twice the network is held up by NVLink.
    of_two_nodes = model('a100-sxm-8', nodes=2, links={'infiniband': factor})
    cost = of_two_nodes.cost(collective('all_reduce', 16 * 2**30), range(16))
    assert 2 * 15 / 16 * 16 * 2**30 / cost.transfer / 1e9 == pytest.approx(rate, rel=0.02)


def test_many_nodes_of_one_rank_each_gather_by_parallel_trees_what_is_small():
    """NCCL 2.30, tuning.cc: 8 us, log2 of the nodes by 14 / 3.5 us, 2.8 us a rank; 0.75 of the rate."""
    made = model('h100-sxm-8', 256, tables=False)
    link, group = made.topology.links[-1], range(0, 2048, 8)
    chosen = made.cost(collective('all_gather', 16 * MIB), group)
    assert 'parallel trees of 256' in chosen.why
    assert chosen.alpha == pytest.approx(8e-6 + 8 * 14e-6 / 3.5 + 256 * 2.8e-6)
    assert chosen.transfer == pytest.approx(255 / 256 * 16 * MIB / link.rate / 0.75)
    for other in (made.cost(collective('all_gather', GIB), group), made.cost(collective('all_reduce', MIB), group)):
        assert 'parallel' not in other.why


@pytest.mark.parametrize('tables', [True, False])
def test_over_symmetric_memory_small_sums_of_a_node_are_quicker(tables):
    """NCCL 2.30, sym_kernels.cc: 4.5 us and nine times the bytes of all ranks, or 7.8 us and the switch at 343 GB/s."""
    usual, few = (model('h100-sxm-8', tables=tables, expansion_mode=mode) for mode in ('', 'symmetric'))
    rate = usual.topology.links[0].rate
    small, large = (few.cost(collective('all_reduce', size), range(8)) for size in (4096, MIB))
    assert (small.alpha, large.alpha) == (pytest.approx(4.5e-6), pytest.approx(7.8e-6))
    assert small.transfer == pytest.approx(9 * 8 * 4096 / (0.93 * rate))
    assert large.transfer == pytest.approx((1 + 1 / 8) * MIB / (0.93 * rate))
    for size in (4096, MIB, 64 * MIB):
        for group in (range(8), range(2)):
            cost, before = (made.cost(collective('all_gather', size), group) for made in (few, usual))
            assert seconds(cost) <= seconds(before)
            assert seconds(cost) == seconds(before) or len(group) > 2


# The table of collectives agrees with the formulas of rings and with the algebra of layouts


LISTED = [name for name in COLLECTIVES if name != 'send_recv']


def test_every_collective_of_layouts_stands_in_the_table():
    assert set(get_args(StepKind)) - {'slice', 'pad'} == set(LISTED)


@pytest.mark.parametrize('name', COLLECTIVES)
def test_a_gradient_goes_back_the_other_way(name):
    one = COLLECTIVES[name]
    back = COLLECTIVES[one.gradient]
    assert (back.gives, back.gets, back.gradient) == (one.gets, one.gives, name)


@pytest.mark.parametrize('name', LISTED)
def test_a_ring_sends_what_a_step_of_a_redistribution_receives(name):
    """Of a vector of 12 over 4 ranks, by the formula of a port and by the layouts' count of elements."""
    one = COLLECTIVES[name]
    step = Step(name, (Axis(4, 1),), (int(one.part(one.gives, 12, 4)),), (int(one.part(one.gets, 12, 4)),))
    assert share('ring', name, 4) * 12 == float(step.elements) == one.passes * 9
    assert steps('ring', name, 4) == one.passes * 3


# Entries of thousands of groups are equal where every group's message is


def drawn(chance, alphas=(1.0, 2.0), links=3):
    """Entries of four groups in one or two blocks; small numbers, so that many are equal."""
    order = chance.permutation(4)
    found = []
    for rows in np.split(order, [int(chance.integers(1, 4))]):
        width = int(chance.integers(1, 3))
        over = chance.integers(0, links, (len(rows), width))
        parts = tuple(chance.choice([0.5, 1.0], width).tolist())
        found.append(Block(rows, float(chance.choice(alphas)), 1.0, over, parts, (1,) * width))
    return Entries(tuple(found))


def test_entries_are_equal_where_all_their_messages_are():
    chance = np.random.default_rng(7)
    # One link and one latency: blocks differ, and often say the same.
    some = [drawn(chance, alphas=(1.0,), links=1) for _ in range(40)] + [drawn(chance) for _ in range(40)]
    told = [(one == other, tuple(one) == tuple(other)) for one in some for other in some]
    assert all(arrays == messages for arrays, messages in told)
    assert len(some) < sum(equal for equal, _ in told) < len(told)


@pytest.mark.parametrize('other', [(), 'entries', None])
def test_entries_are_no_other_thing(other):
    assert drawn(np.random.default_rng(0)) != other


def test_entries_are_a_tuple_of_their_messages():
    entries = drawn(np.random.default_rng(0))
    assert entries == tuple(entries)
