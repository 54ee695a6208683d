"""Which ranks and links behave alike, by lists: the colour refinement of ``representatives`` for few ranks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.cost.costs import ByKey, Communication, Costs, Demands, Entries, Keys, each_message
from simpar.engine.groups import groups_of
from simpar.kept import Kept, Same
from simpar.program import Program

Colours = list[int]
Edges = list[list[tuple[int, int]]]
"""For each rank or link its exchanges, each with the number of the link's demand; for a rank, 1 if it receives and else
0."""

Numbered = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The links of a message; the number of the demand of the first few, of the next few, and so on; and how many each."""
Pattern = tuple[tuple[int, Numbered], ...]
"""Which of an op class's costs last as long, by number of first occurrence, and the links of each."""
Asked = tuple[tuple[bool, str, int, int, tuple[int, ...]], ...]
"""Whether it is a send, on which partition, with which peer, the number of its pattern; and which roles ask for it."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What some ranks do together, whenever they do it: the collective of a group, or a sender and its receiver.

    Arguments:
        kind: equal for exchanges that the same op classes ask for.
        ranks: of a send, the sender and then the receiver.
        cost: equal for those of a kind that last as long.
        links: pairs (link, number of the demand).
    """

    kind: int
    ranks: tuple[int, ...]
    sends: bool
    cost: int
    links: tuple[tuple[int, int], ...]

    def signature(self, ranks: Colours, links: Colours) -> Hashable:
        """What tells it from other exchanges, given the colours of ranks and links."""
        among = [ranks[rank] for rank in self.ranks]
        # Sorted, as a multiset: a collective does not depend on who of its ranks is who, but a send does.
        if not self.sends:
            among.sort()
        over = sorted([(links[link], demand) for link, demand in self.links])
        return (self.kind, self.cost, tuple(among), tuple(over))


def listed_colours(program: Program, costs: Costs) -> tuple[Colours, Colours]:
    """The colours of ranks and links at some costs."""
    told = _Told.by(costs)
    # Kept by what decides it: most ablations change seconds and not which of them are equal.
    return _of_programs.get((Same(program, told.keys), *told[1:]), lambda: _refined(program, told))


class _Told(NamedTuple):
    """What costs tell of ranks and links: most effects of the model change seconds, but not which of them are equal.

    Arguments:
        keys: of op classes, where messages are told by them.
        pattern: of each key, or op class, the number in ``patterns``; -1 where it computes. As bytes.
        speeds: of the ranks, 1 for a nominal device; as bytes.
        links: how many links there are.
    """

    keys: Keys | None
    pattern: bytes
    patterns: tuple[Pattern, ...]
    speeds: bytes
    links: int

    @staticmethod
    def by(costs: Costs) -> _Told:
        """What some costs tell; many op classes share long ones, so each is looked into once."""
        patterns: dict[Pattern, int] = {}
        over: dict[tuple[int, ...], list[Numbered]] = {}
        of: dict[int, int] = {}
        for by_group in each_message(costs.communication):
            if id(by_group) not in of:
                of[id(by_group)] = patterns.setdefault(_pattern(by_group, over), len(patterns))
        by_key = costs.communication if isinstance(costs.communication, ByKey) else None
        keys = None if by_key is None else by_key.key_of
        found = np.full(len(costs.compute), -1)
        for index, by_group in (costs.communication if by_key is None else by_key.made).items():
            found[index] = of[id(by_group)]
        return _Told(keys, found.tobytes(), tuple(patterns), costs.rank_speed.tobytes(), len(costs.links))

    def of_op_classes(self) -> NDArray[np.int64]:
        """Shape [op classes], the number in ``patterns`` of each; -1 where it computes."""
        found = np.frombuffer(self.pattern, dtype=np.int64)
        return found if self.keys is None else found[self.keys.kind]


def _pattern(by_group: Sequence[Communication], over: dict[tuple[int, ...], list[Numbered]]) -> Pattern:
    """The pattern of an op class's costs. Arguments: ``over``, by the ids of all links what was found; grows."""
    number: dict[tuple[float, float], int] = {}
    # Which costs and demands of one op class are equal, not what they are: so that messages of many sizes are alike to
    # ``_refine``, and its cache holds across effects, links and plans.
    seconds = [number.setdefault((cost.alpha, cost.transfer), len(number)) for cost in by_group]
    # Messages of many sizes have the very same links; those of entries are made when asked for, and are no keys.
    key = () if isinstance(by_group, Entries) else tuple([id(cost.links) for cost in by_group])
    links = over.get(key) if key else None
    if links is None:
        demands: dict[float, int] = {}
        links = [_numbered(cost.links, demands) for cost in by_group]
        over[key] = links
    return tuple(zip(seconds, links, strict=True))


def _numbered(links: Sequence[tuple[int, float]], demands: dict[float, int]) -> Numbered:
    """The links of a message, and the numbers of their demands. Arguments: ``demands``, numbered so far; grows."""
    over = Demands.of(links)
    return over.channels, tuple([demands.setdefault(part, len(demands)) for part in over.parts]), over.widths


def _asked(program: Program, told: _Told) -> Asked:
    """What ops ask for; op classes whose costs have the same pattern ask for the same."""
    kinds, ops = program.cost_kinds
    pattern, several = told.of_op_classes(), len(told.patterns)
    # In one number, so that thousands of op classes are few kinds.
    kind = kinds * several + pattern
    found: dict[tuple[bool, str, int, int], list[int]] = {}
    for number, role in enumerate(program.roles):
        used = np.flatnonzero((np.bincount(role.op_class, minlength=len(kinds)) > 0) & (pattern >= 0))
        for one in dict.fromkeys(kind[used].tolist()):
            op = ops[one // several]
            # A receive is the other end of a send, and would only count it twice.
            if op.kind in {'collective', 'send'}:
                key = (op.kind == 'send', op.partition, op.peer, one % several)
                roles = found.setdefault(key, [])
                if number not in roles[-1:]:
                    roles.append(number)
    return tuple([(*key, tuple(roles)) for key, roles in found.items()])


def _exchanges(program: Program, patterns: Sequence[Pattern], asked: Asked) -> list[Exchange]:
    """The exchanges of all ranks."""
    groups = groups_of(program)
    sharing = [np.flatnonzero(program.role_of_rank == role).tolist() for role in range(len(program.roles))]
    found = []
    for kind, (sends, partition, peer, number, roles) in enumerate(asked):
        on, pattern = groups[partition], patterns[number]
        ranks = [rank for role in roles for rank in sharing[role]]
        if sends:
            pairs = [(rank, on.peer(rank, peer)) for rank in ranks]
            found += [_exchange(kind, pair, True, pattern[on.entry(pair[0], len(pattern))]) for pair in pairs]
        else:
            used = dict.fromkeys(on.places[0, ranks].tolist())
            found += [_exchange(kind, tuple(on.members[group]), False, pattern[group]) for group in used]
    return found


def _exchange(kind: int, ranks: tuple[int, ...], sends: bool, pattern: tuple[int, Numbered]) -> Exchange:
    cost, (links, demands, widths) = pattern
    return Exchange(kind, ranks, sends, cost, tuple(Demands(links, demands, widths)))


def _refined(program: Program, told: _Told) -> tuple[Colours, Colours]:
    """The colours of ranks and links; many programs of a sweep ask alike, and then exchange alike."""
    asked, roles = _asked(program, told), program.role_of_rank
    key = (Same(groups_of(program)), roles.tobytes(), asked, *told[2:])
    speeds = np.frombuffer(told.speeds).tolist()
    return _of_alike.get(
        key, lambda: _colour(roles.tolist(), speeds, told.links, _exchanges(program, told.patterns, asked))
    )


_of_programs: Final[Kept[tuple[object, ...], tuple[Colours, Colours]]] = Kept(4)
_of_alike: Final[Kept[tuple[object, ...], tuple[Colours, Colours]]] = Kept(16)
"""The colours of programs, and of all that ask alike."""


def _colour(
    roles: Sequence[int], speeds: Sequence[float], links: int, exchanges: Sequence[Exchange]
) -> tuple[Colours, Colours]:
    """The colours of ranks and links."""
    of_rank: Edges = [[] for _ in roles]
    of_link: Edges = [[] for _ in range(links)]
    for number, exchange in enumerate(exchanges):
        for place, rank in enumerate(exchange.ranks):
            of_rank[rank].append((number, int(exchange.sends and place == 1)))
        for link, demand in exchange.links:
            of_link[link].append((number, demand))
    colours = (_colours(zip(roles, speeds, strict=True)), _colours(() for _ in range(links)))
    while True:
        exchanged = _colours(exchange.signature(*colours) for exchange in exchanges)
        finer = (_split(colours[0], of_rank, exchanged), _split(colours[1], of_link, exchanged))
        # Numbering by first occurrence makes equal partitions equal lists; refining only ever splits, so it ends.
        if finer == colours:
            return colours
        colours = finer


def _split(colours: Colours, edges: Edges, exchanged: Colours) -> Colours:
    # Sorted: two ranks are alike if they do the same exchanges, in whatever order they were found.
    own = [tuple(sorted([(exchanged[exchange], demand) for exchange, demand in mine])) for mine in edges]
    return _colours(zip(colours, own, strict=True))


def _colours(signatures: Iterable[Hashable]) -> Colours:
    """Equal signatures, equal colours; numbered by first occurrence, so that a partition has one numbering."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(signature, len(number)) for signature in signatures]
