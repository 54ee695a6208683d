"""Objectives: the bytes and the seconds of a step, as the exact search counts them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Final

from simpar.cost.costs import CollectiveModel, ComputeModel
from simpar.layout import Axis, Method, TensorLayout, group_of, merged, redistribute, reshape
from simpar.model.operators import OP_CLASSES, PRIMITIVES, attention
from simpar.model.operators.linear import BIAS_ADD
from simpar.model.primitive import Shape
from simpar.program import OpClass, Phase
from simpar.strategy_search import Graph, Operator
from simpar.strategy_search.objective import Bits, Bytes, Candidate, counts, redistribution_bytes, used

# Not infinite: exact search subtracts costs, and infinity less infinity is no number.
NEVER: Final = 1e30
"""More than any step sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBytes(Bytes):
    """Bytes that a device sends in a step of several slices of the batch, redistributed as a plan says.

    Arguments:
        devices: of a stage, a power of two.
        slices: micro-batches × copies.
        method: how tensors are redistributed, as of ``simpar.layout.redistribute``.
        all_to_all: whether redistribution may use it.
        known: elements that a rank receives, forward and backward, of redistributions asked before.
    """

    devices: int
    slices: int = 1
    method: Method = 'cheapest'
    all_to_all: bool = True
    known: dict[tuple[Bits, Bits, Shape], tuple[float, float]] = field(default_factory=dict, compare=False)

    def operator(self, graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> float:
        """Sums of activations for every slice, sums of gradients once; no reshape that programs do not have."""
        if operator.primitive == 'Reshape' and not _is_view(graph, operator, candidate, devices):
            return NEVER
        # The loss is no tensor that a program sums: every rank keeps its part of the number.
        sums = self.sums(graph, operator, candidate) if graph.output_shape(operator) else 0.0
        return self.slices * sums + self.mirrors(graph, operator, candidate, devices)

    def redistribution(
        self, source: Bits, target: Bits, shape: Shape, *, backward: bool, reshaped: bool = False
    ) -> float:
        """Bytes of the plan's sequence, and of its reverse, for every slice.

        A reshape reads a tensor as it lies, but for inner splits that its result cannot have: these are gathered.
        """
        if source == target:
            return 0.0
        if reshaped and any(dim != split[: len(dim)] for dim, split in zip(target, source, strict=True)):
            return NEVER
        if self.method == 'cheapest':
            moved = redistribution_bytes(source, target, shape, self.itemsize, all_to_all=self.all_to_all)
            return self.slices * (2 * moved if backward else moved)
        key = source, target, shape
        if key not in self.known:
            ends = (_layout(self.devices, bits) for bits in (source, target))
            sequence = redistribute(shape, *ends, self.method, self.all_to_all)
            self.known[key] = float(sequence.elements), float(sequence.backward().elements)
        there, back = self.known[key]
        return self.slices * self.itemsize * (there + back if backward else there)


def _is_view(graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> bool:
    """Whether a reshape's result lies as what it reads does."""
    (read,) = graph.read_shapes(operator)
    rule = reshape(operator.name, read, graph.output_shape(operator))
    strategy = candidate.choice.strategy
    if rule.wrong(strategy, devices):
        return False
    return rule.sharded(strategy, devices).output.shard_counts == counts(candidate.output)


def _layout(devices: int, bits: Bits) -> TensorLayout:
    """Bit 0 is the most significant of a device's index."""
    return TensorLayout(devices, tuple(merged(Axis(2, devices >> bit + 1) for bit in dim) for dim in bits))


# The seconds of a step, one op after the other: what a search by time counts, for the engine to rank what it finds.
#
# An op takes its isolated time, or the host's where that is longer. Gradients of parameters are summed in full or,
# as if all of it hid under the backward, for nothing: strategies that are good for either are worth simulating. Does
# not model: overlap of anything else, biases, the update; a redistribution is one collective and one slice, whatever
# its sequence.


# Reversed, so that the first op class wins where several share a primitive.
_CALLED: Final = {primitive.name: name for name, primitive in reversed(OP_CLASSES.items()) if primitive != BIAS_ADD}
PRODUCTS: Final = {'RowMatMul': 'matmul'} | {
    name: called for name, called in _CALLED.items() if PRIMITIVES[name].pricing == 'matrix'
}
"""What programs call primitives that are products."""
STREAMING: Final = {
    **{name: called for name, called in _CALLED.items() if PRIMITIVES[name].pricing == 'streaming'},
    'Sub': 'mse',
    'SparseSoftmaxCrossEntropyWithLogits': 'cross_entropy',
}
"""What programs call primitives whose time goes by their bytes; of a squared error the first is all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """Seconds of a device in a step of several slices of the batch.

    Arguments:
        bytes: the same objective in bytes.
        compute: prices computation.
        collective: prices communication.
        host: seconds of the host for an op.
        dtype: of all tensors.
        hidden: sums of parameters' gradients count nothing.
        known: seconds of messages asked before.
    """

    bytes: StepBytes
    compute: ComputeModel
    collective: CollectiveModel
    host: float
    dtype: str
    hidden: bool = False
    known: dict[object, float] = field(default_factory=dict)

    def operator(self, graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> float:
        """Forward and backward of every slice with their sums, and the sums of gradients once."""
        if self.bytes.operator(graph, operator, candidate, devices) >= NEVER:
            return NEVER
        once = 0.0 if self.hidden else sum(self._mirrors(graph, operator, candidate, devices))
        return self.bytes.slices * (sum(self._ops(graph, operator, candidate)) + self._sums(graph, operator, candidate)
                                    ) + once  # fmt: skip

    def redistribution(
        self, source: Bits, target: Bits, shape: Shape, *, backward: bool, reshaped: bool = False
    ) -> float:
        """What is gathered or exchanged, and what is sliced, for every slice of the batch, there and back."""
        moved = self.bytes.redistribution(source, target, shape, backward=False, reshaped=reshaped)
        if source == target or moved >= NEVER:
            return 0.0 if source == target else NEVER
        sent = moved / self.bytes.slices
        seconds = 0.0
        if sent:
            # Bits that leave a place or come to one: ranks along them are those that exchange.
            group = self._stands(source) ^ self._stands(target)
            ranks = self._ranks({bit for bit, _ in group})
            # A rank receives (g − 1) / g of a gathered message, and collectives are priced by all of it.
            seconds += self._message('all_gather', sent * len(ranks) / (len(ranks) - 1), ranks)
        if used(target) - used(source):
            local = prod(shape) * self.bytes.itemsize * 0.5 ** len(used(target))
            seconds += self._streaming('slice', 'F', 2 * local)
        return self.bytes.slices * seconds * (2 if backward else 1)

    # compute

    def _ops(self, graph: Graph, operator: Operator, candidate: Candidate) -> Iterator[float]:
        """Forward and backward ops of an operator."""
        local = [
            prod(graph.shapes[name]) * 0.5 ** len(used(bits))
            for name, bits in zip(operator.reads, candidate.inputs, strict=True)
        ]
        output = prod(graph.output_shape(operator)) * 0.5 ** len(used(candidate.summed))
        if isinstance(operator.kind, attention.AttentionCore):
            yield from self._attention(graph, operator, candidate)
        elif operator.primitive in PRODUCTS:
            yield from self._products(graph, operator, candidate, output)
        elif operator.primitive in STREAMING and not self._ends(graph, operator):
            moved = self.bytes.itemsize * (sum(local) + output)
            trained = any(name in graph.parameters for name in operator.reads)
            phases: tuple[Phase, ...] = ('F', 'I', 'W') if trained else ('F', 'I')
            for phase in phases:
                yield self._streaming(STREAMING[operator.primitive], phase, moved)

    @staticmethod
    def _ends(graph: Graph, operator: Operator) -> bool:
        """Whether it is the mean of a squared error, which is one op with the difference."""
        return operator.primitive == 'ReduceMean' and not graph.output_shape(operator)

    def _products(self, graph: Graph, operator: Operator, candidate: Candidate, output: float) -> Iterator[float]:
        """A product and the two of its backward; of a batch, as one of all its rows; a convolution as it is priced."""
        (x, _), (weight, layout) = zip(graph.read_shapes(operator), candidate.inputs, strict=True)
        if operator.primitive == 'Conv2D':
            n, k = float(weight[0]), float(prod(weight[1:]))
            m = output / n
        else:
            column = -2 if operator.transpose_b else -1
            n = weight[column] * 0.5 ** len(layout[column])
            m = output / n
            k = prod(x) * 0.5 ** len(used(candidate.inputs[0])) / m
        moved = self.bytes.itemsize * (m * k + prod(weight) * 0.5 ** len(used(layout)) + output)
        backward: tuple[tuple[Phase, tuple[float, float, float]], ...] = (('I', (m, k, n)), ('W', (n, k, m)))
        for phase, size in (('F', (m, n, k)), *backward):
            yield self._product(PRODUCTS[operator.primitive], phase, size, moved)

    def _attention(self, graph: Graph, operator: Operator, candidate: Candidate) -> Iterator[float]:
        """Attention or a product of it, as products of all heads' rows with as many tokens."""
        (batch, tokens, width), *_ = [shape for shape in graph.read_shapes(operator) if len(shape) == 3]
        fused = operator.kind.pricing == 'attention'
        queries = graph.output_shape(operator)[-1] if len(graph.output_shape(operator)) == 3 else width // 3
        m = batch * tokens * queries * 0.5 ** len(used(candidate.inputs[0])) / tokens
        moved = self.bytes.itemsize * m * tokens
        # Flash attention computes its scores again in the backward: 5 products for the 2 of the forward.
        counts: tuple[tuple[Phase, int], ...] = (('F', 2 if fused else 1), ('I', 5 if fused else 2))
        for phase, count in counts:
            yield count * self._product('attention_values', phase, (m, tokens, tokens), moved)

    def _product(self, name: str, phase: Phase, size: tuple[float, float, float], moved: float) -> float:
        # Sizes are halved as floats here; tables of cost are keyed by whole numbers.
        m, n, k = (max(1, round(length)) for length in size)
        return self._computed(name, phase, {'m': m, 'n': n, 'k': k}, 2.0 * m * n * k, moved)

    def _streaming(self, name: str, phase: Phase, moved: float) -> float:
        return self._computed(name, phase, {}, moved / self.bytes.itemsize, moved)

    def _computed(self, name: str, phase: Phase, dims: dict[str, int], flops: float, moved: float) -> float:
        op = OpClass(name, 'compute', name, phase, dims, flops, moved, self.dtype)
        return max(self.host, self.compute.seconds(op).seconds)

    # communication

    def _sums(self, graph: Graph, operator: Operator, candidate: Candidate) -> float:
        """Of the output's pending sums, there and back; of the loss none."""
        shape = graph.output_shape(operator)
        if not candidate.partial or not shape:
            return 0.0
        local = prod(shape) * self.bytes.itemsize * 0.5 ** len(used(candidate.summed))
        ranks = self._ranks(candidate.partial)
        ways = ('reduce_scatter', 'all_gather') if candidate.scattered else ('all_reduce', 'all_reduce')
        return sum(self._message(way, local, ranks) for way in ways)

    def _mirrors(self, graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> Iterator[float]:
        every = set(range(devices.bit_length() - 1))
        for name, bits in zip(operator.reads, candidate.inputs, strict=True):
            left = every - used(bits)
            if name in graph.parameters and left:
                local = prod(graph.shapes[name]) * self.bytes.itemsize * 0.5 ** len(used(bits))
                yield self._message('all_reduce', local, self._ranks(left))

    def _message(self, operator: str, size: float, ranks: tuple[int, ...]) -> float:
        key = (operator, size, ranks)
        if key not in self.known:
            op = OpClass(operator, 'collective', operator, 'F', bytes=size, dtype=self.dtype)
            cost = self.collective.cost(op, ranks)
            self.known[key] = max(self.host, cost.alpha + cost.transfer)
        return self.known[key]

    def _ranks(self, bits: Collection[int]) -> tuple[int, ...]:
        """The first group along bits, the most significant first."""
        return group_of(0, merged(Axis(2, self.bytes.devices >> bit + 1) for bit in sorted(bits)))

    @staticmethod
    def _stands(layout: Bits) -> set[tuple[int, tuple[int, int]]]:
        """Bits with their dims and how deep in it they split."""
        return {(bit, (dim, depth)) for dim, bits in enumerate(layout) for depth, bit in enumerate(bits)}
