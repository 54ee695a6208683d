"""The least that a redistribution can receive, by going through all sequences of steps on single bits of the ranks.

It knows no frames: a bit cuts a dim at a depth, 0 in halves, 1 the halves, and so on. A step gathers any bits,
exchanges any whose goals nobody cuts, sums or scatters any pending ones, or slices any that cut nothing.
"""

from collections import deque
from fractions import Fraction
from itertools import combinations

SUM = 'sum'
"""The place of a bit with a pending sum."""


def bits_of(axis):
    """Strides of the bits of an axis, the outermost first."""
    return [axis.stride << power for power in reversed(range(axis.size.bit_length() - 1))]


def places(layout):
    """Stride of a bit → (dim, depth), or ``SUM``."""
    found = {stride: SUM for axis in layout.partial for stride in bits_of(axis)}
    for dim, axes in enumerate(layout.dims):
        found |= {stride: (dim, depth) for depth, stride in enumerate(b for axis in axes for b in bits_of(axis))}
    return found


def some(bits):
    """All choices of at least one."""
    return [which for count in range(1, len(bits) + 1) for which in combinations(bits, count)]


def cuts(place):
    """Whether a bit there makes a slice smaller."""
    return place not in (None, SUM)


def reached(state, which, ends):
    """The state with these bits moved to these ends."""
    return tuple(ends[bit] if bit in which else place for bit, place in enumerate(state))


def steps_from(state, goal, all_to_all):
    """What each possible next step receives, as a share of a slice, its collectives, and the state behind it."""
    nowhere = (None,) * len(state)
    lands = [bit for bit, end in enumerate(goal) if cuts(end) and end not in state]
    for which in some([bit for bit in lands if state[bit] is None]):
        yield Fraction(0), 0, reached(state, which, goal)
    for which in some([bit for bit, place in enumerate(state) if cuts(place) and place != goal[bit]]):
        yield Fraction(2 ** len(which) - 1), 1, reached(state, which, nowhere)
        if all_to_all and set(which) <= set(lands):
            yield 1 - Fraction(1, 2 ** len(which)), 1, reached(state, which, goal)
    for which in some([bit for bit, place in enumerate(state) if place == SUM and goal[bit] != SUM]):
        yield 2 - Fraction(2, 2 ** len(which)), 1, reached(state, which, nowhere)
        if set(which) <= set(lands):
            yield 1 - Fraction(1, 2 ** len(which)), 1, reached(state, which, goal)


def least(source, target, all_to_all):
    """The least received, as a share of the whole tensor, and of those sequences the fewest collectives."""
    begin, end = places(source), places(target)
    bits = sorted({*begin, *end})
    start, goal = tuple(map(begin.get, bits)), tuple(map(end.get, bits))
    best, queue = {start: (Fraction(0), 0)}, deque([start])
    while queue:
        state = queue.popleft()
        share = Fraction(1, 2 ** sum(map(cuts, state)))
        for received, collectives, after in steps_from(state, goal, all_to_all):
            total = (best[state][0] + received * share, best[state][1] + collectives)
            if after not in best or total < best[after]:
                best[after] = total
                queue.append(after)
    return best[goal]
