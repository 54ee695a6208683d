"""A heap of streams by the times of their events, each at most once, so that an event can be moved."""

from __future__ import annotations

from simpar.engine.compiled.jit import Array, inner


@inner
def sift_up(time: Array, heap: Array, place: Array, at: int, stream: int) -> None:
    """Let a stream rise from a place of the heap."""
    key = time[stream]
    while at > 0:
        above = (at - 1) >> 1
        other = heap[above]
        if time[other] <= key:
            break
        heap[at] = other
        place[other] = at
        at = above
    heap[at] = stream
    place[stream] = at


@inner
def sift_down(time: Array, heap: Array, place: Array, size: int, at: int, stream: int) -> None:
    """Let a stream sink from a place of the heap."""
    key = time[stream]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and time[heap[below + 1]] < time[heap[below]]:
            below += 1
        other = heap[below]
        if time[other] >= key:
            break
        heap[at] = other
        place[other] = at
        at = below
    heap[at] = stream
    place[stream] = at


@inner
def push(time: Array, heap: Array, place: Array, size: int, stream: int, due: float) -> int:
    """Put a stream's event on the heap, or move it; return the size of the heap."""
    at = place[stream]
    if at < 0:
        time[stream] = due
        sift_up(time, heap, place, size, stream)
        return size + 1
    earlier = due < time[stream]
    time[stream] = due
    if earlier:
        sift_up(time, heap, place, at, stream)
    else:
        sift_down(time, heap, place, size, at, stream)
    return size
