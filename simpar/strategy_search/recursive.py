"""Double recursive search: MindSpore halves the work of each main operator, and spreads these splits to the others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from simpar.model.operators.loss import DATASET
from simpar.model.primitive import Compat, Main, Shape, ShardCounts, Strategy, Use, divisible
from simpar.strategy_search.graph import Graph, Operator
from simpar.strategy_search.objective import Choice, device_bits

# Spreading the splits of main operators: every other operator takes a neighbour's strategy, forward and backward.
#
# The rules of MindSpore's rec_generate_strategy.cc, told apart by version.


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
        self, graph: Graph, main: Mapping[str, Main], devices: int, all_devices: int, compat: Compat, order: list[int]
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


# Double recursive search: every loop halves the work of each main operator once, along the axis that costs least.
#
# The rules are those of MindSpore's ``recursive_programming`` (rec_core/rec_partition.cc, rec_cost.cc), told apart
# by version. Costs are counts of elements, not bytes or seconds. ``spread`` then gives the other operators what
# fits.


# MindSpore's ``REDIS_COEF``: so far above the other costs that neighbours are aligned first.
REDISTRIBUTION = 16
"""Cost of an element that changes its place, in the unit of the other costs."""
NEVER = float('inf')
ROWS, COLUMNS = 2, 3
"""Dims of a matrix in the search's view of every tensor: four dims, right-aligned."""
# The order breaks ties: of equal costs MindSpore takes the lowest index.
I, J, K, NONE = range(4)
# J leaves the input unsharded, and K the output a partial sum: neither counts as a split there.
SPLITS_INPUT = {I: ROWS, K: COLUMNS}
SPLITS_OUTPUT = {I: ROWS, J: COLUMNS}


def double_recursive(
    graph: Graph, devices: int, compat: Compat = '2.10', *, optimizer_parallel: bool = False, stages: int = 1
) -> dict[str, Choice]:
    """Strategies of all operators, by name.

    Arguments:
        graph: operators and tensors.
        devices: of all stages together, a power of two.
        compat: MindSpore's version; 2.10 prefers to split rows and may leave devices unused. Beyond 32 devices it
            scatters a contracted product's sum over its rows (``out_strategy``).
        optimizer_parallel: in 2.0 the first split of a matrix product is then by rows.
        stages: of the pipeline; the last log2(stages) splits are taken back.
    Does not model: BatchMatMul as an operator of its own (both versions spread it), more than one output, and the
        order by cost that 2.10 takes beyond 32 devices with micro-batches of less than 8.
    """
    search = _Search(graph, compat, optimizer_parallel, stages)
    loops = device_bits(devices)
    for _ in range(loops):
        search.loop()
    depth = loops - device_bits(stages)
    main = {name: node.main(depth) for name, node in search.nodes.items()}
    return Spread(graph, main, devices // stages, devices, compat, search.order).strategies()


def search_order(graph: Graph) -> list[int]:
    """Places of operators as the compiler numbers them: from the last one, what it reads last comes first."""
    order, seen, stack = [], set(), [len(graph.operators) - 1]
    while stack:
        place = stack.pop()
        if place in seen:
            continue
        seen.add(place)
        order.append(place)
        reads = graph.operators[place].reads
        stack.extend(graph.writer[name] for name in reads if name in graph.writer)
    return order


def is_main(operator: Operator, compat: Compat) -> bool:
    """Whether the search splits an operator itself; the others follow their neighbours."""
    return compat in operator.kind.main


def four_dims(shape: Shape) -> Shape:
    """A shape right-aligned to four dims."""
    return (*(1,) * (4 - len(shape)), *shape)


@dataclass(slots=True)
class _Node:
    """A main operator: its shapes now, and the axis of each split so far (of four dims, or I, J, K of a product)."""

    operator: Operator
    shape: Shape
    output: Shape
    sizes: list[int]
    splits: list[int | None] = field(default_factory=list)

    @property
    def product(self) -> bool:
        return self.operator.kind.halved == 'product'

    def split(self, axis: int | None) -> None:
        self.splits.append(axis)
        if axis is not None and not (self.product and axis == NONE):
            self.sizes[axis] //= 2

    def dim(self, of_product: Mapping[int, int]) -> int | None:
        """The dim that the last split went through; a product's axis is told by the table."""
        last = self.splits[-1]
        return last if last is None or not self.product else of_product.get(last)

    def main(self, depth: int) -> Main:
        """What the first splits make of input, weight and output, as shards of four dims each."""
        shards = [[1] * 4 for _ in range(3)]
        for axis in self.splits[:depth]:
            if axis is None:
                continue
            if not self.product:
                for tensor in (0, 2):
                    shards[tensor][axis] *= 2
            else:
                for tensor, dim in {I: ((0, 2), (2, 2)), J: ((1, 3), (2, 3)), K: ((0, 3), (1, 2))}.get(axis, ()):
                    shards[tensor][dim] *= 2
        return Main(*(tuple(tensor) for tensor in shards))


class _Search:
    """The state of the partition: nodes by name, and who borders on whom when the others are left out."""

    def __init__(self, graph: Graph, compat: Compat, optimizer_parallel: bool, stages: int) -> None:
        self.graph, self.compat, self.optimizer_parallel = graph, compat, optimizer_parallel
        self.order = search_order(graph)
        self.nodes: dict[str, _Node] = {}
        self.producers: dict[str, list[_Node]] = {}
        self.consumers: dict[str, list[_Node]] = {}
        main = [place for place in self.order if is_main(graph.operators[place], compat)]
        # With a pipeline in the order of numbers, from the last operator on; else from the first.
        self.visits = [graph.operators[place].name for place in (main if stages > 1 else reversed(main))]
        self.borders()

    def borders(self) -> None:
        """Fills nodes, producers and consumers, the neighbours through operators that are not main."""
        behind: dict[str, dict[str, None]] = {}
        for operator in self.graph.operators:
            # Dicts as ordered sets: neighbours that the search leaves out pass on whom they read from.
            before = {name: None for read in operator.reads for name in behind.get(read, ())}
            if not is_main(operator, self.compat):
                behind.update(dict.fromkeys(operator.writes, before))
                continue
            behind.update({name: {operator.name: None} for name in operator.writes})
            node = self.nodes[operator.name] = self.node(operator)
            self.producers[operator.name] = [self.nodes[name] for name in before]
            for name in before:
                self.consumers.setdefault(name, []).append(node)

    def node(self, operator: Operator) -> _Node:
        shape = four_dims(operator.kind.as_seen(self.graph.read_shapes(operator)[0]))
        if operator.transpose_a:
            shape = (*shape[:2], shape[3], shape[2])
        output = four_dims(operator.kind.as_seen(self.graph.output_shape(operator)))
        sizes = [shape[ROWS], output[COLUMNS], shape[COLUMNS]] if operator.kind.halved == 'product' else list(shape)
        return _Node(operator, shape, output, sizes)

    def loop(self) -> None:
        """Splits every node once; sizes and neighbours' splits are those of this loop."""
        # A neighbour that this loop has not visited still shows the last loop's split, so it must not count.
        visited: set[str] = set()
        for name in self.visits:
            node = self.nodes[name]
            node.split(self.best_of_product(node, visited) if node.product else self.first_even(node))
            visited.add(name)

    def first_even(self, node: _Node) -> int | None:
        """The first dim that can be halved; a convolution's is its batch, and what is unknown stays full."""
        halved = node.operator.kind.halved
        if halved == 'nothing':
            return None
        # Only the batch of a convolution: MindSpore leaves channels unless it is told to partition them.
        dims = range(1) if halved == 'batch' else range(4)
        return next((dim for dim in dims if node.sizes[dim] >= 2 and node.sizes[dim] % 2 == 0), None)

    def best_of_product(self, node: _Node, visited: set[str]) -> int | None:
        """The cheapest axis; the first of equals, none where nothing can be split."""
        # Whatever it costs, and even where rows are odd: ``Spread.valid`` takes back what does not divide.
        if self.compat == '2.0' and self.optimizer_parallel and I not in node.splits:
            return I
        costs = [cost + self.redistribution(node, axis, visited) for axis, cost in enumerate(self.work(node))]
        axis = costs.index(min(costs))
        return None if costs[axis] == NEVER else axis

    def work(self, node: _Node) -> list[float]:
        """Costs of splitting rows, columns, the contracted axis, and nothing."""
        i, j, k = node.sizes
        # 0.1 is 2.10's ``rp_matmul_mem_coef``, which prefers rows, that is data parallelism.
        costs = [k * j / 2 * (0.1 if self.compat == '2.10' else 1), i * k / 2, i * j / 2]
        # In 2.10 not to split wins for small products, which then leave devices unused; in 2.0 it never competes.
        no_split = min(costs) ** 2 / 25 if self.compat == '2.10' else NEVER
        # J and K exclude each other for good: both versions forbid one once the other was taken.
        for axis, size, rival in ((I, i, None), (J, j, K), (K, k, J)):
            if size < 2 or size % 2 or rival in node.splits:
                costs[axis] = NEVER
        return [*costs, no_split]

    def redistribution(self, node: _Node, axis: int, visited: set[str]) -> float:
        """Elements that would change their place towards the neighbours that this loop has visited."""
        i, j, k = node.sizes
        name = node.operator.name
        before = sum(
            SPLITS_INPUT.get(axis) != other.dim(SPLITS_OUTPUT)
            for other in self.producers[name]
            if other.operator.name in visited and self.adjacent(other.output, node.shape)
        )
        after = sum(SPLITS_OUTPUT.get(axis) != other.dim(SPLITS_INPUT) for other in self.after(node, visited))
        return float(REDISTRIBUTION * (before * i * k + after * i * j))

    def after(self, node: _Node, visited: set[str]) -> Iterator[_Node]:
        for other in self.consumers.get(node.operator.name, ()):
            if other.operator.name in visited:
                # 2.0 compares the two outputs, not what passes between them.
                shape = other.shape if self.compat == '2.10' else other.output
                if self.adjacent(node.output, shape):
                    yield other

    def adjacent(self, written: Shape, read: Shape) -> bool:
        """Whether two nodes pass one tensor on; 2.10 sees it through reshapes."""
        return written == read if self.compat == '2.0' else prod(written) == prod(read)
