"""Arrays: an order's computations by number, with what each needs and gives; searches ask for thousands of orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar.pipeline.order import Action, Order

Ints = NDArray[np.int64]
KINDS: Final = ('F', 'B', 'I', 'W')
NONE: Final = -1
"""No second part, no result."""
_CODE: Final = {kind: code for code, kind in enumerate(KINDS)}
_F, _B, _I, _W = range(len(KINDS))


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """The computations of an order, rank after rank, as each rank does them; T in all.

    Arguments:
        begin: shape [ranks + 1], the first of each rank.
        kind: shape [2, T], of both parts of an overlap, its forward first; a place in ``KINDS``. Of all else ``NONE``
            is the second.
        stage, micro_batch: the same.
        stages, micro_batches: of the order.
        sequence_chunks: of the order.
    """

    begin: Ints
    kind: Ints
    stage: Ints
    micro_batch: Ints
    stages: int
    micro_batches: int
    sequence_chunks: int

    @property
    def rank(self) -> Ints:
        """Of each, shape [T]."""
        return np.repeat(np.arange(len(self.begin) - 1), np.diff(self.begin))

    @property
    def results(self) -> int:
        """How many numbers results may have."""
        return 2 * self.stages * self.micro_batches

    def gives(self) -> Ints:
        """The results of each, shape [T, 2]; as `simpar.pipeline.messages.gives`."""
        back = (self.kind == _I) | (self.kind == _B)
        own = np.where(self.kind == _F, self._activation(0, 0), np.where(back, self._gradient(0, 0), NONE))
        return np.ascontiguousarray(own.T)

    def needs(self) -> Ints:
        """The results that each needs, shape [T, 6], some of them ``NONE``; as `simpar.pipeline.messages.needs`."""
        forward, weights = self.kind == _F, self.kind == _W
        back = (self.kind == _I) | (self.kind == _B)
        before, behind = forward & (self.stage > 0), back & (self.stage + 1 < self.stages)
        # Attention reads keys and values of the chunks before, whose forward must be over.
        chunk = forward & (self.micro_batch % self.sequence_chunks > 0)
        later = back & ((self.micro_batch + 1) % self.sequence_chunks > 0)
        own = np.where(back, self._activation(0, 0), np.where(weights, self._gradient(0, 0), NONE))
        found = (
            np.where(before, self._activation(-1, 0), own),
            np.where(behind, self._gradient(1, 0), NONE),
            np.where(chunk, self._activation(0, -1), np.where(later, self._gradient(0, 1), NONE)),
        )
        return np.ascontiguousarray(np.concatenate(found).T)

    def _activation(self, stage: int, micro_batch: int) -> Ints:
        """The number of what a stage and micro-batch near by gives to the next stage."""
        number: Ints = (self.stage + stage) * self.micro_batches + self.micro_batch + micro_batch
        return number

    def _gradient(self, stage: int, micro_batch: int) -> Ints:
        """The number of what it gives back."""
        return self.stages * self.micro_batches + self._activation(stage, micro_batch)


def arrays_of(order: Order) -> Arrays:
    """The computations of an order that is right."""
    rows = [[action for action in row if action.sub_actions or action.kind in _CODE] for row in order.actions]
    flat = [action for row in rows for action in row]
    parts = np.full((3, 2, len(flat)), NONE, dtype=np.int64)
    overlaps = [place for place, action in enumerate(flat) if action.sub_actions]
    if overlaps:
        # A forward has the least code.
        pairs = [sorted(flat[place].sub_actions, key=lambda part: _CODE[part.kind]) for place in overlaps]
        for place, (forward, _) in zip(overlaps, pairs, strict=True):
            flat[place] = forward
        parts[:, 1, overlaps] = _columns([back for _, back in pairs])
    parts[:, 0] = _columns(flat)
    begin = np.cumsum([0, *map(len, rows)])
    kind, stage, micro_batch = parts
    return Arrays(begin, kind, stage, micro_batch, order.stages, order.micro_batches, order.sequence_chunks)


def _columns(actions: Sequence[Action]) -> Ints:
    """Kind, stage and micro-batch, shape [3, actions]."""
    found = [(_CODE[action.kind], action.stage, action.micro_batch or 0) for action in actions]
    return np.array(found, dtype=np.int64).reshape(-1, 3).T
