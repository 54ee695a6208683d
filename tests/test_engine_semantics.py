"""What each rule of the simulator does, one small program at a time."""

from dataclasses import replace

import numpy as np
import pytest
from engine_programs import role_of
from plain_costs import plain_costs
from worked import worked_costs, worked_program

from simpar.cost.costs import Communication, Taking, costs_from_dict, costs_to_dict
from simpar.critical_path import critical_path
from simpar.engine import simulate
from simpar.engine.fold import fold
from simpar.engine.queues import before_in_queues, queues_of
from simpar.errors import Deadlock, ProgramError
from simpar.program import OpClass, Partition, Program, grid

STREAMS = ('compute', 'communication', 'other')
BOTH = {'all': Partition('all', np.array([[0, 1]], dtype=np.int32))}


def op(name):
    """An op class by its name: a collective C…, a send S…, a receive R…, or else compute."""
    kind = {'C': 'collective', 'S': 'send', 'R': 'recv'}.get(name[0], 'compute')
    peer = {'send': 1, 'recv': -1}.get(kind, 0)
    return OpClass(name, kind, name, 'F', partition='' if kind == 'compute' else 'all', peer=peer)


def program_of(*roles, carry=()):
    """Ranks with a role each, or two with one; a role is a list of (op class, stream, needs), by names."""
    names = list(dict.fromkeys(name for role in roles for name, *_ in role))
    made = []
    for number, role in enumerate(roles):
        slots = [(names.index(name), STREAMS.index(stream)) for name, stream, *_ in role]
        needs = [sorted(own[0]) if own else [] for _, _, *own in role]
        made.append(role_of(f'role{number}', slots, needs, list(carry), STREAMS))
    role_of_rank = np.array([0, 0] if len(roles) == 1 else range(len(roles)), dtype=np.int32)
    return Program(tuple(made), role_of_rank, BOTH, tuple(op(name) for name in names), ())


def run(program, seconds, *, steps=1, host=0.0, beside=(1.0, 1.0), links=(), observe=None, **more):
    """Spans (arrive, start, end) by rank and slot; ``seconds``: of compute, or (alpha, transfer)."""
    count = len(program.op_classes)
    others = {'beside_communication': np.full(count, beside[0]), 'beside_compute': np.full(count, beside[1]), **more}
    costs = plain_costs(
        program, lambda op: seconds[op.name], lambda op: (*map(float, seconds.get(op.name, (0, 0))), links),
        host=np.full(count, host), links=('wire',) if links else (), **others,
    )  # fmt: skip
    traces = (
        simulate(program, costs, steps=steps),
        simulate(program, costs, steps=steps, observe=observe, engine='simpy'),
    )
    fast, slow = (
        [[span[-3:] for step in range(steps) for span in trace.spans(rank, step)] for rank in range(program.world)]
        for trace in traces
    )
    assert fast == slow
    return fast


def test_a_stream_is_in_order_even_where_a_later_op_could_go():
    program = program_of([('a', 'compute'), ('late', 'other', [0]), ('early', 'other')])
    assert run(program, {'a': 5, 'late': 1, 'early': 1})[0] == [(0, 0, 5), (5, 5, 6), (6, 6, 7)]


def test_all_needs_have_to_finish():
    program = program_of([('a', 'compute'), ('b', 'other'), ('c', 'communication', [0, 1])])
    assert run(program, {'a': 1, 'b': 4, 'c': 1})[0][2] == (4, 4, 5)
    assert run(program, {'a': 4, 'b': 1, 'c': 1})[0][2] == (4, 4, 5)


def test_the_host_issues_in_issue_order_over_all_steps():
    program = program_of([('a', 'compute'), ('b', 'other')])
    spans = run(program, {'a': 0.5, 'b': 0.5}, host=2.0, steps=2)[0]
    assert spans == [(2, 2, 2.5), (4, 4, 4.5), (6, 6, 6.5), (8, 8, 8.5)]


def test_the_host_runs_ahead():
    spans = run(program_of([('a', 'compute'), ('b', 'compute')]), {'a': 9, 'b': 9}, host=2.0, steps=2)[0]
    assert [start for _, start, _ in spans] == [2, 11, 20, 29]


def test_steps_follow_each_other_without_a_barrier():
    program = program_of([('a', 'compute'), ('gather', 'other')])
    spans = run(program, {'a': 4, 'gather': 1}, steps=2)[0]
    assert spans[3] == (1, 1, 2), 'the second step of the other stream does not wait for the first'


def test_a_carry_need_waits_for_the_step_before():
    program = program_of([('a', 'compute'), ('gather', 'other')], carry=[(1, 0)])
    spans = run(program, {'a': 4, 'gather': 1}, steps=2)[0]
    assert (spans[1], spans[3]) == ((0, 0, 1), (4, 4, 5))


def test_an_op_may_wait_for_itself_in_the_step_before():
    program = program_of([('a', 'compute')], carry=[(0, 0)])
    for steps in (1, 2):
        assert run(program, {'a': 2}, steps=steps, beside=(0.5, 0.5))[0][-1] == (
            2 * steps - 2,
            2 * steps - 2,
            2 * steps,
        )


def test_ops_that_take_no_time_take_no_time_and_slow_nothing():
    program = program_of([('work', 'other'), ('a', 'compute'), ('C', 'communication', [1]), ('b', 'compute', [2])])
    spans = run(program, {'work': 2, 'a': 0, 'C': (0, 0), 'b': 0}, beside=(0.5, 0.5))[0]
    assert spans == [(0, 0, 2), (0, 0, 0), (0, 0, 0), (0, 0, 0)]


def test_speeds_are_solved_once_all_of_an_instant_has_happened():
    program = program_of([('C1', 'communication'), ('a', 'compute'), ('z', 'other', [1]), ('C2', 'compute', [2])])
    times = []
    seconds = {'C1': (0, 9), 'a': 1, 'z': 0, 'C2': (0, 1)}
    run(program, seconds, beside=(0.5, 0.5), observe=lambda time, _: times.append(time))
    assert times == [0, 2], 'at 2, a ends, z passes and C2 begins'


def test_ten_thousand_ops_of_no_time_are_no_deep_recursion():
    program = program_of([('a', 'compute')] * 10_000)
    assert run(program, {'a': 0})[0][-1] == (0, 0, 0)


def test_latency_slows_compute_but_is_not_slowed():
    program = program_of([('C', 'communication'), ('a', 'compute')])
    collective, compute = run(program, {'C': (2, 3), 'a': 4}, beside=(0.5, 0.25))[0]
    # the collective: 2 s of latency, then a quarter of the speed until the compute op ends
    # the compute op: half the speed until the collective ends
    assert compute == (0, 0, 8)
    assert collective == (0, 0, 2 + 6 + (3 - 6 * 0.25))


def test_latency_uses_no_link():
    program = program_of([('C1', 'communication'), ('C2', 'other')])
    first, second = run(program, {'C1': (0, 2), 'C2': (2, 2)}, links=((0, 1.0),))[0]
    assert (first, second) == ((0, 0, 2), (0, 0, 4))


def test_a_busy_device_anywhere_slows_the_collective_everywhere():
    program = program_of([('C', 'communication')], [('C', 'communication'), ('a', 'compute')])
    spans = run(program, {'C': (0, 3), 'a': 2}, beside=(1.0, 0.5))
    assert spans[0][0] == spans[1][0] == (0, 0, 4)


def test_back_to_back_compute_keeps_the_collective_slow_without_a_gap():
    program = program_of([('C', 'communication'), *[('a', 'compute')] * 4])
    assert run(program, {'C': (0, 3), 'a': 1}, beside=(1.0, 0.5))[0][0] == (0, 0, 5)


def test_communication_on_the_compute_stream_overlaps_nothing():
    program = program_of([('a', 'compute'), ('C', 'compute'), ('b', 'compute')])
    spans = run(program, {'a': 1, 'C': (1, 1), 'b': 1}, beside=(0.5, 0.5))[0]
    assert spans == [(0, 0, 1), (1, 1, 3), (3, 3, 4)]


def test_a_send_and_its_receive_start_and_end_together_and_slow_both_devices():
    sender = [('a', 'compute'), ('S', 'communication', [0]), ('b', 'compute')]
    receiver = [('R', 'communication'), ('c', 'compute')]
    spans = run(program_of(sender, receiver), {'a': 2, 'S': (1, 1), 'b': 3, 'c': 4}, beside=(0.5, 1.0))
    assert spans[0] == [(0, 0, 2), (2, 2, 4), (2, 2, 6)]
    assert spans[1] == [(0, 2, 4), (0, 0, 5)], 'half the speed from 2 to 4; waiting does not slow'
    waiting = run(
        program_of(sender, receiver), {'a': 2, 'S': (1, 1), 'b': 3, 'c': 4}, beside=(0.5, 1.0), waiting_slows=True
    )
    assert waiting[1] == [(0, 2, 4), (0, 0, 6)], 'half the speed from 0 to 4'


def taking(program, names, beside, *, waits=False):
    """Communication of a kind of its own."""
    ops = program.op_classes
    return (Taking(np.array([op.name in names for op in ops]), np.full(len(ops), beside), waits),)


@pytest.mark.parametrize(('beside', 'end'), [(0.25, 10.5), (0.75, 10), (0.5, 10)])
def test_of_kinds_of_communication_the_one_that_takes_most_counts_while_it_runs(beside, end):
    """Half of the speed up to 4 beside C; up to 2 beside D as well, at its speed where that is less."""
    program = program_of([('a', 'compute'), ('C', 'communication'), ('CD', 'other')])
    kinds = taking(program, ['CD'], beside)
    spans = run(program, {'a': 8, 'C': (0, 4), 'CD': (0, 2)}, beside=(0.5, 1.0), kinds=kinds)
    assert spans[0] == [(0, 0, end), (0, 0, 4), (0, 0, 2)]
    costs = replace(plain_costs(program, lambda op: 8.0, lambda op: (0.0, 4.0, ())), kinds=kinds)
    again = costs_from_dict(costs_to_dict(costs), program)
    assert (again.speeds.tolist(), again.taking.tolist(), again.waiting) == (
        costs.speeds.tolist(), costs.taking.tolist(), costs.waiting,
    )  # fmt: skip


def test_messages_of_a_kind_that_holds_its_units_slow_what_runs_while_they_wait():
    sender = [('a', 'compute'), ('S', 'communication', [0]), ('b', 'compute')]
    program = program_of(sender, [('R', 'communication'), ('c', 'compute')])
    kinds = taking(program, ['S', 'R'], 0.5, waits=True)
    spans = run(program, {'a': 2, 'S': (1, 1), 'b': 3, 'c': 4}, beside=(0.25, 1.0), kinds=kinds)
    assert spans[1] == [(0, 2, 4), (0, 0, 6)], 'half the speed from 0 to 4, and nothing at a quarter'


def test_sends_to_one_peer_pair_up_in_order():
    program = program_of(
        [('S1', 'communication'), ('S2', 'communication')],
        [('a', 'compute'), ('R1', 'communication', [0]), ('R2', 'communication')],
    )
    spans = run(program, {'S1': (0, 1), 'S2': (0, 5), 'a': 1})
    assert spans[0] == [(0, 1, 2), (2, 2, 7)]
    assert spans[1][1:] == [(1, 1, 2), (2, 2, 7)]


def test_one_peer_reached_from_both_sides_is_one_direction():
    # in a group of two, one position further and one position back are the same rank
    op_classes = [
        OpClass('ahead', 'send', 'ahead', 'F', partition='all', peer=1),
        OpClass('back', 'send', 'back', 'F', partition='all', peer=-1),
        OpClass('take', 'recv', 'take', 'F', partition='all', peer=1),
    ]
    roles = (
        role_of('gives', [(0, 1), (1, 1)], [[], []], [], STREAMS),
        role_of('takes', [(2, 1), (2, 1)], [[], []], [], STREAMS),
    )
    program = Program(roles, np.array([0, 1], dtype=np.int32), BOTH, tuple(op_classes), ())
    assert run(program, {'ahead': (0, 1), 'back': (0, 2)})[1] == [(0, 0, 1), (1, 1, 3)]


def test_a_slow_rank_s_durations_are_rounded_to_the_grid():
    spans = run(program_of([('a', 'compute')]), {'a': 1}, rank_speed=np.array([1.0, 0.3]))
    end = spans[1][0][2]
    assert end == round(2**40 / 0.3) / 2**40 != 1 / 0.3


@pytest.mark.parametrize('steps', [0, -1])
def test_there_is_at_least_one_step(steps):
    program = program_of([('a', 'compute')])
    with pytest.raises(ValueError, match='write 1 or more'):
        run(program, {'a': 1}, steps=steps)


def test_unlike_ops_that_meet_in_a_collective_are_refused_on_every_engine():
    """What meets is one collective with one duration: it cannot be two."""
    partitions = {'pair': Partition('pair', np.array([[0, 1]], dtype=np.int32))}
    roles = tuple(role_of(f'role{number}', [(number, 0)], [[]], [], ('communication',)) for number in (0, 1))
    ops = tuple(
        OpClass(name, 'collective', 'all_reduce', 'F', bytes=size, partition='pair')
        for name, size in (('small', 8.0), ('large', 64.0))
    )
    for op_classes in (ops, ops[::-1]):
        program = Program(roles, np.arange(2, dtype=np.int32), partitions, op_classes, ())
        one, other = (op.name for op in op_classes)
        for engine in ('simpy', 'python', 'compiled'):
            for unfold in (None, True):
                with pytest.raises(ProgramError, match=f'{one} of role role0 meets {other} of role role1'):
                    simulate(program, _alone(program), engine=engine, unfold=unfold)


def _alone(program):
    return plain_costs(program, lambda op: 0.0, lambda op: (0.0, 1.0))


# A program that cannot finish is drawn: what every stream waits for, on one screen


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


# Work queues: what is issued behind something that waits waits too, by hand, and every machine to the bit


QUEUED = ('compute', 'tensor', 'data')


def costs_on_queues(program, lengths, queues):
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
        roles.append(role_of(f'rank{number}', slots, needs, [], QUEUED))
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
    (free,), (one,) = (ends(program, costs_on_queues(program, lengths, queues)) for queues in (2, 1))
    assert free == {'b0': 1.0, 's0': 11.0, 'b1': 2.0, 's1': 21.0, 'b2': 3.0}
    assert one == {'b0': 1.0, 's0': 11.0, 'b1': 2.0, 's1': 21.0, 'b2': 12.0}


def test_what_is_on_its_way_holds_up_nothing():
    """One sum at a time is overlapped with one queue, too: it has left the queue when it arrives."""
    program = layers(['b0 s0 b1 b2 s1'] * 2)
    lengths = np.array([1.0, 1.0, 1.0, 10.0, 10.0])
    (one,) = ends(program, costs_on_queues(program, lengths, 1))
    assert one == {'b0': 1.0, 's0': 11.0, 'b1': 2.0, 'b2': 3.0, 's1': 21.0}


def test_a_queue_goes_on_in_the_next_step():
    """b0 of step 2 stands behind s1 of step 1, which waits for s0 until 11 s."""
    program = layers(['b0 s0 b1 b2 s1'] * 2)
    lengths = np.array([1.0, 1.0, 1.0, 10.0, 10.0])
    _, second = ends(program, costs_on_queues(program, lengths, 1), steps=2)
    # s0 of step 2 arrives at 12 s, and is behind s1 of step 1 on its stream until 21 s; b1 is behind it in the queue.
    assert second == {'b0': 12.0, 's0': 31.0, 'b1': 22.0, 'b2': 23.0, 's1': 41.0}


def test_a_message_arrives_before_its_peer_does():
    """Rank 1 reaches s0 at 9 s: on rank 0 it has left the queue at 1 s, and b1 starts."""
    program = layers(['b0 s0 b1 b2 s1', 'b2 b0 s0 b1 s1'])
    lengths = np.array([1.0, 1.0, 8.0, 1.0, 1.0])
    (one,) = ends(program, costs_on_queues(program, lengths, 1))
    assert one['b1'] == 2.0
    assert one['s0'] == 10.0


def test_orders_that_differ_between_ranks_deadlock_where_streams_share_a_queue():
    """Two communicators, each rank calling its own first: fine on two queues, and told in plain words on one."""
    op_classes = (
        *(OpClass(name, 'collective', 'all_reduce', 'F', partition=name[0]) for name in ('p', 'q')),
        *(OpClass(f'{name}.again', 'collective', 'all_reduce', 'F', partition=name[0]) for name in ('p', 'q')),
    )
    slots = [(0, 0), (2, 0), (1, 1), (3, 1)]
    roles = (role_of('one', slots, [[]] * 4, [], QUEUED), role_of('two', slots[2:] + slots[:2], [[]] * 4, [], QUEUED))
    pair = np.arange(2, dtype=np.int32).reshape(1, 2)
    program = Program(roles, np.arange(2, dtype=np.int32), {n: Partition(n, pair) for n in 'pq'}, op_classes, ())
    costs = costs_on_queues(program, np.ones(4), 2)
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
    costs = costs_on_queues(program, lengths, 1)
    path = critical_path(simulate(program, costs, steps=1), costs)
    assert [(part.op.name, part.seconds) for part in path.segments] == [('b0', 1.0), ('s0', 10.0), ('b2', 30.0)]
    assert path.summary.endswith('On it 1 op waits in a work queue, b2 behind s1.')


def test_what_stands_behind_in_a_queue_waits_until_the_host_has_issued_what_is_before():
    """Time before an op is its host's where the host holds it up, with queues as without."""
    program = layers(['b0 s0 b1 s1 b2'] * 2)
    costs = replace(costs_on_queues(program, np.ones(5), 1), host=np.full(5, 8.0))
    path = critical_path(simulate(program, costs, steps=1), costs)
    assert [(part.kind, part.seconds) for part in path.segments] == [('host', 40.0), ('compute', 1.0)]


def test_costs_that_are_written_keep_their_queues():
    program = layers(['b0 s0 b1 s1 b2'] * 2)
    costs = costs_on_queues(program, np.ones(5), 1)
    assert costs_from_dict(costs_to_dict(costs), program).work_queues == 1
    with pytest.raises(ValueError, match='work_queues: not a number'):
        costs_from_dict({**costs_to_dict(costs), 'work_queues': -1}, program)


@pytest.mark.parametrize('engine', ['simpy', 'python', 'compiled'])
def test_what_needs_an_op_issued_behind_it_deadlocks_where_streams_share_a_queue(engine):
    op_classes = (OpClass('late', 'compute', 'matmul', 'F'), OpClass('early', 'compute', 'matmul', 'F'))
    role = role_of('one', [(0, 0), (1, 1)], [[1], []], [], QUEUED)
    program = Program((role,), np.zeros(1, dtype=np.int32), {}, op_classes, ())
    assert simulate(program, costs_on_queues(program, np.ones(2), 2), steps=1, engine=engine).step == 2.0
    with pytest.raises(Deadlock) as caught:
        simulate(program, costs_on_queues(program, np.ones(2), 1), steps=1, engine=engine)
    _, *lines = [' '.join(line.split()) for line in str(caught.value).splitlines()]
    assert lines == [
        'rank 0 compute step 1: late needs early',
        'rank 0 tensor step 1: early waits in its work queue behind late',
    ]


# Ranks that behave alike share a lane, and nobody can tell


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
