"""Fusion: which gradients and weights travel as one message, and when."""

from itertools import groupby

import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from tables import load_table

from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.lower.passes.optimizer_parallel import fuse
from simpar.model import Dense, Network
from simpar.plans import Plan
from simpar.workload import Adam, Transformer, Workload

WIDTH = 8
SIZE = WIDTH * WIDTH * 4
"""Bytes of a layer's weight in fp32."""
FUSIONS = ['layer', 'stage', 'none', 'all', 'auto', 1.0, 2.5 * SIZE, 4.0 * SIZE, (1,), (2, 5), 'ids', 'ddp', 'fsdp']
parameters = st.lists(st.tuples(st.sampled_from('abcd'), st.integers(1, 5000)), min_size=1, max_size=12).map(
    lambda drawn: {f'{layer}.w{place}': float(size) for place, (layer, size) in enumerate(drawn)}
)


def chain(marks=(None,) * 4, bias=False) -> Workload:
    layers = [Dense(inputs=WIDTH, outputs=WIDTH, bias=bias, comm_fusion=mark) for mark in marks]
    return Workload(model=Network(layers=tuple(layers)), batch=8, loss='mse', optimizer=Adam())


def messages(program, operator='all_reduce') -> list[tuple[str, ...]]:
    """What each message of gradients or weights takes, in issue order, by the numbers of layers."""
    (role,) = program.roles
    ops = [program.op(role, slot) for slot in range(len(role))]
    return [''.join(name.partition('dense')[2][0] for name in op.reads) for op in ops if op.operator == operator]


@draws(60)
@given(sizes=parameters, fusion=st.sampled_from([fusion for fusion in FUSIONS if fusion != 'ids']))
def test_every_parameter_is_in_one_bucket_and_buckets_are_neighbours(sizes, fusion):
    buckets = fuse(list(sizes), sizes, Plan(fusion=fusion), {})
    assert sorted(name for members in buckets.values() for name in members) == sorted(sizes)
    if fusion not in ('layer', 'none', 'fsdp'):
        order = [bucket for name in sizes for bucket, members in buckets.items() if name in members]
        assert len(list(groupby(order))) == len(buckets)


@draws(60)
@given(sizes=parameters, limit=st.integers(1, 20000))
def test_a_bucket_stays_below_its_size_and_could_take_no_more(sizes, limit):
    buckets = list(fuse(list(sizes), sizes, Plan(fusion=float(limit)), {}).values())
    held = [sum(sizes[name] for name in members) for members in buckets]
    assert all(size < limit or len(members) == 1 for size, members in zip(held, buckets, strict=True))
    heads = [sizes[members[0]] for members in buckets]
    assert all(size + head >= limit for size, head in zip(held, heads[1:], strict=False))


@pytest.mark.parametrize(
    ('keys', 'expected'), load_table(__file__, 'test_sums_of_gradients_in_the_order_of_the_backward')
)
def test_sums_of_gradients_in_the_order_of_the_backward(keys, expected):
    """Split points count from the gradient that is ready first; a message goes when its last member is ready."""
    assert messages(lower(chain(), Plan(data=2, **keys), 2)) == [*expected]


def test_buckets_of_ddp_are_closed_by_the_gradient_that_reaches_their_size():
    """torch/csrc/distributed/c10d/reducer.cpp: the first bucket has 1 MiB, each later one 25 MiB."""
    sizes = {f'layer{place}.w': size * 2.0**20 for place, size in enumerate((20, 20, 20, 4, 0.9, 0.5, 0.4))}
    ready = [
        [int(name[5]) for name in members] for members in fuse(list(sizes), sizes, Plan(fusion='ddp'), {}).values()
    ]
    # 0.4, 0.5 and 0.9 MiB reach 1 MiB; 4, 20 and 20 reach 25 MiB; what is left goes at last.
    assert ready == [[0], [1, 2, 3], [4, 5, 6]]


def test_groups_of_fsdp_are_blocks_and_the_root_that_is_gathered_once():
    """torch/distributed/fsdp/_fully_shard/_fsdp_state.py: the root is not resharded behind its forward."""
    model = Transformer(layers=2, hidden=8, heads=2, vocab=12, sequence=4)
    (role,) = (program := lower(Workload(model=model, batch=4), Plan(data=2, zero=3, fusion='fsdp'), 2)).roles
    names = [program.op(role, slot).name.split('.')[0] for slot in range(len(role))]
    kinds = [program.op(role, slot).operator for slot in range(len(role))]
    messages = [
        (name, kind) for name, kind in zip(names, kinds, strict=True) if kind in ('all_gather', 'reduce_scatter')
    ]
    gathers = [name for name, kind in messages if kind == 'all_gather']
    assert gathers == ['bucket0', 'layer0', 'layer1', 'layer1', 'layer0'][: len(gathers)]
    assert gathers.count('bucket0') == 1
    assert [name for name, kind in messages if kind == 'reduce_scatter'] == ['layer1', 'layer0', 'bucket0']


def test_marks_of_a_network():
    """The optimizer-parallel tutorial's layers: ids 0, 1 and 2; without a mark MindSpore's 1."""
    assert messages(lower(chain((0, 1, 2, 2)), Plan(data=2, fusion='ids'), 2)) == ['23', '1', '0']
    assert messages(lower(chain((None, 1, 2, None)), Plan(data=2, fusion='ids'), 2)) == ['2', '013']


def test_a_layer_that_is_not_fused_sends_its_tensors_apart():
    assert messages(lower(chain((0, 1), bias=True), Plan(data=2, fusion='ids'), 2)) == ['11', '0', '0']
    assert messages(lower(chain((0, 1), bias=True), Plan(data=2, fusion='none'), 2)) == ['1', '1', '0', '0']


def test_bytes_of_a_message_are_those_of_all_its_tensors():
    for operator, stage in (('all_reduce', 0), ('reduce_scatter', 2)):
        program = lower(chain(), Plan(data=2, zero=stage, fusion='all'), 2)
        (op,) = [op for op in program.op_classes if op.operator == operator]
        assert op.bytes == 4 * SIZE
        assert sum(program.local_bytes(program.tensor[name]) for name in op.reads) == 4 * SIZE


def test_ids_that_are_not_as_many_as_the_layers_are_refused():
    model = Transformer(layers=2, hidden=8, heads=2, vocab=12, sequence=4)
    with pytest.raises(Infeasible, match=r'lists 2 ids, but 6 layers .*embedding, position, layer0'):
        lower(Workload(model=model, batch=4), Plan(data=2, fusion='ids', fusion_ids=(1, 2)), 2)
