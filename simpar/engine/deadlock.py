"""Draws a deadlock: the stuck head of every stream, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from simpar.engine.device import CommunicationCost, Device, Stream
from simpar.engine.lanes import Lanes
from simpar.program import Program, Role
from simpar.units import format_time

MOST: Final = 16
"""Lines of streams that a drawing has at most, so that it stays on one screen."""
MOST_RANGES: Final = 4
"""Ranges of ranks that a name has at most."""


class Drawing:
    """What every stream of a run that has stopped waits for.

    Arguments: ``arrive`` and ``end``, by op, negative where that has not happened; ``steps``, how many were to be run.
    """

    def __init__(
        self,
        program: Program,
        lanes: Lanes,
        devices: Sequence[Device],
        *,
        arrive: Sequence[float],
        end: Sequence[float],
        steps: int,
    ) -> None:
        self._program = program
        self._lanes = lanes
        self._devices = devices
        self._arrive = arrive
        self._end = end
        self._steps = steps

    def text(self, now: float) -> str:
        """One line for each unfinished stream of a lane: its ranks, its name, its head, what that waits for."""
        rows = [row for device in self._devices for row in self._rows(device)]
        widths = [max(len(row[column]) for row in rows[:MOST]) for column in range(3)]
        lines = [f'deadlock at {format_time(now)}: nothing can go on; stuck heads of streams:']
        for *cells, waits in rows[:MOST]:
            lines.append('  '.join(['', *(c.ljust(w) for c, w in zip(cells, widths, strict=True)), waits]))
        if len(rows) > MOST:
            lines.append(f'  … and {len(rows) - MOST} more streams')
        return '\n'.join(lines)

    def _rows(self, device: Device) -> Iterator[tuple[str, str, str, str]]:
        for stream in device.streams:
            if stream.step < self._steps:
                head = f'step {stream.step + 1}: {self._action(device, stream.slots[stream.cursor])}'
                yield name_ranks(self._lanes.ranks[device.lane]), stream.name, head, self._waits(stream)

    def _role(self, device: Device) -> Role:
        return self._program.role(self._lanes.ranks[device.lane][0])

    def _action(self, device: Device, slot: int) -> str:
        return self._program.action(self._role(device), slot)

    def _waits(self, stream: Stream) -> str:
        device, slot = stream.device, stream.slots[stream.cursor]
        cost = device.costs[slot]
        if isinstance(cost, CommunicationCost) and self._arrive[stream.base + slot] >= 0.0:
            return f'waits for {self._missing(stream, cost)}'
        before = stream.base - len(device.costs)
        needs = [self._action(device, need) for need in device.work.needs[slot] if self._end[stream.base + need] < 0.0]
        if stream.step:
            carried = [need for need in device.work.carried[slot] if self._end[before + need] < 0.0]
            needs += [f'{self._action(device, need)} of step {stream.step}' for need in carried]
        return f'needs {", ".join(needs)}'

    def _missing(self, stream: Stream, cost: CommunicationCost) -> str:
        """The peers of a lane's first rank that have not arrived where the head of its stream has."""
        op = self._program.op_classes[cost.op_class]
        rank = self._lanes.ranks[stream.device.lane][0]
        groups = self._lanes.groups[op.partition]
        if op.kind != 'collective':
            return self._name_peers([groups.peer(rank, op.peer)])
        met = next(rendezvous for rendezvous in cost.channel.meeting.values() if stream in rendezvous.streams)
        arrived = {other.device.lane for other in met.streams}
        members = groups.members[groups.group[rank]]
        return self._name_peers([peer for peer in members if self._lanes.of_rank[peer] not in arrived])

    def _name_peers(self, ranks: list[int]) -> str:
        streams = [stream for rank in ranks for stream in self._devices[self._lanes.of_rank[rank]].streams]
        finished = all(stream.step == self._steps for stream in streams)
        return name_ranks(ranks) + (', finished' if finished else '')


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks as a reader writes them, e.g. ``ranks 0-3, 8``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    names = [str(first) if first == last else f'{first}-{last}' for first, last in spans]
    more = ['…'] if len(names) > MOST_RANGES else []
    return ('rank ' if len(ranks) == 1 else 'ranks ') + ', '.join(names[:MOST_RANGES] + more)
