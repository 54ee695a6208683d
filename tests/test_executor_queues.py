"""Work queues on two real ranks with emulated compute and paced links: what waits holds up what is issued behind it."""

from dataclasses import replace

import numpy as np
import pytest
from test_engine_semantics import costs_on_queues, layers

from executor.devices import KINDS
from executor.ranks.pool import Pool
from executor.ranks.streams import NOT_SET, queues_by_slot, set_queues
from simpar.cost.costs import Communication
from simpar.engine import simulate
from simpar.errors import RunFailed
from simpar.hardware.net import Net

UNIT = 1 / 64
SIZE = 1_048_576
NET = Net('paced', rate=SIZE / (8 * UNIT), latency=UNIT)
TOLERANCE = 0.05
ATTEMPTS = 3
"""A machine that others use adds time to a run, and never takes any away: one run of a few has to be in time."""


def made(order='b0 s0 b1 s1 b2'):
    """The sums of gradients of three layers, each a ring of two: two messages of half the size, 10 units in all."""
    program = layers([order] * 2)
    classes = tuple(
        replace(op, bytes=SIZE, reduce='sum') if op.kind == 'collective' else op for op in program.op_classes
    )
    return program.replace(op_classes=classes)


def costs(program, queues):
    found = costs_on_queues(program, np.array([1.0, 1.0, 9.0, 0.0, 0.0]) * UNIT, queues)
    return replace(found, communication={index: (Communication(2 * UNIT, 8 * UNIT),) for index in (3, 4)})


@pytest.fixture(scope='module')
def pool():
    with Pool(2, net=NET, timeout=10) as pool:
        yield pool


@pytest.mark.parametrize(('queues', 'expected'), [(1, 21.0), (0, 21.0)])
def test_two_ranks_take_as_long_as_predicted(pool, queues, expected):
    """Both take 21 units; with one queue b2 begins at 11, when s1 leaves the queue, and not at 2."""
    program = made()
    of = costs(program, queues)
    predicted = simulate(program, of, steps=2)
    found = []
    for _ in range(ATTEMPTS):
        trace = pool.run(program, of, compute='emulated', steps=2).trace
        pairs = [(mine.end_KS, theirs.end_KS) for mine, theirs in zip(each(predicted), each(trace), strict=True)]
        found.append(max(abs(one - other).max() for one, other in pairs) / predicted.step)
        if found[-1] <= TOLERANCE:
            break
    assert min(found) <= TOLERANCE
    starts = predicted.times_of(0).start_KS[0] / UNIT
    assert starts[4] == (11.0 if queues else 2.0)
    assert predicted.step_times[0] / UNIT == pytest.approx(expected)


def each(trace):
    return [trace.times_of(rank) for rank in range(2)]


def test_slots_leave_a_queue_in_issue_order_over_all_steps():
    role = made().role(0)
    queues = queues_by_slot(role, 1)
    (queue,) = {id(one): one for one in queues.values()}.values()
    assert [queue.ahead(step, slot) for step in range(2) for slot in range(5)] == [*range(10)]
    assert queues_by_slot(role, 2) == {}
    assert queues_by_slot(role, 0) == {}


def test_the_driver_is_told_how_many_queues_there_are(monkeypatch):
    variable = KINDS['cuda'].queues
    monkeypatch.delenv(variable, raising=False)
    assert set_queues(KINDS['cuda'], 0, 3) == ()
    assert set_queues(KINDS['cuda'], 1, 3) == (f'{variable}=1: streams share so many work queues of a device',)
    with pytest.raises(
        RunFailed, match=r'CUDA_DEVICE_MAX_CONNECTIONS is 1 in this process.*write cluster.work_queues: 1'
    ):
        set_queues(KINDS['cuda'], 8, 3)
    (note,) = set_queues(KINDS['cuda'], 0, 3)
    assert note.startswith(NOT_SET)
    assert set_queues(KINDS['cuda'], 0, 1) == ()
    (note,) = set_queues(KINDS['npu'], 1, 3)
    assert note.startswith(NOT_SET)
