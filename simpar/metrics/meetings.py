"""Which ops meet: a collective on all ranks of its group, a send and its receive."""

from __future__ import annotations

from dataclasses import dataclass, field

from simpar.metrics.step import is_transfer
from simpar.program import OpClass, Program, Role

_Channel = tuple[str, str, int, str]
"""What is counted apart: (kind of op, partition, how many positions further the peer stands, stream)."""
_Place = tuple[int, int]
"""(rank, slot)."""


@dataclass(slots=True)
class Meetings:
    """Finds what meets by its order on the communicator, as the machines do; see docs/architecture.md."""

    program: Program
    _counted: dict[int, tuple[dict[_Channel, list[int]], dict[int, int]]] = field(default_factory=dict)
    _members: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    def of(self, rank: int, slot: int) -> list[_Place]:
        """The ranks and slots that an op meets, itself included."""
        role = self.program.role(rank)
        op = self.program.op(role, slot)
        if op.kind == 'compute':
            return [(rank, slot)]
        number = self._count(role)[1][slot]
        channel = self._channel(role, slot, op)
        if is_transfer(op):
            return [(rank, slot), self._peer(rank, op, channel, number)]
        return [(other, self._slot(other, channel, number)) for other in self.members(op.partition, rank)]

    def members(self, partition: str, rank: int) -> tuple[int, ...]:
        """The ranks of a rank's group."""
        key = (partition, rank)
        if key not in self._members:
            self._members[key] = self.program.partitions[partition].members(rank)
        return self._members[key]

    def _peer(self, rank: int, op: OpClass, channel: _Channel, number: int) -> _Place:
        """The other end of a send or receive."""
        members = self.members(op.partition, rank)
        peer = members[(members.index(rank) + op.peer) % len(members)]
        kind, partition, offset, stream = channel
        facing = ('recv' if kind == 'send' else 'send', partition, -offset % len(members), stream)
        return peer, self._slot(peer, facing, number)

    def _slot(self, rank: int, channel: _Channel, number: int) -> int:
        return self._count(self.program.role(rank))[0][channel][number]

    def _count(self, role: Role) -> tuple[dict[_Channel, list[int]], dict[int, int]]:
        """The communication ops of a role by channel, and the number of each there."""
        if id(role) not in self._counted:
            by_channel: dict[_Channel, list[int]] = {}
            number = {}
            for slot, index in enumerate(role.op_class.tolist()):
                op = self.program.op_classes[index]
                if op.kind != 'compute':
                    same = by_channel.setdefault(self._channel(role, slot, op), [])
                    number[slot] = len(same)
                    same.append(slot)
            self._counted[id(role)] = by_channel, number
        return self._counted[id(role)]

    def _channel(self, role: Role, slot: int, op: OpClass) -> _Channel:
        peer = op.peer % self.program.partitions[op.partition].size
        return op.kind, op.partition, peer, role.streams[int(role.stream[slot])]
