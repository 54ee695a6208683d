"""A value on the tape: an activation or a parameter with its layout over the ranks of a stage."""

from __future__ import annotations

from typing import NamedTuple

from simpar.layout import TensorLayout
from simpar.model.ops import Load


class Value(NamedTuple):
    """Name, shape and layout.

    Arguments:
        shape: of one micro-batch, unsharded.
        needs_gradient: whether anything behind it is trained.
        again: what it was gathered from, where the backward gathers it once more instead of keeping it.
        load: how full it is, where it has room for what a router sends to experts.
    """

    name: str
    shape: tuple[int, ...]
    layout: TensorLayout
    needs_gradient: bool = True
    again: Value | None = None
    load: Load | None = None

    @property
    def fill(self) -> float:
        """The share of its elements that are in use."""
        return self.load.fill(self.layout.shard_counts[self.load.dim]) if self.load else 1.0

    def like(self, name: str, layout: TensorLayout | None = None) -> Value:
        """Another value of the same shape, in this layout unless told otherwise."""
        return Value(name, self.shape, layout or self.layout, load=self.load)
