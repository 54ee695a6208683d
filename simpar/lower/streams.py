"""Streams: the in-order queues of a pipeline rank, one for each partition and way between two ranks."""

from __future__ import annotations

from typing import Final

from simpar.lower.issue import Issue
from simpar.lower.mesh import PIPELINE, Mesh
from simpar.plan import Plan
from simpar.program.op import OpKind

COMPUTE: Final = 'compute'
_BLOCKING: Final[dict[str, frozenset[OpKind]]] = {
    'group': frozenset({'compute'}),
    'messages': frozenset({'compute', 'collective'}),
    'single': frozenset({'compute', 'collective', 'send', 'recv'}),
}
"""By ``plan.streams``, what takes its turn on the stream of computation."""


class Streams:
    """Numbers the streams of a pipeline rank, as they are first used; the first is that of computation.

    Arguments: ``place``, the pipeline rank.
    """

    def __init__(self, mesh: Mesh, plan: Plan, place: int) -> None:
        self._mesh = mesh
        self._blocking = _BLOCKING[plan.streams]
        self._place = place
        self._number = {COMPUTE: 0}

    @property
    def names(self) -> tuple[str, ...]:
        """By number."""
        return tuple(self._number)

    def number(self, issue: Issue) -> int:
        """The number of the stream that an op is issued on."""
        # Whatever blocks, computation does.
        if issue.op.kind == COMPUTE:
            return 0
        return self._number.setdefault(self._name(issue), len(self._number))

    def _name(self, issue: Issue) -> str:
        """One for each partition; sends and receives, one for each direction, phase and copy."""
        op = issue.op
        if op.kind in self._blocking:
            return COMPUTE
        if op.partition != PIPELINE:
            return op.partition
        peer = (self._place + op.peer) % self._mesh.pipeline
        ends = (self._place, peer) if op.kind == 'send' else (peer, self._place)
        # A stream a direction: a send that waits for its receiver must not hold up what comes the other way.
        name = f'{PIPELINE}.{"B" if op.phase == "I" else op.phase}.{ends[0]}-{ends[1]}'
        # And a stream a copy, whose messages may overtake each other.
        return f'{name}.c{issue.copy}' if self._mesh.copies > 1 else name
