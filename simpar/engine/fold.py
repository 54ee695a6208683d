"""Folding: which ranks behave alike, so that one is simulated in the place of all, exactly."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simpar.cost.costs import Block, Communication, Costs, Entries
from simpar.program import OpClass, Partition, Program

# Colour refinement: ranks, links and exchanges start with the colour of what is known of each alone. Colours split
# until equal colours also have neighbours of equal colours. The engine's arithmetic does not depend on order. So
# ranks of one colour then have the same spans to the bit, and links of one colour carry the same load. The lowest
# rank of a colour is its representative, and it is the one that is simulated.
#
# A colour is a hash of 64 bits, and a rank's next colour is the hash of its own and of the sum of those of all that
# it exchanges, so that no list is made for a rank. Two unlike ranks of 131,072 would have equal hashes in one case of
# a thousand million.

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Colours = list[int]
Load = tuple[tuple[int, float], ...]
"""Pairs (link, demand)."""
Observer = Callable[[float, Sequence[tuple[int, tuple[int, ...], float]]], None]
"""Told the time and, of everything that transfers, (op class, one entry for each group or pair, speed)."""
_NONE: Final = -1


class Groups:
    """A partition: the members of each group, and each rank's group and position."""

    def __init__(self, partition: Partition) -> None:
        self.ranks = partition.groups_GP
        self.size = partition.size
        count = len(self.ranks)
        self.places = np.empty((2, self.ranks.size), dtype=np.int64)
        self.places[0, self.ranks] = np.arange(count)[:, None]
        self.places[1, self.ranks] = np.arange(self.size)

    def peer(self, rank: int, offset: int) -> int:
        """The rank that stands ``offset`` positions further in the group, around its end."""
        return self.ranks.item(self.places.item(0, rank), (self.places.item(1, rank) + offset) % self.size)

    def entries(self, ranks: Sequence[int], entries: int) -> Numbers:
        """For ranks that send, which of so many costs is each one's: one for a group, or one for each pair."""
        group, position = self.places[:, ranks]
        each = entries // len(self.ranks)
        indices: Numbers = group if each == 1 else group * each + position
        return indices

    def kinds(self, of_rank: Numbers) -> dict[tuple[int, ...], Numbers]:
        """By each set of representatives that meet in some group, these groups."""
        by_members: dict[tuple[int, ...], list[int]] = {}
        for group, met in enumerate(np.sort(of_rank[self.ranks], axis=1).tolist()):
            # Groups may have the same representatives, and not as many of each.
            by_members.setdefault(tuple(dict.fromkeys(met)), []).append(group)
        return {among: np.array(groups) for among, groups in by_members.items()}


class Representatives:
    """The ranks of a program in classes that behave alike, and its links in classes that are loaded alike.

    Arguments:
        groups: of each partition.
        of_rank: the representative of each rank.
        of_link: for each link the number of its class.
    """

    def __init__(self, groups: dict[str, Groups], of_rank: Colours, of_link: Colours) -> None:
        self.groups = groups
        self.of_rank = of_rank
        self.ranks = _by_colour(of_rank)
        self._among: dict[tuple[str, int], tuple[int, ...]] = {}
        self._kinds: dict[str, dict[tuple[int, ...], Numbers]] = {}
        self._together: dict[tuple[int, str, bool, int], Numbers] = {}
        # One link of each class is simulated; the others would carry the same.
        first = list(dict(zip(reversed(of_link), range(len(of_link) - 1, -1, -1), strict=True)).values())
        self._is_first = np.zeros(len(of_link), dtype=np.bool_)
        self._is_first[first] = True
        self._firsts = frozenset(first)

    @cached_property
    def _of_rank(self) -> Numbers:
        return np.array(self.of_rank)

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
                self._together[key] = self._kinds_of(op.partition)[self.among(op.partition, representative)]
        return self._together[key]

    def load(self, by_group: Sequence[Communication], groups: Numbers) -> Load:
        """What an op asks of one link of each class when it is done in all of these groups at once.

        Arguments: ``by_group``, what its messages cost; ``groups``, as ``together`` returns them.
        """
        total: dict[int, float] = {}
        for link, demand in self._demands(by_group, groups):
            total[link] = total.get(link, 0.0) + demand
        # Sorted by link, as the arithmetic of shares must not depend on who asked first.
        return tuple(sorted(total.items()))

    def _demands(self, by_group: Sequence[Communication], groups: Numbers) -> Iterator[tuple[int, float]]:
        """What messages in these groups ask of the links that are simulated."""
        if not isinstance(by_group, Entries):
            for group in groups.tolist():
                yield from ((link, demand) for link, demand in by_group[group].links if link in self._firsts)
            return
        # Thousands of groups fold together, and few of them use a link that is simulated.
        touching, links, demands = by_group.touching(self._is_first)
        # A group stands there as often as it is sent in, where its pairs cost the same.
        often = np.searchsorted(groups, touching, side='right') - np.searchsorted(groups, touching)
        yield from zip(np.repeat(links, often).tolist(), np.repeat(demands, often).tolist(), strict=True)

    def _kinds_of(self, partition: str) -> dict[tuple[int, ...], Numbers]:
        """The groups in which each set of representatives meets."""
        if partition not in self._kinds:
            self._kinds[partition] = self.groups[partition].kinds(self._of_rank)
        return self._kinds[partition]


def _by_colour(of_rank: Colours) -> list[list[int]]:
    """The ranks of each colour in order: the first is the lowest, the one that is simulated."""
    if not any(of_rank):
        return [list(range(len(of_rank)))]
    colours = np.array(of_rank)
    order, begins = np.argsort(colours, kind='stable'), np.cumsum(np.bincount(colours))[:-1]
    return [ranks.tolist() for ranks in np.split(order, begins)]


@dataclass(frozen=True, slots=True, eq=False)
class _Exchanges:
    """What ranks do together, whenever they do it, and lies alike: a group's collective, or a send with its receive.

    Arguments (n exchanges):
        kind: equal for exchanges that the same op classes ask for, and that last as long.
        ranks: shape [n, ranks]; of a send, the sender and then the receiver.
        links: shape [n, k]; ``demands``, shape [k], equal numbers for equal demands.
    """

    kind: int
    ranks: Numbers
    sends: bool
    links: Numbers
    demands: Numbers


def groups_of(program: Program) -> dict[str, Groups]:
    """The partitions of a program."""
    return {name: Groups(partition) for name, partition in program.partitions.items()}


def fold(program: Program, costs: Costs, unfold: bool | None = None) -> Representatives:
    """The representatives of a program on a cluster.

    Arguments: ``unfold``: True, one for each rank; False, one for each role; None, as few as are exact.
    Raises ``ValueError`` where False would not be exact.
    """
    groups = groups_of(program)
    if unfold:
        return Representatives(groups, list(range(program.world)), list(range(len(costs.links))))
    ranks, links = _refined(program, costs, _exchanges(program, costs.communication, groups))
    if unfold is False:
        _check_roles(program, ranks)
    return Representatives(groups, ranks, links)


def _check_roles(program: Program, ranks: Colours) -> None:
    first: dict[int, int] = {}
    for rank, role in enumerate(program.role_of_rank.tolist()):
        other = first.setdefault(role, rank)
        if ranks[other] != ranks[rank]:
            raise ValueError(f'ranks {other} and {rank} share role {program.roles[role].name!r} but behave differently')


def _exchanges(
    program: Program, communication: Mapping[int, Sequence[Communication]], groups: Mapping[str, Groups]
) -> list[_Exchanges]:
    """The exchanges of all ranks; op classes whose costs tell the same ask for the same ones."""
    pattern, messages = _patterns(len(program.op_classes), communication)
    kinds, ops = program.cost_kinds
    # In one number, so that thousands of op classes are few kinds.
    kind = kinds * len(messages) + pattern
    roles_of: dict[tuple[bool, str, int, int], dict[int, None]] = {}
    for number, role in enumerate(program.roles):
        used = np.flatnonzero((np.bincount(role.op_class, minlength=len(kinds)) > 0) & (pattern != _NONE))
        for one in dict.fromkeys(kind[used].tolist()):
            op = ops[one // len(messages)]
            # A receive is the other end of a send, and would only count it twice.
            if op.kind in {'collective', 'send'}:
                key = (op.kind == 'send', op.partition, op.peer, one % len(messages))
                roles_of.setdefault(key, {})[number] = None
    all_exchanges: list[_Exchanges] = []
    for (sends, partition, peer, which), roles in roles_of.items():
        ranks, blocks = groups[partition].ranks, messages[which]
        own = np.isin(program.role_of_rank[ranks], list(roles))
        # Of a send, for each pair; of a collective, for each group of which any rank asks for it.
        mask: NDArray[np.bool_] = own.ravel() if sends else np.asarray(own.any(axis=1))
        met = np.stack((ranks, np.roll(ranks, -peer, axis=1)), axis=-1).reshape(-1, 2) if sends else ranks
        # Costs may be by group where pairs of a group cost the same.
        each = len(met) // sum(len(block.rows) for block in blocks)
        begin = len(all_exchanges)
        for block, lasting, parts in zip(blocks, _lasting(blocks), _demands(blocks), strict=True):
            rows = block.rows if each == 1 else (block.rows[:, None] * each + np.arange(each)).ravel()
            links = block.links if each == 1 else np.repeat(block.links, each, axis=0)
            wanted = mask[rows]
            exchanges = met[rows[wanted]].astype(np.int64)
            demands = np.repeat(np.array(parts, dtype=np.int64), block.widths)
            all_exchanges.append(_Exchanges(begin + lasting, exchanges, sends, links[wanted], demands))
    return all_exchanges


Blocks = Sequence[Block]


def _patterns(count: int, communication: Mapping[int, Sequence[Communication]]) -> tuple[Numbers, list[Blocks]]:
    """For each op class the number of its messages, −1 where it computes; and the messages that tell ranks apart.

    Messages that last differently tell the same where their costs and demands are equal in the same groups.
    """
    numbers: dict[object, int] = {}
    patterns: list[Blocks] = []
    of: dict[int, int] = {}
    pattern = [_NONE] * count
    for index, by_group in communication.items():
        # Op classes of one cost key have the very same messages.
        if id(by_group) not in of:
            blocks = _blocks(by_group)
            of[id(by_group)] = numbers.setdefault(_signature(blocks), len(patterns))
            patterns += [blocks] * (len(numbers) - len(patterns))
        pattern[index] = of[id(by_group)]
    return np.array(pattern, dtype=np.int64), patterns


def _blocks(by_group: Sequence[Communication]) -> Blocks:
    """Messages, those together that last as long and demand the same of as many links."""
    if isinstance(by_group, Entries):
        return by_group.blocks
    together: dict[tuple[float, float, tuple[float, ...]], list[tuple[int, list[int]]]] = {}
    for row, one in enumerate(by_group):
        demands = tuple([demand for _, demand in one.links])
        together.setdefault((one.alpha, one.transfer, demands), []).append((row, [link for link, _ in one.links]))
    return [
        Block(
            rows=np.array([row for row, _ in own]),
            alpha=alpha,
            transfer=transfer,
            links=np.array([links for _, links in own], dtype=np.int64).reshape(len(own), -1),
            parts=demands,
            widths=(1,) * len(demands),
        )
        for (alpha, transfer, demands), own in together.items()
    ]


def _signature(blocks: Blocks) -> object:
    """What blocks tell of ranks and links: which of their seconds and demands are equal, not what they are."""
    lying = tuple((block.widths, block.rows.tobytes(), block.links.tobytes()) for block in blocks)
    return tuple(_lasting(blocks)), tuple(map(tuple, _demands(blocks))), lying


def _lasting(blocks: Blocks) -> list[int]:
    """For each block the first one that lasts as long."""
    first: dict[tuple[float, float], int] = {}
    return [first.setdefault((block.alpha, block.transfer), number) for number, block in enumerate(blocks)]


def _demands(blocks: Blocks) -> list[list[int]]:
    """For each block the numbers of its parts: equal ones for equal demands, in whichever block."""
    number: dict[float, int] = {}
    return [[number.setdefault(part, len(number)) for part in block.parts] for block in blocks]


def _refined(program: Program, costs: Costs, exchanges: list[_Exchanges]) -> tuple[Colours, Colours]:
    """The colours of ranks and links, numbered by first occurrence."""
    speed = costs.rank_speed.astype(np.float64).view(np.uint64)
    ranks = _mixed(program.role_of_rank.astype(np.uint64) * _ODD + _mixed(speed))
    over = _mixed(np.zeros(len(costs.links), dtype=np.uint64))
    count = (0, 0)
    while True:
        now = (len(np.unique(ranks)), len(np.unique(over)))
        # Refining only ever splits, so that as many colours are the same colours.
        if now == count:
            return _by_first(ranks), _by_first(over)
        count = now
        ranks, over = _finer(ranks, over, exchanges)


def _finer(ranks: Hashes, over: Hashes, exchanges: list[_Exchanges]) -> tuple[Hashes, Hashes]:
    """The next colours of ranks and links."""
    by_rank, by_link = np.zeros_like(ranks), np.zeros_like(over)
    for one in exchanges:
        sides = ranks[one.ranks]
        # A collective does not depend on who of its ranks is who, but a send does.
        among = sides[:, 0] * _ODD + _mixed(sides[:, 1]) if one.sends else _mixed(sides).sum(axis=1, dtype=np.uint64)
        demands = one.demands.astype(np.uint64) * _ODD
        through = _mixed(over[one.links] + demands).sum(axis=1, dtype=np.uint64)
        colour = _mixed(_mixed(among) + _mixed(through * _ODD) + np.uint64(one.kind))
        if one.sends:
            # A rank may send to several, and receive from several: the sum counts all.
            np.add.at(by_rank, one.ranks[:, 0], _mixed(colour + np.uint64(1)))
            np.add.at(by_rank, one.ranks[:, 1], _mixed(colour + np.uint64(2)))
        else:
            np.add.at(by_rank, one.ranks, _mixed(colour)[:, None])
        if one.links.size:
            np.add.at(by_link, one.links, _mixed(colour[:, None] + demands))
    return _mixed(ranks * _ODD + _mixed(by_rank)), _mixed(over * _ODD + _mixed(by_link))


_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


def _mixed(values: Hashes) -> Hashes:
    """Every bit of a number depends on all of its bits (SplitMix64, Steele, Lea and Flood 2014)."""
    mixed = values + _ODD
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _by_first(hashes: Hashes) -> Colours:
    """Numbers by first occurrence."""
    values = np.unique(hashes)
    which = np.searchsorted(values, hashes)
    first = np.full(len(values), len(hashes))
    np.minimum.at(first, which, np.arange(len(hashes)))
    number = np.empty(len(values), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(values))
    colours: Colours = number[which].tolist()
    return colours


# Fair speeds of what shares links.


def fair_speeds(flows: Iterable[Any]) -> dict[Any, float]:
    """Max-min fair speeds under Σ speed · demand ≤ 1 on each link and speed ≤ top for each flow.

    Arguments: ``flows``, one or more full components, each with its ``links``, a load, and its ``top``, the highest
    speed that it may have. All speeds rise together until a link saturates or a flow meets
    its top; those flows are fixed, the others rise on (progressive filling; Bertsekas and Gallager, Data Networks,
    section 6.5.2). Does not model what a protocol needs to get there: speeds change at once.

    Demands are multiples of 2⁻¹⁰, so their sums are exact, and a link's remainder changes once a level: no result
    depends on the order of flows, on whether other components are solved along, or on folding.
    """
    # Progressive filling; every round fixes one flow at least, so there are at most as many rounds as flows.
    rising = {flow: flow.top for flow in flows}
    left = {link: 1.0 for flow in rising for link, _ in flow.links}
    speeds: dict[Any, float] = {}
    while rising:
        shares = {link: left[link] / demand for link, demand in _demand_of_links(rising).items()}
        level = min(chain(rising.values(), shares.values()))
        # No tolerance: the level is one of these shares, to the bit.
        fixed = [f for f, top in rising.items() if top <= level or any(shares[link] <= level for link, _ in f.links)]
        for link, demand in _demand_of_links(fixed).items():
            left[link] -= level * demand
        for flow in fixed:
            speeds[flow] = level
            del rising[flow]
    return speeds


def _demand_of_links(flows: Iterable[Any]) -> dict[int, float]:
    total: dict[int, float] = {}
    for flow in flows:
        for link, demand in flow.links:
            total[link] = total.get(link, 0.0) + demand
    return total
