"""What a strategy makes of layouts is right: slices work out, and getting from one layout to another is counted."""

import numpy as np
import pytest
from every import draws, some
from hypothesis import given
from hypothesis import strategies as st

from simpar.errors import Infeasible, ScheduleError
from simpar.layout import Axis, TensorLayout, redistribute
from simpar.model.operators.pointwise import Elementwise
from simpar.strategy_search import GraphBuilder, exact
from simpar.strategy_search.objective import redistribution_bytes, rule, split_of
from tests.strategy_networks import transformer_blocks


def pieces(tensor, layout, bits):
    """The slice of a tensor on every device."""
    slices = []
    for device in range(1 << bits):
        part = tensor
        for dim, cut in enumerate(layout):
            for bit in cut:
                half = part.shape[dim] // 2
                upper = device >> (bits - 1 - bit) & 1
                part = np.take(part, range(half * upper, half * (upper + 1)), axis=dim)
        slices.append(part)
    return slices


def work(operator, tensors, output):
    """What an operator makes of (slices of) what it reads; ``output`` is the shape of its (slice of) output."""
    x = tensors[0]
    if operator.primitive in ('MatMul', 'BatchMatMul'):
        return x @ (np.swapaxes(tensors[1], -1, -2) if operator.transpose_b else tensors[1])
    if operator.primitive == 'Transpose':
        return x.transpose(operator.permutation)
    if operator.primitive == 'Reshape':
        return x.reshape(output)
    if operator.primitive == 'Softmax':
        return np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    if operator.primitive == 'ReduceMean':
        return x.sum(operator.axes)
    if operator.primitive == 'LayerNorm':
        return (x - x.mean(-1, keepdims=True)) * tensors[1] + tensors[2]
    return sum(tensors) if isinstance(operator.kind, Elementwise) else None


@pytest.mark.parametrize('place', some(range(1, 27), 2))
def test_slices_of_what_an_operator_reads_give_slices_of_what_it_writes(place):
    graph = transformer_blocks(4, 4, 8, 4, 16)
    operator = graph.operators[place]
    random = np.random.default_rng(place)
    read = [random.normal(size=shape) for shape in graph.read_shapes(operator)]
    whole = work(operator, read, graph.output_shape(operator))
    splits = rule(graph, operator).splits(8)
    assert splits[0].used == 0
    assert max(cut.used for cut in splits) == 3 or operator.primitive == 'LayerNorm'
    for cut in splits:
        shape = tuple(size >> len(dim) for size, dim in zip(whole.shape, cut.output, strict=True))
        slices = [pieces(tensor, layout, 3) for tensor, layout in zip(read, cut.inputs, strict=True)]
        made = [work(operator, tensors, shape) for tensors in zip(*slices, strict=True)]
        masks = [sum(1 << (2 - bit) for bit in cut.partial) & device for device in range(8)]
        for device, expected in enumerate(pieces(whole, cut.output, 3)):
            mask = sum(1 << (2 - bit) for bit in cut.partial)
            group = [other for other in range(8) if other & ~mask == device & ~mask]
            assert len(group) == len(set(masks))
            np.testing.assert_allclose(sum(made[other] for other in group), expected)


def test_a_strategy_that_cannot_be_is_told_with_the_nearest():
    graph = transformer_blocks(2, 8, 16, 2, 64)
    with pytest.raises(ScheduleError, match=r'layer0.up: MatMul .* cannot be split as .*nearest'):
        split_of(graph, graph.operator('layer0.up'), ((3, 1), (1, 2)), 4)


def test_operators_that_do_not_fit_are_refused():
    build = GraphBuilder()
    (x,) = build.dataset(x=(4, 6))
    build.matmul('up', x, build.parameter('w', 5, 8))
    with pytest.raises(ScheduleError, match='cannot be multiplied'):
        exact(build.graph(), 2)
    with pytest.raises(Infeasible, match='not a power of two'):
        exact(transformer_blocks(2, 8, 16, 2, 64), 6)


@st.composite
def layouts(draw):
    """Two layouts of one tensor over up to 64 devices."""
    bits, dims = draw(st.integers(1, 6)), draw(st.integers(1, 4))

    def layout():
        order = draw(st.permutations(range(bits)))
        placed = [[] for _ in range(dims)]
        for bit in order[: draw(st.integers(0, bits))]:
            placed[draw(st.integers(0, dims - 1))].append(bit)
        return tuple(map(tuple, placed))

    return bits, layout(), layout()


@draws(80)
@given(layouts())
def test_redistribution_moves_what_the_cheapest_sequence_moves(pair):
    """Bits stand apart in the other's ranks, so that it does not take two for one axis."""
    bits, source, target = pair
    ends = [
        TensorLayout(4**bits, tuple(tuple(Axis(2, 4 ** (bits - 1 - bit)) for bit in dim) for dim in layout))
        for layout in (source, target)
    ]
    shape = (64,) * len(source)
    theirs = redistribute(shape, *ends).elements
    assert redistribution_bytes(source, target, shape, itemsize=1) == pytest.approx(float(theirs), rel=1e-12)
