"""Spreading the cuts of main operators: every other operator takes the strategy of a neighbour, forward and backward.

The rules of MindSpore's rec_generate_strategy.cc, told apart by version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

from simpar.strategy_search.graph import Graph, Operator, Shape
from simpar.strategy_search.propagate import Compat
from simpar.strategy_search.rules import Strategy
from simpar.strategy_search.strategies import Choice

Pieces = tuple[int, ...]
ARITHMETIC = frozenset(('Mul', 'Sub', 'Add', 'BiasAdd'))
BROADCAST = frozenset(('Add', 'Sub', 'Mul', 'Div'))
REDUCES = frozenset(('ReduceMean', 'ReduceSum', 'ReduceMax'))
BY_DATA = frozenset(('Flatten', 'GatherD'))
STOPS = frozenset(('Gather', 'ExpandDims'))
SCATTERS_BEYOND = 32


@dataclass(frozen=True, slots=True)
class Main:
    """Pieces of a main operator's first input, second input and output, in four right-aligned dims each."""

    first: Pieces
    second: Pieces
    output: Pieces


class Spread:
    """Strategies of all operators from those of the main ones.

    Arguments: ``devices``, of a stage; ``all_devices``, of all stages; ``order``, places as the compiler numbers them.
    """

    def __init__(
        self,
        graph: Graph,
        main: Mapping[str, Main],
        devices: int,
        all_devices: int,
        compat: Compat,
        order: list[int],
    ) -> None:
        self.graph, self.main, self.devices, self.compat = graph, dict(main), devices, compat
        self.operators = [graph.operators[place] for place in order]
        self.writer = {name: operator for operator in self.operators for name in operator.writes}
        self.readers: dict[str, list[Operator]] = {}
        for operator in self.operators:
            for name in dict.fromkeys(operator.reads):
                self.readers.setdefault(name, []).append(operator)
        self.found: dict[str, Strategy] = {}
        self.scattered: dict[str, Pieces] = {}
        if compat == '2.10' and all_devices > SCATTERS_BEYOND:
            self.scatter()

    def strategies(self) -> dict[str, Choice]:
        """Passes forward and backward until nothing changes; first only strategies that use many devices pass."""
        for operator in self.operators:
            if operator.name in self.main:
                self.found[operator.name] = self.own(operator)
        left = [operator for operator in self.operators if operator.name not in self.main]
        many = self.devices
        while many > 1:
            left = self.until_nothing_changes(left, many)
            many //= 2
        left = self.until_nothing_changes(left, 0)
        for operator in left:
            self.assign(operator, (1,) * max(len(shape) for shape in self.graph.read_shapes(operator)))
        return {
            operator.name: Choice(self.valid(operator), self.scattered.get(operator.name))
            for operator in self.graph.operators
        }

    def until_nothing_changes(self, left: list[Operator], many: int) -> list[Operator]:
        """Forward passes as long as they change something, then a backward one, and so on; each turns the list."""
        while True:
            for forward in (True, False):
                before = len(left)
                left = self.turn(left, forward, many)
                if len(left) < before:
                    break
            else:
                return left

    def turn(self, left: list[Operator], forward: bool, many: int) -> list[Operator]:
        """One pass over those without a strategy, from the last on; returns those that still have none."""
        still = []
        for operator in reversed(left):
            source = self.incoming(operator) if forward else self.outgoing(operator)
            pieces = self.from_incoming(operator, source) if forward else self.from_outgoing(operator, source)
            if not pieces or prod(pieces) < many or (source is not None and source.primitive in STOPS):
                still.append(operator)
            else:
                self.assign(operator, pieces)
        return still

    def incoming(self, operator: Operator) -> Operator | None:
        """The operator that the first cut input comes from, or else the last; a dataset tells nothing."""
        source = None
        for name in operator.reads:
            source = self.writer.get(name, source)
            if source is not None and any(count > 1 for dims in self.found.get(source.name, ()) for count in dims):
                break
        return None if source is None or source.primitive == '_VirtualDataset' else source

    def outgoing(self, operator: Operator) -> Operator | None:
        """The first operator with a strategy that reads what this one writes."""
        readers = self.readers.get(operator.writes[0], ())
        return next((reader for reader in readers if self.found.get(reader.name)), None)

    def from_incoming(self, operator: Operator, source: Operator | None) -> Pieces:
        """What the producer makes of the tensor; () where that is not known."""
        if source is None or (self.compat == '2.10' and operator.primitive == 'Transpose' and not self.is_main(source)):
            return ()
        if self.is_main(source):
            ranks = [len(shape) for shape in self.graph.read_shapes(operator) if shape]
            return self.main[source.name].output[4 - ranks[0] :] if ranks else ()
        if source.name not in self.found or source.primitive == 'StridedSlice':
            return ()
        return self.output_of(source)

    def is_main(self, operator: Operator) -> bool:
        return operator.name in self.main

    def output_of(self, source: Operator) -> Pieces:
        """How an operator's output is cut."""
        strategy, shapes = self.found[source.name], self.graph.read_shapes(source)
        if source.primitive in ARITHMETIC:
            ranks = [len(shape) for shape in shapes]
            return strategy[ranks.index(max(ranks))]
        first = next((dims for dims in strategy if dims), ())
        if source.primitive == 'Transpose':
            return tuple(first[dim] for dim in source.permutation)
        if source.primitive == 'Reshape':
            return reshaped(shapes[0], self.graph.output_shape(source), first, self.compat)
        if source.primitive == 'BatchMatMul' and self.compat == '2.0':
            return (*first[:-1], strategy[1][-2 if source.transpose_b else -1])
        if source.primitive == 'Flatten':
            return (first[0], prod(first[1:]))
        if source.primitive == 'Squeeze' or (source.primitive in REDUCES and not source.keep_dims):
            return tuple(count for dim, count in enumerate(first) if dim not in source.axes)
        return first

    def from_outgoing(self, operator: Operator, target: Operator | None) -> Pieces:
        """What a reader wants of the tensor, told backward through the operator; () where that is not known."""
        if target is None or operator.primitive == 'Flatten':
            return ()
        wanted = self.found[target.name][target.reads.index(operator.writes[0])]
        shape, output = self.graph.read_shapes(operator)[0], self.graph.output_shape(operator)
        if operator.primitive == 'Transpose':
            return () if self.compat == '2.0' else tuple(wanted[dim] for dim in operator.permutation)
        if operator.primitive == 'Reshape':
            return reshaped(output, shape, wanted, self.compat)
        if operator.primitive in REDUCES:
            return self.unreduced(operator, wanted, len(shape))
        if operator.primitive == 'ExpandDims':
            return tuple(count for dim, count in enumerate(wanted) if dim not in operator.axes)
        if operator.primitive == 'Squeeze':
            spread = list(wanted)
            for dim in operator.axes:
                spread.insert(dim, 1)
            return tuple(spread) if prod(spread) == self.devices else ()
        return wanted[: len(output)]

    @staticmethod
    def unreduced(operator: Operator, wanted: Pieces, rank: int) -> Pieces:
        left = iter(wanted)
        pieces = []
        for dim in range(rank):
            reduced = dim in operator.axes
            count = next(left, 1) if not reduced or operator.keep_dims else 1
            pieces.append(1 if reduced else count)
        return tuple(pieces)

    def assign(self, operator: Operator, pieces: Pieces) -> None:
        """Makes strategies for all inputs out of one tensor's pieces."""
        self.found[operator.name] = self.made(operator, pieces, self.graph.read_shapes(operator))

    def made(self, operator: Operator, pieces: Pieces, shapes: tuple[Shape, ...]) -> Strategy:
        kind = operator.primitive
        if kind in BY_DATA:
            whole = self.devices
            return tuple((whole if shape[0] % whole == 0 else 1, *(1,) * (len(shape) - 1)) for shape in shapes)
        if kind == 'BiasAdd':
            return pieces, pieces[1:2]
        if kind in BROADCAST and len(shapes[0]) != len(shapes[1]):
            return tuple(divisible(dims, shape) for dims, shape in zip(broadcast(pieces, shapes), shapes, strict=True))
        if kind == 'BatchMatMul':
            return batch_product(operator, pieces)
        if kind == 'Softmax':
            kept = tuple(1 if dim in operator.axes else count for dim, count in enumerate(pieces))
            return (divisible(kept, shapes[0]),)
        if kind == 'LayerNorm':
            return (*pieces[:-1], 1), (1,), (1,)
        if kind == 'RmsNorm':
            return (min(self.devices, shapes[0][0]), *(1,) * (len(shapes[0]) - 1)), (1,)
        if kind == 'StridedSlice':
            return ((1,) * len(pieces),)
        every = tuple(same(pieces, shape) for shape in shapes)
        return tuple(map(divisible, every, shapes)) if kind in BROADCAST else every

    def own(self, operator: Operator) -> Strategy:
        """A main operator's strategy from its own cuts."""
        main, shapes = self.main[operator.name], self.graph.read_shapes(operator)
        if operator.primitive == '_VirtualDataset':
            whole = self.devices if self.graph.dataset == 'data_parallel' else 1
            return tuple((min(whole, shapes[0][0]), *(1,) * (len(shape) - 1)) if shape else () for shape in shapes)
        if operator.primitive == 'SparseSoftmaxCrossEntropyWithLogits':
            return tuple((min(self.devices, shapes[0][0]), *(1,) * (len(shape) - 1)) for shape in shapes)
        if operator.primitive == 'MatMul':
            first, second = main.first[2:], main.second[2:]
            return (first[::-1] if operator.transpose_a else first, second[::-1] if operator.transpose_b else second)
        pieces = main.first[4 - len(shapes[0]) :]
        if operator.primitive == 'LayerNorm':
            pieces = (*pieces[:-1], 1)
        return (pieces, *((1,) * len(shape) for shape in shapes[1:]))

    def scatter(self) -> None:
        """Products whose sum is not yet cut that often: scatter it over the rows."""
        for operator in self.operators:
            if operator.primitive != 'MatMul':
                continue
            main = self.main[operator.name]
            factor = min(prod(main.first), self.devices) // prod(main.output)
            if factor > 1:
                output = (1, 1, main.output[2] * factor, main.output[3])
                self.main[operator.name] = Main(main.first, main.second, output)
                self.scattered[operator.name] = output[2:]

    def valid(self, operator: Operator) -> Strategy:
        """The strategy with pieces that do not divide their dim taken back."""
        return tuple(map(divisible, self.found[operator.name], self.graph.read_shapes(operator)))


def divisible(pieces: Pieces, shape: Shape) -> Pieces:
    """Pieces, 1 where they do not divide their dim."""
    return tuple(count if size >= count and size % count == 0 else 1 for count, size in zip(pieces, shape, strict=True))


def same(pieces: Pieces, shape: Shape) -> Pieces:
    """The same pieces for another input: 1 on dims of size 1 and on those that the pieces do not reach."""
    return tuple(1 if size == 1 or dim >= len(pieces) else pieces[dim] for dim, size in enumerate(shape))


def broadcast(pieces: Pieces, shapes: tuple[Shape, ...]) -> Strategy:
    """Right-aligned pieces for inputs of different rank; all 1 where the pieces are the smaller input's."""
    if len(pieces) != max(len(shape) for shape in shapes):
        return tuple((1,) * len(shape) for shape in shapes)
    return tuple(
        tuple(1 if size == 1 else count for size, count in zip(shape, pieces[len(pieces) - len(shape) :], strict=True))
        for shape in shapes
    )


def batch_product(operator: Operator, pieces: Pieces) -> Strategy:
    """A BatchMatMul's inputs from the pieces of its output; the contracted axis stays whole."""
    *lead, i, j = pieces
    first = (*lead, 1, i) if operator.transpose_a else (*lead, i, 1)
    second = (*lead, j, 1) if operator.transpose_b else (*lead, 1, j)
    return first, second


def reshaped(shape: Shape, output: Shape, pieces: Pieces, compat: Compat) -> Pieces:
    """Pieces of the output's dims from those of the input's.

    2.10 first gives all pieces of a dim to one dim of the output where they divide it; what is left, and all in 2.0,
    goes to the outer dims as far as it divides them.
    """
    left, made = list(pieces), [1] * len(output)
    if compat == '2.10':
        _deal(shape, output, left, made, whole=True)
    _deal(shape, output, left, made, whole=False)
    return tuple(made)


def _deal(shape: Shape, output: Shape, left: list[int], made: list[int], *, whole: bool) -> None:
    sizes, wanted, place, to = list(shape), list(output), 0, 0
    while place < len(sizes) and to < len(wanted):
        splits, merges = sizes[place] > wanted[to], sizes[place] < wanted[to]
        if not whole:
            taken = gcd(left[place], wanted[to]) if splits else left[place]
            made[to], left[place] = made[to] * taken, left[place] // taken
        elif not merges and wanted[to] % left[place] == 0:
            made[to], left[place] = made[to] * left[place], 1
        if splits:
            sizes[place] //= wanted[to]
        elif merges:
            wanted[to] //= sizes[place]
        place, to = place + (not splits), to + (not merges)
