"""Hiding: least seconds of a rank that computes and sends at once, where each slows the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SURELY: Final = 1 - 1e-9
"""Of what was worked out, for each duration of the engine is rounded to its grid."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of what runs beside something else: of products and of other ops beside a message, of it beside them."""

    matrix: float
    memory: float
    collective: float

    @property
    def unstretched(self) -> Speeds:
        """The same with messages that nothing slows."""
        return Speeds(self.matrix, self.memory, 1.0)


def least_beside(seconds: float, slowed: float, idle: float, wire: float, speeds: Speeds) -> float:
    """Least seconds of a step of one rank that computes and sends at once.

    While both go on, computation takes longer and so does the message. So hiding messages has a price: of all ways to
    lay them over idle time and computation, the one that ends first.

    Arguments:
        seconds, slowed: of all computation by itself, and beside messages all the time.
        idle: in which the rank surely computes nothing.
        wire: of all messages of one stream by themselves.
    """
    return _beside(seconds, slowed, idle, wire, speeds, _products(seconds, slowed, speeds))


def _beside(seconds: float, slowed: float, idle: float, wire: float, speeds: Speeds, matrix: float) -> float:
    fast, slow = speeds.matrix, speeds.memory
    # Idle time is filled first, for it costs nothing. What is left lies over products first, which suffer least.
    over = max(0.0, (wire - idle) / speeds.collective)
    if over >= slowed:
        # All computation is slowed, and the messages still need more time than that.
        return max(idle + slowed, wire + (1 - speeds.collective) * slowed)
    products = min(over, matrix / fast)
    return idle + seconds + (1 - fast) * products + (1 - slow) * (over - products)


def least_hidden(seconds: float, slowed: float, wire: float, speeds: Speeds) -> float:
    """The same for any idle time."""
    matrix = _products(seconds, slowed, speeds)
    # By idle time it is convex, and in straight pieces: the least is where one ends.
    between = min(wire, max(0.0, wire - speeds.collective * matrix / speeds.matrix))
    return min([_beside(seconds, slowed, idle, wire, speeds, matrix) for idle in {0.0, between, wire}])


def _products(seconds: float, slowed: float, speeds: Speeds) -> float:
    """Of all computation, that of products, as told by how much messages slow it."""
    fast, slow = speeds.matrix, speeds.memory
    if fast == slow:
        return seconds
    return min(seconds, max(0.0, seconds - (slowed - seconds / fast) / (1 / slow - 1 / fast)))


@dataclass(frozen=True, slots=True)
class Work:
    """What ops cost beside each other, by op class.

    Arguments:
        alone, slowed: seconds of computation by itself, and beside messages.
        wire: of collectives, the seconds that surely go by where nothing slows them; what no link is asked for is
            counted as less, so that it takes as long as it does where it is hidden.
        speeds: beside each other.
        loads: of collectives, the seconds for which they have the outermost link to themselves.
        host: seconds in which each is issued; empty: none.
    """

    alone: Sequence[float]
    slowed: Sequence[float]
    wire: Mapping[int, float]
    speeds: Speeds
    loads: Mapping[int, float]
    host: Sequence[float] = ()


def windows(
    ahead: Sequence[int],
    behind: Sequence[int],
    ops: Sequence[int],
    computes: Sequence[bool],
    streams: Sequence[int],
    work: Work,
) -> dict[int, list[tuple[int, float]]]:
    """Least seconds from the start of one compute op to that of a later one, by the later: (earlier, seconds).

    A message that needs one and is needed by the other is surely sent between them, beside what is computed there or
    while nothing is. All arguments are by place, in issue order: ``ahead`` as of ``last_ahead``, ``behind`` as of
    ``first_behind``; ``ops``, op classes; ``computes``, which of them compute; ``streams``, which stream each is on.
    """
    sums = _Sums(ops, computes, work)
    found: dict[int, list[tuple[int, float]]] = {}
    for stream in set(streams):
        sent = [
            (ahead[place], behind[place], work.wire[op])
            for place, op in enumerate(ops)
            if streams[place] == stream and op in work.wire and ahead[place] >= 0 and behind[place] < len(ops)
        ]
        for first in sorted({begin for begin, _, _ in sent}):
            wire = 0.0
            inside = sorted((end, each) for begin, end, each in sent if begin >= first)
            for number, (end, each) in enumerate(inside):
                wire += each
                if number + 1 == len(inside) or inside[number + 1][0] > end:
                    alone, slowed = sums(first, end)
                    least = least_hidden(alone, slowed, wire, work.speeds) * SURELY
                    found.setdefault(end, []).append((first, least))
    return found


def last_ahead(before: Sequence[Sequence[int]], computes: Sequence[bool]) -> list[int]:
    """For each place the last compute op that it surely is behind; -1 where there is none."""
    found: list[int] = []
    for needs in before:
        found.append(max((one if computes[one] else found[one] for one in needs), default=-1))
    return found


def first_behind(before: Sequence[Sequence[int]], computes: Sequence[bool]) -> list[int]:
    """For each place the first compute op that is surely behind it; past the end where there is none."""
    found = [len(before)] * len(before)
    for place in range(len(before) - 1, -1, -1):
        reach = place if computes[place] else found[place]
        for need in before[place]:
            found[need] = min(found[need], reach)
    return found


class _Sums:
    """Seconds of computation between two places."""

    def __init__(self, ops: Sequence[int], computes: Sequence[bool], work: Work) -> None:
        self._alone, self._slowed = [0.0], [0.0]
        for op, computed in zip(ops, computes, strict=True):
            self._alone.append(self._alone[-1] + (work.alone[op] if computed else 0.0))
            self._slowed.append(self._slowed[-1] + (work.slowed[op] if computed else 0.0))

    def __call__(self, first: int, end: int) -> tuple[float, float]:
        return self._alone[end] - self._alone[first], self._slowed[end] - self._slowed[first]
