"""Which ops meet: a collective on all ranks of its group, a send and its receive."""

from __future__ import annotations

from dataclasses import dataclass, field

from simpar.program import Program
from simpar.program.turns import NONE

_Place = tuple[int, int]
"""(rank, slot)."""


@dataclass(slots=True, eq=False)
class Meetings:
    """Finds what meets by its order on the communicator, as the machines do; see docs/architecture.md."""

    program: Program
    _members: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    def of(self, rank: int, slot: int) -> list[_Place]:
        """The ranks and slots that an op meets, itself included."""
        turns = self.program.turns[int(self.program.role_of_rank[rank])]
        # A compute op meets nobody.
        if turns.kind[slot] == NONE:
            return [(rank, slot)]
        kind, turn = turns.kinds[int(turns.kind[slot])], int(turns.turn[slot])
        members = self.members(kind.partition, rank)
        facing = kind.facing(len(members))
        # A collective faces itself on all members; a send faces a receive on its peer alone.
        others = members if facing == kind else (members[(members.index(rank) + kind.peer) % len(members)],)
        met = [
            (other, self.program.turns[int(self.program.role_of_rank[other])].of_kind[facing][turn]) for other in others
        ]
        return met if facing == kind else [(rank, slot), *met]

    def members(self, partition: str, rank: int) -> tuple[int, ...]:
        """The ranks of a rank's group."""
        key = (partition, rank)
        if key not in self._members:
            self._members[key] = self.program.partitions[partition].members(rank)
        return self._members[key]
