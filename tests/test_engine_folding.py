"""Ranks that behave alike share a lane, and nobody can tell."""

import numpy as np
import pytest
from engine_programs import role_of
from plain_costs import plain_costs
from worked import worked_costs, worked_program

from simpar.cost.costs import Communication
from simpar.engine import simulate
from simpar.engine.fold import fold
from simpar.program import OpClass, Program, grid


def assert_same_spans(one, other):
    for rank in range(one.program.world):
        for name in ('arrive_KS', 'start_KS', 'end_KS'):
            np.testing.assert_array_equal(getattr(one.times_of(rank), name), getattr(other.times_of(rank), name))


def mesh(demand=lambda group: (0, 0.5), slow=None, data=2, tensor=4):
    """Compute, all-reduce over tensor, compute, all-reduce over data; ``demand``: (link, share) of a tensor group."""
    partitions = grid(data * tensor, {'data': data, 'tensor': tensor})
    op_classes = (
        OpClass('work', 'compute', 'matmul', 'F'),
        OpClass('inner', 'collective', 'all_reduce', 'F', partition='tensor'),
        OpClass('outer', 'collective', 'all_reduce', 'F', partition='data'),
    )
    slots = [(0, 0), (1, 1), (0, 0), (2, 1)]
    role = role_of('all', slots, [[], [0], [1], [2]], [], ('compute', 'communication'))
    world = data * tensor
    speed = np.ones(world)
    if slow is not None:
        speed[slow] = 0.5
    program = Program((role,), np.zeros(world, dtype=np.int32), partitions, op_classes, ())
    links = ('first', 'second')
    costs = plain_costs(program, lambda op: 4.0, lambda op: (0.0, 1.0), links=links, rank_speed=speed)
    costs.communication[1] = tuple(Communication(0.0, 3.0, (demand(group),)) for group in range(data))
    return program, costs


def test_alike_ranks_are_one_lane_and_their_groups_load_a_link_together():
    trace = simulate(*mesh(demand=lambda group: (0, 1.0)), steps=1)
    assert trace.representative_of_rank.tolist() == [0] * 8
    assert trace.cold_step == 4 + 2 * 3 + 4 + 1, 'two groups share the link, so each goes at half speed'


def test_groups_with_links_of_their_own_are_still_one_lane():
    trace = simulate(*mesh(demand=lambda group: (group, 1.0)), steps=1)
    assert trace.representative_of_rank.tolist() == [0] * 8
    assert trace.cold_step == 4 + 3 + 4 + 1


def test_links_that_are_loaded_alike_are_one_link_too():
    program, costs = mesh(demand=lambda group: (group, 1.0))
    messages, groups = costs.communication[1], np.array([0, 1])
    assert fold(program, costs).load(messages, groups) == ((0, 1.0),)
    assert fold(program, costs, unfold=True).load(messages, groups) == ((0, 1.0), (1, 1.0))


def test_groups_that_load_links_differently_are_lanes_of_their_own():
    trace = simulate(*mesh(demand=lambda group: (group, [1.0, 0.5][group])), steps=1)
    assert trace.representative_of_rank.tolist() == [0] * 4 + [1] * 4


def test_a_slow_rank_splits_off_only_what_it_touches_differently():
    trace = simulate(*mesh(slow=1), steps=1)
    # itself | its tensor group | its data group | the rest
    assert trace.representative_of_rank.tolist() == [0, 1, 0, 0, 2, 3, 2, 2]
    assert [lane.rank for lane in trace.representatives] == [0, 1, 4, 5]


def test_who_sends_and_who_receives_tells_ranks_apart():
    # a ring of roles z x y y x z: by its two neighbours alone a rank is like the other one of its role
    op_classes = (
        OpClass('give', 'send', 'send', 'F', partition='ring', peer=1),
        OpClass('take', 'recv', 'recv', 'F', partition='ring', peer=-1),
    )
    roles = tuple(
        role_of(name, slots, [[], []], [], ('communication',))
        for name, slots in {'z': [(0, 0), (1, 0)], 'x': [(1, 0), (0, 0)], 'y': [(0, 0), (1, 0)]}.items()
    )
    role_of_rank = np.array([0, 1, 2, 2, 1, 0], dtype=np.int32)
    program = Program(roles, role_of_rank, grid(6, {'ring': 6}), op_classes, ())
    costs = plain_costs(program, lambda op: 0.0, lambda op: (0.0, 1.0))
    trace = simulate(program, costs, steps=1)
    assert trace.representative_of_rank.tolist() == [*range(6)]
    # 0 → 1 and 3 → 4, then 2 → 3 and 5 → 0, then 1 → 2 and 4 → 5
    assert trace.cold_step == 3
    assert_same_spans(trace, simulate(program, costs, steps=1, unfold=True))


def test_folding_that_is_not_exact_is_refused():
    program = worked_program()
    with pytest.raises(ValueError, match=r"ranks 0 and 1 share role 'all' but behave differently"):
        simulate(program, worked_costs(program, slow={1: 0.5}), unfold=False)
