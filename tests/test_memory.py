"""Memory: the worked program's by hand, lives over the step boundary, pipelines, and the answer in words."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from plain_costs import random_costs
from worked import worked_costs, worked_program

import simpar
from simpar import Plan, simulate
from simpar.case import memory_notes
from simpar.errors import Infeasible, ScheduleError
from simpar.lower import lower
from simpar.memory import Room, check_fit, memory, memory_to_dict, peak_summary, sequential
from simpar.model import Dense, Network, Relu
from simpar.program import KINDS, OpClass, ProgramBuilder, Tensor, instance
from simpar.trace import RankTimes, Trace
from simpar.workload import Adam, Transformer, Workload

WORKED = worked_program()


def worked(**options):
    return memory(simulate(WORKED, worked_costs(WORKED), steps=3), **options)


def totals(rank):
    """(from when, bytes) wherever it changes."""
    line = rank.by_kind()
    rows = list(zip(line.times[:-1].tolist(), line.total.tolist(), strict=True))
    return [row for index, row in enumerate(rows) if index == 0 or row[1] != rows[index - 1][1]]


def test_the_worked_program_by_hand():
    """Pieces of a copy are 64 bytes, saved ones 32, weights and gradients 128; times from the page, 112.125 the step's
    begin. Never freed: the seven other activations and the loss, of two copies."""
    always = 2 * 128 + 2 * (7 * 64 + 4)
    rank = worked().rank(1)
    assert rank.always == always
    assert totals(rank) == [
        (0, always + 2 * 64 + 32),  # both copies of x; savedA.0 from FA.0 on
        (4, always + 64 + 2 * 32),  # x.0 has been read; FA.1 saves
        (10, always + 3 * 32),  # x.1 has been read; FB.0 saves
        (16, always + 4 * 32),  # FB.1 saves
        (36, always + 4 * 32 + 128),  # WB.0 makes dweightB
        (42, always + 3 * 32 + 256),  # WB.0 has freed savedB.0; WA.0 makes dweightA
        (46, always + 2 * 32 + 256),
        (50, always + 32 + 256),
        (54, always + 256),  # until the update ends with the step
    ]


def test_the_peak_of_the_worked_program_has_its_op_kinds_and_copies():
    peak = worked().fullest.peak
    assert (peak.bytes, peak.time, peak.action) == (1160 + 96 + 256, 42, 'WA.c0')
    assert peak.kinds == {'activation': 904 + 96, 'parameter': 256, 'gradient': 256}
    assert peak.operators == {'block': 2 * 4 * 64 - 2 * 64 + 96, 'all_reduce': 2 * 3 * 64, 'mean': 2 * (64 + 4)}
    assert peak.slices == {(0, 0): 32, (0, 1): 64}


def test_gradients_may_stay_allocated_between_steps():
    """As Megatron-LM keeps them: both gradients, 256 bytes, at all times."""
    rank = worked(always={'parameter', 'state', 'gradient'}).fullest
    assert rank.always == 1160 + 256
    assert rank.peak.bytes == 1160 + 256 + 160


def test_a_fused_collective_may_take_a_buffer_of_its_bytes():
    """Data parallel: the gradients of a layer travel as one message of 8 × 4 weights and 4 biases in fp32."""
    model = Network(layers=(Dense(inputs=8, outputs=4),))
    program = lower(Workload(model=model, batch=4, loss='mse'), Plan(), 2)
    in_place, flattened = (memory(sequential(program), flattened=flag).ranks[0] for flag in (False, True))
    slot = next(slot for slot in range(len(program.roles[0])) if program.op(program.roles[0], slot).kind != 'compute')
    assert flattened.by_kind().at(slot + 0.5)['buffer'] == (8 * 4 + 4) * 4
    assert in_place.by_kind().at(slot + 0.5)['buffer'] == 0
    assert flattened.by_kind().at(slot + 1)['buffer'] == 0


def hand_made(ops, tensors, slots, **counts):
    """A program of one rank; tensors: name → (kind, elements of fp32)."""
    build = ProgramBuilder(1)
    for name, (kind, elements) in tensors.items():
        sliced = 0 if kind in ('activation', 'input') else None
        build.add_tensor(Tensor(name, kind, (elements,), 'fp32', batch_dim=sliced))
    for name, (reads, writes, frees) in ops.items():
        phase = 'U' if name == 'U' else 'F'
        build.add_op_class(
            OpClass(
                name, 'compute', 'block', phase, reads=tuple(reads.split()), writes=tuple(writes.split()),
                frees=tuple(frees.split()),
            )
        )  # fmt: skip
    streams = tuple(dict.fromkeys(stream for _, stream, _ in slots))
    build.add_role('all', [0], [(op, stream, micro_batch, 0) for op, stream, micro_batch in slots], streams)
    return build.build(**counts)


PREFETCHED = hand_made(
    {'A': ('g', 'y', 'g'), 'B': ('y', 'z', 'y z'), 'G': ('w', 'g', '')},
    {'w': ('parameter', 1), 'g': ('activation', 10), 'y': ('activation', 100), 'z': ('activation', 1000)},
    [('A', 'compute', 0), ('B', 'compute', 0), ('G', 'comm', 0)],
)


def trace_of(program, times):
    """A trace of one rank; times: for each step (start, end) of every slot."""
    start, end = np.moveaxis(np.array(times, dtype=float), -1, 0)
    return Trace(program, 'measured', (RankTimes(0, start, start, end),), np.zeros(1, dtype=np.int32))


def test_of_ops_that_start_at_once_the_one_that_allocates_most_is_named():
    program = hand_made(
        {'A': ('w', 'y', 'y'), 'G': ('w', 'g', 'g'), 'H': ('w', 'h', 'h')},
        {'w': ('parameter', 1), 'y': ('activation', 10), 'h': ('activation', 100), 'g': ('activation', 1000)},
        [('A', 'compute', 0), ('G', 'comm', 0), ('H', 'more', 0)],
    )
    peak = memory(trace_of(program, [[(0, 3), (1, 2), (1, 3)]])).fullest.peak
    assert (peak.bytes, peak.time, peak.action) == (4 * (1 + 10 + 1000 + 100), 1, 'G')


def test_a_receive_has_its_buffer_from_when_it_is_posted():
    """It is posted at 1 s, and its peer comes at 3 s; a collective would make its output then."""
    classes = tuple(replace(op, kind='recv' if op.name == 'R' else 'compute') for op in RECEIVING.op_classes)
    receiving = RECEIVING.replace(op_classes=classes)
    arrive, start, end = (np.array([times], dtype=float) for times in ((0, 1, 4), (0, 3, 4), (1, 4, 5)))
    lanes, representative_of_rank = (RankTimes(0, arrive, start, end),), np.zeros(1, dtype=np.int32)
    posted, collective = (
        memory(Trace(program, 'measured', lanes, representative_of_rank)).ranks[0] for program in (receiving, RECEIVING)
    )
    assert totals(posted) == [(0, 4), (1, 404)]
    assert (posted.peak.time, posted.peak.action) == (1, 'R')
    assert totals(collective) == [(0, 4), (3, 404)]


RECEIVING = hand_made(
    {'A': ('w', '', ''), 'R': ('', 'y', ''), 'B': ('y', '', 'y')},
    {'w': ('parameter', 1), 'y': ('activation', 100)},
    [('A', 'compute', 0), ('R', 'comm', 0), ('B', 'compute', 0)],
)


def test_a_role_holds_what_its_ops_touch_and_inputs_from_their_micro_batchs_first_op():
    """Two micro-batches of x (4 bytes) and labels (8): the labels are there while the first op runs."""
    program = hand_made(
        {'A': ('x w', 'y', ''), 'L': ('y labels', 'loss', 'y')},
        {'w': ('parameter', 1), 'elsewhere': ('parameter', 9), 'x': ('input', 1), 'labels': ('input', 2),
         'y': ('activation', 4), 'loss': ('activation', 1)},
        [('A', 'compute', 0), ('A', 'compute', 1), ('L', 'compute', 0), ('L', 'compute', 1)],
        micro_batches=2,
    )  # fmt: skip
    rank = memory(sequential(program)).ranks[0]
    inputs = [rank.by_kind().at(slot)['input'] for slot in range(4)]
    assert inputs == [4 + 8, 8 + 4 + 8, 8 + 8, 8]
    assert rank.by_kind().at(0)['parameter'] == 4
    assert rank.always == 4 + 2 * 4


def test_only_what_is_cut_along_the_batch_grows_with_it():
    """1000 elements of z and 100 of y are there at once; y is the same for any batch."""
    tensors = tuple(replace(tensor, batch_dim=None if tensor.name == 'y' else 0) for tensor in PREFETCHED.tensors)
    rank = memory(sequential(PREFETCHED.replace(tensors=tensors))).ranks[0]
    assert rank.share_that_fits(4 * (1 + 100 + 2000)) == 2
    assert rank.peak_without_batch == 4 * (1 + 100)


def test_the_answer_in_words_and_as_an_object():
    held = worked()
    words = peak_summary(held.fullest, Room(size=32e9))
    assert words.startswith('rank 0 (and 1 like it) holds 1.512 KB of 32 GB at WA.c0: activation 1 KB')
    answer = memory_to_dict(held, Room(size=32e9))
    assert (answer['peak'], answer['device'], answer['ranks'][0]['op']) == (1512, 32e9, 'WA.c0')
    assert answer['ranks'][0]['slices'] == [
        {'micro_batch': 0, 'copy': 0, 'bytes': 32}, {'micro_batch': 0, 'copy': 1, 'bytes': 64},
    ]  # fmt: skip


# Memory: laws on lowered programs under random times, what fits, and how soon it is known


SETTINGS = draws(20)


def slowed_costs(program, seed):
    """A collective halves the speed of what computes beside it."""
    return random_costs(program, seed, beside_communication=np.full(len(program.op_classes), 0.5))


PLANS = st.builds(
    Plan, data=st.sampled_from([1, 2]), tensor=st.sampled_from([1, 2, 4]), sequence_parallel=st.booleans(),
    copies=st.sampled_from([1, 2, 4]), reduce=st.sampled_from(['early', 'late']),
    streams=st.sampled_from(['group', 'messages', 'single']),
)  # fmt: skip
MODELS = st.sampled_from(
    [
        Transformer(layers=2, hidden=16, heads=4, vocab=32, sequence=8),
        Network(layers=(Dense(inputs=8, outputs=16), Relu(), Dense(inputs=16, outputs=8))),
    ]
)


def lowered(model, plan, batch=16):
    workload = Workload(model=model, batch=batch, precision='fp16', optimizer=Adam())
    return lower(workload, plan, plan.data * plan.tensor)


@SETTINGS
@given(model=MODELS, plan=PLANS, seed=st.integers(0, 99))
def test_laws_of_a_peak(model, plan, seed):
    """No less than what always stays; the sum of its kinds, whose activations are the sum of their operators; reached
    when it is said to be, and no earlier; what the step begins with it ends with."""
    program = lowered(model, plan)
    rank = memory(simulate(program, slowed_costs(program, seed), steps=3), flattened=True).rank(0)
    line, peak = rank.by_kind(), rank.peak
    assert peak.bytes == line.total.max() == sum(peak.kinds.values()) >= rank.always > 0
    assert sum(peak.operators.values()) == peak.kinds['activation']
    assert sum(rank.by_kind().at(peak.time).values()) == rank.lives.bytes[rank.there(peak.time)].sum() == peak.bytes
    assert (line.bytes >= 0).all()
    assert np.array_equal(rank.by_operator().total, line.total)
    assert (line.bytes[:, line.names.index('parameter')] == line.bytes[0, line.names.index('parameter')]).all()


@SETTINGS
@given(model=MODELS, plan=PLANS)
def test_copies_raise_neither_parameters_nor_states_nor_gradients(model, plan):
    kinds = [memory(sequential(lowered(model, replace(plan, copies=copies)))).ranks[0] for copies in (1, plan.copies)]
    for kind in ('parameter', 'state', 'gradient'):
        one, many = (rank.by_kind() for rank in kinds)
        assert one.bytes[:, one.names.index(kind)].max() == many.bytes[:, many.names.index(kind)].max()


@SETTINGS
@given(model=MODELS, plan=PLANS)
def test_freeing_nothing_holds_all_that_is_ever_written(model, plan):
    program = lowered(model, plan)
    role = program.roles[0]
    touched = {
        instance(program.tensor[name], 0, int(role.copy[slot]))
        for slot in range(len(role))
        for op in [program.op(role, slot)]
        for name in (*op.reads, *op.writes, *op.accumulates)
    }
    everything = sum(program.local_bytes(program.tensor[name]) for name, _, _ in touched)
    unfreed = program.replace(op_classes=tuple(replace(op, frees=()) for op in program.op_classes))
    for rank in (
        memory(sequential(program), always=set(KINDS)).ranks[0],
        memory(sequential(unfreed), always={*KINDS} - {'activation', 'gradient'}).ranks[0],
    ):
        assert rank.always == rank.peak.bytes == everything


@SETTINGS
@given(plan=PLANS, seed=st.integers(0, 99), ticks=st.integers(0, 2**30))
def test_a_later_clock_changes_nothing(plan, seed, ticks):
    program = lowered(Transformer(layers=1, hidden=16, heads=4, vocab=32, sequence=8), plan)
    trace = simulate(program, slowed_costs(program, seed), steps=3)
    shift = ticks / 2**20
    later = replace(
        trace,
        representatives=tuple(
            replace(lane, arrive_KS=lane.arrive_KS + shift, start_KS=lane.start_KS + shift, end_KS=lane.end_KS + shift)
            for lane in trace.representatives
        ),
    )
    mine, other = (memory(side).ranks[0] for side in (trace, later))
    assert totals(mine) == totals(other)
    assert mine.peak == other.peak


GPT = Transformer(layers=2, hidden=32, heads=4, vocab=64, sequence=16)


@pytest.mark.parametrize('plan', [Plan(data=1), Plan(data=1, tensor=2, copies=2), Plan(data=2, copies=2)])
def test_the_largest_batch_that_fits_does_and_the_next_does_not(plan):
    """Issue order does not depend on the batch, so the sentence is held against the program of that batch."""
    step = plan.data * plan.copies
    peaks = [memory(sequential(lowered(GPT, plan, batch * step))).peak for batch in (8, 9)]
    size = sum(peaks) / 2
    whole = memory(sequential(lowered(GPT, plan, 24 * step)))
    with pytest.raises(Infeasible, match=rf'a batch of {8 * step} instead of {24 * step} would fit') as error:
        check_fit(whole, Room(size=size), batch=24 * step, multiple=step)
    assert whole.fullest.peak.action in str(error.value)
    check_fit(whole, Room(size=whole.peak), batch=24 * step, multiple=step)


def test_where_no_batch_fits_it_says_what_alone_is_too_much():
    held = memory(sequential(lowered(GPT, Plan(data=1))))
    with pytest.raises(Infeasible, match='no batch would fit, for parameters, gradients and states alone take'):
        check_fit(held, Room(size=held.fullest.always), batch=16)
    with pytest.raises(Infeasible, match='not even the smallest batch, 16, would fit'):
        check_fit(held, Room(size=held.peak - 1), batch=16, multiple=16)


# What is kept free on a device for the framework decides whether a plan fits, and is told


FILE = Path(__file__).parent.parent / 'examples' / 'transformer_h100.yaml'
"""Its peak is 33.98 GB of 84.9."""


def told(reserve):
    case = simpar.load_case(FILE, [f'cluster.reserve={reserve}'] if reserve else [])
    prediction = case.predict()
    return prediction.fits, memory_notes(case, prediction)


def test_a_reserve_is_taken_from_every_device_and_told():
    assert told('') == (True, ())
    assert told('4 GB') == (True, ('4 GB of each device are reserved (cluster.reserve), 80.94 GB are left',))
    assert told('51 GB')[0] is None
    assert told('64 GB')[0] is False


def test_a_workload_without_an_optimizer_says_what_is_assumed():
    text = FILE.read_text(encoding='utf-8')
    without = ''.join(line for line in text.splitlines(keepends=True) if not line.startswith('  optimizer:'))
    for schedule, said in ((without, True), (text, False)):
        case = simpar.load_case(schedule, ['cluster.stack=none'])
        assert any('sgd is assumed' in note for note in memory_notes(case, case.predict())) is said


def test_a_reserve_that_leaves_nothing_is_refused_at_its_line():
    with pytest.raises(ScheduleError, match=r'reserve: 90 GB of 84\.94 GB leave nothing'):
        told('90 GB')


def test_context_and_fragmentation_are_beside_tensors_and_decide_whether_they_fit():
    """As a monitor of the device shows them; a reserve is in their place, and a device alone has none."""
    room = simpar.load_case(FILE, ['cluster.stack=megatron-te']).predict().room
    assert (room.size, room.context, room.fragmentation) == (79.11 * 2**30, 2.04 * 2**30, 0.04)
    assert room.taken(room.tensors) == pytest.approx(room.size)
    for keys in (['cluster.reserve=4 GB'], ['cluster.stack=none']):
        room = simpar.load_case(FILE, keys).predict().room
        assert room.tensors == room.size
