"""The sequences of MindSpore's compiler, as its recorded outputs show them.

A part is *wanted* by the axis that cuts it in the target layout. The compiler goes over the parts in order: what is
wanted by an axis that cuts nothing is sliced; what is wanted by an axis that still cuts another part takes it from
there, by an all-to-all or else by an all-gather and a slice; then axes that are to cut nothing are gathered, by version
2.10 those of the last part first; where all parts wait for each other, the first is gathered. Version 2.10 without
all-to-all gathers every part that changes, the last first, and then slices.
"""

from __future__ import annotations

from collections.abc import Callable

from simpar.layout.axis import Axis
from simpar.layout.frame import Frame, State
from simpar.layout.moves import Walk
from simpar.layout.step import Step


def steps(
    frame: Frame, begin: State, end: State, sums: tuple[Axis, ...], *, all_to_all: bool, last_first: bool
) -> tuple[Step, ...]:
    """The steps from one state to another.

    Arguments: ``sums``, axes whose pending sums are taken first (the compiler has none); ``last_first``: version 2.10's
    way.
    """
    walk = Walk.start(frame, begin)
    if sums:
        walk.go('all_reduce', sums)
    if last_first and not all_to_all:
        _gather_and_slice(walk, end)
    else:
        _Parts(walk, end, all_to_all, last_first).settle()
    return tuple(walk.steps)


def _gather_and_slice(walk: Walk, end: State) -> None:
    changed = [part for part, axis in enumerate(walk.state) if axis != end[part]]
    for part in reversed(changed):
        _gather(walk, part)
    for part in changed:
        axis = end[part]
        if axis is not None:
            walk.go('slice', (axis,), (part,))


def _gather(walk: Walk, part: int) -> None:
    axis = walk.state[part]
    if axis is not None:
        walk.go('all_gather', (axis,))


class _Parts:
    """The parts that are not yet as wanted."""

    def __init__(self, walk: Walk, end: State, all_to_all: bool, last_first: bool) -> None:
        self.walk = walk
        self.end = end
        self.all_to_all = all_to_all
        self.last_first = last_first

    @property
    def open(self) -> list[int]:
        return [part for part, axis in enumerate(self.walk.state) if axis != self.end[part]]

    def settle(self) -> None:
        while self.open:
            done = len(self.walk.steps)
            while self._pass(self._slice) or self._pass(self._take):
                pass
            self._pass(self._give_up)
            if len(self.walk.steps) == done:
                part = next(part for part in self.open if self.walk.state[part] is not None)
                _gather(self.walk, part)

    def _pass(self, rule: Callable[[int], None]) -> bool:
        """Try a rule on every open part in turn; whether it did anything."""
        done = len(self.walk.steps)
        for part in reversed(self.open) if rule == self._give_up and self.last_first else self.open:
            if self.walk.state[part] != self.end[part]:
                rule(part)
        return len(self.walk.steps) > done

    def _slice(self, part: int) -> None:
        wanted = self.end[part]
        if self.walk.state[part] is None and wanted is not None and wanted not in self.walk.state:
            self.walk.go('slice', (wanted,), (part,))

    def _take(self, part: int) -> None:
        wanted = self.end[part]
        if self.walk.state[part] is not None or wanted is None or wanted not in self.walk.state:
            return
        if self.all_to_all:
            self.walk.go('all_to_all', (wanted,), (part,))
        else:
            self.walk.go('all_gather', (wanted,))
            self.walk.go('slice', (wanted,), (part,))

    def _give_up(self, part: int) -> None:
        held = self.walk.state[part]
        if held is not None and held not in self.end:
            self.walk.go('all_gather', (held,))
