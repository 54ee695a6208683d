"""Walks over the tasks of an order, by numba; each as the function of its name in `simpar.planner.clock`."""

from __future__ import annotations

from simpar.kernels import Array, kernel


@kernel
def period(
    rank: Array,
    start: Array,
    item: Array,
    seconds: Array,
    behind: Array,
    together: bool,
    steps: int,
    free: Array,
    ready: Array,
) -> float:
    """Seconds of the last of so many steps; ``free`` by rank and ``ready`` by task are written over.

    Arguments: ``behind``, seconds of each rank behind its tasks; ``together``, whether ranks end a step together.
    """
    before = latest = 0.0
    for _ in range(steps):
        for task in range(len(rank)):
            come = -1.0
            for place in range(start[task], start[task + 1]):
                come = max(come, ready[item[place]])
            begin = free[rank[task]]
            free[rank[task]] = begin + seconds[task, 0]
            ready[task] = begin + seconds[task, 1]
            if come >= 0.0:
                free[rank[task]] = max(free[rank[task]], come + seconds[task, 2])
                ready[task] = max(ready[task], come + seconds[task, 3])
        before = latest
        latest = 0.0
        for one in range(len(free)):
            free[one] += behind[one]
            latest = max(latest, free[one])
        if together:
            for one in range(len(free)):
                free[one] = latest
    return latest - before


@kernel
def slowed_until(rank: Array, start: Array, item: Array, clock: Array, own: Array, until: Array) -> None:
    """Write how many actions of each rank are slowed; ``clock`` by task and rank, ``own`` by rank, all 0 before."""
    ranks = len(until)
    for task in range(len(rank)):
        mine = rank[task]
        for place in range(start[task], start[task + 1]):
            other = item[place]
            until[mine] = max(until[mine], clock[other, mine])
            for one in range(ranks):
                own[mine, one] = max(own[mine, one], clock[other, one])
        own[mine, mine] += 1
        for one in range(ranks):
            clock[task, one] = own[mine, one]


@kernel
def in_turn(
    begin: Array,
    needs: Array,
    gives: Array,
    rank: Array,
    turn: Array,
    start: Array,
    item: Array,
    giver: Array,
    waiting: Array,
    follow: Array,
    ready: Array,
    place: Array,
) -> int:
    """Write computations in an order that can be done, and what each waits for; returns how many can.

    Arguments: −1 at first: ``giver`` by result, in turn; ``waiting`` by result, a rank that lacks it; ``follow`` by
    rank, the next one that lacks the same. ``ready``, all ranks; ``place``, where each is.
    """
    count, total, depth = 0, 0, len(ready)
    while depth > 0:
        depth -= 1
        own = ready[depth]
        while place[own] < begin[own + 1]:
            task, lack = place[own], -1
            for need in needs[task]:
                if lack < 0 and need >= 0 and giver[need] < 0:
                    lack = need
            if lack >= 0:
                follow[own] = waiting[lack]
                waiting[lack] = own
                break
            for need in needs[task]:
                if need >= 0 and rank[turn[giver[need]]] != own:
                    item[total] = giver[need]
                    total += 1
            for result in gives[task]:
                if result >= 0:
                    giver[result] = count
                    other = waiting[result]
                    while other >= 0:
                        ready[depth] = other
                        depth += 1
                        other = follow[other]
                    waiting[result] = -1
            turn[count] = task
            count += 1
            start[count] = total
            place[own] += 1
    return count
