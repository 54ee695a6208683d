"""A value on the tape: an activation or parameter with its layout over the tensor ranks.

Over the tensor partition a value is *whole* on every rank, *cut* along one dim, or *partial*: the sum over the ranks
is meant. Over the data partition activations are always cut along the batch, dim 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Value:
    """Name, logical shape and layout.

    Arguments: ``cut``, the dim cut over the tensor ranks, or None; ``partial``: still to be summed over them;
    ``gathered``: made whole for the operator that reads it, so its gradient may come back partial.
    """

    name: str
    shape: tuple[int, ...]
    cut: int | None = None
    partial: bool = False
    gathered: bool = False
    needs_gradient: bool = True

    @property
    def whole(self) -> bool:
        """Every tensor rank has all of it."""
        return self.cut is None and not self.partial

    def like(self, name: str, **changes: object) -> Value:
        """A value of the same shape and layout."""
        return replace(self, name=name, gathered=False, needs_gradient=True, **changes)  # type: ignore[arg-type]
