"""Outermost: the outermost link that joins a plan's ranks, and for how long a message has it to itself at least."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simpar.cost.costs import Costs, Entries
from simpar.hardware import Topology
from simpar.program import Program


def outermost(topology: Topology, world: int) -> str:
    """The name of the outermost link between so many ranks; empty where nobody shares it, or each pair has its own."""
    joined = [
        link
        for link, below, size in zip(topology.links, (1, *topology.sizes), topology.sizes, strict=False)
        if (size > below or not size) and world > below
    ]
    if not joined or joined[-1].sharing != 'shared' or joined[-1].per == 'pair':
        return ''
    return joined[-1].name


def load_of(transfer: float, links: Iterable[tuple[str, float]], outer: str) -> float:
    """Seconds for which a message has a link to itself, whatever goes beside it: all of its channels alike.

    Arguments: ``transfer``, seconds of it alone; ``links``, pairs (channel, demand); ``outer``, the link's name.
    """
    return transfer * next((part for channel, part in links if channel.rpartition('/')[0] == outer), 0.0)


def loads_of(program: Program, costs: Costs, outer: str) -> dict[int, float]:
    """The same of each op class that is a collective, in the group where it is least."""
    found: dict[int, float] = {}
    for index, entries in costs.communication.items() if outer else ():
        if program.op_classes[index].kind == 'collective':
            # Of equal groups one tells for all.
            rows: Sequence[int] = (
                [int(block.rows[0]) for block in entries.blocks]
                if isinstance(entries, Entries)
                else range(len(entries))
            )
            found[index] = min(
                load_of(one.transfer, ((costs.links[link], part) for link, part in one.links), outer)
                for one in (entries[row] for row in rows)
            )
    return found
