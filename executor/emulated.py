"""Emulated compute: ops take their predicted time on a virtual device; messages are real, of the right size.

It shows that dependencies, streams and communication are predicted right. It does not show that compute is.
"""

from __future__ import annotations

from itertools import accumulate

import torch

from executor import collectives
from executor.clock import Clock
from executor.collectives import Channel, Pace
from executor.device import Busy, VirtualDevice
from executor.link import Link
from executor.machine import Work
from simpar.cost.costs import Costs, entry_of
from simpar.program import OpClass, Program


class EmulatedMachine:
    """One rank's virtual device and host.

    Arguments: ``link``, what the rank sends through where the network is paced.
    """

    def __init__(self, program: Program, costs: Costs, rank: int, clock: Clock, link: Link | None) -> None:
        role = program.role(rank)
        self._costs = costs
        self._clock = clock
        self._link = link
        self._device = VirtualDevice(clock, link if link is not None and costs.beside_compute.min() < 1 else None)
        self._slows = bool((costs.beside_communication < 1).any())
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

    def arrive(self, work: Work, ready: float) -> float:
        """The op is ready and the host has issued it."""
        arrived = max(ready, self._begin + self._issued[work.slot] + work.step * self._period)
        if work.channel is not None:
            # Only communication must wait in real time: its messages are real. Compute sleeps in the device.
            self._clock.sleep_until(arrived)
        return arrived

    def compute(self, work: Work, arrived: float) -> float:
        """The op's isolated time on this rank, stretched beside collectives."""
        seconds = float(self._costs.compute[work.index]) / self._speed
        return self._device.compute(arrived, seconds, float(self._costs.beside_communication[work.index]))

    def communicate(self, work: Work, arrived: float) -> float:
        """Messages of the right sizes; the collective starts when the last of its ranks has arrived.

        When that is must be known before a send, and where the link is ours; meanwhile where the start slows compute.
        """
        # A group of one rank has nothing to send.
        if work.channel is None or work.channel.size == 1:
            return arrived
        channel, busy = work.channel, list[Busy]()

        def begin(start: float) -> None:
            if not busy:
                busy.append(self._device.open(start))

        # Whether a kernel that waits for its peers already slows compute is a property of the machine, as given by the
        # costs. Where it does, compute is slowed before it is known until when.
        if self._slows and self._costs.waiting_slows:
            begin(arrived)
        start = arrived
        if self._link is not None or work.op.kind != 'collective':
            # What is sent before its receive is posted would wait in buffers that links between devices do not have.
            start = _meet(work.op, channel, arrived)
            begin(start)
        elif self._slows:
            channel.meet(arrived, _others(channel), begin)
        channel.done = None
        _transfer(work.op, channel, self._pace(work), start)
        # A meeting that no exchange has waited for would meet the next op's messages.
        channel.settle()
        # As of compute: the moment at which the link was through, not that at which a thread woke up for it.
        end = self._clock.now() if channel.done is None else channel.done
        if self._link is None and work.op.kind != 'collective':
            # What was sent may be in a buffer: it is through when the other end has it.
            end = _meet(work.op, channel, end)
        for interval in busy:
            self._device.close(interval, end)
        return end

    def _pace(self, work: Work) -> Pace | None:
        """Demand as the costs have it: below 1 where something else than the link limits the collective."""
        if self._link is None:
            return None
        entries = self._costs.communication.get(work.index, ())
        links = entries[entry_of(len(entries), *self._place[work.op.partition])].links if entries else ()
        # A rank has one link here; of several modelled links the busiest is the limit.
        demand = max((demand for _, demand in links), default=1.0)
        return Pace(self._link, demand, float(self._costs.beside_compute[work.index]), virtual=True)


def _others(channel: Channel) -> list[int]:
    """Positions of all that take part but this."""
    return [position for position in range(channel.size) if position != channel.position]


def _meet(op: OpClass, channel: Channel, arrived: float) -> float:
    """When the last participant arrived."""
    if op.kind == 'collective':
        return channel.latest(arrived)
    return channel.later(arrived, (channel.position + op.peer) % channel.size)


def _transfer(op: OpClass, channel: Channel, pace: Pace | None, due: float) -> None:
    """An op's messages, of bytes that nobody reads."""
    size, width = int(op.bytes), channel.size
    if op.operator == 'all_reduce':
        collectives.all_reduce(channel, _bytes(size), '', pace, due)
    elif op.operator == 'all_gather':
        collectives.all_gather(channel, _bytes(size // width), pace, due)
    elif op.operator == 'reduce_scatter':
        collectives.reduce_scatter(channel, list(_bytes(size).tensor_split(width)), '', pace, due)
    elif op.operator == 'all_to_all':
        collectives.all_to_all(channel, _bytes(size).tensor_split(width), pace, due)
    elif op.operator == 'send_recv':
        collectives.send_recv(channel, _bytes(size), _bytes(size), pace, due)
    else:
        peer = (channel.position + op.peer) % width
        message = [(_bytes(size), peer)]
        channel.exchange(message if op.kind == 'send' else [], message if op.kind == 'recv' else [], pace, due)


def _bytes(size: int) -> torch.Tensor:
    # Nobody reads the content, so it need not be set.
    return torch.empty(size, dtype=torch.uint8)
