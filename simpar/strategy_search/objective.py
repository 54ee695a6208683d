"""Objectives: what an operator's split and a redistribution cost, in numbers that add up."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod
from typing import Protocol

from simpar.model import Shape
from simpar.model.operators.loss import DATASET
from simpar.strategy_search.graph import Graph, Operator
from simpar.strategy_search.rules import Bits, Choice, Rule, ShardedOperator, counts, device_bits, rule, split_of, used


@dataclass(frozen=True, slots=True)
class Candidate:
    """A split of an operator, with the layout that its output has at last.

    Arguments:
        choice: as a plan writes it.
        inputs, output: layouts.
        summed: layout of the output before its sum; equal to ``output`` where the sum is everywhere.
        partial: bits that are summed over.
    """

    choice: Choice
    inputs: tuple[Bits, ...]
    output: Bits
    summed: Bits
    partial: tuple[int, ...]

    @property
    def scattered(self) -> bool:
        """Whether the sum is scattered over the output's first dim."""
        return self.output != self.summed


def candidates(graph: Graph, operator: Operator, devices: int) -> list[Candidate]:
    """All that exact search considers for an operator, each also with its sum scattered over the rows."""
    found = rule(graph, operator)
    if operator.primitive == DATASET:
        sharded = graph.dataset == 'data_parallel'
        # A dataset has one axis: the first of its splits leaves it full, the last takes as many devices as samples
        # allow.
        return list(_candidates(graph, operator, [found.splits(devices)[-1 if sharded else 0]]))
    return list(_candidates(graph, operator, widest(operator, found, devices)))


def widest(operator: Operator, found: Rule, devices: int) -> list[ShardedOperator]:
    """Splits by powers of two; of what is bound by the matrix units those that use the most devices.

    Exact search may replicate the work of others.
    """
    splits = found.splits(devices)
    if operator.kind.pricing not in ('matrix', 'attention'):
        return splits
    # In bytes replicating a product is free, and would win although every device then does all of the work.
    most = max(split.used for split in splits)
    return [split for split in splits if split.used == most]


def fixed_candidates(graph: Graph, operator: Operator, choice: Choice, devices: int) -> list[Candidate]:
    """The candidate that a choice means; raises ScheduleError where it cannot be."""
    split = split_of(graph, operator, choice.strategy, devices)
    every = list(_candidates(graph, operator, [split]))
    # An out_strategy other than the scatter over rows, or one that does not divide, falls back to the full sum.
    return [candidate for candidate in every if candidate.choice == choice] or every[:1]


def _candidates(graph: Graph, operator: Operator, splits: list[ShardedOperator]) -> Iterator[Candidate]:
    shape = graph.output_shape(operator)
    for split in splits:
        yield Candidate(Choice(split.strategy), split.inputs, split.output, split.output, split.partial)
        if split.partial and operator.kind.scatters:
            # Innermost in dim 0: a reduce-scatter leaves each rank a part of the rows that it has.
            scattered = (split.output[0] + split.partial, *split.output[1:])
            if shape[0] % (1 << len(scattered[0])) == 0:
                choice = Choice(split.strategy, counts(scattered))
                yield Candidate(choice, split.inputs, scattered, split.output, split.partial)


# What it moves to get a tensor from one layout to another: a quick count of what ``simpar.layout``'s cheapest
# sequence moves, without the sequence.
#
# It stands apart from that one's search, for exact search asks for ten thousands of pairs: without collectives to
# count, pending sums or axes of other sizes than two it has fewer states and fewer ways to go, and takes under half
# the time.


Place = tuple[int, int]
"""A dim and how deep in it a run of bits splits: of single bits, 0 splits it in halves, 1 the halves."""
State = tuple[Place | None, ...]
"""Where each run stands; None: nowhere, it splits nothing."""
Sizes = tuple[int, ...]
"""Devices along each run."""


def redistribution_bytes(
    source: Bits, target: Bits, shape: Shape, itemsize: int = 4, *, all_to_all: bool = True
) -> float:
    """Bytes that a device receives while a tensor goes from one layout to another, by the cheapest sequence.

    A slice moves nothing, an all-gather what it adds, an all-to-all over g devices (g − 1) / g of a slice. The backward
    moves as much: an all-gather's is a reduce-scatter, and a slice's moves nothing, where gradients stay partial sums.

    Arguments: ``all_to_all``: may be used; without it bits that are neighbours before and after move together, in runs,
    as ``simpar.layout`` has it. Does not model: latency, permutations of devices.
    """
    return 0.0 if source == target else _moved(source, target, all_to_all) * prod(shape) * itemsize


@lru_cache(maxsize=1 << 18)
def _moved(source: Bits, target: Bits, all_to_all: bool) -> float:
    """Received, as a share of the full tensor."""
    # Two caches: this one by pairs as asked, ``_share`` by pairs up to the names of bits, which are far fewer.
    bits = sorted({bit for dim in (*source, *target) for bit in dim})
    first = set(bits) if all_to_all else _first_of_runs(source, target, bits)
    return _share(*_renamed(source, target, _runs(bits, first)), all_to_all)


def _first_of_runs(source: Bits, target: Bits, bits: Sequence[int]) -> set[int]:
    """Bits that begin a run: the one before stands elsewhere in a layout, or another run begins at their place."""
    layouts = [{bit: place for place, bit in _stands(layout)} for layout in (source, target)]

    def together(bit: int, places: Mapping[int, Place]) -> bool:
        """Whether a bit follows on the one before it, or both stand nowhere."""
        dim, depth = places.get(bit, (-1, 1))
        # The defaults follow on each other, so two bits that stand nowhere are together.
        return places.get(bit - 1, (-1, 0)) == (dim, depth - 1)

    known = set(bits)
    found = {bit for bit in bits if bit - 1 not in known or not all(together(bit, places) for places in layouts)}
    before = 0
    # Each beginning may break a run of the other layout at the same place, and that one another.
    while before != len(found):
        before = len(found)
        begun = {places[bit] for places in layouts for bit in found if bit in places}
        found |= {bit for places in layouts for bit, place in places.items() if place in begun}
    return found


def _stands(layout: Bits) -> Iterator[tuple[Place, int]]:
    for dim, bits in enumerate(layout):
        for depth, bit in enumerate(bits):
            yield (dim, depth), bit


def _runs(bits: Sequence[int], first: Collection[int]) -> dict[int, int]:
    """Devices along each run, by its first bit."""
    sizes: dict[int, int] = {}
    head = bits[0]
    for bit in bits:
        head = bit if bit in first else head
        sizes[head] = 2 * sizes.get(head, 1)
    return sizes


def _renamed(source: Bits, target: Bits, runs: Mapping[int, int]) -> tuple[Bits, Bits, Sizes]:
    """The same pair in runs, named in the order in which they come up: pairs alike are counted once."""
    names: dict[int, int] = {}
    before, after = (
        tuple(tuple(names.setdefault(bit, len(names)) for bit in dim if bit in runs) for dim in layout)
        for layout in (source, target)
    )
    return before, after, tuple(runs[bit] for bit in names)


@lru_cache(maxsize=1 << 18)
def _share(source: Bits, target: Bits, sizes: Sizes, all_to_all: bool) -> float:
    """Received, as a share of the full tensor: the shortest path over where runs stand (Dijkstra 1959)."""
    begin, end = ({run: place for place, run in _stands(layout)} for layout in (source, target))
    moving = [run for run in {**begin, **end} if begin.get(run) != end.get(run)]
    # Runs that stay only make the tensor smaller: the search leaves them out.
    kept = prod(sizes[run] for run in begin if run not in moving)
    goal: State = tuple(end.get(run) for run in moving)
    moves = _Moves(goal, tuple(sizes[run] for run in moving), all_to_all)
    start = moves.sliced(tuple(begin.get(run) for run in moving))
    # The count breaks ties: states hold None, which cannot be compared.
    best, heap, count = {start: 0.0}, [(0.0, 0, start)], 0
    while heap:
        cost, _, state = heapq.heappop(heap)
        if state == goal:
            return cost / kept
        # Reached more cheaply since it was pushed.
        if cost > best[state]:
            continue
        for moved, after in moves.of(state):
            if cost + moved < best.get(after, inf):
                best[after], count = cost + moved, count + 1
                heapq.heappush(heap, (best[after], count, after))
    return inf


@dataclass(frozen=True, slots=True)
class _Moves:
    """What can be done next on the way to a goal.

    Arguments:
        goal: where runs are to stand.
        sizes: devices along each run.
        all_to_all: whether one may be used.
    """

    goal: State
    sizes: Sizes
    all_to_all: bool

    def of(self, state: State) -> Iterator[tuple[float, State]]:
        """What each next step moves, as a share of the tensor, and where runs stand behind it.

        All bits that an all-to-all can take to their goals go at once: together they move less than apart, none comes
        to stand where another wants to be, and behind a gather, which doubles the slice, they move as much or more.
        """
        local = 1 / prod([size for size, place in zip(self.sizes, state, strict=True) if place is not None])
        taken = {place for place in state if place is not None}
        wrong = [run for run, place in enumerate(state) if place is not None and place != self.goal[run]]
        free = {run for run in wrong if self.goal[run] is not None and self.goal[run] not in taken}
        if free and self.all_to_all:
            moved = tuple(self.goal[run] if run in free else place for run, place in enumerate(state))
            yield local * (1 - 0.5 ** len(free)), self.sliced(moved)
            return
        for run in wrong:
            yield local * (self.sizes[run] - 1), self.sliced((*state[:run], None, *state[run + 1 :]))

    def sliced(self, state: State) -> State:
        """Slicing moves nothing and makes all that follows smaller: it is done at once."""
        taken = {place for place in state if place is not None}
        return tuple(
            [
                wanted if place is None and wanted is not None and wanted not in taken else place
                for place, wanted in zip(state, self.goal, strict=True)
            ]
        )


class Objective(Protocol):
    """What exact search minimises: a sum over operators and over redistributions."""

    def operator(self, graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> float:
        """Cost of the collectives that an operator brings with it, forward, backward and for its parameters."""

    def redistribution(
        self, source: Bits, target: Bits, shape: Shape, *, backward: bool, reshaped: bool = False
    ) -> float:
        """Cost of bringing a tensor from a layout to another, and its gradient back where there is one.

        Arguments: ``reshaped``: a reshape reads it there.
        """


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes that a device sends in a step, by ring collectives, with gradients summed late.

    A sum over g devices: 2 (g − 1) / g of the slice, forward and again backward; scattered: half of it each. A
    parameter's gradient: 2 (g − 1) / g of its slice over all devices that hold the same one. Replicas hold partial sums
    of gradients (MindSpore's convention), so that nothing else is summed in the backward.
    Does not model: latency, time, links; statistics of a BatchNorm over a split batch; one sum for a parameter that
    several operators read.

    Arguments: ``itemsize``, bytes of an element.
    """

    itemsize: int = 4

    def operator(self, graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> float:
        """Bytes of forward and backward sums and of the gradients' sums."""
        return self.sums(graph, operator, candidate) + self.mirrors(graph, operator, candidate, devices)

    def sums(self, graph: Graph, operator: Operator, candidate: Candidate) -> float:
        """Forward and backward bytes of the output's sum."""
        if not candidate.partial:
            return 0.0
        local = prod(graph.output_shape(operator)) * self.itemsize * 0.5 ** len(used(candidate.summed))
        # Each bit halves, so 1 − 0.5 ** bits is the (g − 1) / g of a ring of g devices.
        once = local * (1 - 0.5 ** len(candidate.partial))
        return 2 * once if candidate.scattered else 4 * once

    def mirrors(self, graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> float:
        """Bytes of the parameters' gradients."""
        total = 0.0
        for name, layout in zip(operator.reads, candidate.inputs, strict=True):
            if name in graph.parameters:
                bits = len(used(layout))
                local = prod(graph.shapes[name]) * self.itemsize * 0.5**bits
                total += 2 * local * (1 - 0.5 ** (device_bits(devices) - bits))
        return total

    def redistribution(
        self, source: Bits, target: Bits, shape: Shape, *, backward: bool, reshaped: bool = False
    ) -> float:
        """Bytes of the cheapest sequence, and of its reverse."""
        return redistribution_bytes(source, target, shape, self.itemsize) * (2 if backward else 1)
