"""The Program: partitions, needs from dataflow, text form and hash."""

import json

import numpy as np
import pytest

from simpar import Plan, Transformer, Workload
from simpar.errors import ProgramError, ScheduleError
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.program import OpClass, ProgramBuilder, Split, Tensor, grid
from simpar.program.text import format_program, parse_program

PLANS = [Plan(), Plan(tensor=2), Plan(tensor=4, copies=2, sequence_parallel=True), Plan(tensor=8, reduce='late')]
GPT = Workload(model=Transformer(layers=1, hidden=32, heads=8, vocab=64, sequence=8), batch=16)


def build(ops, streams=('compute', 'wire')):
    """A program of one rank from ops (name, stream, reads, writes); every name read or written is an activation."""
    builder = ProgramBuilder(1)
    for name in sorted({name for *_, reads, writes in ops for name in (*reads, *writes)}):
        builder.add_tensor(Tensor(name, 'activation', (4,), 'fp32', batch_dim=0))
    for name, _, reads, writes in ops:
        builder.add_op_class(OpClass(name, 'compute', name, 'F', reads=tuple(reads), writes=tuple(writes)))
    builder.add_role('all', [0], [(name, stream, 0, 0) for name, stream, *_ in ops], streams)
    return builder.build()


def test_a_reader_needs_the_writer_on_another_stream():
    program = build([('A', 'compute', [], ['x']), ('B', 'wire', ['x'], ['y']), ('C', 'compute', ['y'], ['z'])])
    assert program.roles[0].needs() == [(), (0,), (1,)]


def test_the_next_step_waits_for_what_it_reads_and_overwrites():
    """B of step k reads x late; A of step k + 1 overwrites it, so a carry need binds them."""
    program = build([('A', 'compute', [], ['x']), ('B', 'wire', ['x'], [])])
    assert program.roles[0].carried() == [(1,), ()]


@pytest.mark.parametrize('plan', PLANS, ids=str)
def test_text_form_round_trips(plan):
    program = lower(GPT, plan, 8)
    again = parse_program(format_program(program))
    assert again.hash == program.hash
    assert again.roles[0].needs() == program.roles[0].needs()
    assert again.roles[0].carried() == program.roles[0].carried()
    assert again.tensors == program.tensors
    assert again.op_classes == program.op_classes


def test_equal_plans_have_equal_hashes_and_others_not():
    hashes = {lower(GPT, plan, 8).hash for plan in PLANS}
    assert len(hashes) == len(PLANS)
    assert lower(GPT, PLANS[1], 8).hash == lower(GPT, PLANS[1], 8).hash


BROKEN = {
    '': 1,
    'hello': 1,
    'simpar-program 1\nfrobnicate {}': 2,
    'simpar-program 1\nop {"name": 3': 2,
    'simpar-program 1\nop {"nme": "x"}': 2,
    'simpar-program 1\nslot ["x", "compute", 0, 0, [], []]': 2,
    'simpar-program 1\npartition {"name": "t", "groups": [[0, 1], [2]]}': 2,
    'simpar-program 1\nop ' + '[' * 100000: 2,
    'simpar-program 1\nop {"name": "x", "attributes": {"scale": 1e999}}': 2,
    'simpar-program 1\nprogram {"world": NaN}': 2,
}


@pytest.mark.parametrize('text', BROKEN, ids=range(len(BROKEN)))
def test_a_broken_text_form_names_its_line(text):
    with pytest.raises(ScheduleError) as caught:
        parse_program(text, 'broken.program')
    assert str(caught.value).startswith(f'broken.program:{BROKEN[text]}: ')


def test_a_program_whose_needs_point_forwards_is_refused():
    lines = format_program(build([('A', 'compute', [], ['x']), ('B', 'wire', ['x'], ['y'])])).splitlines()
    lines[-2] = 'slot ["A", "compute", 0, 0, [1], []]'
    with pytest.raises(ScheduleError, match='a need must stand before its slot'):
        parse_program('\n'.join(lines))


def test_local_shapes_follow_cuts_and_copies():
    builder = ProgramBuilder(8, grid(8, {'data': 2, 'tensor': 4}).values())
    cuts = (Split(0, 'data'), Split(2, 'tensor'))
    tensor = builder.add_tensor(Tensor('y', 'activation', (16, 8, 32), 'fp16', splits=cuts, batch_dim=0))
    program = builder.build(copies=2)
    assert program.local_shape(tensor) == (4, 8, 8)
    assert program.local_bytes(tensor) == 4 * 8 * 8 * 2


def test_a_table_has_each_tensor_once():
    builder, one = ProgramBuilder(1), Tensor('x', 'input', (8,), 'fp32')
    builder.add_tensor(one)
    with pytest.raises(ProgramError, match="two tensors are named 'x'"):
        builder.add_tensor(one)


def test_slots_take_twenty_bytes_and_no_objects():
    model = Transformer(layers=64, hidden=64, heads=8, vocab=64, sequence=8)
    role = lower(Workload(model=model, batch=16), Plan(tensor=8, copies=2), 8).roles[0]
    needs = [role.need.start, role.need.item, role.carry.start, role.carry.item]
    arrays = [role.op_class, role.micro_batch, role.copy, role.stream, *needs]
    assert sum(array.nbytes for array in arrays) <= 32 * len(role)


def test_partitions_are_those_of_a_device_mesh():
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for data, tensor in [(2, 4), (4, 2), (8, 1), (1, 8), (3, 2)]:
        ours = grid(data * tensor, {'data': data, 'tensor': tensor})
        for rank in range(data * tensor):
            dist.init_process_group('fake', rank=rank, world_size=data * tensor, store=FakeStore())
            try:
                mesh = init_device_mesh('cpu', (data, tensor), mesh_dim_names=('data', 'tensor'))
                for name, partition in ours.items():
                    assert dist.get_process_group_ranks(mesh.get_group(name)) == list(partition.members(rank))
            finally:
                dist.destroy_process_group()
    assert torch.__version__


def test_json_numbers_in_the_text_form_are_plain():
    """No numpy scalars slip in: the text form is the same on every platform."""
    program = lower(Workload(model=Network(layers=(Dense(inputs=4, outputs=4), Relu())), batch=4), Plan(), 2)
    for line in format_program(program).splitlines()[1:]:
        json.loads(line.partition(' ')[2])
    assert isinstance(program.roles[0].need.item, np.ndarray)
