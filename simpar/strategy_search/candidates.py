"""Candidates: the splits of an operator that exact search chooses from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simpar.model.operators.loss import DATASET
from simpar.strategy_search.bits import Bits, counts
from simpar.strategy_search.graph import Graph, Operator
from simpar.strategy_search.rules import Rule, ShardedOperator, rule, split_of
from simpar.strategy_search.strategies import Choice


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
