"""Strategies of a network's layers: those that a user gave, and those that a search finds for the others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import DeviceCompute
from simpar.errors import ScheduleError
from simpar.hardware import Cluster
from simpar.layout.redistribution import Method
from simpar.model import (
    Conv2d,
    Dense,
    Embedding,
    Flatten,
    Network,
    Operator,
    Shape,
    layer_names,
    network_shapes,
    reads_of,
)
from simpar.model.library.cross_entropy import LOSS_OPERATORS
from simpar.model.operators.loss import DATASET
from simpar.model.primitive import Compat
from simpar.plan import Plan
from simpar.program.tensor import BYTES
from simpar.resolve.cuts import cut, flatten_choice, in_graphs
from simpar.resolve.degrees import degree_strategies
from simpar.resolve.loss import LOSS, as_one, check_loss, cut_loss, first_node, given_loss, in_operators
from simpar.resolve.pool import Pool
from simpar.resolve.proposal import Proposal
from simpar.resolve.step_bytes import StepBytes
from simpar.resolve.step_seconds import StepSeconds
from simpar.strategy_search import (
    Choice,
    Found,
    Graph,
    Objective,
    double_recursive,
    exact,
    propagate,
    ranked,
    workload_graph,
)
from simpar.strategy_search.graph import Dataset
from simpar.workload import Workload

GIVEN = 'given'
BEST = 8
"""How many of the cheapest by the search's own sum are counted again in their programs."""
MANY = 1000
"""Beyond so many operators a program takes seconds to simulate: half as many of each of the three sums by time."""
VERSIONS: tuple[Compat, ...] = ('2.0', '2.10')


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """A workload and a plan whose strategies are all there.

    Arguments: ``origins``, by name of a layer in programs, where its strategy comes from; of an exact search,
    ``proposals``, all that were counted in their programs, the best first, and ``bound``, the least bytes that a device
    sends by the search's sum over operators, which has no biases, and of a pipeline all stages; of one by time,
    ``seconds``, the least sum of seconds, one op after the other.
    """

    workload: Workload
    plan: Plan
    origins: Mapping[str, str] = field(default_factory=dict)
    proposals: tuple[Proposal, ...] = ()
    bound: float | None = None
    seconds: float | None = None


def find_strategies(workload: Workload, plan: Plan, cluster: Cluster) -> Strategies:
    """The workload with strategies for its dense layers, activations and loss, where ``plan.search`` asks for them.

    Layers that have one keep it. MindSpore's searches choose as the compiler does, whatever it costs; ``exact`` takes
    the least of the best few by bytes, MindSpore's choices and plain data × tensor layouts, each lowered, by bytes or
    by predicted step, of those that fit into memory. A search sees one copy of a micro-batch.
    Raises ``Infeasible`` where ranks are no power of two or no strategies can be lowered, ``ScheduleError`` where the
    search does not take the strategies that are given.
    """
    model = workload.model
    if not isinstance(model, Network):
        return Strategies(workload=workload, plan=plan)
    search = _Search(workload, model, plan, cluster)
    if plan.search == 'none':
        return Strategies(workload=workload, plan=plan, origins=search.given)
    search.check_given()
    if plan.search == 'sharding-propagation':
        return search.found(search.propagated(plan.compat), search.reached())
    if plan.search == 'double-recursive':
        return search.found(search.recursive(plan.compat), f'double recursive search of MindSpore {plan.compat}')
    return search.best()


class _Search:
    """The searches of one network, its layers under the names that programs give them."""

    def __init__(self, workload: Workload, model: Network, plan: Plan, cluster: Cluster) -> None:
        self.workload, self.model, self.plan, self.cluster = workload, model, plan, cluster
        self.layers = _named(model)
        self.devices = cluster.world // plan.pipeline
        self.slices = plan.micro_batches * plan.copies
        given = {name: layer.strategy for name, layer in self.layers.items()}
        self.fixed = in_graphs(self.layers, {name: strategy for name, strategy in given.items() if strategy})
        self.loss = first_node(workload)
        self.fixed |= given_loss(workload)

    @property
    def method(self) -> Method:
        """The plan's redistribution; where that is chosen when all layouts are known, the cheapest."""
        return 'cheapest' if self.plan.redistribution == 'predicted' else self.plan.redistribution

    @property
    def batch(self) -> int:
        """Samples of one copy of a micro-batch."""
        return self.workload.batch // self.slices

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Of what every layer gives, in one copy of a micro-batch."""
        return network_shapes(self.model, self.batch)

    @property
    def result(self) -> Shape:
        """Shape of what the loss reads."""
        return self.shapes[next(reversed(self.layers))]

    @property
    def exactly_fixed(self) -> Mapping[str, Choice]:
        """What an exact search must keep: it sees a loss of several operators as one, and cuts them by its rows."""
        pieces = given_loss(self.workload) if in_operators(self.workload) else {}
        return {name: choice for name, choice in self.fixed.items() if name not in pieces}

    def exact_graph(self) -> Graph:
        """Without biases, which programs leave where products put them, and with the loss as one operator."""
        return self.graph(as_one(self.workload), biases=False)

    def graph(self, workload: Workload | None = None, *, biases: bool = True) -> Graph:
        """The operators of one copy of a micro-batch.

        Arguments: ``workload``, by default the search's own.
        """
        named = (replace(layer, name=name) for name, layer in self.layers.items())
        layers = tuple(
            replace(layer, bias=layer.bias and biases) if isinstance(layer, Dense | Conv2d) else layer
            for layer in named
        )
        one = replace(workload or self.workload, model=replace(self.model, layers=layers), batch=self.batch)
        dataset: Dataset = 'full_batch' if self.plan.dataset == 'full-batch' else 'data_parallel'
        return workload_graph(one, dataset)

    def check_given(self) -> None:
        """Strategies are checked as users write them; a graph has its weights the other way round."""
        for (name, layer), reads in zip(self.layers.items(), reads_of(self.model), strict=True):
            if strategy := layer.strategy:
                scattered = layer.out_strategy if isinstance(layer, Dense) else ()
                layer.axes(name, *(self.shapes[read] for read in reads)).sharded(strategy, self.devices, scattered)
        check_loss(self.workload, self.result, self.devices)

    # searches

    def propagated(self, compat: Compat) -> Mapping[str, Choice]:
        return self.with_flattens(propagate(self.graph(), self.fixed, self.devices, compat))

    def recursive(self, compat: Compat) -> Mapping[str, Choice]:
        parallel = self.plan.hsdp != 'off' or self.plan.zero > 0 or bool(self.plan.shard)
        stages = self.plan.pipeline
        found = double_recursive(self.graph(), self.cluster.world, compat, optimizer_parallel=parallel, stages=stages)
        # What the compiler makes of an embedding is not known from any record: it is left to be cut by batch.
        kept = {name: choice for name, choice in found.items() if not isinstance(self.layers.get(name), Embedding)}
        return self.with_flattens(kept)

    def with_flattens(self, choices: Mapping[str, Choice]) -> Mapping[str, Choice]:
        """Those of a flatten as the network's takes them."""
        named = zip(self.layers.items(), reads_of(self.model), strict=True)
        own = {
            name: flatten_choice(choices[name], self.shapes[reads[0]])
            for (name, layer), reads in named
            if isinstance(layer, Flatten) and name not in self.fixed
        }
        return {**choices, **own}

    def without_flattens(self, choices: Mapping[str, Choice]) -> Mapping[str, Choice]:
        """A flatten lies as its input does: it is no work, and rows move as well behind it."""
        return {name: choice for name, choice in choices.items() if not isinstance(self.layers.get(name), Flatten)}

    def reached(self) -> dict[str, str]:
        """From which of the given layers each other was reached."""
        told = spread_from(self.graph(), self.fixed)
        names = {name: LOSS if first == self.loss else first for name, first in told.items()}
        origins = {
            name: f'propagated from {first} as MindSpore {self.plan.compat} does' for name, first in names.items()
        }
        return origins if in_operators(self.workload) else {**origins, LOSS: origins[self.loss]}

    def best(self) -> Strategies:
        """Exact search; whatever else is known takes part, so that nothing known is better."""
        objective = StepBytes(
            itemsize=BYTES[self.workload.precision],
            devices=self.devices,
            slices=self.slices,
            method=self.method,
            all_to_all=self.plan.all_to_all,
        )
        graph = self.exact_graph()
        least = exact(graph, self.devices, objective, fixed=self.exactly_fixed)
        seconds = self.in_seconds(objective) if self.plan.objective == 'time' else {}
        count = BEST // 2 if seconds and len(graph.operators) > MANY else BEST
        few = {
            name: ranked(graph, self.devices, count, one, fixed=self.exactly_fixed)
            for name, one in {'exact': objective, **seconds}.items()
        }
        known = Pool(replace(self.plan, search='none', redistribution=self.method), self.cluster)
        for name, choices in self.tried(least, few):
            known.add(name, self.applied(choices))
        ranking = known.ranking
        origins = self.origins(ranking[0].workload, f'searched: {ranking[0].name}, least {self.plan.objective}')
        return Strategies(
            workload=ranking[0].workload,
            plan=replace(self.plan, search='none'),
            origins=origins,
            proposals=ranking,
            bound=least.cost,
            seconds=min((few[name][0].cost for name in seconds), default=None),
        )

    def in_seconds(self, objective: StepBytes) -> dict[str, Objective]:
        """By name, with sums of parameters' gradients in line and hidden."""
        profile = self.cluster.profile
        in_line = StepSeconds(
            bytes=objective,
            compute=DeviceCompute(profile),
            collective=ClusterCollectives(self.cluster),
            host=profile.host.seconds.value,
            dtype=self.workload.precision,
        )
        return {'exact by time': in_line, 'exact by time, gradients hidden': replace(in_line, hidden=True)}

    def tried(self, least: Found, few: Mapping[str, Sequence[Found]]) -> Iterator[tuple[str, Mapping[str, Choice]]]:
        """What is tried, by name.

        Arguments: ``few``, the best few by each of some objectives.
        """
        yield 'exact', self.without_flattens(least.choices)
        for name, best in few.items():
            for place, found in enumerate(best, 1):
                yield f'{name}, number {place}', self.without_flattens(found.choices)
        for compat in VERSIONS:
            yield f'double recursive {compat}', self.recursive(compat)
            if self.fixed:
                try:
                    yield f'sharding propagation {compat}', self.propagated(compat)
                except ScheduleError:
                    # 2.0 refuses given strategies that leave ranks unused; there is then nothing to try.
                    continue
        tensor = 1
        while tensor <= self.devices:
            data = self.devices // tensor
            yield f'data {data} × tensor {tensor}', self.degrees(data, tensor)
            tensor *= 2

    def degrees(self, data: int, tensor: int) -> dict[str, Choice]:
        """A data × tensor layout."""
        return in_graphs(self.layers, degree_strategies(self.model, self.batch, data, tensor))

    # results

    def applied(self, choices: Mapping[str, Choice]) -> Workload:
        """The workload with a strategy for each layer that has none, and for the loss; none: by batch."""
        layers = tuple(
            layer if name in self.fixed else cut(layer, choices.get(name)) for name, layer in self.layers.items()
        )
        return cut_loss(replace(self.workload, model=replace(self.model, layers=layers)), choices, self.result)

    def origins(self, workload: Workload, origin: str | Mapping[str, str]) -> dict[str, str]:
        """Where the strategies of layers and loss come from; of layers that have none, nothing."""
        layers = _named(workload.model) if isinstance(workload.model, Network) else {}
        names = [name for name, layer in layers.items() if layer.strategy]
        of_loss = [LOSS_OPERATORS[name].node for name in workload.loss_strategies] or [LOSS]
        found = {name: origin if isinstance(origin, str) else origin[name] for name in (*names, *of_loss)}
        return found | self.given

    @property
    def given(self) -> dict[str, str]:
        """What the user cut."""
        return {LOSS if name == self.loss else name: GIVEN for name in self.fixed}

    def found(self, choices: Mapping[str, Choice], origin: str | Mapping[str, str]) -> Strategies:
        done = replace(self.plan, search='none')
        workload = self.applied(choices)
        return Strategies(workload=workload, plan=done, origins=self.origins(workload, origin))


def _named(network: Network) -> dict[str, Operator]:
    return dict(zip(layer_names(network), network.layers, strict=True))


def spread_from(graph: Graph, given: Collection[str]) -> dict[str, str]:
    """By operator, the given one from which propagation reaches it: of each in turn all that is not yet reached."""
    found = {name: name for name in given}
    for first in given:
        queue = [first]
        for name in queue:
            near = [other for other in _neighbours(graph, name) if other not in found]
            found.update(dict.fromkeys(near, first))
            queue += near
    return found


def _neighbours(graph: Graph, name: str) -> list[str]:
    operator = graph.operator(name)
    places = {reader for tensor in operator.writes for reader in graph.readers.get(tensor, ())}
    places |= {graph.writer[tensor] for tensor in operator.reads if tensor in graph.writer}
    near = (graph.operators[place] for place in places)
    return [other.name for other in near if other.primitive != DATASET]
