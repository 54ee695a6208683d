"""The bytes of a step: what a search counts, told how the plan lets tensors travel and how often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from simpar.layout import Axis, TensorLayout, redistribute
from simpar.layout.axis import merged
from simpar.layout.operators import reshape
from simpar.layout.redistribution import Method
from simpar.model.primitive import Shape
from simpar.strategy_search.bits import Bits, counts
from simpar.strategy_search.candidates import Candidate
from simpar.strategy_search.graph import Graph, Operator
from simpar.strategy_search.objective import Bytes
from simpar.strategy_search.redistribution import redistribution_bytes

# Not infinite: exact search subtracts costs, and infinity less infinity is no number.
NEVER: Final = 1e30
"""More than any step sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBytes(Bytes):
    """Bytes that a device sends in a step of several slices of the batch, redistributed as a plan says.

    Arguments:
        devices: of a stage, a power of two.
        slices: micro-batches × copies.
        method: how tensors are redistributed, as of ``simpar.layout.redistribute``.
        all_to_all: whether redistribution may use it.
    """

    devices: int
    slices: int = 1
    method: Method = 'cheapest'
    all_to_all: bool = True

    def operator(self, graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> float:
        """Sums of activations for every slice, sums of gradients once; no reshape that programs do not have."""
        if operator.primitive == 'Reshape' and not _is_view(graph, operator, candidate, devices):
            return NEVER
        # The loss is no tensor that a program sums: every rank keeps its part of the number.
        sums = self.sums(graph, operator, candidate) if graph.output_shape(operator) else 0.0
        return self.slices * sums + self.mirrors(graph, operator, candidate, devices)

    def redistribution(
        self, source: Bits, target: Bits, shape: Shape, *, backward: bool, reshaped: bool = False
    ) -> float:
        """Bytes of the plan's sequence, and of its reverse, for every slice.

        A reshape reads a tensor as it lies, but for inner splits that its result cannot have: these are gathered.
        """
        if source == target:
            return 0.0
        if reshaped and any(dim != split[: len(dim)] for dim, split in zip(target, source, strict=True)):
            return NEVER
        if self.method == 'cheapest':
            moved = redistribution_bytes(source, target, shape, self.itemsize, all_to_all=self.all_to_all)
            return self.slices * (2 * moved if backward else moved)
        there, back = _elements(self.devices, source, target, shape, self.method, self.all_to_all)
        return self.slices * self.itemsize * (there + back if backward else there)


def _is_view(graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> bool:
    """Whether a reshape's result lies as what it reads does."""
    (read,) = graph.read_shapes(operator)
    rule = reshape(operator.name, read, graph.output_shape(operator))
    strategy = candidate.choice.strategy
    if rule.wrong(strategy, devices):
        return False
    return rule.sharded(strategy, devices).output.shard_counts == counts(candidate.output)


@lru_cache(maxsize=1 << 17)
def _elements(
    devices: int, source: Bits, target: Bits, shape: Shape, method: Method, all_to_all: bool
) -> tuple[float, float]:
    """Elements that a rank receives, forward and backward."""
    found = redistribute(shape, _layout(devices, source), _layout(devices, target), method, all_to_all)
    return float(found.elements), float(found.backward().elements)


def _layout(devices: int, bits: Bits) -> TensorLayout:
    """Bit 0 is the most significant of a device's index."""
    return TensorLayout(devices, tuple(merged(Axis(2, devices >> bit + 1) for bit in dim) for dim in bits))
