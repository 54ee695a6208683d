"""The event loop gives the spans of the reference, to the bit, and takes over wherever it can."""

from itertools import product

import numpy as np
import pytest
from engine_programs import role_of
from every import some
from plain_costs import plain_costs

from simpar.cost.price import price
from simpar.engine import reference, simulate
from simpar.engine.fold import fold
from simpar.engine.ops import nodes_of, ops_of
from simpar.errors import Deadlock
from simpar.lower import lower
from simpar.plans import Plan
from simpar.predict import EFFECTS
from simpar.profiles import cluster, load_profile
from simpar.program import OpClass, Partition, Program
from simpar.workload import Transformer, Workload


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
    hardware = cluster(load_profile(profile), nodes=2)
    program = lower(WORKLOAD, PLANS[plan], 16)
    states = [price(program, hardware, effects) for _, effects in EFFECTS]
    slow = [simulate(program, costs, engine='simpy') for costs in states]
    monkeypatch.setattr(reference, 'run', None)
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
