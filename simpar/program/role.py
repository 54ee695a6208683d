"""A role: the op list that a set of ranks shares, as arrays in issue order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    """The slots of one role: 20 bytes each, plus an overflow list for second and further needs.

    Arguments:
        name: e.g. ``stage0``.
        streams: names of the role's in-order queues; ``compute`` or the name of a communication stream.
        op_class, micro_batch, copy, stream, need: arrays over slots in issue order. ``need`` is the first need of a
            slot (a slot of the same role and step that must have finished), or -1.
        more: shape [k, 2], pairs (slot, need) beyond the first, sorted.
        carry: shape [k, 2], pairs (slot, slot of the step before that must have finished), sorted.
    """

    name: str
    streams: tuple[str, ...]
    op_class: NDArray[np.uint32]
    micro_batch: NDArray[np.uint16]
    copy: NDArray[np.uint16]
    stream: NDArray[np.uint16]
    need: NDArray[np.int32]
    more: NDArray[np.int32]
    carry: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.op_class)

    def needs(self) -> list[tuple[int, ...]]:
        """For each slot, the slots of the same step that it needs."""
        needs: list[tuple[int, ...]] = [() if need == NONE else (need,) for need in self.need.tolist()]
        for slot, need in self.more.tolist():
            needs[slot] += (need,)
        return needs

    def carried(self) -> list[tuple[int, ...]]:
        """For each slot, the slots of the step before that it needs."""
        carried: list[tuple[int, ...]] = [()] * len(self)
        for slot, need in self.carry.tolist():
            carried[slot] += (need,)
        return carried
