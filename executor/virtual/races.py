"""Races: vector clocks over what streams were made to wait for, held against every access to memory.

What happens before what follows from the calls alone: stream order, events recorded and waited for, and what the host
has waited for. So a missing event is found whatever order the device then took, and whether or not a value came out
wrong.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from simpar.errors import ProgramError

Clock = dict[int, int]
"""Stream → how many of its tasks are known to have finished."""
SHOWN: Final = 5


class Race(ProgramError):
    """Two accesses to one piece of memory, of which neither waits for the other."""


@dataclass(slots=True)
class Access:
    """Arguments: ``first`` and ``past``, the bytes touched; ``tick``, the number of the task on its stream ``name``."""

    stream: int
    tick: int
    first: int
    past: int
    writes: bool
    what: str
    name: str

    def __str__(self) -> str:
        return f'{self.what} on {self.name}'

    def clashes(self, other: Access, known: Clock) -> bool:
        """Whether an earlier access and this one, which knows so much, are in no order and may not swap."""
        return (
            (self.writes or other.writes)
            and other.first < self.past
            and self.first < other.past
            and known.get(other.stream, 0) < other.tick
        )

    def hides(self, other: Access) -> bool:
        """Whether whoever is ordered after this one is after the earlier one, too."""
        return self.writes and self.first <= other.first and other.past <= self.past


def join(into: Clock, other: Clock) -> None:
    """Let one know what another knows."""
    for stream, tick in other.items():
        if into.get(stream, 0) < tick:
            into[stream] = tick


@dataclass(slots=True)
class Races:
    """All accesses that later ones may clash with, by place: a block of memory, or a tensor of a program."""

    found: list[str] = field(default_factory=list)
    _past: dict[Hashable, list[Access]] = field(default_factory=dict)

    def touch(self, place: Hashable, access: Access, known: Clock) -> None:
        """Hold an access against those before, and keep it for those to come."""
        kept = []
        for other in self._past.get(place, ()):
            if other.stream != access.stream and access.clashes(other, known):
                self.found.append(f'{access} does not wait for {other}')
            # A read after a read of the same bytes by the same stream says all that the first said.
            same = other.stream == access.stream and (access.writes or not other.writes)
            covered = access.first <= other.first and other.past <= access.past
            if not access.hides(other) and not (same and covered):
                kept.append(other)
        kept.append(access)
        self._past[place] = kept

    def forget(self, place: Hashable) -> None:
        """A place that is no more."""
        self._past.pop(place, None)

    def check(self) -> None:
        """Raises ``Race`` where there was any."""
        if self.found:
            shown = list(dict.fromkeys(self.found))
            more = f'\n  and {len(shown) - SHOWN} more' if len(shown) > SHOWN else ''
            raise Race('accesses in no order:\n  ' + '\n  '.join(shown[:SHOWN]) + more)
