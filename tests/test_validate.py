"""A program with one thing wrong on one rank is refused before a process group exists."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from tables import load_table
from worked import worked_program

from executor.validate import hazards, validate
from simpar import Plan, Transformer, Workload
from simpar.errors import ProgramError
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.program import Csr, OpClass, Partition, ProgramBuilder, Tensor

TRANSFORMER = Transformer(layers=1, hidden=16, heads=4, vocab=32, sequence=8)
NETWORK = Network(layers=(Dense(inputs=8, outputs=8), Relu(), Dense(inputs=8, outputs=8)))
PLANS = [
    (TRANSFORMER, Plan(data=2, tensor=2, copies=2), 4),
    (TRANSFORMER, Plan(data=1, tensor=2, copies=4, reduce='late', sequence_parallel=True), 2),
    (NETWORK, Plan(data=2, tensor=4, copies=2, copies_loss='sum', reduce='late'), 8),
    (NETWORK, Plan(data=4, tensor=1, copies=2, streams='single'), 4),
    (NETWORK, Plan(data=1, tensor=1, copies=2), 1),
]


def lowered(model, plan, world):
    return lower(Workload(model=model, batch=16), plan, world)


@pytest.mark.parametrize(('model', 'plan', 'world'), PLANS)
def test_what_lowering_makes_is_valid(model, plan, world):
    validate(lowered(model, plan, world))


def test_the_worked_program_is_valid():
    validate(worked_program())


# mutations of one rank


def with_role(program, rank, **columns):
    """The program with some columns of one rank's role replaced."""
    program = program.unfold()
    roles = list(program.roles)
    roles[rank] = dataclasses.replace(roles[rank], **columns)
    return program.replace(roles=tuple(roles))


def with_class(program, rank, slot, **changes):
    """The program with one slot of one rank put in an op class of its own."""
    op = dataclasses.replace(program.op(program.role(rank), slot), **changes)
    program = program.replace(op_classes=(*program.op_classes, op))
    column = program.role(rank).op_class.copy()
    column[slot] = len(program.op_classes) - 1
    return with_role(program, rank, op_class=column)


def without_slot(program, rank, slot):
    """The program with one slot of one rank dropped; what needed it needs nothing in its place."""
    role = program.role(rank)
    keep = np.arange(len(role)) != slot
    shift = np.cumsum(~keep)

    def moved(needs):
        pairs = needs.pairs()
        pairs = pairs[(pairs != slot).all(axis=1)]
        return Csr.of(*(pairs - shift[pairs]).T, len(role) - 1)

    columns = {name: getattr(role, name)[keep] for name in ('op_class', 'micro_batch', 'copy', 'stream')}
    return with_role(program, rank, **columns, need=moved(role.need), carry=moved(role.carry))


def swapped(program, rank, one, two):
    """The program with the op classes, micro-batches and copies of two slots of one rank exchanged."""
    role, order = program.role(rank), np.arange(len(program.role(rank)))
    order[[one, two]] = [two, one]
    return with_role(
        program, rank, **{name: getattr(role, name)[order] for name in ('op_class', 'micro_batch', 'copy')}
    )


def collectives(program, rank=0):
    role = program.role(rank)
    return [slot for slot in range(len(role)) if program.op(role, slot).kind == 'collective']


@pytest.fixture(params=PLANS[:3], ids=lambda case: type(case[0]).__name__ + str(case[2]))
def program(request):
    return lowered(*request.param)


def refused(program):
    with pytest.raises(ProgramError) as error:
        validate(program)
    return str(error.value)


def test_a_collective_dropped_on_one_rank_is_refused(program):
    for slot in collectives(program):
        assert 'collectives and rank' in refused(without_slot(program, 1, slot))


def test_collectives_swapped_on_one_rank_are_refused(program):
    """Same size or not, same op class or not: gloo would not notice all of these."""
    role = program.role(0)
    for one, two in pairwise(collectives(program)):
        if role.stream[one] == role.stream[two]:
            assert 'but' in refused(swapped(program, 1, one, two))


@pytest.mark.parametrize(
    'change',
    [{'bytes': 12.0}, {'dtype': 'fp16'}, {'reduce': 'max'}, {'operator': 'all_gather'}, {'name': 'other'}],
    ids=str,
)
def test_a_collective_changed_on_one_rank_is_refused(program, change):
    slot = next(slot for slot in collectives(program) if program.op(program.role(0), slot).reduce == 'sum')
    message = refused(with_class(program, 1, slot, **change))
    assert 'rank 0' in message
    assert 'rank 1' in message


def test_the_message_names_both_collectives_and_their_sizes():
    message = refused(with_class(worked_program(), 1, 1, bytes=4096.0))
    assert 'partition tp on stream tp, group (0, 1): collective 0' in message
    assert 'RA.c0 (all_reduce sum, 64 B of fp32) on rank 0' in message
    assert 'RA.c0 (all_reduce sum, 4.096 KB of fp32) on rank 1' in message


def exchanging(shape, after, **attributes):
    """A program of one all-to-all of a tensor among all of four ranks."""
    builder = ProgramBuilder(4, [Partition('world', np.arange(4, dtype=np.int32).reshape(1, 4))])
    for name, of in (('x', shape), ('y', after)):
        builder.add_tensor(Tensor(name, 'state', of, 'fp32', initial='zeros'))
    attributes = {'joins': '0', 'cuts': '1', 'sizes': '4', **attributes}
    builder.add_op_class(
        OpClass('swap', 'collective', 'all_to_all', 'F', partition='world', reads=('x',), writes=('y',),
                attributes=attributes)
    )  # fmt: skip
    builder.add_role('all', range(4), [('swap', 'world', 0, 0)], ('world',))
    return builder.build()


def test_an_all_to_all_gives_what_comes_of_what_it_takes():
    validate(exchanging((2, 8), (8, 2)))
    validate(exchanging((2, 8), (4, 4), joins='0 1', cuts='1 1', sizes='2 2'))


@pytest.mark.parametrize(
    ('after', 'attributes', 'message'), load_table(__file__, 'test_an_all_to_all_of_other_shapes_is_refused')
)
def test_an_all_to_all_of_other_shapes_is_refused(after, attributes, message):
    with pytest.raises(ProgramError, match=message):
        validate(exchanging((2, 8), after, **attributes))


# needs and buffers


def without(needs, index):
    """The lists less the item of this index."""
    return Csr.of(*np.delete(needs.pairs(), index, axis=0).T, len(needs))


def every_need_dropped(program):
    """The program without one of its needs, for each of them: (what was dropped, program)."""
    role = program.role(0)
    for name in ('need', 'carry'):
        needs = getattr(role, name)
        for index, pair in enumerate(needs.pairs().tolist()):
            yield f'{name} {pair}', with_role(program, 0, **{name: without(needs, index)})


def test_every_need_of_the_worked_program_is_necessary():
    """Derived needs leave none out and none are redundant: without any one of them there is a hazard."""
    dropped = list(every_need_dropped(worked_program()))
    assert dropped
    for what, mutant in dropped:
        message = refused(mutant)
        assert 'without waiting for' in message, what


def test_every_need_of_a_lowered_program_is_necessary(program):
    for what, mutant in list(every_need_dropped(program))[::7]:
        assert 'without waiting for' in refused(mutant), what


def small(*ops, streams=('compute', 'side')):
    """A program of one rank; ops are (name, stream, what it reads, writes, frees)."""
    build = ProgramBuilder(1)
    build.add_tensor(Tensor('given', 'input', (2,), 'fp32'))
    for name in sorted({name for _, _, *used in ops for names in used for name in names.split()} - {'given'}):
        build.add_tensor(Tensor(name, 'activation', (2,), 'fp32'))
    for name, _, reads, writes, frees in ops:
        build.add_op_class(
            OpClass(
                name,
                'compute',
                'f',
                'F',
                reads=tuple(reads.split()),
                writes=tuple(writes.split()),
                frees=tuple(frees.split()),
            )
        )
    build.add_role('one', [0], [(op[0], op[1], 0, 0) for op in ops], streams)
    return build.build()


def test_reading_what_nothing_has_written_is_refused():
    assert 'A reads a, which nothing has written' in refused(small(('A', 'compute', 'a', 'b', '')))


def test_reading_what_was_freed_is_refused():
    ops = [('A', 'compute', 'given', 'a', ''), ('B', 'compute', 'a', 'b', 'a'), ('C', 'compute', 'a', 'c', '')]
    assert 'C reads a, which nothing has written' in refused(small(*ops))


def test_an_input_that_was_freed_is_there_again_in_the_next_step():
    validate(small(('A', 'compute', 'given', 'a', 'given')))


@pytest.mark.parametrize(('second', 'what'), load_table(__file__, 'test_each_kind_of_hazard_is_named'))
def test_each_kind_of_hazard_is_named(second, what):
    program = small(('A', 'compute', 'given', 'a', ''), second)
    assert program.role(0).needs() == [(), (0,)]
    assert what in refused(with_role(program, 0, need=without(program.role(0).need, 0)))


def test_a_write_over_what_is_still_read_is_named_over_the_step_boundary():
    """A writes a, B reads it on another stream; the next step's A must wait for B."""
    program = small(('A', 'compute', 'given', 'a', ''), ('B', 'side', 'a', 'b', ''))
    assert program.role(0).carried()[0] == (1,)
    assert not list(hazards(program, program.role(0)))
    alone = with_role(program, 0, carry=Csr.of(*np.empty((2, 0), dtype=np.int32), 2))
    assert 'A changes a without waiting for B, which reads it' in refused(alone)


# order over ranks


def two_groups(order, streams=('row', 'column')):
    """Four ranks in rows and columns; ``order`` says for each rank which of its collectives it issues first."""
    partitions = [
        Partition('row', np.array([[0, 1], [2, 3]], dtype=np.int32)),
        Partition('column', np.array([[0, 2], [1, 3]], dtype=np.int32)),
    ]
    build = ProgramBuilder(4, partitions)
    build.add_tensor(Tensor('given', 'input', (2,), 'fp32'))
    for name in ('row', 'column'):
        build.add_tensor(Tensor(name + '.sum', 'activation', (2,), 'fp32'))
        build.add_op_class(
            OpClass(
                name, 'collective', 'all_reduce', 'F', bytes=8.0, partition=name, reduce='sum',
                reads=('given',), writes=(name + '.sum',),
            )
        )  # fmt: skip
    for rank, names in enumerate(order):
        slots = [(name, name if len(streams) == 2 else streams[0], 0, 0) for name in names]
        build.add_role(f'rank{rank}', [rank], slots, streams)
    return build.build()


ROW_FIRST, COLUMN_FIRST = ('row', 'column'), ('column', 'row')


def test_one_order_on_all_ranks_is_valid():
    validate(two_groups([ROW_FIRST] * 4))


def test_different_orders_without_a_cycle_are_valid():
    validate(two_groups([ROW_FIRST, ROW_FIRST, COLUMN_FIRST, ROW_FIRST]))


def test_a_cycle_over_the_issue_orders_of_several_ranks_is_refused():
    """Each pair of ranks agrees on what they share; only all four together cannot be ordered."""
    message = refused(two_groups([ROW_FIRST, COLUMN_FIRST, COLUMN_FIRST, ROW_FIRST]))
    assert 'collectives are issued in a cycle' in message
    assert message.count(' before ') >= 4


# messages from one rank to another


def pipeline(first, second, streams=('send', 'recv')):
    """Two ranks; slots are (op class, stream). ``give`` sends to the next rank, ``take`` receives from the last."""
    build = ProgramBuilder(2, [Partition('stage', np.array([[0, 1]], dtype=np.int32))])
    build.add_tensor(Tensor('given', 'input', (2,), 'fp32'))
    for name in ('there', 'back'):
        build.add_tensor(Tensor(name, 'activation', (2,), 'fp32'))

    def message(name, kind, peer, size=8.0, **tensors):
        op = OpClass(name, kind, kind, 'F', bytes=size, partition='stage', peer=peer, **tensors)
        build.add_op_class(op)

    message('give', 'send', 1, reads=('given',))
    message('give big', 'send', 1, 16.0, reads=('given',))
    message('take', 'recv', -1, writes=('there',))
    message('give back', 'send', -1, reads=('given',))
    message('take back', 'recv', 1, writes=('back',))
    for rank, slots in enumerate((first, second)):
        build.add_role(f'rank{rank}', [rank], [(op, on, 0, 0) for op, on in slots], streams)
    return build.build()


def test_a_send_that_meets_its_receive_is_valid():
    validate(pipeline([('give', 'send')], [('take', 'send')]))


def test_a_send_without_a_receive_is_refused():
    assert 'rank 0 has 1 sends and rank 1 0 receives' in refused(pipeline([('give', 'send')], []))


def test_a_send_of_another_size_than_its_receive_is_refused():
    assert 'message 0 is give big' in refused(pipeline([('give big', 'send')], [('take', 'send')]))


def test_two_ranks_that_both_send_first_are_stuck():
    """gloo has no buffer: a send returns when it is received, however small it is."""
    message = refused(pipeline([('give', 'send'), ('take back', 'send')], [('give back', 'send'), ('take', 'send')]))
    assert 'rank 0, stream send: give waits for rank 1 (at give back)' in message
    assert 'rank 1, stream send: give back waits for rank 0 (at give)' in message


def test_two_ranks_that_send_on_streams_of_their_own_are_not_stuck():
    first = [('give', 'send'), ('take back', 'recv')]
    second = [('give back', 'recv'), ('take', 'send')]
    validate(pipeline(first, second))


# tables


@pytest.mark.parametrize(('change', 'what'), load_table(__file__, 'test_an_op_class_that_makes_no_sense_is_refused'))
def test_an_op_class_that_makes_no_sense_is_refused(change, what):
    assert what in refused(with_class(worked_program(), 1, 1, **change))


@pytest.mark.parametrize('column', ['op_class', 'stream', 'micro_batch', 'copy'])
def test_a_slot_that_points_out_of_its_table_is_refused(column):
    program = worked_program()
    values = getattr(program.role(0), column).copy()
    values[3] = 99
    assert f'column {column}' in refused(with_role(program, 0, **{column: values}))


def test_more_streams_than_the_watchdog_can_watch_are_refused():
    streams = tuple(f'stream{index}' for index in range(129))
    assert 'room for 128' in refused(small(('A', 'stream0', 'given', 'a', ''), streams=streams))


def test_a_need_that_is_not_issued_before_is_refused():
    need = worked_program().role(0).need.pairs()
    need = Csr.of(*np.append(need, [[0, 3]], axis=0).T, len(worked_program().role(0)))
    assert 'is not issued before it' in refused(with_role(worked_program(), 1, need=need))


def test_partitions_that_leave_ranks_out_are_refused():
    program = two_groups([ROW_FIRST] * 4)
    partial = Partition('row', np.array([[0, 1], [2, 2]], dtype=np.int32))
    assert 'exactly one group' in refused(program.replace(partitions={**program.partitions, 'row': partial}))


def test_an_all_to_all_changed_on_one_rank_is_refused():
    program = exchanging((4, 4), (4, 4), joins='0', cuts='0')
    assert 'rank 0' in refused(with_class(program, 1, 0, attributes={'joins': '1', 'cuts': '1', 'sizes': '4'}))
