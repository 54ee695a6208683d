"""List scheduling of zero-bubble orders, by numba: one rank's choice at a time, as `simpar.pipeline.greedy` says it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from simpar.kernels import Array, kernel, part

_F: Final = 0
_I: Final = 1
_W: Final = 2
_NONE: Final = -1
_MARGIN: Final = 1 + 1e-9
"""Far more than sums of seconds can be rounded by: a walk is left off only where it is longer beyond doubt."""


@kernel
def shortlist(
    rules: Array,
    seconds: Array,
    hops: Array,
    limits: Array,
    first: Array,
    rows: Array,
    places: Array,
    found: Array,
    ends: Array,
    done: Array,
    clock: Array,
    work: Array,
    asleep: Array,
    heap: Array,
    place: Array,
) -> None:
    """The shortest different rows that rules give, shortest first, of equal ones that of the first rule first.

    Arguments: ``places``, which of ``rows`` are the shortest, and behind them one for the rule that is tried;
    ``found``, the seconds of each, infinite at first; ``work``, seconds of all actions of a rank.
    """
    most = len(found)
    for rule in range(len(rules)):
        given = rules[rule]
        facts = (given[0], given[1] != 0.0, given[2] != 0.0, given[3], int(given[4]), given[5])
        tried = places[most]
        longest = _walk(
            facts, seconds, hops, limits, first, rows[tried], ends, done, clock, work, asleep, heap, place, found[-1]
        )
        if longest >= found[-1] or _is_known(rows, places, found, longest):
            continue
        # The last one makes room, and its rows are written by the next rule.
        at, places[most] = most - 1, places[most - 1]
        while at > 0 and found[at - 1] > longest:
            found[at], places[at] = found[at - 1], places[at - 1]
            at -= 1
        found[at], places[at] = longest, tried


@part
def _is_known(rows: Array, places: Array, found: Array, longest: float) -> bool:
    """Whether the rows that were tried last are among the shortest."""
    tried = rows[places[len(found)]]
    known = False
    for at in range(len(found)):
        if found[at] == longest and not known:
            known = True
            other = rows[places[at]]
            for rank in range(len(tried)):
                for action in range(tried.shape[1]):
                    if other[rank, action] != tried[rank, action]:
                        known = False
    return known


@part
def _walk(
    rules: Any,
    seconds: Array,
    hops: Array,
    limits: Array,
    first: Array,
    rows: Array,
    ends: Array,
    done: Array,
    clock: Array,
    work: Array,
    asleep: Array,
    heap: Array,
    place: Array,
    bound: float,
) -> float:
    """Seconds of the rank that takes longest; infinite where it is left off, being longer than ``bound``."""
    ranks, actions = rows.shape
    size = 0
    for rank in range(ranks):
        for kind in range(3):
            done[kind, rank] = 0
        clock[0, rank], clock[1, rank], clock[2, rank] = 0.0, np.inf, 0.0
        asleep[rank] = False
        size = _push(heap, place, size, 0.0, rank)
    longest = -np.inf
    while size:
        now, rank = heap[0], place[0]
        size = _pop(heap, place, size)
        at = done[0, rank] + done[1, rank] + done[2, rank]
        # A rank may be in the heap several times; only an entry at or behind its last work counts.
        if now < clock[0, rank] or at >= actions:
            continue
        kind, wake = _choose(rules, seconds, hops, limits, first, rows, ends, done, clock, rank, now)
        if kind == _NONE:
            asleep[rank] = True
            if wake < np.inf:
                size = _push(heap, place, size, wake, rank)
            continue
        if at:
            clock[2, rank] += now - clock[0, rank]
            # A rank takes as long as it works and idles, and idles ever longer.
            if work[rank] + clock[2, rank] > bound * _MARGIN:
                longest = np.inf
                break
        clock[1, rank] = min(clock[1, rank], now)
        rows[rank, at] = kind
        clock[0, rank] = now + seconds[kind, rank]
        ends[kind, rank, done[kind, rank]] = clock[0, rank]
        done[kind, rank] += 1
        size = _push(heap, place, size, clock[0, rank], rank)
        other = rank + 1 if kind == _F else rank - 1 if kind == _I else -1
        if 0 <= other < ranks and asleep[other]:
            asleep[other] = False
            size = _push(heap, place, size, max(clock[0, other], now), other)
    for rank in range(ranks):
        longest = max(longest, clock[0, rank] - clock[1, rank])
    return longest


@part
def _choose(
    rules: Any,
    seconds: Array,
    hops: Array,
    limits: Array,
    first: Array,
    rows: Array,
    ends: Array,
    done: Array,
    clock: Array,
    rank: int,
    now: float,
) -> tuple[int, float]:
    gap, level, turns, _, _, _ = rules
    forward, full = _forward(rules, seconds, hops, limits, first, ends, done, rank, now)
    gradient = _gradient(hops, ends, done, rank)
    kind, wake = _NONE, now
    if gradient <= now:
        at = done[0, rank] + done[1, rank] + done[2, rank]
        kind = _F if forward <= now and turns and rows[rank, at - 1] != _F else _I
    elif forward <= now:
        kind = _F
    else:
        wake = min(forward, gradient)
        if done[_W, rank] < done[_I, rank] and (full or _fills(gap, level, seconds, clock, rank, wake - now)):
            kind = _W
    return kind, wake


@part
def _forward(
    rules: Any,
    seconds: Array,
    hops: Array,
    limits: Array,
    first: Array,
    ends: Array,
    done: Array,
    rank: int,
    now: float,
) -> tuple[float, bool]:
    _, _, _, delay, ahead, kept = rules
    count, back = done[_F, rank], done[_I, rank]
    arrives = 0.0
    if rank:
        arrives = ends[_F, rank - 1, count] + hops[rank - 1] if count < done[_F, rank - 1] else np.inf
    begin, full = arrives, False
    if count == ends.shape[2] or arrives == np.inf:
        begin = np.inf
    else:
        hop = len(limits) - rank
        lasts = seconds[_F, rank]
        slack = delay * lasts if lasts else 0.0
        most = hop if ahead == 1 else 2 * hop - 1
        late = max(arrives, now) + lasts > first[rank] + slack
        if (ahead and count - back >= most) or (count and not back and late):
            begin = np.inf
        elif count + 1 - back + kept * (back - done[_W, rank]) > limits[rank]:
            begin, full = np.inf, arrives <= now
    return begin, full


@part
def _gradient(hops: Array, ends: Array, done: Array, rank: int) -> float:
    count, found = done[_I, rank], np.inf
    if count < done[_F, rank]:
        if rank + 1 == done.shape[1]:
            found = ends[_F, rank, count]
        elif count < done[_I, rank + 1]:
            found = ends[_I, rank + 1, count] + hops[rank]
    return found


@part
def _fills(gap: float, level: bool, seconds: Array, clock: Array, rank: int, idle: float) -> bool:
    found: bool = idle >= gap * seconds[_W, rank]
    if level and not found:
        most = clock[2, 0]
        for one in clock[2]:
            most = max(most, one)
        found = clock[2, rank] + idle > most
    return found


@part
def _push(heap: Array, place: Array, size: int, time: float, rank: int) -> int:
    """Put a rank on the heap; of equal times the last rank is first, as gradients come from there."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if heap[above] < time or (heap[above] == time and place[above] >= rank):
            break
        heap[at], place[at] = heap[above], place[above]
        at = above
    heap[at], place[at] = time, rank
    return size + 1


@part
def _pop(heap: Array, place: Array, size: int) -> int:
    """Take the first entry off the heap."""
    size -= 1
    time, rank = heap[size], place[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        right = below + 1
        if right < size and (heap[right] < heap[below] or (heap[right] == heap[below] and place[right] > place[below])):
            below = right
        if time < heap[below] or (time == heap[below] and rank >= place[below]):
            break
        heap[at], place[at] = heap[below], place[below]
        at = below
    heap[at], place[at] = time, rank
    return size
