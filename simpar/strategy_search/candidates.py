"""Candidates: the splits of an operator that exact search chooses from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simpar.model.operators.loss import DATASET
from simpar.strategy_search.bits import Bits, counts
from simpar.strategy_search.graph import Graph, Operator
from simpar.strategy_search.rules import Cut, Rule, cut_of, rule
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
        whole = graph.dataset == 'data_parallel'
        # A dataset has one axis: the first of its splits leaves it full, the last takes as many devices as samples
        # allow.
        return list(_candidates(graph, operator, [found.cuts(devices)[-1 if whole else 0]]))
    return list(_candidates(graph, operator, widest(operator, found, devices)))


def widest(operator: Operator, found: Rule, devices: int) -> list[Cut]:
    """Splits by powers of two; of what is bound by the matrix units those that use the most devices.

    Exact search may replicate the work of others.
    """
    cuts = found.cuts(devices)
    if operator.kind.pricing not in ('matrix', 'attention'):
        return cuts
    # In bytes replicating a product is free, and would win although every device then does all of the work.
    most = max(cut.used for cut in cuts)
    return [cut for cut in cuts if cut.used == most]


def fixed_candidates(graph: Graph, operator: Operator, choice: Choice, devices: int) -> list[Candidate]:
    """The candidate that a choice means; raises ScheduleError where it cannot be."""
    cut = cut_of(graph, operator, choice.strategy, devices)
    every = list(_candidates(graph, operator, [cut]))
    # An out_strategy other than the scatter over rows, or one that does not divide, falls back to the full sum.
    return [candidate for candidate in every if candidate.choice == choice] or every[:1]


def _candidates(graph: Graph, operator: Operator, cuts: list[Cut]) -> Iterator[Candidate]:
    shape = graph.output_shape(operator)
    for cut in cuts:
        yield Candidate(Choice(cut.strategy), cut.inputs, cut.output, cut.output, cut.partial)
        if cut.partial and operator.kind.scatters:
            # Innermost in dim 0: a reduce-scatter leaves each rank a part of the rows that it has.
            scattered = (cut.output[0] + cut.partial, *cut.output[1:])
            if shape[0] % (1 << len(scattered[0])) == 0:
                choice = Choice(cut.strategy, counts(scattered))
                yield Candidate(choice, cut.inputs, scattered, cut.output, cut.partial)
