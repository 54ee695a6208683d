"""Work queues: what is issued behind something that waits waits too, by hand, and every machine to the bit."""

from dataclasses import replace

import numpy as np
import pytest
from engine_programs import role_of
from plain_costs import plain_costs

from simpar.cost.costs import costs_from_dict, costs_to_dict
from simpar.critical_path import critical_path
from simpar.engine import simulate
from simpar.engine.queues import before_in_queues, queues_of
from simpar.errors import Deadlock
from simpar.program import OpClass, Partition, Program

STREAMS = ('compute', 'tensor', 'data')


def costs_of(program, lengths, queues):
    """Costs of so many seconds for each op class, on the device or between two."""
    seconds = dict(zip((op.name for op in program.op_classes), map(float, lengths), strict=True))
    return plain_costs(program, lambda op: seconds[op.name], lambda op: (0.0, seconds[op.name]), work_queues=queues)


def layers(orders):
    """Two ranks: b0 and b1 of backward, a sum of gradients behind each, and a last product; each rank in its order."""
    op_classes = (
        *(OpClass(name, 'compute', 'matmul', 'I') for name in ('b0', 'b1', 'b2')),
        *(OpClass(name, 'collective', 'all_reduce', 'W', partition='p') for name in ('s0', 's1')),
    )
    stream = {'b': 0, 's': 2}
    roles = []
    for number, order in enumerate(orders):
        names = order.split()
        slots = [([op.name for op in op_classes].index(name), stream[name[0]]) for name in names]
        needs = [[names.index('b' + name[1])] if name[0] == 's' else [] for name in names]
        roles.append(role_of(f'rank{number}', slots, needs, [], STREAMS))
    partitions = {'p': Partition('p', np.arange(2, dtype=np.int32).reshape(1, 2))}
    return Program(tuple(roles), np.arange(2, dtype=np.int32), partitions, op_classes, ())


def ends(program, costs, steps=1, **how):
    times = simulate(program, costs, steps=steps, **how).times_of(0)
    role = program.role(0)
    return [dict(zip([program.op(role, k).name for k in range(len(role))], row, strict=True)) for row in times.end_KS]


def test_sums_of_gradients_that_wait_for_one_another_hold_up_the_backward():
    """s1 is first in the queue from 2 s on, and waits for s0 until 11 s: b2, issued behind it, starts then."""
    program = layers(['b0 s0 b1 s1 b2'] * 2)
    lengths = np.array([1.0, 1.0, 1.0, 10.0, 10.0])
    (free,), (one,) = (ends(program, costs_of(program, lengths, queues)) for queues in (2, 1))
    assert free == {'b0': 1.0, 's0': 11.0, 'b1': 2.0, 's1': 21.0, 'b2': 3.0}
    assert one == {'b0': 1.0, 's0': 11.0, 'b1': 2.0, 's1': 21.0, 'b2': 12.0}


def test_what_is_on_its_way_holds_up_nothing():
    """One sum at a time is overlapped with one queue, too: it has left the queue when it arrives."""
    program = layers(['b0 s0 b1 b2 s1'] * 2)
    lengths = np.array([1.0, 1.0, 1.0, 10.0, 10.0])
    (one,) = ends(program, costs_of(program, lengths, 1))
    assert one == {'b0': 1.0, 's0': 11.0, 'b1': 2.0, 'b2': 3.0, 's1': 21.0}


def test_a_queue_goes_on_in_the_next_step():
    """b0 of step 2 stands behind s1 of step 1, which waits for s0 until 11 s."""
    program = layers(['b0 s0 b1 b2 s1'] * 2)
    lengths = np.array([1.0, 1.0, 1.0, 10.0, 10.0])
    _, second = ends(program, costs_of(program, lengths, 1), steps=2)
    # s0 of step 2 arrives at 12 s, and is behind s1 of step 1 on its stream until 21 s; b1 is behind it in the queue.
    assert second == {'b0': 12.0, 's0': 31.0, 'b1': 22.0, 'b2': 23.0, 's1': 41.0}


def test_a_message_arrives_before_its_peer_does():
    """Rank 1 reaches s0 at 9 s: on rank 0 it has left the queue at 1 s, and b1 starts."""
    program = layers(['b0 s0 b1 b2 s1', 'b2 b0 s0 b1 s1'])
    lengths = np.array([1.0, 1.0, 8.0, 1.0, 1.0])
    (one,) = ends(program, costs_of(program, lengths, 1))
    assert one['b1'] == 2.0
    assert one['s0'] == 10.0


def test_orders_that_differ_between_ranks_deadlock_where_streams_share_a_queue():
    """Two communicators, each rank calling its own first: fine on two queues, and told in plain words on one."""
    op_classes = (
        *(OpClass(name, 'collective', 'all_reduce', 'F', partition=name[0]) for name in ('p', 'q')),
        *(OpClass(f'{name}.again', 'collective', 'all_reduce', 'F', partition=name[0]) for name in ('p', 'q')),
    )
    slots = [(0, 0), (2, 0), (1, 1), (3, 1)]
    roles = (role_of('one', slots, [[]] * 4, [], STREAMS), role_of('two', slots[2:] + slots[:2], [[]] * 4, [], STREAMS))
    pair = np.arange(2, dtype=np.int32).reshape(1, 2)
    program = Program(roles, np.arange(2, dtype=np.int32), {n: Partition(n, pair) for n in 'pq'}, op_classes, ())
    costs = costs_of(program, np.ones(4), 2)
    assert simulate(program, costs, steps=1).step == 2.0
    with pytest.raises(Deadlock) as caught:
        simulate(program, replace(costs, work_queues=1), steps=1)
    _, *lines = [' '.join(line.split()) for line in str(caught.value).splitlines()]
    assert lines == [
        'rank 0 compute step 1: p waits for rank 1',
        'rank 0 tensor step 1: q waits in its work queue behind p.again',
        'rank 1 compute step 1: p waits in its work queue behind q.again',
        'rank 1 tensor step 1: q waits for rank 0',
    ]


def test_streams_take_queues_in_turns_as_they_are_first_used():
    streams = np.array([2, 2, 0, 1, 0, 3, 2])
    assert queues_of(streams, 1) == [[2, 0, 1, 3]]
    assert queues_of(streams, 2) == [[2, 1], [0, 3]]
    assert queues_of(streams, 3) == [[2, 3]]
    assert queues_of(streams, 4) == []
    assert before_in_queues(streams, 2).tolist() == [-1, 0, -1, 1, 2, 4, 3]


def test_the_critical_path_goes_on_to_what_held_up_the_queue():
    program = layers(['b0 s0 b1 s1 b2'] * 2)
    lengths = np.array([1.0, 1.0, 30.0, 10.0, 10.0])
    costs = costs_of(program, lengths, 1)
    path = critical_path(simulate(program, costs, steps=1), costs)
    assert [(part.op.name, part.seconds) for part in path.segments] == [('b0', 1.0), ('s0', 10.0), ('b2', 30.0)]
    assert path.summary.endswith('On it 1 op waits in a work queue, b2 behind s1.')


def test_what_stands_behind_in_a_queue_waits_until_the_host_has_issued_what_is_before():
    """Time before an op is its host's where the host holds it up, with queues as without."""
    program = layers(['b0 s0 b1 s1 b2'] * 2)
    costs = replace(costs_of(program, np.ones(5), 1), host=np.full(5, 8.0))
    path = critical_path(simulate(program, costs, steps=1), costs)
    assert [(part.kind, part.seconds) for part in path.segments] == [('host', 40.0), ('compute', 1.0)]


def test_costs_that_are_written_keep_their_queues():
    program = layers(['b0 s0 b1 s1 b2'] * 2)
    costs = costs_of(program, np.ones(5), 1)
    assert costs_from_dict(costs_to_dict(costs), program).work_queues == 1
    with pytest.raises(ValueError, match='work_queues: not a number'):
        costs_from_dict({**costs_to_dict(costs), 'work_queues': -1}, program)


@pytest.mark.parametrize('engine', ['simpy', 'python', 'compiled'])
def test_what_needs_an_op_issued_behind_it_deadlocks_where_streams_share_a_queue(engine):
    op_classes = (OpClass('late', 'compute', 'matmul', 'F'), OpClass('early', 'compute', 'matmul', 'F'))
    role = role_of('one', [(0, 0), (1, 1)], [[1], []], [], STREAMS)
    program = Program((role,), np.zeros(1, dtype=np.int32), {}, op_classes, ())
    assert simulate(program, costs_of(program, np.ones(2), 2), steps=1, engine=engine).step == 2.0
    with pytest.raises(Deadlock) as caught:
        simulate(program, costs_of(program, np.ones(2), 1), steps=1, engine=engine)
    _, *lines = [' '.join(line.split()) for line in str(caught.value).splitlines()]
    assert lines == [
        'rank 0 compute step 1: late needs early',
        'rank 0 tensor step 1: early waits in its work queue behind late',
    ]
