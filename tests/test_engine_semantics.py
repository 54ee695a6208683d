"""What each rule of the simulator does, one small program at a time."""

import numpy as np
import pytest
from engine_programs import role_of
from plain_costs import plain_costs

from simpar.engine import simulate
from simpar.errors import ProgramError
from simpar.program import OpClass, Partition, Program

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
