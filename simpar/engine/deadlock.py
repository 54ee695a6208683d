"""Draws a deadlock: the stuck head of every stream, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from simpar.engine.device import Rendezvous, Stream
from simpar.engine.fold import Representatives
from simpar.engine.ops import Ops
from simpar.engine.queues import queues_of
from simpar.program import Program
from simpar.units import format_time

MOST: Final = 16
"""Lines of streams that a drawing has at most, so that it stays on one screen."""
MOST_RANGES: Final = 4
"""Ranges of ranks that a name has at most."""


class Drawing:
    """What every stream of a run that has stopped waits for.

    Arguments:
        met: the meetings in which streams wait for others.
        queues: how many work queues a device has; 0: one for each stream.
        arrive, end: seconds at which each op of all steps arrived and ended; negative where it has not.
        steps: how many steps were to be run.
    """

    def __init__(
        self,
        program: Program,
        representatives: Representatives,
        ops: Ops,
        streams: Sequence[Stream],
        *,
        met: Mapping[Stream, Rendezvous],
        queues: int,
        arrive: Sequence[float],
        end: Sequence[float],
        steps: int,
    ) -> None:
        self._program = program
        self._representatives = representatives
        self._ops = ops
        self._streams = streams
        self._met = met
        self._queues = queues
        self._arrive = arrive
        self._end = end
        self._steps = steps
        self._hosts = int(ops.first[len(representatives.ranks)])

    def text(self, now: float) -> str:
        """One line for each unfinished stream: its ranks, its name, its head, what that waits for."""
        rows = [self._row(stream) for stream in self._streams if stream.step < self._steps and self._of_device(stream)]
        widths = [max(len(row[column]) for row in rows[:MOST]) for column in range(3)]
        lines = [f'deadlock at {format_time(now)}: nothing can go on; stuck heads of streams:']
        for *cells, waits in rows[:MOST]:
            lines.append('  '.join(['', *(c.ljust(w) for c, w in zip(cells, widths, strict=True)), waits]))
        if len(rows) > MOST:
            lines.append(f'  … and {len(rows) - MOST} more streams')
        return '\n'.join(lines)

    def _of_device(self, stream: Stream) -> bool:
        """Whether it is no host's: a host that waits is stuck because its device is."""
        return stream.device.representative < len(self._representatives.ranks)

    def _row(self, stream: Stream) -> tuple[str, str, str, str]:
        representative = stream.device.representative
        role = self._ops.roles[representative]
        name = role.streams[int(role.stream[stream.head - self._ops.first[representative]])]
        head = f'step {stream.step + 1}: {self._action(stream.head)}'
        return name_ranks(self._representatives.ranks[representative]), name, head, self._waits(stream)

    def _action(self, op: int) -> str:
        representative, own = int(self._ops.representative[op]), len(self._representatives.ranks)
        # The ops of hosts stand behind those of devices, in the same order.
        role = self._ops.roles[representative % own]
        action = self._program.action(role, op - int(self._ops.first[representative]))
        return action if representative < own else f'the host to issue {action}'

    def _waits(self, stream: Stream) -> str:
        if stream in self._met:
            return f'waits for {self._missing(stream, self._met[stream])}'
        needs = self._unended(stream)
        return f'needs {", ".join(needs)}' if needs else f'waits in its work queue behind {self._ahead(stream)}'

    def _unended(self, stream: Stream) -> list[str]:
        """What the head of a stream needs itself and has not ended; not what it comes after by its work queue."""
        op, representative = stream.head, stream.device.representative
        role, first = self._ops.roles[representative], int(self._ops.first[representative])
        needs = [first + need for need in role.need.items(op - first)]
        # Behind the devices stand hosts, which issue it.
        needs += [need for need in self._ops.need.items(op) if need >= self._hosts]
        # An end that has not happened is negative (PENDING).
        found = [self._action(need) for need in needs if self._end[stream.base + need] < 0.0]
        # The first step has nothing before it that it could carry.
        if stream.step:
            before = stream.base - stream.every + first
            carried = [need for need in role.carry.items(op - first) if self._end[before + need] < 0.0]
            found += [f'{self._action(first + need)} of step {stream.step}' for need in carried]
        return found

    def _ahead(self, stream: Stream) -> str:
        """What is first in the work queue in which the head of a stream stands: the earliest that has not arrived."""
        streams = self._ops.stream[self._ops.representative == stream.device.representative]
        number = self._ops.stream[stream.head]
        shared = next(shared for shared in queues_of(streams, self._queues) if number in shared)
        beside = (one for one in self._streams if self._ops.stream[one.head] in shared and one.step < self._steps)
        step, op = min(filter(None, map(self._next, beside)))
        return self._action(op) + (f' of step {step + 1}' if step != stream.step else '')

    def _next(self, stream: Stream) -> tuple[int, int] | None:
        """Step and number of a stream's first op that has not arrived, if any."""
        if self._arrive[stream.base + stream.head] < 0.0:
            return stream.step, stream.head
        place, more = stream.cursor + 1, stream.step + 1
        if place < len(stream.ops):
            return stream.step, stream.ops[place]
        return (more, stream.ops[0]) if more < self._steps else None

    def _missing(self, stream: Stream, met: Rendezvous) -> str:
        """The peers of a representative that have not arrived where the head of its stream has."""
        op = self._program.op_classes[int(self._ops.op_class[stream.head])]
        rank = self._representatives.ranks[stream.device.representative][0]
        groups = self._representatives.groups[op.partition]
        if op.kind != 'collective':
            return self._name_peers([groups.peer(rank, op.peer)])
        arrived = {other.device.representative for other in met.streams}
        members = groups.ranks[groups.places.item(0, rank)].tolist()
        return self._name_peers([peer for peer in members if self._representatives.of_rank[peer] not in arrived])

    def _name_peers(self, ranks: list[int]) -> str:
        representatives = {self._representatives.of_rank[rank] for rank in ranks}
        finished = all(
            stream.step == self._steps for stream in self._streams if stream.device.representative in representatives
        )
        return name_ranks(ranks) + (', finished' if finished else '')


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks as a reader writes them, e.g. ``ranks 0-3, 8``."""
    # Runs of neighbours, so that a thousand ranks fit in a word.
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    names = [str(first) if first == last else f'{first}-{last}' for first, last in spans]
    more = ['…'] if len(names) > MOST_RANGES else []
    return ('rank ' if len(ranks) == 1 else 'ranks ') + ', '.join(names[:MOST_RANGES] + more)
