"""A role: the op list that a set of ranks shares, as arrays in issue order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.program.csr import Csr


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    """The slots of one role: 14 bytes each, and 4 for each need.

    Arguments:
        name: e.g. ``stage0``.
        streams: names of the role's in-order queues; ``compute`` or the name of a communication stream.
        op_class, micro_batch, copy, stream: shape [slots], in issue order.
        need: for each slot the slots of the same step that must have finished before it, the latest first.
        carry: for each slot those of the step before, the earliest first.
    """

    name: str
    streams: tuple[str, ...]
    op_class: NDArray[np.uint32]
    micro_batch: NDArray[np.uint16]
    copy: NDArray[np.uint16]
    stream: NDArray[np.uint16]
    need: Csr
    carry: Csr

    def __len__(self) -> int:
        return len(self.op_class)

    def needs(self) -> list[tuple[int, ...]]:
        """For each slot, the slots of the same step that it needs."""
        return self.need.rows()

    def carried(self) -> list[tuple[int, ...]]:
        """For each slot, the slots of the step before that it needs."""
        return self.carry.rows()

    def by_stream(self) -> Csr:
        """For each stream, its slots in issue order."""
        # Stable, since within a stream issue order is the order that counts.
        order = np.argsort(self.stream, kind='stable')
        return Csr.counted(np.bincount(self.stream, minlength=len(self.streams)), order)
