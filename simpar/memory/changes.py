"""Changes: the times of a step at which what a rank holds grows or shrinks, and by how many bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simpar.machine_code import is_started
from simpar.memory.lifetimes import Lifetimes
from simpar.memory.parts import NONE
from simpar.memory.touches import Ints
from simpar.trace import Times


@dataclass(frozen=True, eq=False)
class Window:
    """When the slots of a rank begin and end, and the step that all this is folded into.

    Arguments:
        starts, ends: seconds of the trace, shape [slots].
        earlier: the starts in the step before.
        begin: seconds of the trace at which the step begins, which lasts ``step``.
    """

    starts: Times
    earlier: Times
    ends: Times
    begin: float
    step: float

    @cached_property
    def folded(self) -> tuple[Ints, Times]:
        """Starts, earlier ones and ends, behind one another: in which step, and seconds from its begin."""
        return fold(np.concatenate((self.starts, self.earlier, self.ends)) - self.begin, self.step)


def fold(times: Times, step: float) -> tuple[Ints, Times]:
    """Times as (which step, seconds from its begin)."""
    if step <= 0:
        return np.zeros(times.shape, dtype=np.int64), np.zeros(times.shape)
    which = np.floor(times / step)
    # Rounding of the quotient can put a time into a neighbouring step; the remainder shows it.
    rest = times - which * step
    which += (rest >= step).astype(float) - (rest < 0)
    return which.astype(np.int64), times - which * step


def changes(lives: Lifetimes, size: Ints, window: Window) -> tuple[Times, Ints]:
    """Times, and by how much what is held grows with each; first that of the step's begin, with all that is there then.

    Lives that begin, or end, with one slot are looked at together. Arguments: ``size`` of each life.
    """
    return _compiled(lives, size, window) if is_started() else _plain(lives, size, window)


class Moments(NamedTuple):
    """The moments of a step at which what is held changes.

    Arguments: ``times``, each once; ``change``, as of ``changes``; ``order`` of these by time, and in it the ``last``
    at each of the times.
    """

    times: Times
    change: Ints
    order: Ints
    last: Ints

    @staticmethod
    def of(times: Times, change: Ints) -> Moments:
        """Those of what ``changes`` tells."""
        order = np.argsort(times, kind='stable')
        rising = times.take(order)
        last = np.append(np.flatnonzero(rising[1:] != rising[:-1]), len(rising) - 1)
        return Moments(rising.take(last), change, order, last)

    def held(self, change: Ints) -> Ints:
        """The bytes that are held from each time on, of changes at these times."""
        # Of several changes at one time, what is held behind the last of them counts.
        return change.take(self.order).cumsum().take(self.last)


def _compiled(lives: Lifetimes, size: Ints, window: Window) -> tuple[Times, Ints]:
    from simpar.memory.kernels import write_changes

    slots = len(window.starts)
    sides = np.array((window.begin, window.step))
    sums, there = np.zeros((slots, 3), dtype=np.int64), np.zeros((slots, 3), dtype=bool)
    times, change = np.empty(3 * slots + 1), np.empty(3 * slots + 1, dtype=np.int64)
    count = write_changes(
        size, lives.begin, lives.end, lives.before, window.starts, window.earlier, window.ends, sides,
        sums, there, times, change,
    )  # fmt: skip
    return times[:count], change[:count]


def _plain(lives: Lifetimes, size: Ints, window: Window) -> tuple[Times, Ints]:
    (which, rest), slots = window.folded, len(window.starts)
    passing = np.flatnonzero(lives.end != NONE)
    begin, begun = _summed(lives.begin[passing] + slots * lives.before[passing], size[passing])
    end, ended = _summed(lives.end[passing] + 2 * slots, size[passing])
    always = size.sum() - size[passing].sum()
    held = always + (ended * which[end]).sum() - (begun * which[begin]).sum()
    return np.concatenate(([0.0], rest[begin], rest[end])), np.concatenate(([held], begun, -ended))


def _summed(key: Ints, size: Ints) -> tuple[Ints, Ints]:
    """The keys that occur, and the sums of the sizes of each."""
    count = int(key.max(initial=NONE)) + 1
    total, there = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    # ``add.at``, not ``+=``, which would count one of several equal keys.
    np.add.at(total, key, size)
    there[key] = True
    return np.flatnonzero(there), total[there]
