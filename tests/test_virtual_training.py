"""Training on virtual accelerators: to the bit as where nothing is asynchronous, and what is missing is noticed."""

import random

import pytest
import virtual_cases as virtual

from executor.inprocess import InProcess
from executor.state import Request
from executor.virtual.engine import Race
from simpar.errors import Deadlock, Infeasible, RunFailed
from simpar.lower import lower
from simpar.memory import memory, sequential
from simpar.plans import Plan
from simpar.workload import AdamW, Transformer, Workload

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


def on_host(layers=3, offload=('activations', 'optimizer'), batch=8):
    model = Transformer(layers=layers, hidden=16, heads=4, vocab=32, sequence=8)
    work = Workload(model=model, batch=batch, precision='fp32', optimizer=AdamW(learning_rate=1e-2))
    return lower(work, Plan(data=2, zero=1, offload=offload), 2)


@pytest.mark.parametrize('order', [None, 1, 2])
def test_what_waits_on_the_host_comes_back_to_the_same_bits(order):
    made, plain = on_host(), on_host(offload=())
    found = virtual.world(made, order).run()
    for wanted in (InProcess(made).run(virtual.STEPS), InProcess(plain).run(virtual.STEPS)):
        assert virtual.differences(found, wanted) == []


def test_a_copy_to_the_host_or_back_that_lacks_an_event_is_noticed():
    def touched(slot):
        return {*slot.op.reads, *slot.op.writes, *slot.op.accumulates, *slot.op.frees}

    made = on_host()
    slots = virtual.world(made).ranks[0].slots
    # Others pace the copies, and no tensor depends on them.
    every = [
        (slot.position, place, 'needs')
        for slot in slots
        for place, need in enumerate(slot.needs)
        if 'copy' in (slot.op.operator, slots[need].op.operator) and touched(slot) & touched(slots[need])
    ]
    assert len(every) > 20
    for number, wait in enumerate(every[:: len(every) // 3]):
        ranks = virtual.world(made, order=number)
        virtual.drop_event(ranks.ranks[0], wait)
        with pytest.raises(Race, match='does not wait for'):
            ranks.run()


def test_a_device_that_is_too_small_for_all_trains_with_what_leaves():
    def run(made, room):
        return virtual.VirtualWorld(made, Request(steps=1, room=room)).run()

    made, plain = (on_host(8, offload, 32) for offload in (('activations',), ()))
    # What waits until another stream may reuse it takes room, too.
    room = int(0.8 * memory(sequential(plain)).peak)
    with pytest.raises(RunFailed, match='out of memory'):
        run(plain, room)
    assert virtual.differences(run(made, room), InProcess(plain, dtype=None).run(1)) == []


def test_copies_to_the_host_are_in_no_graph():
    with pytest.raises(Infeasible, match=r'plan\.offload: .*--issue eager'):
        virtual.VirtualWorld(on_host(), Request(steps=2, issue='graph'))
