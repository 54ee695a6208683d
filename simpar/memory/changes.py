"""Changes: the times of a step at which what a rank holds grows or shrinks, and by how many bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from simpar.kernels import Array, kernel, part
from simpar.memory.lifetimes import Ints, Lifetimes
from simpar.trace import Times

NONE: Final = -1


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
    slots = len(window.starts)
    sides = np.array((window.begin, window.step))
    sums, there = np.zeros((slots, 3), dtype=np.int64), np.zeros((slots, 3), dtype=bool)
    times, change = np.empty(3 * slots + 1), np.empty(3 * slots + 1, dtype=np.int64)
    count = write_changes(
        size, lives.begin, lives.end, lives.before, window.starts, window.earlier, window.ends, sides,
        sums, there, times, change,
    )  # fmt: skip
    return times[:count], change[:count]


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


@part
def _folded(time: float, step: float) -> tuple[float, float]:
    """A time as (which step, seconds from its begin), as ``fold`` has it."""
    if step <= 0:
        return 0.0, 0.0
    which = np.floor(time / step)
    rest = time - which * step
    if rest >= step:
        which += 1.0
    elif rest < 0:
        which -= 1.0
    return which, time - which * step


@kernel
def write_changes(
    size: Array, begin: Array, end: Array, before: Array, starts: Array, earlier: Array, ends: Array, window: Array,
    sums: Array, there: Array, times: Array, change: Array,
) -> int:  # fmt: skip
    """Write the times at which what is held grows or shrinks, and by how much; return how many there are.

    Arguments: size to before: as of ``Lifetimes``. starts to ends: as of ``Window``. ``window``, its begin
    and its step. ``sums`` and ``there``: shape [slots, 3], of what begins here and in the step before, and of what
    ends; bytes, and whether there are any; nothing at first.
    """
    held = 0
    for life in range(len(size)):
        if end[life] == NONE:
            held += size[life]
            continue
        row = 1 if before[life] else 0
        sums[begin[life], row] += size[life]
        sums[end[life], 2] += size[life]
        there[begin[life], row] = there[end[life], 2] = True
    count = 1
    for slot in range(len(starts)):
        for row in range(3):
            if there[slot, row]:
                time = ends[slot] if row == 2 else earlier[slot] if row else starts[slot]
                which, times[count] = _folded(time - window[0], window[1])
                change[count] = -sums[slot, row] if row == 2 else sums[slot, row]
                # What lives over the end of the step is there at its begin.
                held -= int(which) * change[count]
                count += 1
    times[0], change[0] = 0.0, held
    return count
