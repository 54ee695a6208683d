"""Random layouts for property tests."""

from math import lcm, prod

from hypothesis import strategies as st

from simpar.layout import mapped

WORLDS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


@st.composite
def layouts(draw, world, dims, pending=False):
    """A layout of a tensor of so many dims: any device matrix, any axes on any dims, in any order."""
    matrix, left = [], world
    while left > 1:
        size = draw(st.sampled_from([size for size in (2, 3, 4, 8) if left % size == 0]))
        matrix.append(size)
        left //= size
    tensor_map, partial = [[] for _ in range(dims)], []
    for axis in draw(st.permutations(range(len(matrix)))):
        place = draw(st.integers(0, dims + pending))
        if place < dims:
            tensor_map[place].append(axis)
        elif place > dims:
            partial.append(axis)
    return mapped(world, matrix, tensor_map, partial)


@st.composite
def pairs(draw, pending=True):
    """Two layouts and a shape that both fit; the first may have pending sums."""
    world, dims = draw(st.sampled_from(WORLDS)), draw(st.integers(1, 4))
    source = draw(layouts(world, dims, pending=pending and draw(st.booleans())))
    target = draw(layouts(world, dims))
    shape = tuple(
        lcm(one, other) * draw(st.sampled_from((1, 1, 2, 3)))
        for one, other in zip(source.shard_counts, target.shard_counts, strict=True)
    )
    while prod(shape) * world > 2**19:
        largest = max(range(dims), key=shape.__getitem__)
        smaller = lcm(source.shard_counts[largest], target.shard_counts[largest])
        if shape[largest] == smaller:
            break
        shape = (*shape[:largest], smaller, *shape[largest + 1 :])
    return shape, source, target
