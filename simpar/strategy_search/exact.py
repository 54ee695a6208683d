"""Exact search: the strategies whose additive cost is least, by eliminating one operator after the other."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from simpar.model.operators.loss import DATASET
from simpar.strategy_search.graph import Graph, Operator
from simpar.strategy_search.objective import Bits, Bytes, Candidate, Choice, Objective, candidates, fixed_candidates

Table = NDArray[np.float64]
Part = tuple[Table, tuple[int, ...]]
"""A table and the axes of a sum that its dims are."""
# 2²⁷ numbers of 8 bytes are 1 GiB; a table beyond that would exhaust an ordinary machine before the search ends.
LARGEST_TABLE = 1 << 27


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A table over some variables, one dim each."""

    scope: tuple[int, ...]
    table: Table


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """What eliminating a variable left behind: the sum of its factors, with the variable as the first dim."""

    variable: int
    scope: tuple[int, ...]
    table: Table

    def row(self, choices: Sequence[int]) -> Table:
        """The variable's costs, with what is chosen for the others."""
        place: tuple[int | slice, ...] = (slice(None), *(choices[other] for other in self.scope))
        row: Table = self.table[place]
        return row


@dataclass(frozen=True, slots=True)
class _Partial:
    """Choices made so far, a chain from the last."""

    choice: int
    before: _Partial | None


class Elimination:
    """The least sum of factors, and assignments in the order of their sums.

    Arguments: ``sizes``, number of choices by variable; every variable is in some factor. Variables go in the order of
    the smallest table that is left behind. Raises MemoryError where that table would still be too large.
    """

    def __init__(self, sizes: Sequence[int], factors: Sequence[Factor]) -> None:
        self.sizes = tuple(sizes)
        self.buckets: list[Bucket] = []
        self._summed: dict[object, tuple[list[Part], Table, Table]] = {}
        self.least = 0.0
        self._eliminate(list(factors))

    def _eliminate(self, factors: list[Factor]) -> None:
        alive = dict(enumerate(factors))
        at: list[set[int]] = [set() for _ in self.sizes]
        for key, factor in alive.items():
            for variable in factor.scope:
                at[variable].add(key)
        queue = [(self._left(variable, alive, at), variable) for variable in range(len(self.sizes))]
        heapq.heapify(queue)
        done: set[int] = set()
        while queue:
            size, variable = heapq.heappop(queue)
            # A variable may stand in the queue several times; only its first current entry counts.
            if variable in done:
                continue
            now = self._left(variable, alive, at)
            # Eliminating neighbours has made its table larger since it was queued: it waits again under its real
            # size.
            if now > size:
                heapq.heappush(queue, (now, variable))
                continue
            done.add(variable)
            # Sorted, so that the order of a set decides nothing.
            message = self._remove(variable, [alive.pop(key) for key in sorted(at[variable])])
            removed = set(at[variable])
            for other in message.scope:
                at[other] -= removed
            # The last variable of a connected part leaves a number, which no other choice changes.
            if not message.scope:
                self.least += float(message.table)
                continue
            key = len(factors) + len(done)
            alive[key] = message
            for other in message.scope:
                at[other].add(key)
                heapq.heappush(queue, (self._left(other, alive, at), other))

    def _left(self, variable: int, alive: dict[int, Factor], at: list[set[int]]) -> int:
        """Size of the table over a variable and its neighbours."""
        around = {other for key in at[variable] for other in alive[key].scope}
        return prod(self.sizes[other] for other in around)

    def _remove(self, variable: int, factors: list[Factor]) -> Factor:
        """Sums a variable's factors and takes the least over it; the same tables (layers alike) are summed once."""
        scope = tuple(sorted({other for factor in factors for other in factor.scope} - {variable}))
        order = (variable, *scope)
        place = {other: axis for axis, other in enumerate(order)}
        parts = [(factor.table, tuple(place[other] for other in factor.scope)) for factor in factors]
        # By their axes alone: sums round by their order, which is to be the same in every run.
        parts.sort(key=lambda part: part[1])
        # Identity stands for content, for tables are never changed.
        key = (len(order), *((id(table), axes) for table, axes in parts))
        if key not in self._summed:
            total = _sum([self.sizes[other] for other in order], parts)
            # The parts are kept too: an id stays taken only as long as its table lives.
            self._summed[key] = (parts, total, total.min(axis=0))
        _, total, least = self._summed[key]
        self.buckets.append(Bucket(variable, scope, total))
        return Factor(scope, least)

    def solutions(self, steps: int) -> Iterator[tuple[float, list[int]]]:
        """Sums and choices in ascending order, best first; ends after that many steps of the search.

        Buckets say exactly what the rest costs at least, so nothing is looked at that is worse than what is returned.
        """
        order = self.buckets[::-1]
        # Of equal sums the deepest goes first, so that one solution is finished before others begin. The third number
        # is unique: choices themselves are never compared.
        heap: list[tuple[float, int, int, int, _Partial | None]] = [(self.least, 0, 0, 0, None)]
        for step in range(1, steps + 1):
            if not heap:
                return
            bound, depth, _, rank, partial = heapq.heappop(heap)
            depth = -depth
            if depth == len(order):
                yield bound, self._choices(partial, order)
                continue
            picks = self._choices(partial, order[:depth])
            bucket = order[depth]
            row = bucket.row(picks)
            ranks = np.argsort(row, kind='stable')
            # Only this row tells ranks apart: what is below is a least sum that the bound already has.
            base = bound - float(row[ranks[rank]] - row[ranks[0]])
            heapq.heappush(heap, (bound, -(depth + 1), 2 * step, 0, _Partial(int(ranks[rank]), partial)))
            if rank + 1 < len(ranks):
                worse = base + float(row[ranks[rank + 1]] - row[ranks[0]])
                heapq.heappush(heap, (worse, -depth, 2 * step + 1, rank + 1, partial))

    def _choices(self, partial: _Partial | None, order: Sequence[Bucket]) -> list[int]:
        choices = [0] * len(self.sizes)
        for bucket in reversed(order):
            if partial is None:
                break
            choices[bucket.variable] = partial.choice
            partial = partial.before
        return choices


def _sum(sizes: Sequence[int], parts: Sequence[Part]) -> Table:
    """The sum of tables, each over some of the axes."""
    if prod(sizes) > LARGEST_TABLE:
        raise MemoryError(f'a table of {list(sizes)} choices')
    total: Table = np.zeros(sizes)
    for table, axes in parts:
        shape = [1] * len(sizes)
        for axis, size in zip(axes, table.shape, strict=True):
            shape[axis] = size
        total += table.transpose(np.argsort(axes)).reshape(shape)
    return total


Layouts = tuple[Bits, ...]
# Bounds the enumeration: beyond it ``ranked`` returns fewer.
STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Arguments:
        choices: by operator name.
        cost: in the objective's unit (bytes a device, or seconds).
    """

    choices: Mapping[str, Choice]
    cost: float


def exact(
    graph: Graph, devices: int, objective: Objective | None = None, *, fixed: Mapping[str, Choice] | None = None
) -> Found:
    """The strategies that cost least, of all that ``candidates`` lists.

    Arguments:
        graph: operators and tensors.
        devices: how many, a power of two.
        objective: what is minimised; bytes unless given.
        fixed: choices of operators that a user split, by name.

    A tensor that several operators read may be redistributed once for all of them.
    """
    return ranked(graph, devices, 1, objective, fixed=fixed)[0]


def ranked(
    graph: Graph,
    devices: int,
    count: int,
    objective: Objective | None = None,
    *,
    fixed: Mapping[str, Choice] | None = None,
) -> list[Found]:
    """The best different strategies, at most ``count``, in ascending order of their cost.

    Arguments: ``fixed``, operators that a user split. Raises ``ScheduleError`` where one of these cannot be split so.
    """
    problem = _Problem(graph, devices, objective or Bytes(), fixed or {})
    best: list[Found] = []
    # The first takes a step for each variable.
    steps = max(STEPS, len(problem.sizes) + 1)
    for cost, picks in Elimination(problem.sizes, problem.factors()).solutions(steps):
        choices = problem.choices(picks)
        if all(choices != other.choices for other in best):
            best.append(Found(choices, cost))
        if len(best) == count:
            break
    return best


def evaluate(graph: Graph, choices: Mapping[str, Choice], devices: int, objective: Objective | None = None) -> Found:
    """What given strategies cost. Reshapes, which MindSpore's compiler splits as their neighbours ask, stay free."""
    views = {operator.name for operator in graph.operators if operator.kind.pricing == 'view'}
    return exact(
        graph, devices, objective, fixed={name: choice for name, choice in choices.items() if name not in views}
    )


@dataclass(slots=True)
class _Problem:
    """The search as tables: a variable for each operator, and one for each tensor that several operators read."""

    graph: Graph
    devices: int
    objective: Objective
    fixed: Mapping[str, Choice]
    options: list[list[Candidate]] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=dict)
    layouts: list[Layouts] = field(default_factory=list)
    made: dict[object, Table] = field(default_factory=dict)
    listed: dict[object, list[Candidate]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = [self.candidates(operator) for operator in self.graph.operators]
        for name, readers in self.graph.readers.items():
            # A tensor with one reader needs no variable: it is brought to where the reader wants it.
            if len(readers) > 1 and name in self.graph.writer:
                self.shared[name] = len(self.options) + len(self.layouts)
                self.layouts.append(self.meeting(name, readers))

    @property
    def sizes(self) -> list[int]:
        """Number of choices by variable."""
        return [*map(len, self.options), *map(len, self.layouts)]

    def kind(self, operator: Operator) -> object:
        """Operators of a kind have the same candidates and costs."""
        shapes = (self.graph.read_shapes(operator), self.graph.output_shape(operator))
        trained = tuple(name in self.graph.parameters for name in operator.reads)
        return operator.look, shapes, trained, self.fixed.get(operator.name)

    def candidates(self, operator: Operator) -> list[Candidate]:
        kind = self.kind(operator)
        if kind not in self.listed:
            choice = self.fixed.get(operator.name)
            self.listed[kind] = (
                candidates(self.graph, operator, self.devices)
                if choice is None
                else fixed_candidates(self.graph, operator, choice, self.devices)
            )
        return self.listed[kind]

    def meeting(self, name: str, readers: Sequence[int]) -> Layouts:
        """Layouts in which a tensor may be handed to several readers: those of its writer and of its readers."""
        # A dict, not a set: the order of layouts breaks ties, and must be the same in every run.
        every = dict.fromkeys(self.written(name))
        for place in dict.fromkeys(readers):
            every.update(dict.fromkeys(self.read(place, name)))
        return tuple(every)

    def written(self, name: str) -> list[Bits]:
        place = self.graph.writer[name]
        output = self.graph.operators[place].writes.index(name)
        # A dataset writes each tensor as it reads it, so its inputs tell their layouts.
        dataset = self.graph.operators[place].primitive == DATASET
        return [option.inputs[output] if dataset else option.output for option in self.options[place]]

    def read(self, place: int, name: str) -> list[Bits]:
        position = self.graph.operators[place].reads.index(name)
        return [option.inputs[position] for option in self.options[place]]

    def factors(self) -> list[Factor]:
        """Tables of the cost."""
        made = [Factor((place,), self.own(place)) for place in range(len(self.options))]
        for name, readers in self.graph.readers.items():
            if name not in self.graph.writer:
                continue
            place, source = self.graph.writer[name], self.written(name)
            if name in self.shared:
                place, meeting = self.shared[name], self.layouts[self.shared[name] - len(self.options)]
                made.append(Factor((self.graph.writer[name], place), self.between(name, source, meeting)))
                source = list(meeting)
            made += [
                Factor(
                    (place, reader),
                    self.between(name, source, self.read(reader, name), self.graph.operators[reader].primitive),
                )
                for reader in readers
            ]
        return made

    def own(self, place: int) -> Table:
        """The objective's cost of each candidate of an operator."""
        operator = self.graph.operators[place]
        key = ('own', self.kind(operator))
        if key not in self.made:
            costs = [
                self.objective.operator(self.graph, operator, option, self.devices) for option in self.options[place]
            ]
            self.made[key] = np.array(costs)
        return self.made[key]

    def between(self, name: str, source: Sequence[Bits], target: Sequence[Bits], reader: str = '') -> Table:
        """Redistribution from every layout to every other; a table is made once for all tensors alike.

        Arguments: ``reader``, the primitive that reads the other; none: where it is handed to several.
        """
        shape, fed = self.graph.shapes[name], self.graph.operators[self.graph.writer[name]].primitive
        reshaped = reader == 'Reshape'
        key = (shape, fed == DATASET, reshaped, tuple(source), tuple(target))
        if key not in self.made:
            # Many candidates share a layout: each pair of different layouts is priced once.
            rows, columns = list(dict.fromkeys(source)), list(dict.fromkeys(target))
            backward = fed != DATASET
            costs = np.array(
                [
                    [self.objective.redistribution(a, b, shape, backward=backward, reshaped=reshaped) for b in columns]
                    for a in rows
                ]
            )
            at, to = {a: n for n, a in enumerate(rows)}, {b: n for n, b in enumerate(columns)}
            self.made[key] = costs[np.ix_([at[a] for a in source], [to[b] for b in target])]
        return self.made[key]

    def choices(self, picks: Sequence[int]) -> dict[str, Choice]:
        """The operators' choices among the variables' picks."""
        # Picks beyond the operators are layouts of shared tensors, which no plan writes: zip drops them.
        names = self.graph.names
        return {name: options[pick].choice for name, options, pick in zip(names, self.options, picks, strict=False)}
