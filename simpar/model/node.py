"""A node of a model's graph: an operator with its name and the names of what it reads."""

from __future__ import annotations

from dataclasses import dataclass

from simpar.model.operators.base import Operator


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of a graph.

    Arguments:
        name: of the operator in programs, and of its result for those that read it.
        operator: with its axes and ops.
        reads: names of nodes or inputs.
        layer: which of the layers that stages are counted in it belongs to; -1: before them, their count: behind them.
        result: name of the tensor that it makes, if it is another than its own.
    """

    name: str
    operator: Operator
    reads: tuple[str, ...]
    layer: int = 0
    result: str = ''

    @property
    def value(self) -> str:
        """The name of the tensor that it makes."""
        return self.result or self.name
