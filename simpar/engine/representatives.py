"""Representatives: which ranks behave alike, so that one is simulated in the place of all, exactly.

Colour refinement: ranks, links and exchanges start with the colour of what is known of each alone. Colours split until
equal colours also have neighbours of equal colours. The engine's arithmetic does not depend on order. So ranks of one
colour then have the same spans to the bit, and links of one colour carry the same load. The lowest rank of a colour is
its representative, and it is the one that is simulated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from simpar.cost.costs import Communication, Costs, entry_of, same_messages
from simpar.cost.entries import Entries
from simpar.cost.links import Demands
from simpar.engine.hashed import hashed_colours
from simpar.kept import Kept, Same
from simpar.program import OpClass, Partition, Program

Numbers = NDArray[np.int64]
Colours = list[int]
Edges = list[list[tuple[int, int]]]
"""For each rank or link its exchanges, each with the number of the link's demand; for a rank, 1 if it receives and else
0."""

Numbered = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The links of a message; the number of the demand of the first few, of the next few, and so on; and how many each."""
Pattern = tuple[tuple[int, Numbered], ...]
"""Which of an op class's costs last as long, by number of first occurrence, and the links of each."""


class Groups:
    """A partition: the members of each group, and each rank's group and position."""

    def __init__(self, partition: Partition) -> None:
        self.ranks = partition.groups_GP
        self.size = partition.size
        count = len(self.ranks)
        self.places = np.empty((2, self.ranks.size), dtype=np.int64)
        self.places[0, self.ranks] = np.arange(count)[:, None]
        self.places[1, self.ranks] = np.arange(self.size)

    @cached_property
    def members(self) -> list[list[int]]:
        """The ranks of each group."""
        return cast('list[list[int]]', self.ranks.tolist())

    def peer(self, rank: int, offset: int) -> int:
        """The rank that stands ``offset`` positions further in the group, around its end."""
        return self.ranks.item(self.places.item(0, rank), (self.places.item(1, rank) + offset) % self.size)

    def entry(self, rank: int, entries: int) -> int:
        """Which of so many costs is for what this rank sends."""
        return entry_of(entries, len(self.ranks), self.places.item(0, rank), self.places.item(1, rank))

    def entries(self, ranks: Sequence[int], entries: int) -> Numbers:
        """The same of many ranks."""
        group, position = self.places[:, ranks]
        found: Numbers = group if entries == len(self.ranks) else group * (entries // len(self.ranks)) + position
        return found

    def kinds(self, of_rank: NDArray[np.int64]) -> Iterator[tuple[tuple[int, ...], Numbers]]:
        """Each set of representatives that meet in some group, and these groups."""
        met = np.sort(of_rank[self.ranks], axis=1)
        # By their columns: equal rows come to stand together.
        order = np.lexsort(met.T[::-1])
        begins = np.flatnonzero((met[order[1:]] != met[order[:-1]]).any(axis=1)) + 1
        found: dict[tuple[int, ...], list[Numbers]] = {}
        for groups in np.split(order, begins):
            # Groups may have the same representatives, and not as many of each.
            found.setdefault(tuple(dict.fromkeys(met[groups[0]].tolist())), []).append(groups)
        return ((among, np.sort(np.concatenate(parts))) for among, parts in found.items())


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


@lru_cache(maxsize=4)
def groups_of(program: Program) -> dict[str, Groups]:
    """The partitions of a program as plain lists."""
    return {name: Groups(partition) for name, partition in program.partitions.items()}


class Representatives:
    """The ranks of a program in classes that behave alike.

    Arguments: ``groups``, of each partition; ``of_rank``, the representative of each rank.
    """

    def __init__(self, groups: dict[str, Groups], of_rank: Colours) -> None:
        self.groups = groups
        self.of_rank = of_rank
        self._of_rank = np.array(of_rank)
        # Stable, so that the first of each list is the lowest rank, the one that is simulated.
        order, begins = np.argsort(self._of_rank, kind='stable'), np.cumsum(np.bincount(self._of_rank))[:-1]
        self.ranks: list[list[int]] = [ranks.tolist() for ranks in np.split(order, begins)]
        self._among: dict[tuple[str, int], tuple[int, ...]] = {}
        self._kinds: dict[str, dict[tuple[int, ...], Numbers]] = {}
        self._together: dict[tuple[int, str, bool, int], Numbers] = {}

    def among(self, partition: str, representative: int) -> tuple[int, ...]:
        """The representatives of all ranks in a representative's group, itself included."""
        if (partition, representative) not in self._among:
            groups = self.groups[partition]
            members = groups.ranks[groups.places[0, self.ranks[representative][0]]]
            self._among[partition, representative] = tuple(np.unique(self._of_rank[members]).tolist())
        return self._among[partition, representative]

    def peer(self, partition: str, representative: int, offset: int) -> int:
        """The representative of the rank ``offset`` positions further in a representative's group."""
        return self.of_rank[self.groups[partition].peer(self.ranks[representative][0], offset)]

    def together(self, representative: int, op: OpClass, entries: int) -> Numbers:
        """Which of an op class's costs are for the groups, or pairs, in which a representative stands for others.

        In order; the same array is returned each time.
        """
        key = (representative, op.partition, op.kind == 'collective', entries)
        if key not in self._together:
            groups = self.groups[op.partition]
            if op.kind != 'collective':
                self._together[key] = np.sort(groups.entries(self.ranks[representative], entries))
            else:
                if op.partition not in self._kinds:
                    self._kinds[op.partition] = dict(groups.kinds(self._of_rank))
                self._together[key] = self._kinds[op.partition][self.among(op.partition, representative)]
        return self._together[key]


class LoadedRepresentatives(Representatives):
    """The ranks of a program in classes that behave alike, and its links in classes that are loaded alike."""

    def __init__(self, costs: Costs, groups: dict[str, Groups], ranks: Colours, links: Colours) -> None:
        super().__init__(groups, ranks)
        self._communication = costs.communication
        self._loads: dict[tuple[object, int], tuple[Numbers, tuple[tuple[int, float], ...]]] = {}
        self._touching: dict[int, tuple[Numbers, Numbers, NDArray[np.float64]]] = {}
        # One link of each class is simulated; the others would carry the same.
        self._is_first = np.zeros(len(links), dtype=np.bool_)
        first = list(dict(zip(reversed(links), range(len(links) - 1, -1, -1), strict=True)).values())
        self._is_first[first] = True
        self._firsts = frozenset(first)
        # Shared with all that are made of this one: they simulate the same links.
        self._places: dict[tuple[int, ...], tuple[tuple[int, int], ...]] = {}

    def at(self, costs: Costs) -> LoadedRepresentatives:
        """The same at other costs, which tell the same ranks and links apart."""
        found = copy(self)
        found._communication, found._loads, found._touching = costs.communication, {}, {}
        return found

    def load(self, op_class: int, groups: Numbers) -> tuple[tuple[int, float], ...]:
        """What an op asks of one link of each class when it is done in all of these groups at once.

        Arguments: ``groups``, as ``together`` returns them.
        """
        by_group = self._communication[op_class]
        # Costs and their links are shared by identity (``price`` makes equal ones once), so ids are keys while they
        # live; so is that of groups, which are kept here.
        asked = (
            id(by_group)
            if isinstance(by_group, Entries)
            else tuple([id(by_group[group].links) for group in groups.tolist()])
        )
        key = (asked, id(groups))
        if key not in self._loads:
            total: dict[int, float] = {}
            for link, demand in self._demands(by_group, groups):
                total[link] = total.get(link, 0.0) + demand
            # Sorted by link, as the arithmetic of shares must not depend on who asked first.
            self._loads[key] = groups, tuple(sorted(total.items()))
        return self._loads[key][1]

    def _demands(self, by_group: Sequence[Communication], groups: Numbers) -> Iterator[tuple[int, float]]:
        """What messages in these groups ask of the links that are simulated."""
        if not isinstance(by_group, Entries):
            for group in groups.tolist():
                yield from self._simulated(Demands.of(by_group[group].links))
            return
        if id(by_group) not in self._touching:
            self._touching[id(by_group)] = by_group.touching(self._is_first)
        # Thousands of groups fold together, and few of them use a link that is simulated.
        touching, links, demands = self._touching[id(by_group)]
        # A group stands there as often as it is sent in, where its pairs cost the same.
        often = np.searchsorted(groups, touching, side='right') - np.searchsorted(groups, touching)
        yield from zip(np.repeat(links, often).tolist(), np.repeat(demands, often).tolist(), strict=True)

    def _simulated(self, over: Demands) -> Iterator[tuple[int, float]]:
        """Those of a message's links that are simulated, and what it demands of each."""
        # Hundreds of ranks have hundreds of links; where one was found, all costs like these have it.
        places = self._places.get(over.channels)
        if places is None:
            found = [(place, link) for place, link in enumerate(over.channels) if link in self._firsts]
            places = self._places[over.channels] = tuple(found)
        ends = tuple(accumulate(over.widths))
        return ((link, over.parts[bisect_right(ends, place)]) for place, link in places)


def fold(program: Program, costs: Costs, unfold: bool | None = None) -> LoadedRepresentatives:
    """The representatives of a program on a cluster.

    Arguments: ``unfold``: True, one for each rank; False, one for each role; None, as few as are exact.
    Raises ``ValueError`` where False would not be exact.
    """
    groups = groups_of(program)
    if unfold:
        return LoadedRepresentatives(costs, groups, list(range(program.world)), list(range(len(costs.links))))
    if costs.communication and all(isinstance(by, Entries) for _, by in same_messages(costs.communication)):
        entries = {index: by for index, by in costs.communication.items() if isinstance(by, Entries)}
        ranks, links = hashed_colours(program, costs.rank_speed, len(costs.links), entries, groups)
    else:
        # The very same messages: devices differ, and nothing that is told here.
        asked = Same(program, costs.communication, costs.links, costs.rank_speed)
        found = _loaded.get(asked, lambda: _alike(program, costs, groups))
        if unfold is False:
            _check_roles(program, found.of_rank)
        return found
    if unfold is False:
        _check_roles(program, ranks)
    return LoadedRepresentatives(costs, groups, ranks, links)


def _alike(program: Program, costs: Costs, groups: dict[str, Groups]) -> LoadedRepresentatives:
    """As ``fold``, by refinement."""
    # Cached by what decides it: most ablations change seconds and not which of them are equal.
    ranks, links = _refine(program, _Told.by(costs))
    same = Same(groups, ranks, links)
    return _folded.get(same, lambda: LoadedRepresentatives(costs, groups, ranks, links)).at(costs)


_loaded: Final[Kept[Same, LoadedRepresentatives]] = Kept(4)
"""Of the last few messages of programs."""
_folded: Final[Kept[Same, LoadedRepresentatives]] = Kept(4)
"""Of the last few programs; costs that fold them alike share what does not depend on seconds."""


def _check_roles(program: Program, ranks: Colours) -> None:
    first: dict[int, int] = {}
    for rank, role in enumerate(program.role_of_rank.tolist()):
        other = first.setdefault(role, rank)
        if ranks[other] != ranks[rank]:
            raise ValueError(f'ranks {other} and {rank} share role {program.roles[role].name!r} but behave differently')


class _Told(NamedTuple):
    """What costs tell of ranks and links: most effects of the model change seconds, but not which of them are equal.

    Arguments:
        pattern: op classes, and the number in ``patterns`` that all of them have.
        speeds: of the ranks, 1 for a nominal device.
        links: how many links there are.
    """

    pattern: tuple[tuple[Sequence[int], int], ...]
    patterns: tuple[Pattern, ...]
    speeds: tuple[float, ...]
    links: int

    @staticmethod
    def by(costs: Costs) -> _Told:
        """What some costs tell; many op classes share long ones, so each is looked into once."""
        patterns: dict[Pattern, int] = {}
        over: dict[tuple[int, ...], list[Numbered]] = {}
        found = tuple(
            [
                (indices, patterns.setdefault(_pattern(by_group, over), len(patterns)))
                for indices, by_group in same_messages(costs.communication)
            ]
        )
        return _Told(found, tuple(patterns), tuple(costs.rank_speed.tolist()), len(costs.links))


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


def _exchanges(program: Program, told: _Told) -> list[Exchange]:
    """The exchanges of all ranks; op classes whose costs have the same pattern ask for the same ones."""
    groups = groups_of(program)
    number_of = {index: number for indices, number in told.pattern for index in indices}
    kinds, ops = program.cost_kinds[0].tolist(), program.cost_kinds[1]
    roles_of: dict[tuple[bool, str, int, int], dict[int, None]] = {}
    for number, role in enumerate(program.roles):
        for index in np.flatnonzero(np.bincount(role.op_class)).tolist():
            op = ops[kinds[index]]
            # A receive is the other end of a send, and would only count it twice.
            if op.kind in {'collective', 'send'}:
                key = (op.kind == 'send', op.partition, op.peer, number_of[index])
                roles_of.setdefault(key, {})[number] = None
    sharing = [np.flatnonzero(program.role_of_rank == role).tolist() for role in range(len(program.roles))]
    found = []
    for kind, ((sends, partition, peer, number), roles) in enumerate(roles_of.items()):
        on, pattern = groups[partition], told.patterns[number]
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


@lru_cache(maxsize=4)
def _refine(program: Program, told: _Told) -> tuple[Colours, Colours]:
    """The colours of ranks and links."""
    return _coloured(tuple(program.role_of_rank.tolist()), told.speeds, told.links, tuple(_exchanges(program, told)))


@lru_cache(maxsize=16)
def _coloured(
    roles: tuple[int, ...], speeds: tuple[float, ...], links: int, exchanges: tuple[Exchange, ...]
) -> tuple[Colours, Colours]:
    """The colours of ranks and links; many programs of a sweep exchange alike."""
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
