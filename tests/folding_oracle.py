"""Colour refinement by lists, exactly: which ranks and links behave alike, where the engine's own goes by hashes."""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from simpar.cost.costs import Costs, entry_of
from simpar.program import Program


class Exchange(NamedTuple):
    """What some ranks do together: a group's collective, or a sender and its receiver; pairs (link, demand)."""

    kind: Hashable
    ranks: tuple[int, ...]
    sends: bool
    links: tuple[tuple[int, int], ...]

    def signature(self, ranks: list[int], links: list[int]) -> Hashable:
        """What tells it from others: a collective does not depend on who of its ranks is who, but a send does."""
        among = [ranks[rank] for rank in self.ranks]
        over = sorted((links[link], demand) for link, demand in self.links)
        return self.kind, tuple(among if self.sends else sorted(among)), tuple(over)


def numbered(signatures: Iterable[Hashable]) -> list[int]:
    """Equal signatures, equal numbers, by first occurrence."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(signature, len(number)) for signature in signatures]


def exchanges(program: Program, costs: Costs) -> list[Exchange]:
    """Those of all ranks, each once for op classes whose costs tell the same."""
    found: dict[Exchange, None] = {}
    for rank in range(program.world):
        role = program.role(rank)
        for index in sorted(set(role.op_class.tolist())):
            op = program.op_classes[index]
            if op.kind not in ('collective', 'send'):
                continue
            partition, entries = program.partitions[op.partition], costs.communication[index]
            group, place = partition.place(rank)
            seconds = numbered((one.alpha, one.transfer) for one in entries)
            demands: dict[float, int] = {}
            links = [tuple((link, demands.setdefault(d, len(demands))) for link, d in one.links) for one in entries]
            which, ranks = group, tuple(partition.groups_GP[group].tolist())
            if op.kind == 'send':
                which = entry_of(len(entries), len(partition.groups_GP), group, place)
                ranks = rank, ranks[(place + op.peer) % len(ranks)]
            told = tuple(zip(seconds, links, strict=True))
            kind = op.kind, op.partition, op.peer, told, seconds[which]
            found[Exchange(kind, ranks, op.kind == 'send', links[which])] = None
    return list(found)


def refined(program: Program, costs: Costs) -> list[int]:
    """The colour of each rank: colours split until equal ones have neighbours of equal colours."""
    every = exchanges(program, costs)
    ranks = numbered(zip(program.role_of_rank.tolist(), costs.rank_speed.tolist(), strict=True))
    links = [0] * len(costs.links)
    while True:
        colours = numbered(one.signature(ranks, links) for one in every)
        of_rank: list[list[tuple[int, int]]] = [[] for _ in ranks]
        of_link: list[list[tuple[int, int]]] = [[] for _ in links]
        for one, colour in zip(every, colours, strict=True):
            for place, rank in enumerate(one.ranks):
                of_rank[rank].append((colour, place if one.sends else 0))
            for link, demand in one.links:
                of_link[link].append((colour, demand))
        finer = [
            numbered((old, tuple(sorted(own))) for old, own in zip(before, edges, strict=True))
            for before, edges in ((ranks, of_rank), (links, of_link))
        ]
        if finer == [ranks, links]:
            return ranks
        ranks, links = finer
