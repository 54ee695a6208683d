"""Communicated: what a model of collectives makes of a program's messages; the same for all devices at these links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collective import ClusterCollectives
from simpar.cost.costs import ByKey, Communication, Keys
from simpar.cost.entries import Alike, Block, Entries, LinkNames
from simpar.cost.messages import Messages, Numbers, isolated
from simpar.cost.model import CollectiveCost, CollectiveModel
from simpar.program import OpClass, Program

if TYPE_CHECKING:
    from simpar.cost.price import Effects

MANY: Final = 512
"""From how many ranks on groups are priced by their shapes, in arrays: below, a few objects are quicker."""
Priced = dict[int, Sequence[Communication]]
"""By the number of a cost key."""


class Communicated:
    """The messages of a program, of which a model is asked once for each cost key, whichever effects are on.

    Arguments:
        kind, ops: of each op class the number of its cost key, and an op class of each key.
    Attribute ``costs``: by cost key, of every group.
    """

    def __init__(
        self, program: Program, collective: CollectiveModel, kind: NDArray[np.int64], ops: Sequence[OpClass]
    ) -> None:
        self._program = program
        self._collective = collective
        self._ranks: dict[str, list[list[int]]] = {}
        self._by_shape: dict[int, tuple[Alike, ...]] = {}
        self._lie: dict[tuple[str, str, int], tuple[NDArray[np.int32], list[NDArray[np.int64]]]] = {}
        self._made: dict[tuple[bool, bool], tuple[ByKey, Sequence[str]]] = {}
        self.costs: dict[int, tuple[CollectiveCost, ...]] = {}
        self._key_of = _communicating(kind, ops) if ops is not program.cost_kinds[1] else communicating(program)
        many = program.world >= MANY
        for number, op in enumerate(ops):
            if op.kind == 'compute':
                continue
            if many and isinstance(collective, ClusterCollectives) and collective.shapes_tell:
                alike = self._by_shape[number] = collective.by_shape(op, *self._lying(collective, op))
                # Groups in order: the first one is among those that stand first.
                self.costs[number] = (alike[0].cost,)
            else:
                self.costs[number] = tuple([collective.cost(op, ranks) for ranks in self._meeting(op)])

    def of(self, effects: Effects) -> tuple[ByKey, Sequence[str]]:
        """The messages with some effects on, and the names of the links; what no effect changes is the same object."""
        key = (effects.small_operator, effects.link_sharing)
        if key not in self._made:
            if self._by_shape and isinstance(self._collective, ClusterCollectives):
                made, links = self._in_blocks(effects, self._collective)
            else:
                messages = Messages(effects)
                made = {kind: tuple(map(messages.message, costs)) for kind, costs in self.costs.items()}
                links = tuple(messages.links)
            self._made[key] = ByKey(self._key_of, made), links
        return self._made[key]

    def _in_blocks(self, effects: Effects, collective: ClusterCollectives) -> tuple[Priced, Sequence[str]]:
        """By cost key, by shapes of groups."""
        numbers = Numbers(len(collective.topology.links) * collective.cluster.world)
        made: Priced = {}
        for kind, alike in self._by_shape.items():
            blocks = []
            for one in alike:
                alpha, transfer, parts = isolated(effects, one.cost, one.parts if effects.link_sharing else ())
                links = numbers.of(one.channels) if parts else one.channels[:, :0]
                blocks.append(Block(one.rows, alpha, transfer, links, parts, one.widths if parts else ()))
            made[kind] = Entries(tuple(blocks))
        return made, LinkNames(numbers.channels, collective.name)

    def _lying(self, collective: ClusterCollectives, op: OpClass) -> tuple[NDArray[np.int32], list[NDArray[np.int64]]]:
        """The groups of an op, and which of them lie alike; ops of one partition share them."""
        key = (op.partition, op.kind, op.peer)
        if key not in self._lie:
            groups = self._groups(op)
            self._lie[key] = groups, collective.lying_alike(groups)
        return self._lie[key]

    def _groups(self, op: OpClass) -> NDArray[np.int32]:
        """As ``_meeting``, in one array."""
        groups = self._program.partitions[op.partition].groups_GP
        if op.kind == 'collective':
            return groups
        peers = np.roll(groups, -op.peer, axis=1)
        sides = (groups, peers) if op.kind == 'send' else (peers, groups)
        return np.stack(sides, axis=-1).reshape(-1, 2)

    def _meeting(self, op: OpClass) -> Iterator[Sequence[int]]:
        """The ranks of each group; of a send or receive, the sender and the receiver of each pair."""
        if op.partition not in self._ranks:
            self._ranks[op.partition] = self._program.partitions[op.partition].groups_GP.tolist()
        for ranks in self._ranks[op.partition]:
            if op.kind == 'collective':
                yield ranks
                continue
            for position, rank in enumerate(ranks):
                peer = ranks[(position + op.peer) % len(ranks)]
                yield (rank, peer) if op.kind == 'send' else (peer, rank)


@lru_cache(maxsize=4)
def communicated(program: Program, collective: ClusterCollectives) -> Communicated:
    """What a model that is kept makes of a program's messages, without a stack."""
    return Communicated(program, collective, *program.cost_kinds)


@lru_cache(maxsize=4)
def communicating(program: Program) -> Keys:
    """The op classes that communicate; the same object for all clusters."""
    return _communicating(*program.cost_kinds)


def _communicating(kind: NDArray[np.int64], ops: Sequence[OpClass]) -> Keys:
    return Keys(kind, np.array([op.kind != 'compute' for op in ops], dtype=bool)[kind])
