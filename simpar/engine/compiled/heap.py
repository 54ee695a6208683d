"""A heap of streams by the times of their events, each at most once, so that an event can be moved."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from simpar.engine.compiled.records import NONE
from simpar.jit import Array, part

# Unsigned, so that places are: numbers that may be negative cost a test at every look.
_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
_TWO: Final = np.uint64(2)


@part
def rise(heap: Array, streams: Array, at: Any, stream: int, time: float) -> None:
    """Let an event rise from a place of the heap."""
    while at > _ZERO:
        above = (at - _ONE) >> _ONE
        other = heap[above]
        if other.time <= time:
            break
        heap[at].time, heap[at].stream = other.time, other.stream
        streams[other.stream].place = at
        at = above
    heap[at].time, heap[at].stream = time, stream
    streams[stream].place = at


@part
def sink(heap: Array, streams: Array, size: int, at: Any, stream: int, time: float) -> None:
    """Let an event sink from a place of the heap."""
    # Behind the last event stands one that never comes, so that every event above it has two below.
    heap[size].time = np.inf
    while True:
        below = _TWO * at + _ONE
        if below >= size:
            break
        # A sum and no branch, which would be guessed wrong half of the time.
        below += np.uint64(heap[below + _ONE].time < heap[below].time)
        other = heap[below]
        if other.time >= time:
            break
        heap[at].time, heap[at].stream = other.time, other.stream
        streams[other.stream].place = at
        at = below
    heap[at].time, heap[at].stream = time, stream
    streams[stream].place = at


@part
def push(heap: Array, streams: Array, loop: Any, stream: int, time: float) -> None:
    """Put a stream's event on the heap, or move it."""
    at = streams[stream].place
    if at == NONE:
        rise(heap, streams, loop.size, stream, time)
        loop.size += 1
    elif time < heap[at].time:
        rise(heap, streams, at, stream, time)
    else:
        sink(heap, streams, loop.size, at, stream, time)


@part
def pop(heap: Array, streams: Array, loop: Any) -> int:
    """Take the first event off the heap; return its stream."""
    first: int = heap[0].stream
    streams[first].place = NONE
    loop.size -= 1
    last = heap[loop.size]
    if loop.size:
        sink(heap, streams, loop.size, _ZERO, last.stream, last.time)
    return first
