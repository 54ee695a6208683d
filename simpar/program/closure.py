"""Which slots are known to have finished when a slot starts, and which needs others imply.

Streams are in order. So what a slot knows is one number for each stream: the latest slot there that must have finished
(a vector clock). Moves along a stream are free, so a path of needs can visit each stream in one go. Clocks are
therefore found in fewer rounds than there are streams. Each round follows every need once, for all slots together.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
NONE = -1


class Closure:
    """What every slot knows.

    Arguments:
        stream: shape [slots], of slots in issue order.
        slot, before: shape [needs], a slot comes after an earlier one of another stream.
        streams: how many there are.
    """

    def __init__(self, stream: Ints, slot: Ints, before: Ints, streams: int) -> None:
        self._by_stream = np.argsort(stream, kind='stable')
        self._place = np.empty_like(self._by_stream)
        self._place[self._by_stream] = np.arange(len(stream))
        bounds = np.searchsorted(stream[self._by_stream], np.arange(streams + 1))
        self._head = bounds[stream]
        self._streams = [(begin, end) for begin, end in pairwise(bounds.tolist()) if begin < end]
        self._stream = stream
        order = np.argsort(slot, kind='stable')
        self._slot, self._before = slot[order], before[order]
        self._first = np.flatnonzero(np.diff(self._slot, prepend=NONE))
        self._clock = np.full((len(stream), streams), NONE, dtype=np.int32)
        for _ in self._streams[1:]:
            if not self._round():
                break

    @property
    def clock(self) -> NDArray[np.int32]:
        """Shape [slots, streams], the latest slot of each other stream that must have finished; -1: none."""
        return self._clock[self._place]

    def _round(self) -> bool:
        """Follow every need once, and then the streams; False where nothing new was learnt."""
        if not len(self._slot):
            return False
        clock, known = self._clock, int(self._clock.sum(dtype=np.int64))
        told = clock[self._place[self._before]]
        told[np.arange(len(told)), self._stream[self._before]] = self._before
        into = self._place[self._slot[self._first]]
        clock[into] = np.maximum(clock[into], np.maximum.reduceat(told, self._first, axis=0))
        for begin, end in self._streams:
            np.maximum.accumulate(clock[begin:end], axis=0, out=clock[begin:end])
        return int(clock.sum(dtype=np.int64)) != known

    def implied(self, slot: Ints, before: Ints) -> Flags:
        """Whether the stream, or other needs of the slot, imply needs, of which each stream has one a slot at most.

        Arguments: ``slot`` and ``before``, shape [k], among the needs of the closure.
        """
        on = self._stream[before]
        place = self._place[slot]
        # What the slot before on the stream knows; the first slot of a stream has none before it.
        known = np.where(place > self._head[slot], self._clock[place - 1, on], NONE)
        if len(self._slot):
            # Of its own stream no slot knows itself, so that no need implies itself.
            told = np.maximum.reduceat(self._clock[self._place[self._before]], self._first, axis=0)
            known = np.maximum(known, told[np.searchsorted(self._slot[self._first], slot), on])
        return np.asarray(known >= before)


def latest(slot: Ints, before: Ints, stream: Ints, streams: int) -> tuple[Ints, Ints]:
    """Of pairs (slot, an earlier one) those of different streams, and of those the latest of each stream.

    Returned by slot, the latest first.
    """
    other = stream[slot] != stream[before]
    slot, before = slot[other], before[other]
    order = np.lexsort((before, slot * streams + stream[before]))
    slot, before = slot[order], before[order]
    last = np.diff(slot * streams + stream[before], append=NONE) != 0
    slot, before = slot[last], before[last]
    order = np.lexsort((-before, slot))
    return slot[order], before[order]
