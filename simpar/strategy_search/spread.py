"""Spreading the splits of main operators: every other operator takes a neighbour's strategy, forward and backward.

The rules of MindSpore's rec_generate_strategy.cc, told apart by version.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from simpar.model.operators.loss import DATASET
from simpar.model.primitive import Compat, Main, ShardCounts, Strategy, Use, divisible
from simpar.strategy_search.graph import Graph, Operator
from simpar.strategy_search.strategies import Choice

# As ``ExtraShardMatmulOnBatchDim`` of 2.10, which counts the devices of all stages.
SCATTERS_BEYOND = 32


class Spread:
    """Strategies of all operators from those of the main ones.

    Arguments:
        graph: operators and tensors.
        main: what the search decided of main operators, by name.
        devices: of a stage.
        all_devices: of all stages.
        compat: version of MindSpore.
        order: places of operators as the compiler numbers them.
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
        self.scattered: dict[str, ShardCounts] = {}
        if compat == '2.10' and all_devices > SCATTERS_BEYOND:
            self.scatter()

    def strategies(self) -> dict[str, Choice]:
        """Passes forward and backward until nothing changes; first only strategies that use many devices pass."""
        for operator in self.operators:
            if operator.name in self.main:
                self.found[operator.name] = self.own(operator)
        left = [operator for operator in self.operators if operator.name not in self.main]
        # What uses all devices spreads first, then what uses half: an early strategy that leaves devices idle would
        # stay.
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
                # Forward passes go first again as soon as one pass has changed something.
                if len(left) < before:
                    break
            else:
                return left

    def turn(self, left: list[Operator], forward: bool, many: int) -> list[Operator]:
        """One pass over those without a strategy, from the last on; returns those that still have none."""
        still = []
        # The rest comes out reversed, so the next pass begins at the other end, as the compiler does.
        for operator in reversed(left):
            source = self.incoming(operator) if forward else self.outgoing(operator)
            shards = self.from_incoming(operator, source) if forward else self.from_outgoing(operator, source)
            if not shards or prod(shards) < many or (source is not None and source.kind.stops):
                still.append(operator)
            else:
                self.assign(operator, shards)
        return still

    def incoming(self, operator: Operator) -> Operator | None:
        """The operator that the first split input comes from, or else the last; a dataset tells nothing."""
        source = None
        for name in operator.reads:
            source = self.writer.get(name, source)
            if source is not None and any(count > 1 for dims in self.found.get(source.name, ()) for count in dims):
                break
        return None if source is None or source.primitive == DATASET else source

    def outgoing(self, operator: Operator) -> Operator | None:
        """The first operator with a strategy that reads what this one writes."""
        readers = self.readers.get(operator.writes[0], ())
        return next((reader for reader in readers if self.found.get(reader.name)), None)

    def from_incoming(self, operator: Operator, source: Operator | None) -> ShardCounts:
        """What the producer makes of the tensor; () where that is not known."""
        if source is None or (self.compat == '2.10' and operator.kind.follows_main_only and not self.is_main(source)):
            return ()
        if self.is_main(source):
            ranks = [len(shape) for shape in self.graph.read_shapes(operator) if shape]
            return source.kind.main_output(self.use(source), self.main[source.name], ranks[0]) if ranks else ()
        return self.output_of(source) if source.name in self.found else ()

    def is_main(self, operator: Operator) -> bool:
        return operator.name in self.main

    def output_of(self, source: Operator) -> ShardCounts:
        """How an operator's output is split."""
        return source.kind.output_shards(self.use(source), self.found[source.name])

    def use(self, operator: Operator) -> Use:
        """An operator at its place."""
        shapes, output = self.graph.read_shapes(operator), self.graph.output_shape(operator)
        return Use(operator, shapes, output, self.compat, self.devices)

    def from_outgoing(self, operator: Operator, target: Operator | None) -> ShardCounts:
        """What a reader wants of the tensor, told backward through the operator; () where that is not known."""
        if target is None:
            return ()
        wanted = self.found[target.name][target.reads.index(operator.writes[0])]
        return operator.kind.input_shards(self.use(operator), wanted)

    def assign(self, operator: Operator, shards: ShardCounts) -> None:
        """Makes strategies for all inputs out of one tensor's shards."""
        self.found[operator.name] = operator.kind.strategy(self.use(operator), shards)

    def own(self, operator: Operator) -> Strategy:
        """A main operator's strategy from its own splits."""
        shapes = self.graph.read_shapes(operator)
        if operator.primitive == DATASET:
            most = self.devices if self.graph.dataset == 'data_parallel' else 1
            # Never more slices than samples.
            count = min(most, shapes[0][0])
            return tuple((count, *(1,) * (len(shape) - 1)) if shape else () for shape in shapes)
        return operator.kind.main_strategy(self.use(operator), self.main[operator.name])

    def scatter(self) -> None:
        """Products whose sum is not yet split that often: scatter it over the rows."""
        for operator in self.operators:
            if not operator.kind.scatters:
                continue
            main = self.main[operator.name]
            factor = min(prod(main.first), self.devices) // prod(main.output)
            if factor > 1:
                output = (1, 1, main.output[2] * factor, main.output[3])
                self.main[operator.name] = Main(main.first, main.second, output)
                rank = len(self.graph.output_shape(operator))
                self.scattered[operator.name] = operator.kind.main_output(
                    self.use(operator), self.main[operator.name], rank
                )

    def valid(self, operator: Operator) -> Strategy:
        """The strategy with shards that do not divide their dim taken back."""
        # The compiler's last repair ("CHANGE INVALID STRATEGY").
        return tuple(map(divisible, self.found[operator.name], self.graph.read_shapes(operator)))
