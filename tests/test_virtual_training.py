"""Training on virtual accelerators: to the bit as where nothing is asynchronous, and what is missing is noticed."""

import random

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

import virtual_cases as virtual

from executor.inprocess import InProcess
from executor.virtual.engine import Race
from simpar.errors import Deadlock

pytestmark = pytest.mark.torch

TRAINED = ('context 2, ring of runs, pipeline 2, recomputed', 'tied over two stages, momentum, clipped, loss scale')
"""`make prove-virtual` trains all of them, in many more orders."""


@pytest.mark.parametrize('name', TRAINED)
def test_a_plan_trains_to_the_bit_as_in_process(name):
    made = virtual.program(name)
    assert virtual.differences(virtual.world(made, order=1).run(), InProcess(made).run(virtual.STEPS)) == []


def test_any_order_of_the_streams_gives_the_same_bits():
    made = virtual.small()
    wanted = InProcess(made).run(virtual.STEPS)
    for order in (None, *range(10)):
        assert virtual.differences(virtual.world(made, order=order).run(), wanted) == [], order


def test_an_event_that_is_dropped_is_noticed():
    made = virtual.small()
    every = virtual.waits(virtual.world(made).ranks[0])
    assert len(every) > 5
    for number, wait in enumerate(every[::2]):
        ranks = virtual.world(made, order=number)
        virtual.drop_event(ranks.ranks[number % 2], wait)
        with pytest.raises(Race, match='does not wait for'):
            ranks.run()


@pytest.mark.parametrize('order', range(2))
def test_memory_that_is_reused_early_is_noticed(order):
    ranks = virtual.world(virtual.small(), order)
    virtual.reuse_early(ranks.ranks[order % 2])
    with pytest.raises(Race, match=r'an allocation on .* does not wait for'):
        ranks.run()


@pytest.mark.parametrize('order', range(2))
def test_communicators_that_ranks_issue_in_different_orders_are_noticed(order):
    ranks = virtual.world(virtual.program('data 2, tensor 2, sequence parallel'), order, steps=1)
    pairs = list(virtual.swappable(ranks.ranks[0]))
    virtual.swap_communicators(ranks.ranks[0], random.Random(order).choice(pairs))
    with pytest.raises(Deadlock, match=r'rank 0.*_.* on '):
        ranks.run()
