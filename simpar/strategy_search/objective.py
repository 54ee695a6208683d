"""Objectives: what an operator's split and a redistribution cost, in numbers that add up."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

from simpar.model.primitive import Shape
from simpar.strategy_search.bits import Bits, device_bits, used
from simpar.strategy_search.candidates import Candidate
from simpar.strategy_search.graph import Graph, Operator
from simpar.strategy_search.redistribution import redistribution_bytes


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
