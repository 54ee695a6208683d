"""A program that cannot finish is drawn: what every stream waits for, on one screen."""

from dataclasses import replace

import numpy as np
import pytest
from engine_programs import role_of
from plain_costs import plain_costs

from simpar.engine import simulate
from simpar.errors import Deadlock
from simpar.program import OpClass, Partition, Program


def costs_of(program):
    return plain_costs(program, lambda op: 1.0, lambda op: (0.0, 1.0))


def pairs(world):
    return np.arange(world, dtype=np.int32).reshape(-1, 2)


def drawing(program, **options):
    """The lines of the error, without the padding of columns."""
    with pytest.raises(Deadlock) as caught:
        simulate(program, costs_of(program), **options)
    return [' '.join(line.split()) for line in str(caught.value).splitlines()]


def collective(name, partition):
    return OpClass(name, 'collective', 'all_reduce', 'F', partition=partition)


def crossed(world=2):
    """Two communicators on one stream, which even ranks use in one order and odd ranks in the other."""
    roles = (
        role_of('even', [(0, 0), (1, 0)], [[], []], [], ('communication',)),
        role_of('odd', [(1, 0), (0, 0)], [[], []], [], ('communication',)),
    )
    partitions = {name: Partition(name, pairs(world)) for name in 'pq'}
    op_classes = (collective('first', 'p'), collective('second', 'q'))
    return Program(roles, np.arange(world, dtype=np.int32) % 2, partitions, op_classes, ())


def test_two_communicators_in_opposite_orders():
    title, *lines = drawing(crossed())
    assert 'deadlock' in title
    assert lines == [
        'rank 0 communication step 1: first waits for rank 1',
        'rank 1 communication step 1: second waits for rank 0',
    ]


def test_alike_ranks_are_drawn_once():
    _, *lines = drawing(crossed(world=8))
    assert lines == [
        'ranks 0, 2, 4, 6 communication step 1: first waits for rank 1',
        'ranks 1, 3, 5, 7 communication step 1: second waits for rank 0',
    ]


def test_a_stream_behind_a_stuck_one_says_what_it_needs():
    roles = (
        role_of('one', [(0, 0), (2, 1)], [[], [0]], [], ('communication', 'compute')),
        role_of('two', [(1, 0), (0, 0)], [[], []], [], ('communication',)),
    )
    partitions = {name: Partition(name, pairs(2)) for name in 'pq'}
    op_classes = (collective('first', 'p'), collective('second', 'q'), OpClass('after', 'compute', 'matmul', 'F'))
    lines = drawing(Program(roles, np.array([0, 1], dtype=np.int32), partitions, op_classes, ()))
    assert lines[2] == 'rank 0 compute step 1: after needs first'


def lonely(slots, needs, carry, op_classes):
    """Rank 0 has these slots; rank 1 has one collective over both, ``both``, which is op class 0."""
    streams = ('communication', 'compute')
    roles = (role_of('one', slots, needs, carry, streams), role_of('two', [(0, 0)], [[]], [], streams))
    partitions = {'p': Partition('p', pairs(2))}
    return Program(roles, np.array([0, 1], dtype=np.int32), partitions, (collective('both', 'p'), *op_classes), ())


def test_a_peer_that_has_finished_never_comes():
    _, line = drawing(lonely([(0, 0), (0, 0)], [[], []], [], ()), steps=1)
    assert line == 'rank 0 communication step 1: both waits for rank 1, finished'


def test_the_time_is_that_of_the_last_thing_that_happened():
    program = lonely([(0, 0), (1, 1), (0, 0)], [[], [], []], [], (OpClass('work', 'compute', 'matmul', 'F'),))
    # Beside the collective the compute op would take until 2 s, but that is over after 1 s.
    costs = replace(costs_of(program), beside_communication=np.full(2, 0.5))
    with pytest.raises(Deadlock, match=r'deadlock at 1\.5 s'):
        simulate(program, costs, steps=1)


def test_needs_in_a_circle():
    role = role_of('one', [(0, 0), (1, 1)], [[1], [0]], [], ('a', 'b'))
    op_classes = (OpClass('x', 'compute', 'matmul', 'F'), OpClass('y', 'compute', 'matmul', 'F'))
    program = Program((role,), np.zeros(1, dtype=np.int32), {}, op_classes, ())
    _, *lines = drawing(program)
    assert lines == ['rank 0 a step 1: x needs y', 'rank 0 b step 1: y needs x']


def test_a_ring_of_sends_waits_for_receives_behind_them():
    op_classes = (
        OpClass('give', 'send', 'send', 'F', partition='p', peer=1),
        OpClass('take', 'recv', 'recv', 'F', partition='p', peer=-1),
    )
    role = role_of('all', [(0, 0), (1, 0)], [[], []], [], ('communication',))
    ring = {'p': Partition('p', np.arange(3, dtype=np.int32).reshape(1, 3))}
    program = Program((role,), np.zeros(3, dtype=np.int32), ring, op_classes, ())
    _, *lines = drawing(program, unfold=True)
    assert lines == [f'rank {rank} communication step 1: give waits for rank {(rank + 1) % 3}' for rank in range(3)]
    _, line = drawing(program)
    assert line == 'ranks 0-2 communication step 1: give waits for rank 1'
