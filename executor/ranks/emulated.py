"""Emulated compute: ops take their predicted time on a virtual device; messages are real, of the right size.

It shows that dependencies, streams and communication are predicted right. It does not show that compute is.
A compute op runs from its arrival at speed 1, and slower in the intervals in which a collective runs on the rank. The
end is worked out afresh whenever an interval opens or closes, from the op's start on, so that neither late wake-ups nor
late news add up: spans are those that the device would have had; the thread sleeps towards their ends.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from executor.host import Clock
from executor.ranks import collectives, streams
from simpar.cost.costs import Costs, entry_of
from simpar.program import COPY, OpClass, Program


@dataclass(slots=True, eq=False)
class Busy:
    """An interval in which communication of a kind runs on the rank; open while ``end`` is infinite."""

    start: float
    end: float = math.inf
    kind: int = 0


class VirtualDevice:
    """One rank's device; threads of compute streams run ops on it, those of communication streams open intervals.

    Arguments: ``link`` is told when the device computes (for collectives that computing slows), None where none are.
    """

    def __init__(self, clock: Clock, link: collectives.Link | None = None) -> None:
        self._clock = clock
        self._link = link
        self._busy: list[Busy] = []
        self._running: list[float] = []
        self._changed = clock.condition()

    def compute(self, start: float, seconds: float, beside: Sequence[float]) -> float:
        """Run an op and return when it has ended.

        Arguments:
            start: the moment at which the op arrived.
            seconds: what the op takes alone.
            beside: its speed while communication of each kind runs on the rank.
        """
        if self._link is not None:
            self._link.computing(True, start)
        with self._changed:
            self._running.append(start)
            while True:
                # From the start each time, not from the last look: errors of wake-ups would add up.
                end = stretched_end(start, seconds, beside, self._busy)
                if self._clock.now() >= end:
                    break
                # Woken early by an interval that opens or closes, for then the end moves.
                self._clock.wait(self._changed, end)
            self._running.remove(start)
        if self._link is not None:
            self._link.computing(False, end)
        return end

    def open(self, start: float, kind: int) -> Busy:
        """Communication of a kind runs on the rank from ``start`` on."""
        interval = Busy(start, kind=kind)
        with self._changed:
            # Intervals that ended before the oldest running op started can move no end any more.
            oldest = min(self._running, default=start)
            self._busy = [busy for busy in self._busy if busy.end > oldest]
            self._busy.append(interval)
            self._changed.notify_all()
        return interval

    def close(self, interval: Busy, end: float) -> None:
        """The collective has ended."""
        with self._changed:
            interval.end = end
            self._changed.notify_all()


def stretched_end(start: float, seconds: float, beside: Sequence[float], busy: list[Busy]) -> float:
    """When an op ends that does ``seconds`` of work at speed 1, but beside communication at the speeds of its kinds."""
    at, left = start, seconds
    bounds = sorted({time for one in busy for time in (one.start, one.end) if time > start})
    for until in (*bounds, math.inf):
        # Intervals of different streams may overlap: of several kinds at once the one that takes most counts.
        speed = min((beside[one.kind] for one in busy if one.start <= at < one.end), default=1.0)
        if (until - at) * speed >= left:
            break
        at, left = until, left - (until - at) * speed
    return at + left / speed


# Emulated compute: ops take their predicted time on a virtual device; messages are real, of the right size.


class EmulatedMachine:
    """One rank's virtual device and host.

    Arguments: ``link``, what the rank sends through where the network is paced.
    """

    def __init__(self, program: Program, costs: Costs, rank: int, clock: Clock, link: collectives.Link | None) -> None:
        role = program.role(rank)
        self._costs = costs
        self._clock = clock
        self._link = link
        self._device = VirtualDevice(clock, link if link is not None and costs.beside_compute.min() < 1 else None)
        self._speeds: list[list[float]] = costs.speeds.T.tolist()
        self._kind: list[int] = costs.taking.tolist()
        self._slows = bool((costs.speeds < 1).any())
        self._speed = float(costs.rank_speed[rank])
        self._place = {
            name: (len(partition.groups_GP), *partition.place(rank)) for name, partition in program.partitions.items()
        }
        # The host issues ops one after the other, without waiting for the device; so issue times are sums known in
        # advance.
        hosts: list[float] = costs.host[role.op_class].tolist()
        self._issued = list(accumulate(hosts))
        self._period = sum(hosts)
        self._begin = 0.0

    def begin(self, moment: float) -> None:
        """The host starts to issue ops."""
        self._begin = moment

    def arrive(self, work: streams.Work, ready: float) -> float:
        """The op is ready and the host has issued it."""
        arrived = max(ready, self._begin + self._issued[work.slot.position] + work.step * self._period)
        if work.channel is not None:
            # Only communication must wait in real time: its messages are real. Compute sleeps in the device.
            self._clock.sleep_until(arrived)
        return arrived

    def run(self, work: streams.Work, arrived: float) -> float:
        """Sleep for a compute op, send for a message."""
        if work.slot.op.operator == COPY:
            return self._copy(work, arrived)
        return self.compute(work, arrived) if work.channel is None else self.communicate(work, arrived)

    def _copy(self, work: streams.Work, arrived: float) -> float:
        """An engine copies, and slows nothing."""
        cost = self._costs.communication[work.slot.index][0]
        end = arrived + cost.alpha + cost.transfer
        self._clock.sleep_until(end)
        return end

    def compute(self, work: streams.Work, arrived: float) -> float:
        """The op's isolated time on this rank, stretched beside collectives."""
        seconds = float(self._costs.compute[work.slot.index]) / self._speed
        return self._device.compute(arrived, seconds, self._speeds[work.slot.index])

    def communicate(self, work: streams.Work, arrived: float) -> float:
        """Messages of the right sizes; the collective starts when the last of its ranks has arrived.

        When that is must be known before a send, and where the link is ours; meanwhile where the start slows compute.
        """
        # A group of one rank has nothing to send.
        if work.channel is None or work.channel.size == 1:
            return arrived
        channel, busy, kind = work.channel, list[Busy](), self._kind[work.slot.index]

        def begin(start: float) -> None:
            if not busy:
                busy.append(self._device.open(start, kind))

        # Whether a kernel that waits for its peers already slows compute is a property of the machine, as given by the
        # costs. Where it does, compute is slowed before it is known until when.
        if self._slows and self._costs.waiting[kind]:
            begin(arrived)
        start = arrived
        if self._link is not None or work.slot.op.kind != 'collective':
            # What is sent before its receive is posted would wait in buffers that links between devices do not have.
            start = _meet(work.slot.op, channel, arrived)
            begin(start)
        elif self._slows:
            others = [position for position in range(channel.size) if position != channel.position]
            channel.meet(arrived, others, begin)
        channel.done = None
        _transfer(work.slot.op, collectives.Rings(channel, self._pace(work), start))
        # A meeting that no exchange has waited for would meet the next op's messages.
        channel.settle()
        # As of compute: the moment at which the link was through, not that at which a thread woke up for it.
        end = self._clock.now() if channel.done is None else channel.done
        if self._link is None and work.slot.op.kind != 'collective':
            # What was sent may be in a buffer: it is through when the other end has it.
            end = _meet(work.slot.op, channel, end)
        for interval in busy:
            self._device.close(interval, end)
        return end

    def _pace(self, work: streams.Work) -> collectives.Pace | None:
        """Demand as the costs have it: below 1 where something else than the link limits the collective."""
        if self._link is None:
            return None
        entries = self._costs.communication.get(work.slot.index, ())
        links = entries[entry_of(len(entries), *self._place[work.slot.op.partition])].links if entries else ()
        # A rank has one link here; of several modelled links the busiest is the limit.
        demand = max((demand for _, demand in links), default=1.0)
        return collectives.Pace(self._link, demand, float(self._costs.beside_compute[work.slot.index]), virtual=True)


def _meet(op: OpClass, channel: collectives.Channel, arrived: float) -> float:
    """When the last participant arrived."""
    if op.kind == 'collective':
        return channel.latest(arrived)
    return channel.later(arrived, (channel.position + op.peer) % channel.size)


def _transfer(op: OpClass, rings: collectives.Rings) -> None:
    """An op's messages, of bytes that nobody reads, so that they need not be set."""
    full, size, position = torch.empty(int(op.bytes), dtype=torch.uint8), rings.size, rings.position
    if op.operator == 'all_reduce':
        rings.all_reduce(full, '')
    elif op.operator == 'all_gather':
        rings.all_gather(full[: len(full) // size])
    elif op.operator == 'reduce_scatter':
        rings.reduce_scatter(list(full.tensor_split(size)), '')
    elif op.operator == 'all_to_all':
        rings.all_to_all(full.tensor_split(size))
    elif op.operator == 'send_recv':
        rings.exchange([(full, (position + 1) % size)], [(torch.empty_like(full), (position - 1) % size)])
    else:
        message = [(full, (position + op.peer) % size)]
        rings.exchange(message if op.kind == 'send' else [], message if op.kind == 'recv' else [])
