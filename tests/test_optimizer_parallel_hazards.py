"""Buffers that are freed and gathered again: what would read old or missing weights is refused before launch."""

import dataclasses

import numpy as np
import pytest
from pipeline_cases import edited

from executor.bench.items import Item, isolate, program_of
from executor.validate import validate
from simpar import Plan, Workload
from simpar.errors import ProgramError
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.program import Csr, OpClass, Partition, Program, ProgramBuilder, Split, Tensor

WORKLOAD = Workload(
    model=Network(layers=(Dense(inputs=8, outputs=8), Relu(), Dense(inputs=8, outputs=8), Relu())), batch=8, loss='mse'
)

ODD = Workload(
    model=Network(layers=(Dense(inputs=5, outputs=7), Relu(), Dense(inputs=7, outputs=3))), batch=8, loss='mse',
    clip_norm=1.0,
)  # fmt: skip


def lowered(**choices) -> Program:
    return lower(WORKLOAD, Plan(data=2, **choices), 2)


def refused(program: Program) -> str:
    with pytest.raises(ProgramError) as caught:
        validate(program)
    return str(caught.value)


def without(named, micro_batch=0):
    return lambda slots: [slot for slot in slots if (slot[0], slot[2]) != (named, micro_batch)]


@pytest.mark.parametrize('choices', [{'zero': 1}, {'zero': 2}, {'zero': 3}, {'hsdp': 'level1'}], ids=str)
def test_what_lowering_makes_is_valid(choices):
    validate(lowered(micro_batches=2, prefetch=1, shard_threshold=0.0, **choices))


@pytest.mark.parametrize('phase', ['F', 'I'])
def test_a_missing_gather_is_refused(phase):
    message = refused(edited(lowered(zero=3, micro_batches=2), without(f'dense1.weights.data.all_gather.{phase}', 1)))
    assert f'dense1.{phase}.mb1 reads dense1.weight.gathered, which nothing has written' in message
    assert f'dense1.weights.reshard.{phase}.mb1 frees dense1.weight.gathered, which nothing has written' in message


def test_a_weight_that_is_never_freed_is_old_in_the_next_step():
    """Its update changes it while what was gathered of it is still there."""
    program = edited(lowered(hsdp='level1', shard_threshold=0.0), without('dense1.weights.reshard.I'))
    validate(program)  # gathered again before it is read: nothing is old
    late = edited(lowered(hsdp='level1', shard_threshold=0.0), behind('dense1.update.U', 'relu1.I'))
    assert 'dense1.update.U' in refused(late)


def behind(named, op):
    """A slot moved right before another."""

    def change(slots):
        moved = next(slot for slot in slots if slot[0] == named)
        rest = [slot for slot in slots if slot is not moved]
        at = next(at for at, slot in enumerate(rest) if slot[0] == op)
        return [*rest[:at], moved, *rest[at:]]

    return change


def written(slots) -> Program:
    """A weight that is cut over two ranks, gathered, used and updated, in some order."""
    build = ProgramBuilder(2, [Partition('data', np.array([[0, 1]], dtype=np.int32))])
    cut = (Split(0, 'data'),)
    build.add_tensor(Tensor('w', 'parameter', (4,), 'fp32', splits=cut, initial='ones'))
    build.add_tensor(Tensor('w.gathered', 'gathered', (4,), 'fp32', like='w'))
    build.add_tensor(Tensor('y', 'activation', (4,), 'fp32'))
    gather = {'operator': 'all_gather', 'partition': 'data', 'attributes': {'dim': 0}}
    ops = [
        OpClass('gather', 'collective', phase='F', reads=('w',), writes=('w.gathered',), bytes=16.0, **gather),
        OpClass('use', 'compute', 'scale', 'F', reads=('w.gathered',), writes=('y',)),
        OpClass('update', 'compute', 'scale', 'U', reads=('w', 'y'), writes=('w',), frees=('y',)),
        OpClass('reshard', 'compute', 'reshard', 'F', frees=('w.gathered',)),
    ]
    for op in ops:
        build.add_op_class(op)
    streams = {'gather': 'data'}
    build.add_role('all', [0, 1], [(name, streams.get(name, 'compute'), 0, 0) for name in slots], ('compute', 'data'))
    return build.build()


def test_what_was_gathered_before_the_update_may_not_be_read_after_it():
    validate(written(['gather', 'use', 'reshard', 'update']))
    validate(written(['gather', 'use', 'update', 'reshard']))
    message = refused(written(['gather', 'use', 'update', 'use', 'update', 'reshard']))
    assert 'use reads w.gathered, gathered before update changed what it is made of' in message


def test_a_gather_that_does_not_wait_for_the_free_is_refused():
    """Needs as dataflow has them, taken away."""
    program = lowered(zero=3, micro_batches=2)
    (role,) = program.roles
    nothing = Csr.of(*np.empty((2, 0), dtype=np.int32), len(role))
    bare = program.replace(roles=(dataclasses.replace(role, need=nothing, carry=nothing),))
    message = refused(bare)
    assert 'changes dense0.weight.gathered without waiting for dense0.weights.reshard.F.mb0' in message
    assert 'reads dense0.weight without waiting for dense0.update.U, which writes it' in message


@pytest.mark.parametrize('stage', [1, 3])
def test_every_op_can_be_measured_alone(stage):
    program = lowered(zero=stage, micro_batches=2)
    alone = [isolate(program, op, 2) for op in program.op_classes]
    measured = [Item('operator', {}, (made[0],), made[1]) for made in alone if made is not None]
    assert len(measured) == sum(op.operator not in ('piece', 'reshard') for op in program.op_classes)
    validate(program_of(measured, 2))


@pytest.mark.parametrize(
    ('named', 'changes', 'what'),
    [
        ('dense0.weights.data.all_gather.F', {'attributes': {'dim': 1}}, 'does not come of'),
        ('dense0.weights.data.all_gather.F', {'attributes': {'dim': '0 0 0'}}, '3 dims for 2 tensors'),
        ('dense0.gradients.data.reduce_scatter.W', {'accumulates': ('d:dense0.weight',)}, 'takes 2 tensors'),
        ('dense0.gradients.data.reduce_scatter.W', {'attributes': {'dim': 1}}, 'does not come of'),
    ],
)
def test_a_message_whose_tensors_do_not_fit_is_refused(named, changes, what):
    program = lowered(zero=3, micro_batches=2)
    op_classes = tuple(dataclasses.replace(op, **changes) if op.name == named else op for op in program.op_classes)
    assert what in refused(program.replace(op_classes=op_classes))


@pytest.mark.parametrize('choices', [{'zero': 1, 'shard_form': 'flat'}, {'zero': 3, 'shard_form': 'padded'}], ids=str)
def test_messages_of_packed_shards_can_be_measured_alone(choices):
    """As whole buffers, with their padding."""
    program = lower(ODD, Plan(data=2, **choices), 2)
    messages = [op for op in program.op_classes if op.operator in ('all_gather', 'reduce_scatter', 'square_sum')]
    measured = [Item('operator', {}, (made[0],), made[1]) for op in messages if (made := isolate(program, op, 2))]
    assert len(measured) == len(messages) >= 5
    validate(program_of(measured, 2))
