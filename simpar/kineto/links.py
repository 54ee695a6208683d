"""Counters: the use of each link over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simpar.cost.costs import Communication, Costs, entry_of
from simpar.kineto.rank import Event, nanoseconds
from simpar.program import Partition
from simpar.trace import Trace

_LINKS_PID: Final = 1_000_000


def link_counters(trace: Trace, costs: Costs) -> Iterator[Event]:
    """Use of each link over time, from 0 to 1: of each collective or send the mean over [start, end].

    Links that are used alike are shown once.
    """
    changes: dict[int, list[tuple[int, float]]] = {}
    for start, end, cost in _messages(trace, costs):
        for link, demand in cost.links if end > start else ():
            # The mean over the op: the engine shares links moment by moment, but traces keep start and end only.
            use = demand * cost.transfer / (end - start)
            changes.setdefault(link, []).extend(((nanoseconds(start), use), (nanoseconds(end), -use)))
    alike: dict[tuple[tuple[int, float], ...], list[int]] = {}
    # In order, so that the same trace gives the same file.
    for link in sorted(changes):
        alike.setdefault(tuple(sorted(changes[link])), []).append(link)
    for series, links in alike.items():
        more = f' and {len(links) - 1} alike' if len(links) > 1 else ''
        use = 0.0
        for at, by in series:
            use += by
            yield {'ph': 'C', 'name': f'link {costs.links[links[0]]}{more}', 'pid': _LINKS_PID, 'tid': 0,
                   'ts': at / 1000, 'args': {'use': round(abs(use), 6)}}  # fmt: skip


def _messages(trace: Trace, costs: Costs) -> Iterator[tuple[float, float, Communication]]:
    """Start, end and cost of every collective, told by the first of its group, and of every send."""
    program = trace.program
    slots_of: dict[tuple[int, int], list[int]] = {}
    for number, role in enumerate(program.roles):
        for slot, index in enumerate(role.op_class.tolist()):
            slots_of.setdefault((number, index), []).append(slot)
    for index, entries in costs.communication.items():
        op = program.op_classes[index]
        partition = program.partitions[op.partition]
        for rank, group, position in _tellers(partition, op.kind):
            rank_times = trace.times_of(rank)
            slots = slots_of.get((int(program.role_of_rank[rank]), index), [])
            cost = entries[entry_of(len(entries), len(partition.groups_GP), group, position)]
            for start, end in zip(
                rank_times.start_KS[:, slots].ravel(), rank_times.end_KS[:, slots].ravel(), strict=True
            ):
                yield float(start), float(end), cost


def _tellers(partition: Partition, kind: str) -> Iterator[tuple[int, int, int]]:
    """(rank, group, position) of whoever tells about an op of a kind."""
    for group, members in enumerate(partition.groups_GP.tolist()):
        # A collective is one event for its whole group; a receive is told by its send.
        told = {'collective': members[:1], 'send': members}.get(kind, [])
        yield from ((rank, group, position) for position, rank in enumerate(told))
