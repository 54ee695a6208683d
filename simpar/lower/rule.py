"""The named dims of a layer, for lowering."""

from __future__ import annotations

from collections.abc import Sequence

from simpar.layout.operator import Operator as Axes
from simpar.model import Operator, Shape


def rule_of(layer: Operator, name: str, shapes: Sequence[Shape]) -> Axes:
    """The rule of a layer over the ``shapes`` that it reads; its inputs stand in the order of the layer's strategy."""
    return layer.axes(name, *shapes)


def lead_of(layer: Operator) -> int:
    """Which of a rule's inputs is the first value that the layer reads."""
    return getattr(layer, 'lead', 0)
