"""The in-process machine on programs made by hand, and how tensors are drawn, cut and put together again."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from equipment.orders import InProcess
from every import draws
from hypothesis import given
from hypothesis import strategies as st

from executor.draws import batch_of, draw
from executor.ranks.real import Start
from executor.tensors import all_gather, all_reduce, assemble, initial, reduce_scatter
from simpar.errors import Deadlock, NumericsWrong, ProgramError
from simpar.program import OpClass, ProgramBuilder, Split, Tensor, grid
from simpar.trace import RankTimes, Trace

functional = torch.nn.functional
SEED = 5


def compute(name, operator, phase, reads, writes=(), accumulates=(), frees=(), **attributes):
    return OpClass(
        name=name, kind='compute', operator=operator, phase=phase, reads=tuple(reads), writes=tuple(writes),
        accumulates=tuple(accumulates), frees=tuple(frees), attributes=attributes,
    )  # fmt: skip


def total(name, tensor, result):
    return OpClass(
        name=name, kind='collective', operator='all_reduce', phase='F', partition='tp', reduce='sum', reads=(tensor,),
        writes=(result,),
    )  # fmt: skip


def built(world, tensors, ops, roles, copies=1, partitions=()):
    """Roles: name → (ranks, slots as (op, stream, copy))."""
    builder = ProgramBuilder(world, partitions)
    for tensor in tensors:
        builder.add_tensor(tensor)
    for op in ops:
        builder.add_op_class(op)
    for name, (ranks, slots) in roles.items():
        streams = tuple(dict.fromkeys(stream for _, stream, _ in slots))
        builder.add_role(name, ranks, [(op, stream, 0, copy) for op, stream, copy in slots], streams)
    return builder.build(copies=copies)


TP = grid(2, {'tp': 2})['tp']


def two_layers():
    """y = (x·aᵀ)·bᵀ, a cut by column, b by row, over 2 ranks and 2 copies; dW of a copy fills the other's wait."""

    def activation(name, *shape, splits=()):
        return Tensor(name, 'activation', shape, 'fp32', splits=splits, batch_dim=0)

    a_cut, b_cut, h_cut = (Split(0, 'tp'),), (Split(1, 'tp'),), (Split(1, 'tp'),)
    tensors = [
        Tensor('x', 'input', (8, 3), 'fp32', batch_dim=0, initial='normal:1'),
        Tensor('target', 'input', (8, 5), 'fp32', batch_dim=0, initial='normal:1'),
        Tensor('a', 'parameter', (4, 3), 'fp32', splits=a_cut, initial='normal:0.5'),
        Tensor('b', 'parameter', (5, 4), 'fp32', splits=b_cut, initial='normal:0.5'),
        Tensor('d:a', 'gradient', (4, 3), 'fp32', splits=a_cut, like='a'),
        Tensor('d:b', 'gradient', (5, 4), 'fp32', splits=b_cut, like='b'),
        activation('h', 8, 4, splits=h_cut), activation('d:h', 8, 4, splits=h_cut),
        activation('part', 8, 5), activation('y', 8, 5), activation('d:y', 8, 5), activation('loss', 2),
    ]  # fmt: skip
    ops = [
        compute('a.F', 'matmul', 'F', ['x', 'a'], ['h']),
        compute('b.F', 'matmul', 'F', ['h', 'b'], ['part']),
        total('sum', 'part', 'y'),
        compute('loss.F', 'mse', 'F', ['y', 'target'], ['loss'], scale=1 / 40),
        compute('loss.I', 'mse', 'I', ['y', 'target'], ['d:y'], frees=['y'], scale=1 / 40),
        compute('b.I', 'matmul', 'I', ['d:y', 'b'], ['d:h']),
        compute('b.W', 'matmul', 'W', ['d:y', 'h'], accumulates=['d:b'], frees=['d:y', 'h']),
        compute('a.W', 'matmul', 'W', ['d:h', 'x'], accumulates=['d:a'], frees=['d:h']),
        compute('U', 'sgd', 'U', ['d:a', 'd:b', 'a', 'b'], ['a', 'b'], frees=['d:a', 'd:b'], learning_rate=0.1),
    ]
    forward = [(op, 'tp' if op == 'sum' else 'compute', copy) for copy in (0, 1) for op in ('a.F', 'b.F', 'sum')]
    backward = [(op, 'compute', copy) for copy in (0, 1) for op in ('loss.F', 'loss.I', 'b.I', 'b.W', 'a.W')]
    return built(2, tensors, ops, {'all': ([0, 1], [*forward, *backward, ('U', 'compute', 0)])}, 2, [TP])


def test_two_layers_over_two_ranks_and_two_copies_train_as_one():
    result = InProcess(two_layers(), SEED).run(3)
    weights = [draw('normal:0.5', shape, torch.float64, SEED, name) for name, shape in (('a', (4, 3)), ('b', (5, 4)))]
    for step, found in enumerate(result.losses):
        x, target = (
            batch_of(name, 'normal:1', (8, width), torch.float64, SEED, step)
            for name, width in (('x', 3), ('target', 5))
        )
        a, b = (weight.requires_grad_() for weight in weights)
        loss = functional.mse_loss(x @ a.T @ b.T, target)
        gradients = torch.autograd.grad(loss, (a, b))
        weights = [(w - 0.1 * g).detach() for w, g in zip((a, b), gradients, strict=True)]
        assert found == pytest.approx(loss.item(), rel=1e-13)
    for name, gradient, weight in zip('ab', gradients, weights, strict=True):
        torch.testing.assert_close(result.gradients[f'd:{name}'], gradient, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(result.parameters[name], weight, rtol=1e-12, atol=1e-14)


def test_steps_one_by_one_and_back_to_back_are_the_same():
    one_by_one, back_to_back = InProcess(two_layers(), SEED), InProcess(two_layers(), SEED, shuffle=1).run(4)
    results = [one_by_one.run() for _ in range(4)]
    assert back_to_back.losses == tuple(loss for result in results for loss in result.losses)
    assert torch.equal(back_to_back.parameters['a'], results[-1].parameters['a'])
    assert torch.equal(back_to_back.gradients['d:a'], results[-1].gradients['d:a'])


def trace_of(program, starts, ends):
    lane = [
        RankTimes(rank, *(np.array([times[rank]], dtype=float) for times in (starts, starts, ends))) for rank in (0, 1)
    ]
    return Trace(program, 'simulated', tuple(lane), np.arange(2, dtype=np.int32))


def spans_in_issue_order(program):
    """Slots one after the other, a second each, on both ranks."""
    starts = [[float(slot) for slot in range(len(program.roles[0]))] for _ in range(2)]
    return starts, [[start + 1 for start in of_rank] for of_rank in starts]


def test_a_simulated_order_gives_the_same_bits():
    program = two_layers()
    found = InProcess(program, SEED, trace=trace_of(program, *spans_in_issue_order(program))).run(2)
    assert found.losses == InProcess(program, SEED).run(2).losses


@pytest.mark.parametrize(
    ('moved', 'drawn'),
    [
        # The sums of both copies after the loss of the first, which needs the first.
        ({2: 6.5, 5: 6.7}, '  rank 0, stream compute: loss.F.c0 waits for sum.c0'),
        # The loss of the first copy before the first layer of the second, which is before it in the stream.
        ({6: 2.5}, '  rank 0, stream compute: a.F.c1 waits for its turn'),
    ],
)
def test_an_order_against_needs_or_streams_is_refused(moved, drawn):
    program = two_layers()
    starts, ends = spans_in_issue_order(program)
    for of_rank in starts:
        for slot, start in moved.items():
            of_rank[slot] = start
    with pytest.raises(ProgramError, match='the trace starts an op before it may') as caught:
        InProcess(program, SEED, trace=trace_of(program, starts, ends)).run()
    assert drawn in str(caught.value).splitlines()


# what is refused


def pass_on(name, reads, writes, frees=()):
    return compute(name, 'scale', 'I', [reads], [writes], frees=frees, factor=1.0)


def vectors(*names):
    return [
        Tensor('x', 'input', (2,), 'fp32', initial='normal:1'),
        *(Tensor(name, 'activation', (2,), 'fp32') for name in names),
    ]


def test_a_freed_tensor_cannot_be_read():
    ops = [pass_on('one', 'x', 'a'), pass_on('two', 'a', 'b', ['a']), pass_on('three', 'a', 'c')]
    program = built(1, vectors(*'abc'), ops, {'all': ([0], [(op.name, 'compute', 0) for op in ops])})
    with pytest.raises(ProgramError, match='three on rank 0 reads a of micro-batch 0, copy 0, which was freed'):
        InProcess(program).run()


def test_ranks_that_wait_for_one_another_are_drawn():
    ops = [pass_on('x.F', 'x', 'a'), total('one', 'a', 'b'), total('two', 'a', 'c'),
           total('one.after', 'c', 'b'), total('two.after', 'b', 'c')]  # fmt: skip
    roles = {
        'first': ([0], [('x.F', 'compute', 0), ('one', 'left', 0), ('two.after', 'right', 0)]),
        'second': ([1], [('x.F', 'compute', 0), ('two', 'right', 0), ('one.after', 'left', 0)]),
    }
    program = built(2, vectors(*'abc'), ops, roles, partitions=[TP])
    with pytest.raises(Deadlock) as caught:
        InProcess(program).run()
    assert str(caught.value).splitlines() == [
        'no stream can go on:',
        '  rank 0, stream left: one waits for rank 1 (at one.after)',
        '  rank 0, stream right: two.after waits for one',
        '  rank 1, stream right: two waits for rank 0 (at two.after)',
        '  rank 1, stream left: one.after waits for two',
    ]


def test_ranks_that_meet_in_different_collectives_are_refused():
    ops = [pass_on('x.F', 'x', 'a'), total('sum', 'a', 'b'), replace(total('maximum', 'a', 'b'), reduce='max')]
    roles = {
        name: ([rank], [('x.F', 'compute', 0), (op, 'tp', 0)])
        for rank, (name, op) in enumerate([('first', 'sum'), ('second', 'maximum')])
    }
    with pytest.raises(ProgramError, match=r'ranks meet in different collectives: sum .* and maximum'):
        InProcess(built(2, vectors(*'ab'), ops, roles, partitions=[TP])).run()


# tensors


@st.composite
def cut_tensors(draw_one):
    """A program without ops over up to 12 ranks, and a parameter cut over some of its axes, perhaps twice a dim."""
    degrees = draw_one(st.sampled_from([(2, 2), (3, 2), (2, 3, 2), (4,)]))
    axes = dict(zip('abc', degrees, strict=False))
    dims = draw_one(st.integers(1, 3))
    cuts = tuple(Split(draw_one(st.integers(0, dims - 1)), axis) for axis in axes if draw_one(st.booleans()))
    sizes = [draw_one(st.integers(1, 2)) for _ in range(dims)]
    for cut in cuts:
        sizes[cut.dim] *= axes[cut.partition]
    world = int(np.prod(degrees))
    tensor = Tensor('w', 'parameter', tuple(sizes), 'fp32', splits=cuts, initial='normal:1')
    return built(world, [tensor], [], {'all': (range(world), [])}, partitions=grid(world, axes).values()), tensor


@draws(50)
@given(cut_tensors())
def test_pieces_of_all_ranks_make_the_tensor_that_was_drawn(case):
    program, tensor = case
    pieces = [initial(program, tensor, rank, SEED) for rank in range(program.world)]
    assert {tuple(piece.shape) for piece in pieces} == {program.local_shape(tensor)}
    whole = draw('normal:1', tensor.shape, torch.float32, SEED, 'w')
    assert torch.equal(assemble(program, tensor, pieces), whole)


def test_copies_take_their_part_of_what_a_rank_has_of_the_batch():
    axes = grid(4, {'data': 2, 'tp': 2}).values()
    tensor = Tensor('x', 'input', (12, 3), 'fp32', splits=(Split(0, 'data'),), batch_dim=0, initial='normal:1')
    program = built(4, [tensor], [], {'all': (range(4), [])}, copies=3, partitions=axes)
    whole = batch_of('x', 'normal:1', (12, 3), torch.float32, SEED, 7)
    for rank, of_data in enumerate((0, 0, 1, 1)):
        parts = [Start(program, rank, SEED).shard(tensor, 7, 0, copy) for copy in range(3)]
        assert torch.equal(torch.cat(parts), whole[of_data * 6 :][:6])
        assert torch.equal(assemble(program, tensor, [parts[0]] * 4)[:2], parts[0])


def test_draws_depend_on_their_key_alone():
    def one(*key, initial='normal:2', dtype=torch.float64):
        return draw(initial, (50,), dtype, *key)

    assert torch.equal(one(0, 'w'), one(0, 'w'))
    assert torch.equal(one(0, 'w').float(), one(0, 'w', dtype=torch.float32))
    different = [one(0, 'w'), one(1, 'w'), one(0, 'v'), one(0, 'w', 0, 0), one(0, 'w', 1, 0), one(0, 'w', 0, 1)]
    assert len({float(values[0]) for values in different}) == len(different)
    assert one(0, 'w', initial='zeros').tolist() == [0.0] * 50
    assert one(0, 'w', initial='ones').tolist() == [1.0] * 50
    assert set(one(0, 'w', initial='classes:3', dtype=torch.int64).tolist()) == {0, 1, 2}
    with pytest.raises(ProgramError, match="w: nothing is drawn as 'uniform:1'"):
        one(0, 'w', initial='uniform:1')


def test_replicas_that_differ_are_named():
    tensor = Tensor('gain', 'parameter', (4,), 'fp64', splits=(Split(0, 'data'),))
    axes = grid(4, {'data': 2, 'tp': 2}).values()
    program = built(4, [tensor], [], {'all': (range(4), [])}, partitions=axes)
    pieces = [torch.tensor([1.0, 2.0], dtype=torch.float64) for _ in range(4)]
    pieces[3] = pieces[3] * (1 + 1e-15)
    assert assemble(program, tensor, pieces).tolist() == [1, 2, 1, 2]
    pieces[3] = pieces[3] * (1 + 1e-9)
    with pytest.raises(NumericsWrong, match='gain: ranks 2 and 3 should hold the same, but do not'):
        assemble(program, tensor, pieces)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 1), st.sampled_from(['sum', 'max']))
def test_a_reduce_scatter_and_an_all_gather_make_an_all_reduce(ranks, length, dim, reduce):
    generator = torch.Generator().manual_seed(ranks)
    tensors = [torch.randn(ranks * length, ranks * length, generator=generator) for _ in range(ranks)]
    stacked = torch.stack(tensors)
    expected = stacked.sum(0) if reduce == 'sum' else stacked.amax(0)
    for found in all_gather(reduce_scatter(tensors, dim, reduce), dim):
        torch.testing.assert_close(found, expected)
    results = all_reduce([[tensor, 2 * tensor] for tensor in tensors], reduce)
    for one, two in results:
        torch.testing.assert_close(one, expected)
        torch.testing.assert_close(two, 2 * expected)
    results[0][0].zero_()
    assert all(one.count_nonzero() for one, _ in results[1:])


def test_what_does_not_divide_is_refused():
    with pytest.raises(ProgramError, match=r'dim 0 of \(3,\) cannot be scattered over 2 ranks'):
        reduce_scatter([torch.zeros(3)] * 2, 0)
    tensor = Tensor('w', 'parameter', (3,), 'fp32', splits=(Split(0, 'tp'),), initial='zeros')
    with pytest.raises(ProgramError, match=r'w: dim 0 of \(3,\) is not divisible over 2 ranks of tp'):
        initial(built(2, [tensor], [], {'all': ([0, 1], [])}, partitions=[TP]), tensor, 0, SEED)
