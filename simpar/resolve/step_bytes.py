"""The bytes of a step: an exact search sees one copy of a micro-batch, whose gradients are summed once for all."""

from __future__ import annotations

from dataclasses import dataclass

from simpar.strategy_search.bits import Bits
from simpar.strategy_search.candidates import Candidate
from simpar.strategy_search.graph import Graph, Operator, Shape
from simpar.strategy_search.objective import Bytes


@dataclass(frozen=True, slots=True)
class StepBytes(Bytes):
    """Bytes that a device sends in a step of several slices of the batch.

    Arguments: ``slices``, micro-batches × copies.
    """

    slices: int = 1

    def operator(self, graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> float:
        """Sums of activations for every slice, sums of gradients once."""
        return self.slices * self.sums(graph, operator, candidate) + self.mirrors(graph, operator, candidate, devices)

    def redistribution(self, source: Bits, target: Bits, shape: Shape, *, backward: bool) -> float:
        """Bytes of the cheapest sequence, for every slice."""
        return self.slices * Bytes.redistribution(self, source, target, shape, backward=backward)
