"""The automatic zero-bubble order: the best found for given times under a limit of memory (ZB-1p, ZB-2p)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, product
from math import floor, inf
from typing import Any, Final, NamedTuple

import numpy as np

from simpar.kernels import Array, kernel, part
from simpar.pipeline.checks import peak_live
from simpar.pipeline.clock import Recurrence, StageTimes, run
from simpar.pipeline.order import Order, refuse
from simpar.pipeline.zero_bubble import letters, of_letters
from simpar.units import quantise

# Zero-bubble orders found by list scheduling: each rank takes what is best when it becomes free.
#
# The published heuristic (Qi et al., 2023, section 3.1) with its choices as rules: as many forwards as memory and
# the first gradient allow, then forwards and backwards in turn, weight gradients in the gaps and where memory is
# full.


Letters = tuple[str, ...]
"""Each rank's work as letters F, I, W, micro-batches in order."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rank does where it could do several things.

    Arguments:
        gap: a W fills a gap of at least this share of its time.
        level: a W fills a smaller gap too, where the rank would else have idled longer than every other so far.
        turns: forwards and backwards that are both ready take turns; else the backward goes first.
        delay: how much, in times of a forward, warm-up may delay the rank's first gradient.
        ahead: forwards ahead of backwards: 0 as memory allows, 1 as in 1F1B, 2 as in ZB-H2.
    """

    gap: float
    level: bool
    turns: bool
    delay: float
    ahead: int


RULES: Final = tuple(
    Rule(*values) for values in product((0.0, 0.5, 1.0), (False, True), (False, True), (0.0, 1.0, inf), (0, 1, 2))
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What to find an order for: a stage on each rank.

    Arguments: ``limits``, activations that each rank may keep; ``kept``, share of one that lives on from I to W.
    """

    times: StageTimes
    micro_batches: int
    limits: tuple[float, ...]
    kept: float

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return self.times.stages

    def first_gradients(self) -> tuple[float, ...]:
        """When the gradient of the first micro-batch can reach each rank at the earliest."""
        times, reached = self.times, [0.0] * self.ranks
        now = sum(times.forward) + sum(times.communication)
        for rank in reversed(range(self.ranks)):
            reached[rank] = now
            now += times.input[rank] + (times.communication[rank - 1] if rank else 0.0)
        return tuple(reached)


_F: Final = 0
_I: Final = 1
_W: Final = 2
_NONE: Final = -1
_MARGIN: Final = 1 + 1e-9
"""Far more than sums of seconds can be rounded by: a walk is left off only where it is longer beyond doubt."""


class Case(NamedTuple):
    """What to find an order for, as a kernel reads it.

    Arguments: ``seconds``, shape [3, ranks], of F, I and W; ``hops``, to the next rank; ``limits``, activations;
    ``first``, when the first gradient can come; ``work``, seconds of all actions of a rank.
    """

    seconds: Array
    hops: Array
    limits: Array
    first: Array
    work: Array


class Walk(NamedTuple):
    """What a walk writes.

    Arguments: ``ends``, shape [3, ranks, micro-batches]; ``done``, how many of each kind; ``clock``, by rank when it is
    free, when it began and how long it idled; ``asleep``; ``heap`` and ``place``, times and ranks that may go on.
    """

    ends: Array
    done: Array
    clock: Array
    asleep: Array
    heap: Array
    place: Array


@kernel
def _shortest(rules: Array, case: Any, walk: Any, rows: Array, places: Array, seconds: Array) -> None:
    """The shortest different rows that rules give, shortest first, of equal ones that of the first rule first.

    Arguments: ``places``, which of ``rows`` are the shortest, and behind them one for the rule that is tried;
    ``seconds``, the seconds of each, infinite at first.
    """
    most = len(seconds)
    for number in range(len(rules)):
        values = rules[number]
        rule = (values[0], values[1] != 0.0, values[2] != 0.0, values[3], int(values[4]), values[5])
        tried = places[most]
        longest = _walk(rule, case, walk, rows[tried], seconds[-1])
        if longest >= seconds[-1] or _is_among(rows, places, seconds, longest):
            continue
        # The last one makes room, and its rows are written by the next rule.
        at, places[most] = most - 1, places[most - 1]
        while at > 0 and seconds[at - 1] > longest:
            seconds[at], places[at] = seconds[at - 1], places[at - 1]
            at -= 1
        seconds[at], places[at] = longest, tried


@part
def _is_among(rows: Array, places: Array, seconds: Array, longest: float) -> bool:
    """Whether the rows that were tried last are among the shortest."""
    tried = rows[places[len(seconds)]]
    same = False
    for at in range(len(seconds)):
        if seconds[at] == longest and not same:
            same = True
            other = rows[places[at]]
            for rank in range(len(tried)):
                for action in range(tried.shape[1]):
                    if other[rank, action] != tried[rank, action]:
                        same = False
    return same


@part
def _walk(rule: Any, case: Any, walk: Any, rows: Array, bound: float) -> float:
    """Seconds of the rank that takes longest; infinite where it is left off, being longer than ``bound``."""
    ranks, actions = rows.shape
    done, clock, heap, place = walk.done, walk.clock, walk.heap, walk.place
    size = 0
    for rank in range(ranks):
        for kind in range(3):
            done[kind, rank] = 0
        clock[0, rank], clock[1, rank], clock[2, rank] = 0.0, np.inf, 0.0
        walk.asleep[rank] = False
        size = _push(heap, place, size, 0.0, rank)
    longest = -np.inf
    while size:
        size = _first_behind(heap, place, size)
        now, rank = heap[size], place[size]
        at = done[0, rank] + done[1, rank] + done[2, rank]
        # A rank may be in the heap several times; only an entry at or behind its last work counts.
        if now < clock[0, rank] or at >= actions:
            continue
        kind, wake = _choose(rule, case, walk, rows, rank, now)
        if kind == _NONE:
            walk.asleep[rank] = True
            if wake < np.inf:
                size = _push(heap, place, size, wake, rank)
            continue
        if at:
            clock[2, rank] += now - clock[0, rank]
            # A rank takes as long as it works and idles, and idles ever longer.
            if case.work[rank] + clock[2, rank] > bound * _MARGIN:
                longest = np.inf
                break
        clock[1, rank] = min(clock[1, rank], now)
        rows[rank, at] = kind
        clock[0, rank] = now + case.seconds[kind, rank]
        walk.ends[kind, rank, done[kind, rank]] = clock[0, rank]
        done[kind, rank] += 1
        size = _push(heap, place, size, clock[0, rank], rank)
        other = rank + 1 if kind == _F else rank - 1 if kind == _I else -1
        if 0 <= other < ranks and walk.asleep[other]:
            walk.asleep[other] = False
            size = _push(heap, place, size, max(clock[0, other], now), other)
    for rank in range(ranks):
        longest = max(longest, clock[0, rank] - clock[1, rank])
    return longest


@part
def _choose(rule: Any, case: Any, walk: Any, rows: Array, rank: int, now: float) -> tuple[int, float]:
    """What a rank does next, or ``_NONE``; and when it looks again."""
    gap, level, turns, _, _, _ = rule
    done = walk.done
    forward, full = _forward(rule, case, walk, rank, now)
    gradient = _gradient(case, walk, rank)
    kind, wake = _NONE, now
    if gradient <= now:
        at = done[0, rank] + done[1, rank] + done[2, rank]
        kind = _F if forward <= now and turns and rows[rank, at - 1] != _F else _I
    elif forward <= now:
        kind = _F
    else:
        wake = min(forward, gradient)
        if done[_W, rank] < done[_I, rank] and (full or _fills(gap, level, case, walk, rank, wake - now)):
            kind = _W
    return kind, wake


@part
def _forward(rule: Any, case: Any, walk: Any, rank: int, now: float) -> tuple[float, bool]:
    """When the next forward may begin, and whether memory alone holds it back."""
    _, _, _, delay, ahead, kept = rule
    done, limits = walk.done, case.limits
    count, back = done[_F, rank], done[_I, rank]
    arrives = 0.0
    if rank:
        arrives = walk.ends[_F, rank - 1, count] + case.hops[rank - 1] if count < done[_F, rank - 1] else np.inf
    begin, full = arrives, False
    if count == walk.ends.shape[2] or arrives == np.inf:
        begin = np.inf
    else:
        hop = len(limits) - rank
        lasts = case.seconds[_F, rank]
        slack = delay * lasts if lasts else 0.0
        most = hop if ahead == 1 else 2 * hop - 1
        late = max(arrives, now) + lasts > case.first[rank] + slack
        if (ahead and count - back >= most) or (count and not back and late):
            begin = np.inf
        elif count + 1 - back + kept * (back - done[_W, rank]) > limits[rank]:
            begin, full = np.inf, arrives <= now
    return begin, full


@part
def _gradient(case: Any, walk: Any, rank: int) -> float:
    """When the next gradient of an input may begin."""
    done, ends = walk.done, walk.ends
    count, begin = done[_I, rank], np.inf
    if count < done[_F, rank]:
        if rank + 1 == done.shape[1]:
            begin = ends[_F, rank, count]
        elif count < done[_I, rank + 1]:
            begin = ends[_I, rank + 1, count] + case.hops[rank]
    return begin


@part
def _fills(gap: float, level: bool, case: Any, walk: Any, rank: int, idle: float) -> bool:
    """Whether a W fills so much idle time."""
    fills: bool = idle >= gap * case.seconds[_W, rank]
    if level and not fills:
        most = walk.clock[2, 0]
        for one in walk.clock[2]:
            most = max(most, one)
        fills = walk.clock[2, rank] + idle > most
    return fills


@part
def _push(heap: Array, place: Array, size: int, time: float, rank: int) -> int:
    """Note that a rank may go on at a time."""
    heap[size], place[size] = time, rank
    return size + 1


@part
def _first_behind(heap: Array, place: Array, size: int) -> int:
    """Put the first entry behind all others; of equal times the last rank is first, as gradients come from there."""
    first, last = 0, size - 1
    for at in range(1, size):
        if heap[at] < heap[first] or (heap[at] == heap[first] and place[at] > place[first]):
            first = at
    heap[first], heap[last] = heap[last], heap[first]
    place[first], place[last] = place[last], place[first]
    return last


_LETTERS: Final = np.frombuffer(b'FIW', dtype=np.uint8)


def shortlist(setting: Setting, rules: Sequence[Rule], most: int) -> list[Letters]:
    """The shortest different orders of some rules, at most so many; of equal ones that of the first rule first."""
    ranks, actions = setting.ranks, 3 * setting.micro_batches
    times = setting.times
    # A gap that no stage has, so that the array is there for a single rank too.
    seconds, hops = np.array([times.forward, times.input, times.weight]), np.array([*times.communication, 0.0])
    facts = np.array([(one.gap, one.level, one.turns, one.delay, one.ahead, setting.kept) for one in rules], np.float64)
    limits, first = np.array(setting.limits, dtype=np.float64), np.array(setting.first_gradients())
    case = Case(seconds, hops, limits, first, seconds.sum(axis=0) * setting.micro_batches)
    ends, done = np.zeros((3, ranks, setting.micro_batches)), np.zeros((3, ranks), dtype=np.int64)
    # Each action takes one entry off the heap and puts at most two there.
    size = ranks * (actions + 1) + 1
    heap, place, asleep = np.zeros(size), np.zeros(size, dtype=np.int64), np.zeros(ranks, dtype=np.bool_)
    walk = Walk(ends, done, np.zeros((3, ranks)), asleep, heap, place)
    rows, step_seconds = np.zeros((most + 1, ranks, actions), dtype=np.int8), np.full(most, np.inf)
    places = np.arange(most + 1)
    # Every rule is a walk of its own over the same few arrays.
    _shortest.compiled(facts, case, walk, rows, places, step_seconds)
    return [tuple(_LETTERS[row].tobytes().decode() for row in rows[at]) for at in places[:most][step_seconds < np.inf]]


SHORTLIST: Final = 4
"""Orders of the heuristic that are timed over several steps."""


def automatic_order(micro_batches: int, times: StageTimes, limit: float | Sequence[float], kept: float = 1.0) -> Order:
    """The order of F, I and W with the shortest step that the zero-bubble heuristic finds; a stage on each rank.

    It is the best, first by step time in the steady state and then by the first step, of: the published heuristic
    (Qi et al., 2023, arXiv 2401.10241, section 3.1) under each of its rules, 1F1B, ZB-H1 and ZB-H2, these cut down
    to the limit. So it is never slower than these where they keep the limit. Same arguments, same order.

    Arguments:
        times: of the stages; pipeline ranks are as many. Rounded to the grid of 2⁻⁴⁰ s.
        limit: activations that a rank may keep, for all or for each, at least 1; ZB-1p has as many as ranks, ZB-2p
            twice that.
        kept: share of an activation that lives on from its I to its W (M_W / M_B in the paper).
    Raises `ScheduleError` for a limit below one activation, or for another number of limits than ranks.
    Does not model streams, links that are shared, launches, or what happens between steps.
    """
    setting = _setting(micro_batches, times, limit, kept)
    # Handcrafted orders first, so that they win where nothing is better: 1F1B, ZB-H1 and ZB-H2.
    candidates = [_within_limit(setting, ahead, lag) for ahead, lag in ((1, 0), (1, 1), (2, 2))]
    # The heuristic's own seconds are of one step; the best few are timed over three, where steps overlap.
    candidates += shortlist(setting, RULES, SHORTLIST)
    # min keeps the first of equals, and candidates come in a fixed order: the same arguments give the same order.
    orders = [of_letters(rows, micro_batches) for rows in candidates]
    return min(orders, key=lambda order: _cost(order, setting.times))


def _setting(micro_batches: int, times: StageTimes, limit: float | Sequence[float], kept: float) -> Setting:
    limits = tuple(limit) if isinstance(limit, Sequence) else (limit,) * times.stages
    if len(limits) != times.stages or min(limits) < 1:
        what = f'{len(limits)} limits, the least {min(limits, default=0):g} activations, for {times.stages} ranks'
        raise refuse('automatic', what, 'give one for each rank, at least 1')
    if micro_batches < 1 or not 0 <= kept <= 1:
        what = f'{micro_batches} micro-batches, {kept:g} of an activation kept for W'
        raise refuse('automatic', what, 'give at least 1, and a share from 0 to 1')
    # On the engine's grid, so that the clock's ties here are ties in the simulation.
    rounded = {one.name: tuple(map(quantise, getattr(times, one.name))) for one in fields(times)}
    return Setting(StageTimes(**rounded), micro_batches, limits, kept)


def _within_limit(setting: Setting, ahead: int, lag: int) -> Letters:
    """1F1B (1, 0), ZB-H1 (1, 1) or ZB-H2 (2, 2), with less warm-up and then less lag where the limit is lower."""
    ranks, count = setting.ranks, setting.micro_batches
    rows = tuple(letters(count, ahead * (ranks - 1 - rank), lag * rank) for rank in range(ranks))
    peaks = peak_live(of_letters(rows, count), setting.kept)
    if all(peak <= limit for peak, limit in zip(peaks, setting.limits, strict=True)):
        return rows
    # One activation is the one that is worked on.
    room = [floor(limit) - 1 for limit in setting.limits]
    # A rank that were ahead by more than the one before it would wait for forwards that never come.
    warm_up = list(accumulate((min(room[rank], ahead * (ranks - 1 - rank)) for rank in range(ranks)), min))
    return tuple(letters(count, warm_up[rank], min(lag * rank, room[rank] - warm_up[rank])) for rank in range(ranks))


def _cost(order: Order, times: StageTimes) -> tuple[float, float]:
    """Step time in the steady state, and the first step."""
    # The second step may still feel the empty pipeline of the first; from then on steps repeat.
    first, second, third = (max(step.end) for step in run(Recurrence.of(order), times, 3))
    return third - second, first
