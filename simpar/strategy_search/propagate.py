"""Sharding propagation: from the operators that a user split, each neighbour takes the split that it is asked for.

The rules are those of MindSpore's ``sharding_propagation`` (graph_costmodel.cc, edge_costmodel.cc), by version: 2.10
lets an operator use a part of the devices and copies layouts through elementwise operators; 2.0 uses all devices
or splits nothing. It finds no optimum: each operator is fixed once, gradients of weights count nothing, and the order
of the walk decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from simpar.errors import Problem, ScheduleError
from simpar.model.operators.loss import DATASET
from simpar.model.primitive import Compat
from simpar.strategy_search.graph import Graph, Operator
from simpar.strategy_search.rules import Bits, Choice, Rule, ShardedOperator, device_bits, rule, split_of, used

# Numbered in the order of preference, for keys are compared.
EQUAL, SLICES, COMMUNICATES = range(3)


def propagate(graph: Graph, fixed: Mapping[str, Choice], devices: int, compat: Compat = '2.10') -> dict[str, Choice]:
    """Strategies of all operators, by name, from those that the user fixed.

    Arguments:
        graph: operators and tensors.
        fixed: what the user chose, by operator name.
        devices: how many, a power of two.
        compat: MindSpore's version.

    Raises ScheduleError where nothing is fixed, or where a fixed strategy cannot be. Redistribution between two fixed
    operators that do not fit is left to whoever lowers the strategies.
    """
    if not fixed:
        raise ScheduleError(
            Problem('plan', 'sharding propagation starts at operators that you split', 'split at least one')
        )
    walk = _Walk(graph, devices, compat)
    for name, choice in fixed.items():
        split = split_of(graph, graph.operator(name), choice.strategy, devices)
        if compat == '2.0' and 0 < split.used < device_bits(devices):
            raise ScheduleError(Problem(name, f'{choice.strategy} leaves devices unused, which MindSpore 2.0 refuses'))
        walk.chosen[name] = split
    for name in fixed:
        # In the order given: where two walks meet, what the first one fixed stays.
        walk.from_(graph.names.index(name))
    for operator in graph.operators:
        if operator.name not in walk.chosen:
            walk.chosen[operator.name] = walk.default(operator)
    found = {name: Choice(walk.chosen[name].strategy) for name in graph.names}
    return {**found, **fixed}


@dataclass(frozen=True, slots=True)
class _Step:
    """A neighbour to be fixed: over which tensor, and whether it reads that tensor or writes it."""

    place: int
    tensor: str
    reads: bool


class _Walk:
    """Fixes operators one by one; successors of the first operator come before its predecessors."""

    def __init__(self, graph: Graph, devices: int, compat: Compat) -> None:
        self.graph, self.devices, self.compat = graph, devices, compat
        self.chosen: dict[str, ShardedOperator] = {}
        self.rules: dict[object, Rule] = {}
        self.answers: dict[object, ShardedOperator] = {}

    def from_(self, start: int) -> None:
        """Fixes everything that hangs together with an operator."""
        queue = deque([start])
        while queue:
            place = queue.popleft()
            # Successors before predecessors, as MindSpore walks: each is fixed once, so the order decides whom it
            # follows.
            for step in (*self.successors(place), *self.predecessors(place)):
                operator = self.graph.operators[step.place]
                if operator.name not in self.chosen and operator.primitive != DATASET:
                    self.chosen[operator.name] = self.choose(step, self.graph.operators[place])
                    queue.append(step.place)

    def successors(self, place: int) -> Iterator[_Step]:
        for tensor in self.graph.operators[place].writes:
            yield from (_Step(reader, tensor, True) for reader in self.graph.readers.get(tensor, ()))

    def predecessors(self, place: int) -> Iterator[_Step]:
        for tensor in self.graph.operators[place].reads:
            if tensor in self.graph.writer:
                yield _Step(self.graph.writer[tensor], tensor, False)

    def choose(self, step: _Step, neighbour: Operator) -> ShardedOperator:
        """The neighbour's layout decides: no redistribution, then least communication, then least computation."""
        operator = self.graph.operators[step.place]
        known = self.layout(neighbour, step.tensor, writes=step.reads)
        position = operator.reads.index(step.tensor) if step.reads else -1
        # Rules live as long as the walk, so the id of one stands for it.
        asked = (id(self.kind(operator)), position, known)
        if asked not in self.answers:
            copied = self.copied(operator, position, known)
            options = [copied] if copied else self.candidates(operator)
            # Of equal keys the first candidate wins, in the order of strategies.
            self.answers[asked] = min(options, key=lambda split: self.key(operator, split, position, known))
        return self.answers[asked]

    def copied(self, operator: Operator, position: int, known: Bits) -> ShardedOperator | None:
        """2.10 copies a layout through operators that are not heavy, where they can have it."""
        if self.compat == '2.0' or operator.kind.weighs_work:
            return None
        found = self.kind(operator)
        return found.copy(found.output if position < 0 else found.reads[position], known)

    def key(self, operator: Operator, split: ShardedOperator, position: int, known: Bits) -> tuple[float, ...]:
        """What is compared; ``position`` is the input that the neighbour writes, −1 where it reads the output."""
        there = split.output if position < 0 else split.inputs[position]
        redistribution = relayout(there, known) if position < 0 else relayout(known, there)
        if not operator.kind.weighs_work:
            # 2.0 takes the fully used layout with the fewest splits of rows, and replicates only where nothing else
            # is left.
            idle = self.compat == '2.0' and position >= 0 and split.used == 0
            return redistribution, idle, *split.strategy[0]
        shapes = self.graph.read_shapes(operator)
        output = prod(self.graph.output_shape(operator)) / prod(1 << len(dim) for dim in split.output)
        sums = output if split.partial else 0
        slices = sum(prod(shape) / prod(shards) for shape, shards in zip(shapes, split.strategy, strict=True))
        # Communication before computation: the other way round misses 11 of 28 recorded propagations of 2.10.
        return redistribution, sums, slices + sums

    def layout(self, operator: Operator, tensor: str, *, writes: bool) -> Bits:
        """Layout of a tensor at an operator that is fixed already."""
        split = self.chosen[operator.name]
        return split.output if writes else split.inputs[operator.reads.index(tensor)]

    def kind(self, operator: Operator) -> Rule:
        """The operator's rule; a rule is made once for operators that look alike."""
        look = (operator.look, self.graph.read_shapes(operator), self.graph.output_shape(operator))
        if look not in self.rules:
            self.rules[look] = rule(self.graph, operator)
        return self.rules[look]

    def candidates(self, operator: Operator) -> list[ShardedOperator]:
        """Splits that the version considers."""
        every = self.kind(operator).splits(self.devices)
        if self.compat == '2.10':
            return every
        # 2.0 considers all devices or none (its ``fully_use_devices``).
        return [split for split in every if split.used in (0, device_bits(self.devices))]

    def default(self, operator: Operator) -> ShardedOperator:
        """The dataset's split, or none."""
        sharded = operator.primitive == DATASET and self.graph.dataset == 'data_parallel'
        return self.kind(operator).splits(self.devices)[-1 if sharded else 0]


def relayout(source: Bits, target: Bits) -> int:
    """What it takes to get from one layout to another: nothing, slices alone, or communication."""
    if source == target:
        return EQUAL
    taken = used(source)
    # A slice only appends bits that no dim has yet; a bit that leaves another dim moves data.
    sliced = all(to[: len(at)] == at and not taken & set(to[len(at) :]) for at, to in zip(source, target, strict=True))
    return SLICES if sliced else COMMUNICATES
