"""Random programs on every engine, folded, unfolded and in exact fractions; ``make prove-engines`` runs many more."""

import dataclasses
import random
from collections import Counter
from itertools import product

import numpy as np
import pytest
from engine_check import check
from engine_oracle import Oracle
from engine_programs import make_sample, role_of
from every import EVERY, draws, some
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from plain_costs import plain_costs

from simpar import Effects, Plan, Transformer, Workload, cluster, load_profile, price
from simpar.cost.collective import ClusterCollectives
from simpar.cost.costs import Communication
from simpar.engine import reference, simulate
from simpar.engine.fold import fold
from simpar.engine.ops import nodes_of, ops_of
from simpar.errors import Deadlock
from simpar.lower import lower
from simpar.predict import EFFECTS
from simpar.program import OpClass, Partition, Program
from simpar.units import GRID

PROGRAMS, FRACTIONS = (200, 2) if EVERY == 1 else (100, 4)
"""How many, and of how many one is run in fractions, which take longer than all engines."""
LEAST = 2
"""Programs in which each thing happens."""
HAPPENS = (
    'contention', 'flows over several links', 'slow-down of compute', 'slow-down of communication',
    'waiting that slows', 'kinds of communication', 'stragglers', 'unequal stragglers',
    'late hosts', 'ties', 'zero lengths', 'rendezvous',
    'collectives', 'deadlock', 'folded', 'several compute streams', 'carried needs',
    'hosts that wait', 'work queues', 'folded in blocks',
    'empty streams', 'ranks without ops', 'nothing slowed', 'one rank', 'exact', 'deadlock in fractions',
)  # fmt: skip


def test_random_programs_are_the_same_on_every_engine():
    total = Counter()
    for seed in range(PROGRAMS):
        happened, _ = check(make_sample(seed), exact=seed % FRACTIONS == 0)
        total += happened
    assert total['programs'] == PROGRAMS
    assert {name: total[name] for name in HAPPENS if total[name] < LEAST} == {}


# The event loop gives the spans of the reference, to the bit, and takes over wherever it can


def assert_same(one, other):
    """Two traces with the same bytes."""
    assert one.representative_of_rank.tolist() == other.representative_of_rank.tolist()
    for mine, theirs in zip(one.representatives, other.representatives, strict=True):
        assert mine.rank == theirs.rank
        for name in ('arrive_KS', 'start_KS', 'end_KS'):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)


WORKLOAD = Workload(model=Transformer(layers=8, hidden=512, heads=8, vocab=4096, sequence=512), batch=32)
PLANS = {
    'interleaved': Plan(tensor=2, pipeline=4, data=2, micro_batches=8, order='interleaved-1f1b', chunks=2),
    'late': Plan(tensor=2, pipeline=4, data=2, micro_batches=4, receive='late', copies=2),
    'zero bubble': Plan(tensor=2, pipeline=4, data=2, micro_batches=8, order='zb-h1'),
    'copies': Plan(tensor=8, data=2, copies=2),
    'one stream': Plan(tensor=2, pipeline=2, data=4, micro_batches=4, streams='single', order='gpipe'),
}


@pytest.mark.parametrize(('profile', 'plan'), some(product(('h100-sxm-8', 'ascend910a-8'), PLANS), 2))
def test_lowered_plans_have_the_spans_of_the_reference_with_any_effects(profile, plan, monkeypatch):
    """Each plan with other effects, and with all of them."""
    hardware = cluster(load_profile(profile), nodes=2)
    program = lower(WORKLOAD, PLANS[plan], 16)
    first, last = 3 * [*PLANS].index(plan) % (len(EFFECTS) - 1), len(EFFECTS) - 1
    effects = EFFECTS if EVERY == 1 else (EFFECTS[first], EFFECTS[last])
    states = [price(program, hardware, one) for _, one in effects]
    slow = [simulate(program, costs, engine='simpy') for costs in states]
    monkeypatch.setattr(reference.Simulation, 'run', None)
    for costs, expected in zip(states, slow, strict=True):
        for engine in ('python', 'compiled'):
            assert_same(simulate(program, costs, engine=engine), expected)


def pair(first, second):
    """Two ranks with these collectives of one group on one stream."""
    roles = tuple(
        role_of(f'rank{r}', [(0, 0)] * count, [[]] * count, [], ('s',)) for r, count in ((0, first), (1, second))
    )
    both = {'p': Partition('p', np.array([[0, 1]], dtype=np.int32))}
    op = OpClass('both', 'collective', 'all_reduce', 'F', partition='p')
    program = Program(roles, np.array([0, 1], dtype=np.int32), both, (op,), ())
    return program, plain_costs(program, lambda op: 0.0, lambda op: (0.0, 1.0))


def test_what_does_not_pair_up_in_a_step_is_left_to_the_reference():
    program, costs = pair(2, 1)
    assert nodes_of(ops_of(program, fold(program, costs, unfold=True))) is None
    with pytest.raises(Deadlock, match='rank 1, finished'):
        simulate(program, costs, steps=2)
    program, costs = pair(1, 1)
    assert nodes_of(ops_of(program, fold(program, costs, unfold=True))) is not None


def test_the_machines_can_be_compiled_beforehand(json_of):
    assert json_of('warmup')['seconds'] >= 0


# Thousands of ranks are priced by shapes of groups and folded by hashes; both tell the same as lists, rank by rank


IDEAL = Effects(small_operator=False, launch=False, slow_down=False, link_sharing=True)


def drawn(seed):
    """A program and a cluster: nodes of any size, slow ranks, cards that a node shares."""
    draw = random.Random(seed)
    tensor, pipeline, data = draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 4]), draw.choice([2, 3, 4, 6])
    world = tensor * pipeline * data
    devices = draw.choice([size for size in (1, 2, 3, 4, 6, 8) if world % size == 0])
    hardware = dataclasses.replace(
        cluster(load_profile(draw.choice(['a100-sxm-8', 'h100-sxm-8']))), nodes=world // devices, devices=devices
    )
    if draw.random() < 0.4:
        slow = {draw.randrange(world): draw.choice([0.5, 0.75]) for _ in range(2)}
        hardware = dataclasses.replace(hardware, slow=slow)
    if draw.random() < 0.4:
        *inner, last = hardware.profile.links
        profile = dataclasses.replace(hardware.profile, links=(*inner, dataclasses.replace(last, per='node')))
        hardware = dataclasses.replace(hardware, profile=profile)
    plan = Plan(tensor=tensor, pipeline=pipeline, data=data, micro_batches=4, sequence_parallel=tensor > 1)
    model = Transformer(layers=4, hidden=64, heads=8, vocab=64, sequence=32)
    return lower(Workload(model=model, batch=4 * data), plan, world), hardware


def named(costs):
    """Messages of each op class with the names of their links, as numbers are given by first use."""
    return {
        index: [(one.alpha, one.transfer, sorted((costs.links[link], part) for link, part in one.links)) for one in all]
        for index, all in costs.communication.items()
    }


@pytest.mark.parametrize('effects', [Effects(), IDEAL], ids=['all', 'ideal'])
def test_shapes_and_hashes_tell_what_lists_tell(effects, monkeypatch):
    for seed in some(range(12)):
        program, hardware = drawn(seed)
        by_shape = price(program, hardware, effects)
        monkeypatch.setattr(ClusterCollectives, 'shapes_tell', False)
        by_rank = price(program, hardware, effects)
        monkeypatch.undo()
        assert named(by_shape) == named(by_rank), seed
        assert (by_shape.why, by_shape.grades) == (by_rank.why, by_rank.grades)
        assert fold(program, by_shape).of_rank == fold(program, by_rank).of_rank, seed
        for unfold in (None, True):
            one, other = (simulate(program, costs, steps=2, unfold=unfold) for costs in (by_rank, by_shape))
            for mine, theirs in zip(one.representatives, other.representatives, strict=True):
                np.testing.assert_array_equal(mine.start_KS, theirs.start_KS)
                np.testing.assert_array_equal(mine.end_KS, theirs.end_KS)


# Laws that hold for every program: bounds, links, scaling, and times on the grid


CASES = st.integers(0, 2**32).map(lambda seed: make_sample(seed).case)
FORTY = draws(40)


def simulated(case, **how):
    """The trace of two steps; a program that does not end is drawn again."""
    try:
        return simulate(case.program, case.costs, steps=2, **how)
    except Deadlock:
        reject()


def against_paths(case, slower=None):
    """Each end of an op, and the longest path to it."""
    trace = simulated(case)
    for (rank, step, slot), path in Oracle(case.program, case.costs, steps=2).longest_paths(slower).items():
        yield trace.times_of(rank).end_KS[step, slot], path


def communicating(case, change):
    """The case with each communication changed."""
    return case.with_costs(
        communication={index: tuple(map(change, entries)) for index, entries in case.costs.communication.items()}
    )


def without_links(case):
    """The case on links for nobody else, and with as many work queues as streams."""
    return communicating(case, lambda one: Communication(one.alpha, one.transfer, ())).with_costs(work_queues=0)


@FORTY
@given(CASES)
def test_nothing_ends_before_the_longest_path_at_isolated_durations(case):
    assert all(end >= earliest for end, earliest in against_paths(case))


@FORTY
@given(CASES)
def test_without_slow_down_and_links_everything_ends_exactly_at_the_longest_path(case):
    ones = np.ones(len(case.program.op_classes))
    alone = without_links(case).with_costs(beside_communication=ones, beside_compute=ones, kinds=())
    assert all(end == expected for end, expected in against_paths(alone))


@FORTY
@given(CASES)
def test_without_links_nothing_ends_later_than_with_everything_slowed_always(case):
    costs, lowest = case.costs, case.costs.speeds.min(axis=0)
    slower = {
        index: (lowest if op.kind == 'compute' else costs.beside_compute)[index]
        for index, op in enumerate(case.program.op_classes)
    }
    assert all(end <= latest + 1e-9 for end, latest in against_paths(without_links(case), slower))


@FORTY
@given(CASES, st.sampled_from([True, None]))
def test_no_link_is_ever_overloaded(case, unfold):
    assume(case.costs.links)

    def check(time, transfers):
        load = np.zeros(len(case.costs.links))
        for op_class, groups, speed in transfers:
            assert 0 < speed <= 1
            for group in groups:
                for link, demand in case.costs.communication[op_class][group].links:
                    load[link] += speed * demand
        assert load.max() <= 1 + 1e-12, f'at {time}'

    simulated(case, unfold=unfold, observe=check)


@FORTY
@given(CASES)
def test_all_times_are_on_the_grid_and_in_order(case):
    for lane in simulated(case).representatives:
        times = np.stack([lane.arrive_KS, lane.start_KS, lane.end_KS])
        np.testing.assert_array_equal(times * GRID, np.rint(times * GRID))
        assert (np.diff(times, axis=0) >= 0).all()


@FORTY
@given(CASES)
def test_with_no_latency_and_no_host_cost_doubling_all_rates_halves_all_times(case):
    free = case.with_costs(host=0 * case.costs.host, host_step=0.0)
    fast, slow = (
        communicating(free, lambda one, times=times: Communication(0.0, times * one.transfer, one.links)).with_costs(
            compute=times * free.costs.compute
        )
        for times in (1, 2)
    )
    halved, whole = (simulated(one, unfold=True).representatives for one in (fast, slow))
    for one, other in zip(halved, whole, strict=True):
        np.testing.assert_allclose(one.end_KS, other.end_KS / 2, rtol=0, atol=1e-9)
