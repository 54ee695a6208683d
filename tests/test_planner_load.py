"""The planner's load: a step is no shorter than all that a rank sends over its outermost link, in any stream."""

import pytest

from simpar.case import case_of
from simpar.cost.price import price
from simpar.planner.bound import Sums
from simpar.planner.pieces import Speeds
from simpar.planner.sample import load_of, outermost
from simpar.profiles import cluster, load_profile
from tests.planner_cases import MODELS, asked, judged

SPEEDS = Speeds(matrix=0.8, memory=0.5, collective=0.5)


def test_the_outermost_link_is_that_between_nodes_where_there_are_several():
    profile = load_profile('h100-sxm-8')
    assert outermost(cluster(profile, nodes=1).topology, 8) == 'nvlink'
    assert outermost(cluster(profile, nodes=2).topology, 16) == 'infiniband'
    # Devices of the first node alone need no other.
    assert outermost(cluster(profile, nodes=2).topology, 8) == 'nvlink'


def test_a_link_that_each_pair_has_to_itself_is_shared_by_nobody():
    assert outermost(cluster(load_profile('ascend910a-8'), nodes=1).topology, 4) == ''


def test_half_of_a_link_for_four_seconds_is_all_of_it_for_two():
    assert load_of(4.0, [('infiniband/3', 0.5), ('nvlink/3', 1.0)], 'infiniband') == 2.0
    assert load_of(4.0, [('nvlink/3', 1.0)], 'infiniband') == 0.0


def test_messages_of_two_streams_take_as_long_as_both_and_computation_beside_them_as_it_may():
    sums = Sums(alone=10.0, slowed=12.5, load=4.0)
    assert sums.least(0.0, SPEEDS) == pytest.approx(10.0 + 0.2 * 4.0)
    # Together they outlast all computation, so none of it is told.
    assert sums.least(26.0, SPEEDS) == pytest.approx(30.0)


@pytest.mark.parametrize(
    'plan',
    [
        {'expert': 8, 'copies': 2, 'zero': 3, 'micro_batches': 2},
        {'expert': 8, 'copies': 2, 'zero': 1, 'recompute': 'full'},
        {'tensor': 8, 'zero': 2, 'pipeline': 2, 'micro_batches': 4, 'order': '1f1b'},
    ],
)
def test_the_load_of_a_rank_is_that_of_its_program(plan):
    """On links so slow that nothing else counts, the least step is what the whole program sends over the busiest.

    Few words, as what is sent of the first and the last layer is not told beforehand.
    """
    slow = {'profile': 'h100-sxm-8', 'nodes': 8, 'devices': 2, 'links': {'infiniband': 0.02}}
    schedule = asked(MODELS[3] | {'vocab': 1024}, 64, slow, **plan)
    ((outcome, seconds, *_),) = judged(schedule)
    assert 0.9 * _sent(schedule) <= seconds <= outcome.figures.step


def _sent(schedule):
    """Seconds of the link between nodes that the busiest rank's collectives take, by the whole program."""
    case = case_of(schedule)
    costs = price(case.program, case.cluster)
    most = 0.0
    for rank in range(case.program.world):
        total = 0.0
        role = case.program.role(rank)
        for index in role.op_class.tolist():
            op = case.program.op_classes[index]
            if op.kind != 'collective':
                continue
            groups = case.program.partitions[op.partition].groups_GP.tolist()
            one = costs.communication[index][next(number for number, ranks in enumerate(groups) if rank in ranks)]
            names = {costs.links[link]: part for link, part in one.links}
            total += one.transfer * names.get(f'infiniband/{rank}', 0.0)
        most = max(most, total)
    return most
