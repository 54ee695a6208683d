"""Work queues of a rank that runs its streams as threads: an op leaves one when it arrives, those before it first.

Of an accelerator the driver keeps the queues; it reads their number from a variable before it makes its first context.
"""

from __future__ import annotations

import os
import threading
from typing import Final

import numpy as np

from executor.devices.kinds import Kind
from simpar.engine.queues import queues_of
from simpar.errors import RunFailed
from simpar.program import Role

NOT_SET: Final = 'work queues are not as predicted'
"""How a note begins that says so."""


class Queue:
    """One queue that several streams share, in issue order.

    Arguments: ``slots``, of a step. ``left``: how many have left it over all steps; ``moment``, when the last one did.
    """

    def __init__(self, slots: list[int]) -> None:
        self._place = {slot: at for at, slot in enumerate(slots)}
        self.left = 0
        self.moment = 0.0
        self.changed = threading.Condition()

    def ahead(self, step: int, slot: int) -> int:
        """How many must have left it before a slot of a step is first."""
        return step * len(self._place) + self._place[slot]

    def leave(self, moment: float) -> None:
        """Let the next one be first."""
        with self.changed:
            self.left, self.moment = self.left + 1, moment
            self.changed.notify_all()


def queues_by_slot(role: Role, queues: int) -> dict[int, Queue]:
    """The queue of each slot of a role whose stream shares one; ``queues``, how many, 0: as many as streams."""
    found: dict[int, Queue] = {}
    for shared in queues_of(role.stream, queues) if queues else ():
        slots = np.flatnonzero(np.isin(role.stream, shared)).tolist()
        found |= dict.fromkeys(slots, Queue(slots))
    return found


def set_queues(kind: Kind, queues: int, streams: int) -> tuple[str, ...]:
    """Have the driver of a kind of device use so many work queues, 0: nobody asks; a note that says what is in force.

    Raises ``RunFailed`` where its variable says another number: the driver reads it once in a process.
    """
    if not queues:
        return _of_environment(kind, streams)
    if not kind.queues:
        return (f'{NOT_SET}: {queues} were predicted, and nothing sets their number on {kind.name}',)
    found = os.environ.setdefault(kind.queues, str(queues))
    if found != str(queues):
        what = f'{kind.queues} is {found} in this process, and the plan has {queues} work queues'
        raise RunFailed(f'{what}; write cluster.work_queues: {found}, or unset the variable')
    return (f'{kind.queues}={queues}: streams share so many work queues of a device',)


def _of_environment(kind: Kind, streams: int) -> tuple[str, ...]:
    """A note where the user's environment says how many there are, and they are too few for all streams."""
    found = os.environ.get(kind.queues, '') if kind.queues else ''
    if not found.isdecimal() or int(found) >= streams:
        return ()
    return (f'{NOT_SET}: {kind.queues} is {found} for {streams} streams; write cluster.work_queues: {found}',)
