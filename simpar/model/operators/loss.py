"""Primitives of losses and of what feeds a graph, which are no operators of a file's ``network:``."""

from math import prod
from typing import Final

from simpar.layout import ONE, Rule, operators
from simpar.model.operators.pointwise import Arithmetic, Elementwise
from simpar.model.operators.shape import Reduction, View, rows_over_all, without
from simpar.model.primitive import BOTH, Call, Main, Primitive, Shape, ShardCounts, Use, by_rows, dim_names
from simpar.model.primitive import Strategy as ShardStrategy

UNSHARDED = 'must stay unsharded'
DATASET: Final = '_VirtualDataset'


class Division(Arithmetic):
    """Double recursive search reads its output off its first input, as that of most primitives."""

    output_shards = Primitive.output_shards


class Sum(Reduction):
    """SumExt, which 2.10's double recursive search does not know: it splits it itself, into one."""

    main = BOTH
    halved = 'nothing'
    output_shards = Primitive.output_shards
    input_shards = Primitive.input_shards


class Expanded(View):
    """ExpandDims."""

    def input_shards(self, use: Use, wanted: ShardCounts) -> ShardCounts:
        """Without the dims that it adds."""
        return without(wanted, use.call.axes)


class Squeezed(View):
    """Squeeze."""

    def output_shards(self, use: Use, strategy: ShardStrategy) -> ShardCounts:
        """Without the dims that it drops."""
        return without(super().output_shards(use, strategy), use.call.axes)

    def input_shards(self, use: Use, wanted: ShardCounts) -> ShardCounts:
        """With the dims that it drops, where all devices are used."""
        spread = list(wanted)
        for dim in use.call.axes:
            spread.insert(dim, 1)
        # The compiler passes a split back only where it uses all devices.
        return tuple(spread) if prod(spread) == use.devices else ()


class Picked(Primitive):
    """GatherD: of each row the elements that an index names; split by rows over all devices."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ..., classes."""
        x, index = shapes
        return operators.gather_elements(name, x, index)

    def strategy(self, use: Use, shards: ShardCounts) -> ShardStrategy:
        """Rows over all devices."""
        return rows_over_all(use.shapes, use.devices)


class CrossEntropy(Primitive):
    """Mean over rows of logits [rows, classes] with labels [rows]."""

    main = BOTH

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1; the classes stay full, the output is a number."""
        return operators.cross_entropy(name, shapes[0])

    def main_strategy(self, use: Use, main: Main) -> ShardStrategy:
        """By rows over as many devices as there are rows."""
        # Rows are independent; more devices than rows would have nothing to do.
        return by_rows(min(use.devices, use.shapes[0][0]), use.shapes)


class BatchNormalised(Primitive):
    """BatchNorm of images [batch, channels, height, width], split by batch alone."""

    main = BOTH

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, d2, d3; its parameters have d1."""
        names = dim_names(output)
        inputs = (names, *(names[1:2] for _ in shapes[1:]))
        return Rule(name, inputs, names, shapes, output, names, dict.fromkeys(names[1:], UNSHARDED))


class Sliced(Primitive):
    """StridedSlice: dims that it shortens stay full; in double recursive search it learns and tells nothing."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ..."""
        names, x = dim_names(output), shapes[0]
        # A slice of a split dim would leave ranks with unequal rows.
        shorter = {
            names[dim]: UNSHARDED for dim, (long, left) in enumerate(zip(x, output, strict=True)) if long != left
        }
        return Rule(name, (names,), names, shapes, x, names, shorter)

    def output_shards(self, use: Use, strategy: ShardStrategy) -> ShardCounts:
        """Not known."""
        return ()

    def strategy(self, use: Use, shards: ShardCounts) -> ShardStrategy:
        """Unsharded."""
        return ((1,) * len(shards),)


class Dataset(Primitive):
    """What feeds a graph: every tensor by the same split of dim 0, which a search fixes."""

    main = BOTH

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """n."""
        # Inputs without dims, as numbers, have no samples to split.
        inputs = tuple(('n', *(ONE for _ in shape[1:])) if shape else () for shape in shapes)
        return Rule(name, inputs, inputs[0], shapes, shapes[0], ('n',), {})


OF_LOSSES: Final[tuple[Primitive, ...]] = (
    *map(Elementwise, ('Square', 'Abs', 'Exp', 'Log', 'Neg', 'Equal', 'MaskedFill', 'Muls')),
    Arithmetic('Sub'),
    Division('Div'),
    # MindSpore also splits the dims that a maximum is over; programs refuse that (``layout.operators.maximum``).
    Reduction('ReduceMax'),
    Sum('SumExt'),
    Expanded('ExpandDims', stops=True),
    Squeezed('Squeeze'),
    Picked('GatherD'),
    CrossEntropy('SparseSoftmaxCrossEntropyWithLogits'),
    BatchNormalised('BatchNorm'),
    Sliced('StridedSlice'),
    Dataset(DATASET),
)
