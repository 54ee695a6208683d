"""A session: results are found again for what they were made of, and no result depends on it."""

from dataclasses import replace

import pytest

from simpar.lower import lower
from simpar.plans import Plan
from simpar.session import Session
from simpar.workload import Transformer, Workload

WORKLOAD = Workload(model=Transformer(layers=2, hidden=32, heads=4, vocab=64, sequence=8), batch=32)


def test_a_pass_is_done_again_where_a_key_that_it_read_differs_and_not_elsewhere():
    done, session = [], Session()

    def degrees(plan, world):
        done.append(plan.tensor)
        # The second key is read of some plans alone.
        return plan.tensor, plan.copies if plan.tensor > 1 else world

    plans = [Plan(), Plan(copies=2), Plan(tensor=2), Plan(tensor=2, copies=2), Plan(zero=1)]
    found = [session.of_plan(degrees, plan, world=4) for plan in plans]
    assert found == [(1, 4), (1, 4), (2, 1), (2, 2), (1, 4)]
    assert done == [1, 2, 2]
    assert session.of_plan(degrees, Plan(), world=8) == (1, 8)
    assert len(done) == 4


def test_what_an_inner_pass_reads_its_caller_has_read():
    done, session = [], Session()

    def inner(plan):
        return plan.zero

    def outer(plan):
        done.append(plan)
        return session.of_plan(inner, plan)

    assert [session.of_plan(outer, Plan(zero=zero)) for zero in (0, 1, 0, 3, 1)] == [0, 1, 0, 3, 1]
    assert len(done) == 3


def test_what_was_asked_for_longest_ago_goes_first():
    made, session = [], Session(most=2)

    def make(name):
        made.append(name)
        return len(made)

    assert [session.once(make, name=name) for name in 'abab'] == [1, 2, 1, 2]
    assert [session.once(make, name=name) for name in 'acab'] == [1, 3, 1, 4]


def test_what_cannot_be_made_is_not_kept():
    session, numbers = Session(), iter([0, 1])

    def inverse():
        return 1 / next(numbers)

    with pytest.raises(ZeroDivisionError):
        session.once(inverse)
    assert session.once(inverse) == 1


@pytest.mark.parametrize('common', [{}, {'zero': 2, 'shard_form': 'flat'}, {'pipeline': 2, 'micro_batches': 4}])
def test_programs_of_a_session_are_those_of_none_whatever_key_differs(common):
    """Each key after the others, so that a result that was kept for another plan would be found."""
    changes = {
        'copies': 2, 'sequence_parallel': True, 'zero': 3, 'prefetch': 1, 'recompute': 'full', 'tiles': 2,
        'fusion': 'all', 'shard_threshold': 512.0, 'unsharded': ('*.bias',), 'reduce': 'late', 'sum_loss': True,
        'receive': 'late', 'streams': 'single', 'reduce_gradients': 'end', 'overlap': ('recompute_comm_overlap',),
        'accumulate': 'full', 'shard_form': 'padded', 'shard_group': 2, 'recompute_communication': False,
        'copies_loss': 'sum', 'gather': '', 'order': 'gpipe',
    }  # fmt: skip
    base = Plan(data=4, tensor=2, **common)
    world, session = 8 * base.pipeline, Session()
    for key, value in changes.items():
        plan = replace(base, **{key: value})
        assert lower(WORKLOAD, plan, world, session=session).hash == lower(WORKLOAD, plan, world).hash, key
    assert lower(WORKLOAD, base, world, session=session).hash == lower(WORKLOAD, base, world).hash
