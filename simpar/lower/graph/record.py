"""One copy of a micro-batch on the tape: the model's graph, placed by degrees and strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import takewhile
from math import gcd, prod
from typing import Any, NamedTuple

from simpar.errors import Infeasible
from simpar.layout import Axis, Layout, Placed, TensorLayout, minus, operators, replicated
from simpar.lower.graph import context, loss, move
from simpar.lower.graph.chunks import attend_in_chunks, one_chunk
from simpar.lower.graph.place import Degrees, Placer, outermost
from simpar.lower.graph.stages import mirror_inputs, send_to_next_stage, stages_of
from simpar.lower.issue import Mesh, mesh_of, mesh_of_strategies
from simpar.lower.passes.messages import gathered_input
from simpar.lower.tape import Backward, Tape, Value, named_by_nothing
from simpar.model import Flatten, Operator, Reshape, Sharded, Strategy, Weighted, keys
from simpar.model.library import cross_entropy
from simpar.model.model import AHEAD, Further, Graph, Node
from simpar.model.operators import attention, stream
from simpar.model.ops import Ops
from simpar.pipeline.zero_bubble import TWO_HOMES
from simpar.plans import Plan
from simpar.workload import Transformer, Workload

# Strategies that a plan gives single operators of a model by patterns of their names.


def has_strategies(workload: Workload, plan: Plan) -> bool:
    """Whether an operator of the model, or its loss, is told by itself how it is split."""
    of_loss = bool(workload.loss_strategy) or workload.loss_operators != 'one'
    of_model = any(node.operator.strategy or node.operator.layout for node in workload.model.nodes)
    return bool(plan.strategies or plan.layouts) or of_loss or of_model


def with_strategies(nodes: Sequence[Node], plan: Plan) -> tuple[Node, ...]:
    """The nodes with the strategies and layouts that a plan gives them.

    Raises ``Infeasible`` where a pattern matches no operator, or one that takes no strategy.
    """
    if not (plan.strategies or plan.layouts):
        return tuple(nodes)
    new_nodes = _each(_each(nodes, 'strategies', plan.strategies), 'layouts', plan.layouts)
    _tie(new_nodes)
    return tuple(new_nodes)


def _each(nodes: Sequence[Node], key: str, strategies: Mapping[str, keys.Layouts | Strategy]) -> list[Node]:
    """Of the patterns that match its name a node takes the first. Arguments: ``key`` of the plan that has them."""
    free = set(strategies)
    new_nodes = []
    for node in nodes:
        matching = [pattern for pattern in strategies if matches(node.name, pattern)]
        if matching and (isinstance(node.operator, Sharded) or node.name in strategies):
            # A pattern that another one outruns is used all the same: only one that names nothing is a fault.
            free -= set(matching)
            if not isinstance(node.operator, Sharded):
                raise Infeasible(f'plan.{key}: {node.name} takes no strategy, it lies as what it reads; leave it out')
            operator = told(node.operator, strategies[matching[0]], 'strategy' if key == 'strategies' else 'layout')
            node = replace(node, operator=operator)  # noqa: PLW2901
        new_nodes.append(node)
    if free:
        names = [node.name for node in nodes if isinstance(node.operator, Sharded)]
        raise named_by_nothing(f'plan.{key}', min(free), 'operator of the model', names)
    return new_nodes


def _tie(nodes: list[Node]) -> None:
    """Where only the second operator of a tied weight has a strategy, the first splits the weight as that one."""
    place = {f'{node.name}.weight': number for number, node in enumerate(nodes)}
    for node in nodes:
        first = place.get(node.operator.tied, -1)
        if node.operator.strategy and first >= 0 and not nodes[first].operator.strategy:
            # A head's weight is [in, out], the embedding's [vocab, width] is the same turned; tokens have no
            # features.
            rows, (k, n) = node.operator.strategy[:2]
            nodes[first] = replace(nodes[first], operator=told(nodes[first].operator, ((n, k), rows[:-1])))


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern is a name or matches it."""
    return name == pattern or fnmatchcase(name, pattern)


def told(operator: Operator, parts: keys.Layouts | Strategy, key: str = 'strategy') -> Operator:
    """An operator with a strategy or a ``layout``, whose last part may be that of its result."""
    other, count = ('layout' if key == 'strategy' else 'strategy'), operator.splits_result
    own: dict[str, Any] = {key: parts[:count] if count else parts, other: ()}
    if count:
        own |= {f'out_{key}': parts[count] if parts[count:] else (), f'out_{other}': ()}
    return replace(operator, **own)


def counts_of(layouts: keys.Layouts, matrix: Mapping[str, int]) -> Strategy:
    """The strategy that layouts come to: into how many slices the axes of a device matrix split each dim."""
    return tuple(
        tuple(prod(matrix[axis] for axis in dim.split('+')) if dim.lower() != 'none' else 1 for dim in dims)
        for dims in layouts
    )


# The forward of a model's graph on the tape, its loss, and the backward of both.
#
# Each operator lies as its strategy or its layout says; by degrees; or as what it reads, where it has neither.


Shape = tuple[int, ...]
ATTENDS = (attention.Attention, attention.AttentionScores, attention.CausalSoftmax, attention.AttentionValues)


@dataclass(frozen=True, kw_only=True, eq=False)
class Forward:
    """Emits one copy of a micro-batch.

    Arguments:
        stages: of the graph's nodes.
        degrees: how operators without a strategy are placed; None: they are split by batch, or lie as they read.
        full_batch: every rank reads all samples, else its own slice.
        summed: the losses of copies add up.
        context_kind, context_heads: how attention sees the tokens of all context ranks, as of a plan.
        cores: by name of an unfused attention over parts of its keys, what its operators share; it grows.
        repeated: queries, keys and values with repeated keys, by the name of those without; it grows.
    """

    tape: Tape
    mover: move.Mover
    placer: Placer
    degrees: Degrees | None
    workload: Workload
    graph: Graph
    stages: Sequence[int]
    full_batch: bool
    summed: bool
    context_kind: str = 'all_gather'
    context_heads: str = 'ranks'
    scatter_gather: bool = False
    cores: dict[str, context.Unfused] = field(default_factory=dict)
    repeated: dict[str, Value] = field(default_factory=dict)

    def run(self) -> None:
        """Forward, loss and backward."""
        values = {
            one.name: self.input(one.name, one.shape, one.drawn, 'int64' if one.integer else self.tape.dtype)
            for one in self.graph.sources
        }
        for place, node in enumerate(self.graph.nodes):
            self._advance_to(self.stages[place], values, self.graph.nodes[place:])
            values[node.name] = self._node(node, place, values)
            if node.name in self._further:
                self._add_loss(values[node.name], self._further[node.name])
        self._advance_to(self.tape.mesh.stages - 1, values, ())
        self._add_loss(values[self.graph.nodes[-1].name])
        self.tape.backpropagate()
        self.tape.notes += self.degrees.notes if self.degrees else []
        if self.mover.as_compiler:
            self.mover.share()

    @cached_property
    def _further(self) -> dict[str, Further]:
        return {one.node: one for one in self.graph.further}

    def _add_loss(self, y: Value, further: Further | None = None) -> None:
        """Emit the loss of the model's result and its gradient; ``further``, of labels further on."""
        tape, workload, drawn = self.tape, self.workload, self.graph.drawn_labels
        by_class = workload.loss == 'cross-entropy'
        labels = 'mnist' if workload.data == 'mnist' else drawn if ':' in drawn else f'{drawn}:{y.shape[-1]}'
        if workload.loss_operators != 'one':
            y = loss.as_rows(tape, self.mover, self.placer, y)
            target = self.input('labels', y.shape[:-1], labels, 'int64')
            # Its operators divide by the rows of a copy themselves: copies stand in the place of samples.
            factor = loss.scale(tape, tape.mesh.copies, summed=self.summed)
            by_operators = loss.CrossEntropy(tape=tape, mover=self.mover, placer=self.placer, workload=workload,
                                             factor=factor)  # fmt: skip
            by_operators.emit(y, target)
            return
        if self.degrees and not workload.loss_strategy:
            layouts = loss.by_degrees(y, self.degrees, by_class=by_class)
        else:
            rule = (operators.cross_entropy if by_class else operators.mean_loss)('loss', y.shape)
            layouts = loss.by_strategy(rule, self.placer, workload, y)
        y = self.mover.move(y, layouts[0])
        if further:
            # The last tokens of a sample have no label so far on: a negative one is not counted.
            ahead, (samples, tokens) = f'{AHEAD}{further.ahead}', y.shape[:2]
            labels = f'{labels}{ahead}={cross_entropy.IGNORE_INDEX}'
            target = self.input(f'labels{ahead}', y.shape[:-1], labels, 'int64')
            factor = further.weight * loss.scale(tape, samples * (tokens - further.ahead), summed=self.summed)
        else:
            shape = y.shape[:-1] if by_class else y.shape
            of, dtype = ('labels', 'int64') if by_class else ('target', tape.dtype)
            target = self.input(of, shape, labels if by_class else 'normal:1', dtype)
            factor = loss.scale(tape, prod(shape), summed=self.summed)
        target, name = self.mover.move(target, layouts[1]), f'loss.mtp{further.ahead}' if further else loss.LOSS
        loss.Loss(tape, workload, y, target, factor, name).emit()

    def _advance_to(self, stage: int, values: dict[str, Value], later: Sequence[Node]) -> None:
        """Hand what is still read on to the next stage, until this one is reached."""
        if self.tape.stage == stage:
            return
        # Behind the last operator only the loss reads: the result of the model must still get there.
        wanted = {name for node in later for name in node.reads} or {self.graph.nodes[-1].name}
        mesh = self.tape.mesh
        while self.tape.stage < stage:
            crossing = [name for name in values if name in wanted and not self._everywhere(name, values[name])]
            # The next stage is at the same place, in the other direction of a pipeline.
            meets = mesh.mirrored and mesh.pipeline_rank(self.tape.stage) == mesh.pipeline_rank(self.tape.stage + 1)
            if meets and self.degrees and self.degrees.restores:
                # The mirror has other samples, and the same part of each.
                values.update(
                    {name: self.mover.move(values[name], self.degrees.own(values[name])) for name in crossing}
                )
            # What an operator of the current stage reads, too.
            names = {values[name].name for name in crossing}
            own = takewhile(lambda op: op.stage == self.tape.stage, reversed(self.tape.ops))
            self.tape.saved |= {name for op in own for name in op.reads if name in names}
            chunks = self.mover if self.scatter_gather else None
            arrived = send_to_next_stage(self.tape, [values[name] for name in crossing], chunks)
            values.update(zip(crossing, arrived, strict=True))

    def _everywhere(self, name: str, value: Value) -> bool:
        """Whether all stages have an input, as keys of dropout and tokens further on where no one gathers them."""
        return (name == stream.KEYS or AHEAD in name) and self.tape.tensors[value.name].kind == 'input'

    # inputs

    def input(self, name: str, shape: Shape, drawn: str, dtype: str) -> Value:
        """Register an input of the step, full or by batch as the data set is."""
        gathered = gathered_input(self.tape, name, shape, drawn, dtype) if self._gathers_inputs else None
        if gathered is not None:
            return gathered
        layout = replicated(self.tape.world, len(shape))
        if self.degrees and (not self.full_batch or self.degrees.restores):
            rows = outermost(self.tape.axes.data, shape[0] // self.placer.copies)
            # Behind the samples of tokens and labels stand the places of a sequence.
            places = (self.tape.axes.context,) if len(shape) > 1 else ()
            layout = TensorLayout(self.tape.world, (rows, *places, *((),) * (len(shape) - 1 - len(places))))
            drawn = f'{drawn}@{self.tape.mesh.parts}' if places and self.tape.mesh.balanced else drawn
        elif not self.full_batch:
            # A copy is a part of each slice: all inputs are sliced alike, and a slice's part holds all of a sample.
            samples = shape[0] if self.tape.mesh.copies == 1 else self._samples
            slices = (self.placer.by_batch(samples), *(1,) * (len(shape) - 1))
            layout = operators.elementwise(name, shape).sharded((slices,), self.tape.world).output
        return self.tape.register(Value(name, shape, layout, needs_gradient=False), 'input', dtype, initial=drawn)

    @property
    def _gathers_inputs(self) -> bool:
        """Whether the compiler splits a batch in slices further, for copies or for the micro-batches of a pipeline."""
        mesh = self.tape.mesh
        several = mesh.copies > 1 or (mesh.pipeline > 1 and mesh.micro_batches > 1)
        return self.mover.as_compiler and several and not self.full_batch

    @property
    def _samples(self) -> int:
        """What rows of any value can be taken together to, by reshapes."""
        return gcd(*(shape[0] for shape in self.graph.shapes.values()))

    # operators

    def _node(self, node: Node, place: int, values: dict[str, Value]) -> Value:
        reads = [values[name] for name in node.reads]
        operator, shape = node.operator, self.graph.shapes[node.name]
        if isinstance(operator, Reshape) and self.mover.as_compiler:
            y = Value(node.name, shape, self._placed(node, reads).output)
            wanted = self._wanted(y, self.graph.nodes[place + 1 :], values)
            reads = [self._before_reshape(reads[0], y, wanted)]
        flat = isinstance(operator, Flatten) and reads[0].shape == shape
        if flat and _follows(operator):
            return reads[0]
        if isinstance(operator, ATTENDS) and self.tape.axes.context:
            return self._over_context(node, reads)
        placed = self._tied(node, reads, self._placed(node, reads))
        lead = operator.lead
        layouts = placed.inputs[lead : lead + len(reads)]
        reads = [self.mover.move(value, layout) for value, layout in zip(reads, layouts, strict=True)]
        if flat:
            return reads[0]
        if isinstance(operator, attention.Attention) and self.tape.mesh.sequence_chunks > 1:
            y = Value(node.value, shape, placed.output)
            return attend_in_chunks(self.tape, node.name, operator, reads, y)
        return self._emitted(node, reads, placed)

    def _over_context(self, node: Node, reads: Sequence[Value]) -> Value:
        """Attention, or a product of it, of a sequence that the context ranks share."""
        operator = node.operator
        if self.degrees and self.degrees.restores:
            reads = [
                self.mover.move(read, self.degrees.own(read)) if role == 'qkv' else read
                for role, read in zip(operator.roles, reads, strict=False)
            ]
        if not self.tape.axes.heads:
            return self._over_parts(node, operator, reads)
        if isinstance(operator, attention.CausalSoftmax):
            return self._emitted(node, reads, self._placed(node, reads))
        assert isinstance(operator, attention.Attention | attention.AttentionScores | attention.AttentionValues)
        place = operator.roles.index('qkv')
        apart = self.context_heads == 'queries'
        exchange = context.HeadsExchange(
            self.tape, self.mover, node.name, operator.heads, reads[place], self.repeated, apart
        )
        reads = [*reads[:place], exchange.by_heads(), *reads[place + 1 :]]
        node = replace(node, operator=replace(operator, heads=exchange.exchanged))
        if self.tape.axes.ring:
            if not isinstance(operator, attention.Attention):
                raise Infeasible('plan.context_by_heads: not yet of unfused attention; write 1, or attention: flash')
            return exchange.by_tokens(self._over_parts(node, node.operator, reads))
        y = self._emitted(node, reads, self._placed(node, reads))
        return y if isinstance(operator, attention.AttentionScores) else exchange.by_tokens(y)

    def _over_parts(self, node: Node, operator: Operator, reads: Sequence[Value]) -> Value:
        """Keys and values are gathered, or go round."""
        ring, shape = self.context_kind == 'ring', self.graph.shapes[node.name]
        if isinstance(operator, attention.AttentionScores):
            core = self.cores[operator.values] = context.unfused(self.tape, node.name, operator, reads[0], ring=ring)
            return core.scores(shape)
        if isinstance(operator, attention.AttentionValues):
            return self.cores[node.name].values(node.name, reads[0], Value(node.value, shape, reads[1].layout))
        if isinstance(operator, attention.CausalSoftmax):
            (layout,) = (read.layout for read in reads)
            return self._emitted(node, reads, Placed((layout,), layout, layout))
        assert isinstance(operator, attention.Attention)
        y = Value(node.value, shape, reads[0].layout)
        return context.attend(self.tape, node.name, operator, reads, y, ring=ring)

    def _emitted(self, node: Node, reads: Sequence[Value], placed: Placed) -> Value:
        """The operator's ops, the sum behind it, and a bias behind that."""
        name = f'{node.value}.partial' if placed.local.partial else node.value
        roles = node.operator.roles
        values = dict(zip(roles, reads, strict=False))
        load = node.operator.load(*(read.load for read in reads))
        shape = node.operator.shape_of_copies(self.graph.shapes[node.name], self.tape.mesh.copies)
        y = Value(name, shape, placed.local, load=load)
        weight, loss_scale = loss.scale(self.tape, 1, summed=self.summed), self.workload.loss_scale
        site = move.Site(tape=self.tape, mover=self.mover, name=node.name, values={**values, 'y': y},
                         inputs=placed.inputs, output=placed.output, deviation=self.graph.deviation,
                         loss_weight=weight, loss_scale=loss_scale)  # fmt: skip
        ops = self._trained(node, node.operator.ops(site))
        trained = any(one.trained for one in ops.parameters) or any(read.needs_gradient for read in reads)
        if not trained:
            site = replace(site, values={**values, 'y': y._replace(needs_gradient=False)})
        y = move.emit(site, ops, roles)
        if not placed.local.partial:
            # A product that is split by nothing gives what its place in the residual stream wants in slices.
            # Kept for the backward: Megatron gathers once more only what a product reads.
            return y if y.layout == placed.output else self.mover.move(y, placed.output)._replace(again=None)
        y = self.mover.summed(y, placed.output, node.value)
        biases = [
            one for one in node.operator.parameters(y.shape)[1:] if one.role.rpartition('.')[2] in ('bias', '=bias')
        ]
        if not biases:
            return y
        # A bias of a module has a name of its own.
        (one,) = biases
        product = one.role.removeprefix('=').rpartition('.')[0] if one.role.startswith('=') else node.name
        bias = stream.Bias(product=product, bias_shape=one.shape, given=one.initial)
        z = Value(f'{node.name}.biased', y.shape, y.layout)
        site = replace(site, name=f'{node.name}.bias', values={'x': y, 'y': z}, inputs=(), output=y.layout)
        return move.emit(site, self._trained(node, bias.ops(site)), ('x',))

    def _trained(self, node: Node, ops: Ops) -> Ops:
        """The ops of a node; weights that are frozen are constants, whose gradients nobody makes."""
        if node.name not in self.graph.frozen:
            return ops
        return replace(ops, W=None, parameters=tuple(replace(one, trained=False) for one in ops.parameters))

    def _placed(self, node: Node, reads: Sequence[Value]) -> Placed:
        """As it is told, by degrees, or as what it reads; without a strategy what has weights is split by batch."""
        operator, lead, layout = node.operator, node.operator.lead, reads[0].layout
        rule = operator.axes(node.name, *(read.shape for read in reads))
        if isinstance(operator, Reshape) or (isinstance(operator, Flatten) and _follows(operator)):
            # MindSpore's compiler changes the shape of slices where each stays one block.
            viewed = self.placer.viewed(rule, layout) if self.mover.as_compiler else None
            return viewed or self.placer.followed(rule, layout)
        if operator.layout:
            matrix = self._matrix(node.name)
            return self.placer.by_layout(rule, matrix, operator.layout, operator.out_layout, lead)
        if self.degrees and not operator.strategy:
            return self.degrees.placed(operator, node.name, rule, reads)
        if operator.strategy or isinstance(operator, Weighted):
            by_batch = {rule.inputs[lead][0]: self.placer.by_batch(reads[0].shape[0])}
            strategy = operator.strategy or rule.strategy(by_batch)
            return self.placer.by_strategy(rule, strategy, operator.out_strategy, layout, lead)
        return self.placer.followed(rule, layout, lead)

    def _tied(self, node: Node, reads: Sequence[Value], placed: Placed) -> Placed:
        """A product whose weight lies already, as another operator has placed it: rows over the other ranks."""
        layout = self.tape.layouts.get(node.operator.tied)
        if layout is None or layout.dims == placed.inputs[1].dims[::-1]:
            return placed
        if node.operator.strategy and layout.shard_counts != placed.inputs[1].shard_counts[::-1]:
            raise Infeasible(
                f'{node.name}: its weight is that of another operator, which splits it as {layout.shard_counts}, '
                f'not as {placed.inputs[1].shard_counts[::-1]}; a weight lies one way: split both alike, or leave '
                'one out'
            )
        (x,), world = reads, self.tape.world
        n, k = layout.dims
        others = (*((),) * (len(x.shape) - 2),)
        rows = outermost(minus([Axis(world, 1)], (*n, *k)), x.shape[0] // self.placer.copies)
        local = TensorLayout(world, (rows, *others, n), k)
        return Placed(
            (TensorLayout(world, (rows, *others, k)), TensorLayout(world, (k, n))), local, local.without_partial()
        )

    def _matrix(self, name: str) -> Layout:
        if self.tape.names is None:
            raise Infeasible(
                f'{name}: its layout names axes, but plan.device_matrix has none; write e.g. {{dp: 2, mp: 4}}'
            )
        return self.tape.names

    # reshapes, as MindSpore's compiler does them

    def _wanted(self, y: Value, later: Sequence[Node], values: dict[str, Value]) -> TensorLayout | None:
        """Where the first operator that reads a value wants it; None where none does.

        Arguments: ``later``, the nodes behind it; ``values`` before it.
        """
        for node in later:
            if y.name in node.reads:
                by_name = {**values, y.name: y}
                reads = [by_name.get(of) or Value(of, self.graph.shapes[of], y.layout) for of in node.reads]
                return self._placed(node, reads).inputs[node.operator.lead + node.reads.index(y.name)]
        return None

    def _before_reshape(self, x: Value, y: Value, wanted: TensorLayout | None) -> Value:
        """What a reshape reads, brought to where the result is wanted if its own shape is the finer one.

        A reshape of the compiler is the redistribution from the operator before it to the one behind it, in a shape
        as fine as both.
        """
        if wanted is None or _fineness(y.shape) >= _fineness(x.shape):
            return x
        back = self.placer.viewed(operators.reshape(y.name, y.shape, x.shape), wanted)
        return self.mover.move(x, back.output) if back else x


def _follows(operator: Operator) -> bool:
    """Whether an operator is told nothing, and lies as its input does."""
    return not (operator.strategy or operator.layout)


def _fineness(shape: Shape) -> int:
    """How many dims can be split."""
    return sum(length > 1 for length in shape)


class Placement(Enum):
    """Where the operators of a graph have their layouts from; without strategies a plan's degrees say all."""

    DEGREES = 'degrees alone'
    STRATEGIES = 'strategies alone'
    BESIDE_TENSOR = 'strategies; what has none, by the tensor degree'
    BESIDE_DEGREES = 'strategies; what has none, by all degrees, to which values go back'

    @staticmethod
    def of(workload: Workload, plan: Plan) -> Placement:
        """Strategies are given, or those by batch of a graph without degrees."""
        if not has_strategies(workload, plan) and not (workload.model.by_batch and plan.tensor == 1):
            return Placement.DEGREES
        # What a strategy cannot say lies by degrees: parts of a sequence, experts, the samples of both directions.
        if isinstance(workload.model, Transformer) and (
            plan.context > 1 or plan.order == TWO_HOMES or workload.model.experts is not None
        ):
            return Placement.BESIDE_DEGREES
        if plan.context > 1:
            raise Infeasible('plan.context: context ranks share the sequence of a transformer')
        return Placement.BESIDE_TENSOR if plan.tensor > 1 else Placement.STRATEGIES

    @property
    def has_strategies(self) -> bool:
        """Whether any operator may have one: then gradients and redistributions are MindSpore's."""
        return self is not Placement.DEGREES


class Recorded(NamedTuple):
    """A tape, and the graph that is on it."""

    tape: Tape
    graph: Graph


def record(workload: Workload, plan: Plan, world: int, placement: tuple[int, ...]) -> Recorded:
    """The ops of one copy of a micro-batch, forward and backward.

    Arguments:
        workload, plan: what is recorded, and how it is split.
        world: ranks of all stages.
        placement: stage → pipeline rank, shape [stages].

    Raises ``Infeasible`` where degrees or a strategy do not fit the operator, the batch or the ranks.
    """
    if plan.redistribution == 'predicted':
        raise Infeasible('plan.redistribution: predicted is still to be resolved (simpar resolve)')
    way = Placement.of(workload, plan)
    # Else strategies tell what splits samples.
    of_degrees = way in (Placement.DEGREES, Placement.BESIDE_DEGREES)
    mesh = (mesh_of if of_degrees else mesh_of_strategies)(plan, world, workload.batch, placement)
    tape = Tape(
        mesh,
        workload.precision,
        workload.gradients or '',
        # Strategies have replicas hold partial sums of gradients, as MindSpore does: these are summed late.
        early=plan.reduce == 'early' and not way.has_strategies,
        degrees=not way.has_strategies,
        names=_matrix(plan, mesh),
        shard_group=plan.shard_group,
    )
    graph = _graph(workload, plan)
    if graph.further and (way.has_strategies or workload.loss_operators != 'one'):
        raise Infeasible(
            'workload.transformer.mtp_layers: not yet beside strategies, layouts or a loss in operators; write 0, or '
            'leave these out'
        )
    placer = Placer(tape.world, mesh.copies)
    forward = Forward(
        tape=tape,
        mover=move.Mover(tape, plan.redistribution, plan.all_to_all)
        if way.has_strategies
        else move.Mover(tape, all_to_all=plan.expert_tokens == 'features'),
        placer=placer,
        degrees=_degrees(tape, placer, plan, way) if way is not Placement.STRATEGIES else None,
        workload=workload,
        graph=graph,
        stages=stages_of(workload.model, mesh.stages, () if isinstance(plan.stages, str) else plan.stages),
        full_batch=plan.dataset == 'full-batch' and way.has_strategies,
        summed=plan.copies_loss == 'sum',
        context_kind=plan.context_kind,
        context_heads=plan.context_heads,
        scatter_gather=plan.scatter_gather,
    )
    forward.run()
    if mesh.mirrored:
        mirror_inputs(tape)
    tape.backward = Backward()
    return Recorded(tape, graph)


def _graph(workload: Workload, plan: Plan) -> Graph:
    """The graph of a micro-batch, or of one chunk of its sequence, with the plan's strategies."""
    graph = workload.model.graph(workload.batch // plan.micro_batches, digits=workload.data == 'mnist')
    graph = replace(graph, nodes=with_strategies(graph.nodes, plan))
    if plan.shared_experts == 'overlapped':
        graph = replace(graph, nodes=shared_first(graph.nodes))
    return one_chunk(graph, plan.sequence_chunks) if plan.sequence_chunks > 1 else graph


def shared_first(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes with the shared experts of a layer behind its dispatch, so that tokens travel meanwhile."""
    shared = [node for node in nodes if '.shared.' in node.name]
    order: list[Node] = []
    for node in nodes:
        if node.name.endswith('.experts.fc1'):
            order += [one for one in shared if one.layer == node.layer]
        if node not in shared:
            order.append(node)
    return tuple(order)


def _degrees(tape: Tape, placer: Placer, plan: Plan, way: Placement) -> Degrees:
    axes = tape.axes
    return Degrees(
        placer, axes.data, axes.tensor, plan.sequence_parallel, axes.expert, context=axes.context,
        restores=way is Placement.BESIDE_DEGREES, by_features=plan.expert_tokens == 'features' and plan.tensor > 1,
    )  # fmt: skip


def _matrix(plan: Plan, mesh: Mesh) -> Layout | None:
    """The device matrix of a stage, if layouts have one."""
    sizes, ranks = tuple(plan.device_matrix.values()), mesh.replicas * mesh.tensor
    if not sizes:
        return None
    if ranks % prod(sizes):
        axes = ' × '.join(f'{name} {size}' for name, size in plan.device_matrix.items())
        raise Infeasible(f'plan.device_matrix: {axes} is {prod(sizes)} ranks, which do not divide {ranks}')
    return Layout(sizes, tuple(plan.device_matrix), ranks)
