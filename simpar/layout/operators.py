"""Rules: the operators of the tutorials and of transformers, by the names of their dims.

Every function takes a name for messages and the shapes of the inputs, and gives an ``Operator``. Names of dims: m, n, k
of products, b for batches, d0, d1, ... by place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from simpar.errors import Infeasible
from simpar.layout.operator import ONE, Operator

Shape = tuple[int, ...]
_NORMALISED = 'is normalised over and must stay unsharded'


def matmul(name: str, x: Shape, w: Shape, *, transpose_a: bool = False, transpose_b: bool = False) -> Operator:
    """x [m, k] · w [k, n] → [m, n]; transposed operands are [k, m] and [n, k]. The device matrix is (m, k, n)."""
    return batch_matmul(name, x, w, transpose_a=transpose_a, transpose_b=transpose_b)


def batch_matmul(name: str, x: Shape, w: Shape, *, transpose_a: bool = False, transpose_b: bool = False) -> Operator:
    """x [batch..., m, k] · w [batch..., k, n] → [batch..., m, n]."""
    batch = tuple(f'b{index}' for index in range(len(x) - 2))
    left = (*batch, 'k', 'm') if transpose_a else (*batch, 'm', 'k')
    right = (*batch, 'n', 'k') if transpose_b else (*batch, 'k', 'n')
    m, k = x[-2:][::-1] if transpose_a else x[-2:]
    inner, n = w[-2:][::-1] if transpose_b else w[-2:]
    if len(x) != len(w) or x[:-2] != w[:-2] or k != inner:
        raise Infeasible(f'{name}: shapes {x} and {w} cannot be multiplied')
    return Operator(name, (left, right), (*batch, 'm', 'n'), (x, w), (*x[:-2], m, n), (*batch, 'm', 'k', 'n'), {})


def elementwise(name: str, *shapes: Shape) -> Operator:
    """Inputs of one shape, or broadcast to it from the last dim on; a dim of length 1 that is broadcast stays full."""
    rank = max(map(len, shapes))
    # Broadcasting aligns shapes at their last dim, as numpy's does.
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    output = tuple(max(lengths) for lengths in zip(*padded, strict=True))
    for shape, long in zip(shapes, padded, strict=True):
        if any(length not in (1, full) for length, full in zip(long, output, strict=True)):
            raise Infeasible(f'{name}: shape {shape} cannot be broadcast to {output}')
    names = tuple(f'd{dim}' for dim in range(rank))
    inputs = tuple(
        tuple(ONE if length == 1 < full else named for named, length, full in zip(names, long, output, strict=True))[
            rank - len(shape) :
        ]
        for shape, long in zip(shapes, padded, strict=True)
    )
    return Operator(name, inputs, names, shapes, output, names, {})


def reduction(name: str, x: Shape, dims: Sequence[int], *, keep: bool = False) -> Operator:
    """Sum or mean over dims; where one of them is sharded, what ranks have is summed.

    A mean divides by the full length. Arguments: ``keep``: reduced dims stay, with length 1.
    """
    names = tuple(f'd{dim}' for dim in range(len(x)))
    # Dims may be counted from the end, as -1.
    gone = {dim % len(x) for dim in dims}
    kept = [dim for dim in range(len(x)) if keep or dim not in gone]
    output = tuple(ONE if dim in gone else names[dim] for dim in kept)
    return Operator(name, (names,), output, (x,), tuple(1 if dim in gone else x[dim] for dim in kept), names, {})


def maximum(name: str, x: Shape, dims: Sequence[int], *, keep: bool = False) -> Operator:
    """Maximum over dims, which must stay unsharded.

    Arguments: ``keep``: reduced dims stay, with length 1.
    """
    rule = reduction(name, x, dims, keep=keep)
    # A maximum of parts would need an all-reduce by maximum, which strategies have no word for.
    fixed = {rule.inputs[0][dim]: 'is compared over and must stay unsharded' for dim in dims}
    return replace(rule, fixed=fixed)


def gather_elements(name: str, x: Shape, index: Shape) -> Operator:
    """Of each row of x [rows..., classes] the elements that an index [rows..., count] names; last dims stay full."""
    rows = tuple(f'd{dim}' for dim in range(len(x) - 1))
    return Operator(
        name,
        # The index names classes of the full row, so that a slice of classes could not be picked from.
        ((*rows, 'classes'), (*rows, ONE)),
        (*rows, ONE),
        (x, index),
        index,
        (*rows, 'classes'),
        {'classes': 'is picked from and must stay unsharded'},
    )


def softmax(name: str, x: Shape, dim: int = -1) -> Operator:
    """Softmax over one dim, which must stay unsharded."""
    names = tuple(f'd{index}' for index in range(len(x)))
    return Operator(name, (names,), names, (x,), x, names, {names[dim]: _NORMALISED})


def layer_norm(name: str, x: Shape, *, dims: int = 1) -> Operator:
    """LayerNorm of x with weight and bias over the last ``dims`` dims, which must stay unsharded."""
    return _norm(name, x, dims, parameters=2)


def rms_norm(name: str, x: Shape, *, dims: int = 1) -> Operator:
    """RMSNorm of x with a weight over the last ``dims`` dims, which must stay unsharded."""
    return _norm(name, x, dims, parameters=1)


def _norm(name: str, x: Shape, dims: int, parameters: int) -> Operator:
    names = tuple(f'd{dim}' for dim in range(len(x)))
    normalised = names[-dims:]
    inputs = (names, *(normalised,) * parameters)
    shapes = (x, *(x[-dims:],) * parameters)
    return Operator(name, inputs, names, shapes, x, names, dict.fromkeys(normalised, _NORMALISED))


def embedding(name: str, weight: Shape, indices: Shape) -> Operator:
    """Rows of the weight [vocab, width] by indices [...] → [..., width].

    By row: each rank looks up what it has and gives zeros for the rest, and the sum is the result; by column: nothing
    is summed.
    """
    places = tuple(f'i{dim}' for dim in range(len(indices)))
    order = ('v', 'h', *places)
    return Operator(name, (('v', 'h'), places), (*places, 'h'), (weight, indices), (*indices, weight[1]), order, {})


def cross_entropy(name: str, logits: Shape, *, classes: bool = True) -> Operator:
    """Mean of the softmax cross-entropy of logits [..., classes] with labels → a number; classes stay full.

    Arguments: ``classes``: labels are class numbers [...], or else probabilities as the logits.
    """
    names = tuple(f'd{dim}' for dim in range(len(logits)))
    labels, shape = (names[:-1], logits[:-1]) if classes else (names, logits)
    return Operator(name, (names, labels), (), (logits, shape), (), names, {names[-1]: _NORMALISED})


def mean_loss(name: str, y: Shape) -> Operator:
    """Mean over all elements of what y and a target of its shape give each (MSE, MAE) → a number."""
    names = tuple(f'd{dim}' for dim in range(len(y)))
    return Operator(name, (names, names), (), (y, y), (), names, {})


def transpose(name: str, x: Shape, permutation: Sequence[int]) -> Operator:
    """Dims in another order."""
    names = tuple(f'd{dim}' for dim in range(len(x)))
    output, shape = (tuple(of[dim] for dim in permutation) for of in (names, x))
    return Operator(name, (names,), output, (x,), shape, names, {})  # type: ignore[arg-type]


def flatten(name: str, x: Shape) -> Operator:
    """All dims behind the first into one."""
    return reshape(name, x, (x[0], prod(x[1:])))


def reshape(name: str, x: Shape, shape: Shape) -> Operator:
    """The same elements in another shape; of dims that become one, the first is sharded.

    Does not model: the sharding of a further dim inside of a full first one, which would leave no equal slices.
    """
    if prod(x) != prod(shape):
        raise Infeasible(f'{name}: {x} has {prod(x)} elements, {shape} has {prod(shape)}')
    inputs, output, fixed = [ONE] * len(x), [ONE] * len(shape), {}
    order = []
    for index, (sources, targets) in enumerate(_groups(x, shape)):
        for place, dim in enumerate(sources):
            # The first dim of a group may be sharded, as its slices are blocks in either shape; inner ones may not.
            inputs[dim] = f'd{index}' if place == 0 else f'd{index}.{place}'
            order.append(inputs[dim])
            if place:
                fixed[inputs[dim]] = 'lies inside of a dim that it becomes one with'
        if sources and targets:
            output[targets[0]] = inputs[sources[0]]
    return Operator(name, (tuple(inputs),), tuple(output), (x,), shape, tuple(order), fixed)


def _groups(x: Shape, shape: Shape) -> list[tuple[list[int], list[int]]]:
    """Dims of both shapes in groups of equal size, as small as possible; dims of length 1 join the group before."""
    groups: list[tuple[list[int], list[int]]] = []
    left, right = list(range(len(x))), list(range(len(shape)))
    while left or right:
        sources, targets = left[:1], right[:1]
        del left[:1], right[:1]
        # The side with the smaller product takes the next dim, so that groups come out as small as possible.
        while prod(x[d] for d in sources) != prod(shape[d] for d in targets):
            smaller = prod(x[d] for d in sources) < prod(shape[d] for d in targets)
            (sources if smaller else targets).append((left if smaller else right).pop(0))
        groups.append((sources, targets))
    return groups


def conv2d(name: str, x: Shape, weight: Shape, output: Shape) -> Operator:
    """Convolution of x [batch, channels, height, width], sharded by batch alone.

    Does not model: halos of sharded height and width, sharded channels.
    """
    reason = 'is sharded by batch alone in a convolution'
    inputs = (('n', 'c', 'h', 'w'), ('o', 'c', 'kh', 'kw'))
    order = ('n', 'c', 'h', 'w', 'o', 'kh', 'kw')
    fixed = dict.fromkeys(order[1:], reason)
    return Operator(name, inputs, ('n', ONE, ONE, ONE), (x, weight), output, order, fixed)
