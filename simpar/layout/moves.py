"""Moves on a frame: where each axis stands, and the step that changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simpar.layout.axis import Axis
from simpar.layout.frame import Frame, State
from simpar.layout.step import Step, StepKind

NOWHERE = -1
"""The place of an axis that shards nothing."""


@dataclass
class Walk:
    """Steps from a state on, one after the other; only a search or a pass that makes a sequence holds one."""

    frame: Frame
    state: list[Axis | None]
    steps: list[Step]

    @classmethod
    def start(cls, frame: Frame, state: State) -> Walk:
        """Nothing done yet."""
        return cls(frame, list(state), [])

    def go(self, kind: StepKind, axes: Sequence[Axis], targets: Sequence[int] = ()) -> None:
        """Do one step with these axes.

        Arguments: ``targets``, the part that each is to shard (slice, all_to_all, reduce_scatter).
        """
        before = self.frame.local(tuple(self.state))
        moved = kind in ('all_gather', 'all_to_all')
        gather = tuple(self.state.index(axis) for axis in axes) if moved else ()
        # Positions in a group count along its axes in the order of parts, so that what is joined lies in the order of
        # the tensor.
        order = sorted(range(len(axes)), key=lambda at: (*gather[at : at + 1], *targets[at : at + 1]))
        # Gathered parts are cleared before targets are set: an all-to-all may land an axis where another has just left.
        for part in gather:
            self.state[part] = None
        for axis, part in zip(axes, targets, strict=False):
            self.state[part] = axis
        self.steps.append(
            Step(
                kind,
                tuple(axes[at] for at in order),
                before,
                self.frame.local(tuple(self.state)),
                tuple(gather[at] for at in order if gather),
                tuple(targets[at] for at in order if targets),
            )
        )


def places(axes: Sequence[Axis], state: State) -> dict[Axis, int]:
    """Where each axis stands."""
    return {axis: state.index(axis) if axis in state else NOWHERE for axis in axes}
