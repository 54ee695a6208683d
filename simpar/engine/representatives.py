"""Representatives: which ranks behave alike, so that one is simulated in the place of all, exactly.

Colour refinement: ranks, links and exchanges start with the colour of what is known of each alone. Colours split until
equal colours also have neighbours of equal colours. The engine's arithmetic does not depend on order. So ranks of one
colour then have the same spans to the bit, and links of one colour carry the same load. The lowest rank of a colour is
its representative, and it is the one that is simulated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar.cost.costs import Communication, Costs, Demands, Entries, each_message
from simpar.distinct import distinct
from simpar.engine.groups import Groups, Numbers, groups_of
from simpar.engine.hashed import hashed_colours
from simpar.engine.listed import Colours, listed_colours
from simpar.kept import Kept, Same
from simpar.program import OpClass, Program


class Representatives:
    """The ranks of a program in classes that behave alike.

    Arguments: ``groups``, of each partition; ``of_rank``, the representative of each rank.
    """

    def __init__(self, groups: dict[str, Groups], of_rank: Colours) -> None:
        self.groups = groups
        self.of_rank = of_rank
        self.ranks = _by_colour(of_rank)
        self._among: dict[tuple[str, int], tuple[int, ...]] = {}
        self._kinds: dict[str, dict[tuple[int, ...], Numbers]] = {}
        self._together: dict[tuple[int, str, bool, int], Numbers] = {}

    @cached_property
    def _of_rank(self) -> Numbers:
        return np.array(self.of_rank)

    def among(self, partition: str, representative: int) -> tuple[int, ...]:
        """The representatives of all ranks in a representative's group, itself included."""
        if (partition, representative) not in self._among:
            groups = self.groups[partition]
            members = groups.ranks[groups.places[0, self.ranks[representative][0]]]
            self._among[partition, representative] = tuple(distinct(self._of_rank[members]).tolist())
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
                self._together[key] = self._kinds_of(op.partition)[self.among(op.partition, representative)]
        return self._together[key]

    def _kinds_of(self, partition: str) -> dict[tuple[int, ...], Numbers]:
        """The groups in which each set of representatives meets."""
        if partition not in self._kinds:
            groups = self.groups[partition]
            # Where one rank stands for all, all groups are its own.
            alone = len(self.ranks) == 1
            kinds = [((0,), np.arange(len(groups.ranks)))] if alone else groups.kinds(self._of_rank)
            self._kinds[partition] = dict(kinds)
        return self._kinds[partition]


def _by_colour(of_rank: Colours) -> list[list[int]]:
    """The ranks of each colour in order: the first is the lowest, the one that is simulated."""
    if not any(of_rank):
        return [list(range(len(of_rank)))]
    colours = np.array(of_rank)
    order, begins = np.argsort(colours, kind='stable'), np.cumsum(np.bincount(colours))[:-1]
    return [ranks.tolist() for ranks in np.split(order, begins)]


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
        # As ``copy``, which asks for more than there is.
        found = object.__new__(LoadedRepresentatives)
        found.__dict__.update(self.__dict__)
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
    messages = each_message(costs.communication)
    if messages and all(isinstance(by, Entries) for by in messages):
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
    ranks, links = listed_colours(program, costs)
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
