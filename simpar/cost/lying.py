"""How groups of ranks lie on a cluster's links, however fast these are: worked out once for all rows of a sweep."""

from __future__ import annotations

from typing import Final

from simpar.hardware import Shape, Topology
from simpar.kept import Kept

Members = tuple[int, ...]
Levels = tuple[int, ...]


class Lying:
    """A group on a cluster's links.

    Arguments: ``members``, its ranks; ``users``, those whose ports send; ``shape``, equal ones the very same object.
    """

    def __init__(self, topology: Topology, members: Members, users: Members, shape: Shape) -> None:
        self.shape = shape
        self._topology = topology
        self._members = members
        self._users = users
        self._over: dict[Levels, tuple[tuple[str, ...], tuple[int, ...]]] = {}

    def over(self, levels: Levels) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The channels that the group uses on some levels, level by level, and how many on each."""
        if levels not in self._over:
            each = [self._of_level(level) for level in levels]
            self._over[levels] = tuple([name for names in each for name in names]), tuple(map(len, each))
        return self._over[levels]

    def _of_level(self, level: int) -> tuple[str, ...]:
        # A pair has a channel of its own, and nobody else's port is used.
        ranks = self._members if self._topology.links[level].per == 'pair' else self._users
        return self._topology.channels(ranks, level)


class Places:
    """The groups of clusters whose links have the same names and sizes; filled as they are met."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        node = topology.node
        # Where levels do not nest in nodes, a group's shape depends on where it begins, and no shape can be shared.
        self.node = node if all(node % size == 0 for size in topology.sizes if size) else 0
        self._shapes: dict[Members, Shape] = {}
        self._same: dict[Shape, Shape] = {}
        self._groups: dict[tuple[Members, bool], Lying] = {}

    def group(self, members: Members, pair: bool) -> Lying:
        """A group, or a sender and its receiver."""
        found = self._groups.get((members, pair))
        if found is None:
            # A message goes out of its sender's ports; what comes in by the same ports goes the other way.
            users = members[:1] if pair else members
            found = self._groups[members, pair] = Lying(self._topology, members, users, self.shape(members))
        return found

    def shape(self, members: Members) -> Shape:
        """How a group lies; groups that lie alike from their first node on are looked at once."""
        if self.node:
            first = members[0] // self.node * self.node
            members = tuple([rank - first for rank in members])
        if members not in self._shapes:
            found = self._topology.shape(members)
            self._shapes[members] = self._same.setdefault(found, found)
        return self._shapes[members]


def places_of(topology: Topology) -> Places:
    """The places of a topology; those of equal levels are the same."""
    key = (topology.sizes, topology.node, tuple([(link.name, link.per) for link in topology.links]))
    return _places.get(key, lambda: Places(topology))


_places: Final[Kept[object, Places]] = Kept(8)
