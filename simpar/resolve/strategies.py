"""Strategies of a model's operators: those that a user gave, and those that searches find for the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from simpar import errors, hardware, layout, plans
from simpar.cost import collective, compute, formula
from simpar.lower import lower
from simpar.lower.graph.record import counts_of, has_strategies, with_strategies
from simpar.model import KINDS, Conv2d, Dense, Embedding, Flatten, Shape, Sharded, Strategy, primitive
from simpar.model.library.cross_entropy import LOSS_OPERATORS
from simpar.model.model import Graph as ModelGraph
from simpar.model.model import Node
from simpar.model.operators.loss import DATASET
from simpar.pipeline.orders import AUTOMATIC
from simpar.program import BYTES, Program, Role
from simpar.resolve import choices, objectives
from simpar.resolve.resolve import simulated
from simpar.strategy_search import Choice, Found, Graph, Objective, double_recursive, propagate, ranked
from simpar.strategy_search.graph import Dataset, model_graph
from simpar.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """A workload and a plan whose strategies are all there.

    Arguments:
        origins: by name of a layer in programs, where its strategy comes from.
        proposals: of an exact search, all that were counted in their programs, the best first.
        bound: of an exact search, the least bytes that a device sends, summed over operators of all stages, no biases.
        seconds: of a search by time, the least sum of seconds, one op after the other.
    """

    workload: Workload
    plan: plans.Plan
    origins: Mapping[str, str] = field(default_factory=dict)
    proposals: tuple[Proposal, ...] = ()
    bound: float | None = None
    seconds: float | None = None


def find_strategies(workload: Workload, plan: plans.Plan, cluster: hardware.Cluster) -> Strategies:
    """The workload, and the plan, with strategies for operators and the loss, where ``plan.search`` asks for them.

    Layers that have one keep it. MindSpore's searches choose as the compiler does, whatever it costs; ``exact`` takes
    the least of the best few by bytes, MindSpore's choices and plain data × tensor layouts, each lowered, by bytes or
    by predicted step, of those that fit into memory. A search sees one copy of a micro-batch.
    Devices that are no power of two, which MindSpore's searches do not take: the odd factor splits samples, and the
    search splits the rest. Raises ``Infeasible`` where no strategies can be lowered, ``ScheduleError`` where the search
    does not take the strategies that are given.
    """
    if plan.search == 'none' and not has_strategies(workload, plan):
        return Strategies(workload=workload, plan=plan)
    search = _Search(workload, plan, cluster)
    if plan.search == 'none':
        return Strategies(workload=workload, plan=plan, origins=search.given)
    search.check_given()
    if plan.search == 'sharding-propagation':
        return search.found(search.propagated(plan.compat), search.reached())
    if plan.search == 'double-recursive':
        return search.found(search.recursive(plan.compat), f'double recursive search of MindSpore {plan.compat}')
    return search.best()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Strategies and what becomes of them.

    Arguments:
        name: who proposed them first.
        workload: with the strategies that its file lists.
        plan: with all other strategies.
        sent: bytes that the busiest rank sends in a step, in ring and pairwise form.
        step: predicted seconds.
        too_much: bytes that the fullest rank lacks.
        also: who else proposed them.
    """

    name: str
    workload: Workload
    plan: plans.Plan
    sent: float
    step: float
    too_much: float
    also: tuple[str, ...] = ()


def weighed(name: str, workload: Workload, plan: plans.Plan, cluster: hardware.Cluster) -> Proposal:
    """Lower, price and simulate strategies; raises ``Infeasible`` where they cannot be lowered.

    What the plan leaves to resolving besides is taken as it is by default: equal stages, 1F1B, a message a layer.
    """
    program = lower(workload, _decided(plan), cluster.world)
    trial = simulated(program, cluster)
    return Proposal(
        name=name,
        workload=workload,
        plan=plan,
        sent=max(sent_bytes(program, role) for role in program.roles),
        step=float(trial.steps[-1]),
        too_much=trial.too_much,
    )


def least_first(objective: str) -> Callable[[Proposal], tuple[float, float, float]]:
    """The order of proposals: those that fit into memory first, then by the objective, then by the other."""

    def key(one: Proposal) -> tuple[float, float, float]:
        # The other objective breaks ties: several strategies often send the same bytes.
        second, third = (one.step, one.sent) if objective == 'time' else (one.sent, one.step)
        return one.too_much, second, third

    return key


def sent_bytes(program: Program, role: Role) -> float:
    """Bytes that a rank of a role sends in a step, its collectives in ring form and its all-to-alls pairwise."""
    total = 0.0
    for index in role.op_class.tolist():
        op = program.op_classes[index]
        if op.kind == 'collective':
            total += formula.share('ring', op.operator, program.partitions[op.partition].size) * op.bytes
        elif op.kind == 'send':
            total += op.bytes
    return total


def _decided(plan: plans.Plan) -> plans.Plan:
    stages = () if isinstance(plan.stages, str) else plan.stages
    # An order that is still to be found has no actions to simulate; 1F1B has the same stages.
    order = '1f1b' if plan.order in AUTOMATIC and not plan.rows else plan.order
    fusion = 'layer' if plan.fusion == 'predicted' else plan.fusion
    return replace(plan, stages=stages, order=order, fusion=fusion)


GIVEN = 'given'
BEST = 8
"""How many of the cheapest by the search's own sum are counted again in their programs."""
MANY = 1000
"""Beyond so many operators a program takes seconds to simulate: half as many of each of the three sums by time."""
VERSIONS: tuple[primitive.Compat, ...] = ('2.0', '2.10')


class _Search:
    """The searches of one model, its operators under the names that programs give them."""

    def __init__(self, workload: Workload, plan: plans.Plan, cluster: hardware.Cluster) -> None:
        self.workload, self.plan, self.cluster = workload, plan, cluster
        self.devices = cluster.world // plan.pipeline
        self.odd = choices.odd_factor(self.devices)
        self.twos = self.devices // self.odd
        self.slices = plan.micro_batches * plan.copies
        self.nodes = with_strategies(workload.model.nodes, plan)
        self.operators = {node.name: node.operator for node in self.nodes}
        matrix = plan.device_matrix
        by_name = {
            name: operator.strategy or counts_of(operator.layout, matrix) for name, operator in self.operators.items()
        }
        self.fixed = choices.in_graphs(
            self.operators, {name: strategy for name, strategy in by_name.items() if strategy}
        )
        self.loss = choices.first_node(workload)
        self.fixed |= choices.given_loss(workload)

    @property
    def method(self) -> layout.Method:
        """The plan's redistribution; where that is chosen when all layouts are known, the cheapest."""
        return 'cheapest' if self.plan.redistribution == 'predicted' else self.plan.redistribution

    @property
    def batch(self) -> int:
        """Samples of one copy of a micro-batch."""
        return self.workload.batch // self.slices

    @cached_property
    def model(self) -> ModelGraph:
        """One copy of a micro-batch."""
        return replace(self.workload.model.graph(self.batch), nodes=self.nodes)

    @cached_property
    def part(self) -> ModelGraph:
        """What the odd factor of the devices leaves of its samples to a search by twos."""
        return (
            replace(self.workload.model.graph(self.batch // self.odd), nodes=self.nodes) if self.odd > 1 else self.model
        )

    @cached_property
    def rules(self) -> choices.Rules:
        """Named dims of all operators."""
        return {node.name: (self.axes(node), node.operator.lead) for node in self.nodes}

    def by_twos(self, fixed: Mapping[str, Choice]) -> Mapping[str, Choice]:
        """What is fixed in a part of the samples."""
        return choices.divided(fixed, self.rules, self.odd) if self.odd > 1 else fixed

    def in_full(self, choice_of: Mapping[str, Choice]) -> Mapping[str, Choice]:
        """What was chosen for a part of the samples, for all parts."""
        return choices.times(choice_of, self.rules, self.odd) if self.odd > 1 else choice_of

    @property
    def result(self) -> Shape:
        """Shape of what the loss reads."""
        return self.model.shapes[self.nodes[-1].name]

    @property
    def exactly_fixed(self) -> Mapping[str, Choice]:
        """What an exact search must keep: it sees a loss of several operators as one, and splits them by its rows."""
        loss_choices = choices.given_loss(self.workload) if choices.in_operators(self.workload) else {}
        return {name: choice for name, choice in self.fixed.items() if name not in loss_choices}

    def graph(self, workload: Workload | None = None, *, biases: bool = True) -> Graph:
        """The operators of one copy of a micro-batch.

        Arguments: ``workload``, by default the search's own.
        """
        current = workload or self.workload
        nodes = self.nodes if biases else tuple(map(_without_bias, self.nodes))
        dataset: Dataset = 'full_batch' if self.plan.dataset == 'full-batch' else 'data_parallel'
        loss = current.loss_operators if choices.in_operators(current) else current.loss
        return model_graph(replace(self.part, nodes=nodes), loss, dataset)

    def check_given(self) -> None:
        """Strategies are checked as users write them; a graph has its weights the other way round."""
        for node in self.nodes:
            if strategy := node.operator.strategy:
                self.axes(node).sharded(strategy, self.devices, node.operator.out_strategy)
        choices.check_loss(self.workload, self.result, self.devices)

    def axes(self, node: Node) -> layout.Rule:
        """The named dims of a node."""
        return node.operator.axes(node.name, *(self.model.shapes[read] for read in node.reads))

    # searches

    def propagated(self, compat: primitive.Compat) -> Mapping[str, Choice]:
        self.check_samples()
        fixed = self.by_twos(self.fixed)
        # Where the odd factor splits nobody's rows there is nothing to start from: degrees or the batch say all.
        if not fixed:
            return {}
        return self.with_flattens(self.in_full(propagate(self.graph(), fixed, self.twos, compat)))

    def check_samples(self) -> None:
        """The odd factor of the devices must divide the samples of a copy."""
        if self.batch % self.odd:
            raise errors.Infeasible(
                f'plan.search: {self.devices} devices are no power of two, and their odd factor {self.odd} does not '
                f'divide the {self.batch} samples of a copy; write a multiple of {self.slices * self.odd} as batch'
            )

    def recursive(self, compat: primitive.Compat) -> Mapping[str, Choice]:
        parallel = self.plan.hsdp != 'off' or self.plan.zero > 0 or bool(self.plan.shard)
        self.check_samples()
        stages = self.plan.pipeline // choices.odd_factor(self.plan.pipeline)
        by_name = double_recursive(self.graph(), self.twos * stages, compat, optimizer_parallel=parallel, stages=stages)
        # What the compiler makes of an embedding is not known from any record: it is left to be split by batch.
        rest = {name: choice for name, choice in by_name.items() if not isinstance(self.operators.get(name), Embedding)}
        return self.with_flattens(self.in_full(rest))

    def with_flattens(self, choice_of: Mapping[str, Choice]) -> Mapping[str, Choice]:
        """Those of a flatten as the network's takes them."""
        own = {
            node.name: choices.flatten_choice(choice_of[node.name], self.model.shapes[node.reads[0]])
            for node in self.nodes
            if isinstance(node.operator, Flatten) and node.name not in self.fixed
        }
        return {**choice_of, **own}

    def reached(self) -> dict[str, str]:
        """From which of the given layers each other was reached."""
        sources = spread_from(self.graph(), self.fixed)
        names = {name: choices.LOSS if first == self.loss else first for name, first in sources.items()}
        origins = {
            name: f'propagated from {first} as MindSpore {self.plan.compat} does' for name, first in names.items()
        }
        return origins if choices.in_operators(self.workload) else {**origins, choices.LOSS: origins[self.loss]}

    def best(self) -> Strategies:
        """Exact search; whatever else is known takes part, so that nothing known is better."""
        objective = objectives.StepBytes(
            itemsize=BYTES[self.workload.precision],
            devices=self.twos,
            slices=self.slices,
            method=self.method,
            all_to_all=self.plan.all_to_all,
        )
        if self.batch % self.odd:
            # The odd factor has no equal part of the samples to search in; layouts by degrees remain.
            return self.of_known({}, None)
        # Without biases, which programs leave where products put them, and with the loss as one operator.
        graph = self.graph(replace(self.workload, loss_operators='one', loss_strategies={}), biases=False)
        fixed = self.by_twos(self.exactly_fixed)
        seconds = self.in_seconds(objective) if self.plan.objective == 'time' else {}
        # Simulating them takes the time, not finding them.
        count = BEST // 2 if seconds and len(graph.operators) > MANY else BEST
        few = {
            name: ranked(graph, self.twos, count, one, fixed=fixed)
            for name, one in {'exact': objective, **seconds}.items()
        }
        least = few['exact'][0]
        few['exact'] = [least, *few['exact']]
        return self.of_known(few, least.cost if self.odd == 1 else None)

    def of_known(self, few: Mapping[str, Sequence[Found]], bound: float | None) -> Strategies:
        """The best of all that is known.

        Arguments: ``few``, the best few by each of some objectives, the first twice.
        """
        plan, proposals = replace(self.plan, search='none', redistribution=self.method), dict[object, Proposal]()
        problems = []
        for name, choice_of in self.tried(few):
            workload, strategies = self.applied(choice_of)
            # Strategies are dicts, which have no hash: their items stand in the key.
            keys = (tuple(part.items()) for part in (workload.loss_strategies, strategies))
            key = workload.model, workload.loss_strategy, *keys
            if key in proposals:
                proposals[key] = replace(proposals[key], also=(*proposals[key].also, name))
                continue
            try:
                proposals[key] = weighed(name, workload, replace(plan, strategies=strategies), self.cluster)
            except errors.Infeasible as wrong:
                # One that cannot be lowered is no fault of the user, unless none can: then the first reason is told.
                problems.append(wrong)
        if not proposals:
            raise problems[0]
        ranking = tuple(sorted(proposals.values(), key=least_first(self.plan.objective)))
        best = ranking[0]
        origin = f'searched: {best.name}, least {self.plan.objective}'
        origins = self.origins(best.workload, best.plan.strategies, origin)
        return Strategies(
            workload=best.workload,
            plan=replace(self.plan, search='none', strategies=best.plan.strategies),
            origins=origins,
            proposals=ranking,
            bound=bound,
            seconds=min((solutions[0].cost for name, solutions in few.items() if name != 'exact'), default=None),
        )

    def in_seconds(self, objective: objectives.StepBytes) -> dict[str, Objective]:
        """By name, with sums of parameters' gradients in line and hidden."""
        profile = self.cluster.profile
        in_line = objectives.StepSeconds(
            bytes=objective,
            compute=compute.DeviceCompute(profile),
            collective=collective.ClusterCollectives(self.cluster),
            host=profile.host.seconds.value,
            dtype=self.workload.precision,
        )
        return {'exact by time': in_line, 'exact by time, gradients hidden': replace(in_line, hidden=True)}

    def tried(self, few: Mapping[str, Sequence[Found]]) -> Iterator[tuple[str, Mapping[str, Choice]]]:
        """What is tried, by name.

        Arguments: ``few``, the best few by each of some objectives.
        """
        # A flatten lies as its input does: it is no work, and rows move as well behind it.
        flattens = {node.name for node in self.nodes if isinstance(node.operator, Flatten)}
        for name, best in few.items():
            for place, solution in enumerate(best, name != 'exact'):
                full = self.in_full(solution.choices)
                chosen = {own: choice for own, choice in full.items() if own not in flattens}
                yield f'{name}, number {place}' if place else name, chosen
        for compat in VERSIONS:
            yield f'double recursive {compat}', self.recursive(compat)
            if self.fixed:
                try:
                    yield f'sharding propagation {compat}', self.propagated(compat)
                except errors.ScheduleError:
                    # 2.0 refuses given strategies that leave ranks unused; there is then nothing to try.
                    continue
        for tensor in range(1, self.devices + 1):
            if self.devices % tensor == 0:
                data = self.devices // tensor
                strategies = choices.degree_strategies(self.model, data, tensor)
                yield f'data {data} × tensor {tensor}', choices.in_graphs(self.operators, strategies)

    # results

    def applied(self, choice_of: Mapping[str, Choice]) -> tuple[Workload, dict[str, Strategy]]:
        """The workload with a strategy for each operator that has none, and for the loss; none: by batch or degrees.

        What a file does not list has its strategy among those of the plan.
        """
        chosen = {node.name: choice_of[node.name] for node in self.nodes if self.takes(node, choice_of)}
        workload, strategies = self.workload, dict(self.plan.strategies)
        if workload.model.listed:
            listed = [
                choices.with_choice(operator, chosen.get(name)) for name, operator in workload.model.operators.items()
            ]
            workload = replace(workload, model=workload.model.with_listed(listed))
        else:
            mine = {name: choices.written(self.operators[name], one) for name, one in chosen.items()}
            strategies |= choices.in_patterns(mine, self.operators)
        return choices.split_loss(workload, choice_of, self.result), strategies

    def takes(self, node: Node, choice_of: Mapping[str, Choice]) -> bool:
        """Whether an operator takes what was chosen for it; a file's own layers say what is wrong with it."""
        if node.name in self.fixed or node.name not in choice_of or node.operator.layout:
            return False
        if node.name in self.tied or not isinstance(node.operator, Sharded):
            return False
        return node.operator.key in KINDS or not self.axes(node).wrong(choice_of[node.name].strategy, self.devices)

    @cached_property
    def tied(self) -> frozenset[str]:
        """Operators that share a weight, which lies one way: they are split by degrees, or by batch."""
        shared = {node.operator.tied for node in self.nodes} - {''}
        firsts = {name for name in self.operators if f'{name}.weight' in shared}
        return frozenset(firsts | {node.name for node in self.nodes if node.operator.tied})

    def origins(
        self, workload: Workload, strategies: Mapping[str, Strategy], origin: str | Mapping[str, str]
    ) -> dict[str, str]:
        """Where the strategies of operators and loss come from; of those that have none, nothing.

        Arguments: ``strategies`` of the plan.
        """
        nodes = with_strategies(workload.model.nodes, plans.Plan(strategies=dict(strategies)))
        names = [node.name for node in nodes if node.operator.strategy]
        of_loss = [LOSS_OPERATORS[name].node for name in workload.loss_strategies] or [choices.LOSS]
        by_name = {name: origin if isinstance(origin, str) else origin.get(name, GIVEN) for name in (*names, *of_loss)}
        return by_name | self.given

    @property
    def given(self) -> dict[str, str]:
        """What the user split."""
        return {choices.LOSS if name == self.loss else name: GIVEN for name in self.fixed}

    def found(self, choice_of: Mapping[str, Choice], origin: str | Mapping[str, str]) -> Strategies:
        workload, strategies = self.applied(choice_of)
        done = replace(self.plan, search='none', strategies=strategies)
        return Strategies(workload=workload, plan=done, origins=self.origins(workload, strategies, origin))


def _without_bias(node: Node) -> Node:
    layer = node.operator
    return replace(node, operator=replace(layer, bias=False)) if isinstance(layer, Dense | Conv2d) else node


def spread_from(graph: Graph, starts: Collection[str]) -> dict[str, str]:
    """By operator, the given one from which propagation reaches it: of each in turn all that is not yet reached."""
    origins = {name: name for name in starts}
    for first in starts:
        queue = [first]
        for name in queue:
            near = (graph.operators[place] for place, *_ in graph.neighbours(graph.names.index(name)))
            left = dict.fromkeys(one.name for one in near if one.primitive != DATASET and one.name not in origins)
            origins |= dict.fromkeys(left, first)
            queue += left
    return origins
