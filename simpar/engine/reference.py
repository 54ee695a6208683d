"""The reference: the engine's semantics as an event loop on a SimPy clock; the specification of all that is faster.

There are stream cursors and one event per completion, never a process per op. At one instant all completions and
arrivals come first (priority NORMAL), then the speeds of what they touched are solved anew (priority LOW). A speed
that does not change bitwise keeps its completion. A deadlock is drawn: what each rank waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import simpy
from simpy.events import NORMAL, Event, EventPriority

from simpar import errors, trace, units
from simpar.cost.costs import Costs
from simpar.engine.fold import Load, Observer, Representatives, fair_speeds
from simpar.engine.ops import NodeCosts, Ops, node_costs
from simpar.engine.queues import hosted, queues_of
from simpar.program import Program

LOW: Final = EventPriority(2)
PENDING: Final = -1.0
"""The time of what has not happened yet."""
UNSOLVED: Final = 0.0
"""A ceiling that no op has, so that its speed is solved at the next chance."""
MOST: Final = 16
"""Lines of streams that a drawing has at most, so that it stays on one screen."""
MOST_RANGES: Final = 4
"""Ranges of ranks that a name has at most."""


# Devices and links: what runs on them now, and the fair speeds of what shares links.


@dataclass(eq=False)
class Device:
    """The device of a representative rank; of each kind of communication, how many go on there."""

    representative: int
    communicating: list[int]
    # Dicts are sets that keep their order: what is touched together is solved in one order, whatever the hash seed.
    computing: dict[Running, None] = field(default_factory=dict)
    transferring: dict[Running, None] = field(default_factory=dict)


@dataclass(eq=False)
class Stream:
    """An in-order queue of a device: its head is op ``ops[cursor]`` of step ``step``.

    Arguments:
        ops: numbers of the stream's ops in a step.
        every: how many ops of all devices a step has.
        base: what is added to the head's number to count it among the ops of all steps.
    """

    device: Device
    ops: Sequence[int]
    every: int
    cursor: int = 0
    step: int = 0
    base: int = 0

    @property
    def head(self) -> int:
        """The number of the head in its step."""
        return self.ops[self.cursor]

    def pop(self) -> None:
        """Let the next op head the stream."""
        self.cursor += 1
        if self.cursor == len(self.ops):
            self.cursor = 0
            self.step += 1
            self.base += self.every


@dataclass(eq=False)
class Running:
    """An op in progress: it had ``remaining`` isolated seconds at ``since`` and goes on at ``speed`` ever since.

    Arguments:
        streams: the streams that it heads.
        top: the ceiling when its speed was last solved.
        completion: the event that ends it unless its speed changes.
    """

    remaining: float
    streams: list[Stream]
    since: float = 0.0
    speed: float = 0.0
    top: float = UNSOLVED
    completion: Event | None = None

    @property
    def devices(self) -> list[Device]:
        """Those of its streams."""
        return [stream.device for stream in self.streams]

    def ceiling(self) -> float:
        """The highest speed that its devices allow now."""
        raise NotImplementedError


@dataclass(eq=False)
class Compute(Running):
    """A compute op in progress; ``beside``, its speed while a communication of each kind runs on the device."""

    beside: Sequence[float] = ()

    def ceiling(self) -> float:
        """The speed that its device allows now."""
        # One slows as much as several: what is measured is compute beside any communication. Of kinds the worst counts.
        going = self.streams[0].device.communicating
        return min((speed for speed, count in zip(self.beside, going, strict=True) if count), default=1.0)


@dataclass(eq=False)
class Rendezvous(Running):
    """A collective, or a send with its receive, from the first arrival on.

    Arguments:
        kind: by what it takes of its devices.
        op: number of the op that has the costs.
        links: what it asks of each link while it transfers: at speed s, s · demand.
        beside: its highest speed while one of its devices computes.
    """

    kind: int = 0
    op: int = 0
    links: Load = ()
    beside: float = 1.0

    def ceiling(self) -> float:
        """The highest speed that its devices allow now."""
        return self.beside if any(device.computing for device in self.devices) else 1.0


class Links:
    """The flows that are now on each link."""

    def __init__(self, count: int) -> None:
        self._flows: list[dict[Rendezvous, None]] = [{} for _ in range(count)]

    def add(self, flow: Rendezvous) -> None:
        """Let a flow transfer."""
        for link, _ in flow.links:
            self._flows[link][flow] = None

    def remove(self, flow: Rendezvous) -> dict[Rendezvous, None]:
        """End a flow; returns its neighbours, whose speeds may change."""
        neighbours: dict[Rendezvous, None] = {}
        for link, _ in flow.links:
            del self._flows[link][flow]
            neighbours.update(self._flows[link])
        return neighbours

    def component(self, seeds: Iterable[Rendezvous]) -> dict[Rendezvous, None]:
        """The seeds and the flows that share links with them, directly or through others."""
        flows = list(seeds)
        seen: set[int] = set()
        # The list grows while it is walked: a breadth-first search.
        for flow in flows:
            for link, _ in flow.links:
                if link not in seen:
                    seen.add(link)
                    flows += self._flows[link]
        return dict.fromkeys(flows)


class _At(Event):
    """An event that happens at its time and calls back with what it carries."""

    def __init__(
        self,
        env: simpy.Environment,
        call: Callable[[Any], None],
        subject: object,
        delay: float,
        priority: EventPriority = NORMAL,
    ) -> None:
        # Event.__init__ is left out: these events cannot fail, nor be triggered by hand, and there are many of them.
        self.env = env
        self.callbacks = [call]
        self.subject: Any = subject
        self._ok = True
        self._value = None
        env.schedule(self, priority, delay)


class Simulation:
    """One run of a program's representatives: the clock, the spans so far, and what runs and waits now.

    Arguments as of `simulate`.
    """

    def __init__(
        self,
        program: Program,
        costs: Costs,
        representatives: Representatives,
        steps: int,
        observe: Observer | None,
    ) -> None:
        self._program = program
        self._representatives = representatives
        self._steps = steps
        self._own = len(representatives.ranks)
        self._waiting_slows = costs.waiting
        self._observe = observe
        self._costs = costs
        self._ops = hosted(program, representatives, costs.waits, costs.work_queues)
        self._walk(self._ops, node_costs(self._ops, program, costs, representatives, steps))
        devices = [Device(number, [0] * len(costs.waiting)) for number in range(len(self._ops.roles))]
        every = len(self._ops)
        representative = self._ops.representative.tolist()
        self._streams = [Stream(devices[representative[ops[0]]], ops, every) for ops in self._ops.streams.rows() if ops]
        self._env = simpy.Environment(0.0)
        self._arrive, self._start, self._end = ([PENDING] * steps * every for _ in range(3))
        self._meeting: dict[tuple[int, int], Rendezvous] = {}
        self._waiters: dict[int, list[Stream]] = {}
        self._met: dict[Stream, Rendezvous] = {}
        self._links = Links(len(costs.links))
        self._transferring: dict[Rendezvous, None] = {}
        # A dict for its order: SimPy breaks ties by the order of scheduling.
        self._touched: dict[Running, None] = {}
        self._resolving = False

    def _walk(self, ops: Ops, costs: NodeCosts) -> None:
        """The arrays that the fast machines walk, as lists, in which Python looks up faster."""
        self._needs, self._carried = ops.need.rows(), ops.carry.rows()
        self._computes, self._leads = ops.computes.tolist(), ops.leads.tolist()
        self._channel, self._turn, self._turns = (each.tolist() for each in ops.meetings[:3])
        self._expected = ops.meetings.expected.tolist()
        rows, row = costs.rows, costs.row
        each = (rows.seconds[row], rows.alpha[row], rows.beside.T[row], self._costs.taking[ops.op_class])
        self._seconds, self._alpha, self._beside, self._taking = (column.tolist() for column in each)
        # Index −1, of what has no links, reads the entry behind all others.
        loads = [*costs.loads, ()]
        self._load = [loads[kind] for kind in rows.kind[row].tolist()]
        self._issued_at = costs.issued.ravel().tolist()

    def run(self) -> trace.Trace:
        """The Trace of all steps. Raises ``Deadlock``."""
        for stream in self._streams:
            self._advance(stream)
        self._env.run()
        # SimPy has no more events, but some op has not ended.
        if PENDING in self._end:
            self._met = {stream: meeting for meeting in self._meeting.values() for stream in meeting.streams}
            # The clock may be further: it has run through completions that were out of date.
            raise errors.Deadlock(self._drawn(max(0.0, *self._arrive, *self._end)))
        return self._trace()

    def _advance(self, stream: Stream) -> None:
        """Let the head of a stream arrive, unless it has to wait."""
        if stream.step == self._steps:
            return
        op = stream.ops[stream.cursor]
        if self._waits(stream, op):
            return
        now = self._env.now
        self._arrive[stream.base + op] = now
        if self._computes[op]:
            self._start[stream.base + op] = now
            self._compute(stream, op)
        else:
            self._meet(stream, op)

    def _waits(self, stream: Stream, op: int) -> bool:
        """Whether a need or the host keeps the head of a stream; if so, the stream advances when that is done."""
        end, base = self._end, stream.base
        # It is enough to wait for one need at a time: when that ends, the stream looks again.
        for need in self._needs[op]:
            if end[base + need] == PENDING:
                self._waiters.setdefault(base + need, []).append(stream)
                return True
        if stream.step:
            before = base - stream.every
            for need in self._carried[op]:
                if end[before + need] == PENDING:
                    self._waiters.setdefault(before + need, []).append(stream)
                    return True
        delay = self._issued_at[base + op] - self._env.now
        if delay > 0.0:
            _At(self._env, lambda event: self._advance(event.subject), stream, delay)
            return True
        return False

    def _compute(self, stream: Stream, number: int) -> None:
        """Start a compute op at the speed of this moment: one that lasts cannot end before speeds are solved anew."""
        op = Compute(self._seconds[number], [stream], beside=self._beside[number])
        # It occupies nothing, so nobody's speed is looked at.
        if op.remaining == 0.0:
            self._set_speed(op, 1.0)
            return
        device = stream.device
        if not device.computing:
            self._touch(device.transferring)
        device.computing[op] = None
        op.top = op.ceiling()
        self._set_speed(op, op.top)

    def _meet(self, stream: Stream, op: int) -> None:
        """Let a communication op arrive at its rendezvous, and start that when all have arrived."""
        channel = self._channel[op]
        # The k-th op of each side on a channel meet, counted over all steps, as NCCL and HCCL match calls.
        number = channel, stream.step * self._turns[op] + self._turn[op]
        rendezvous = self._meeting.get(number)
        if rendezvous is None:
            rendezvous = self._meeting[number] = Rendezvous(0.0, [], kind=self._taking[op])
        rendezvous.streams.append(stream)
        # Only one side has the costs; it need not be the last to arrive.
        if self._leads[op]:
            rendezvous.op, rendezvous.remaining = op, self._seconds[op]
            rendezvous.links, rendezvous.beside = self._load[op], self._beside[op][0]
        if self._waiting_slows[rendezvous.kind] and rendezvous.beside <= 1.0:
            self._occupy(stream.device, rendezvous.kind)
        if len(rendezvous.streams) == self._expected[channel]:
            del self._meeting[number]
            self._begin(rendezvous)

    def _begin(self, rendezvous: Rendezvous) -> None:
        """Start a rendezvous with its latency."""
        now = self._env.now
        for stream in rendezvous.streams:
            self._start[stream.base + stream.head] = now
        if rendezvous.beside <= 1.0 and not self._waiting_slows[rendezvous.kind]:
            for device in rendezvous.devices:
                self._occupy(device, rendezvous.kind)
        # During its latency it uses no link, but it does occupy its devices.
        _At(self._env, self._transfer, rendezvous, self._alpha[rendezvous.op])

    def _transfer(self, event: _At) -> None:
        """Let a rendezvous transfer after its latency."""
        rendezvous: Rendezvous = event.subject
        if self._seconds[rendezvous.op] == 0.0:
            self._set_speed(rendezvous, 1.0)
            return
        self._links.add(rendezvous)
        self._transferring[rendezvous] = None
        if rendezvous.beside < 1.0:
            for device in rendezvous.devices:
                device.transferring[rendezvous] = None
        self._touch({rendezvous: None})

    def _complete(self, event: _At) -> None:
        """End an op, unless its speed has changed since this event was scheduled."""
        op: Compute | Rendezvous = event.subject
        # SimPy cannot cancel an event, so one that is out of date is ignored.
        if op.completion is not event:
            return
        op.completion = None
        # What follows on the stream starts first, so that op after op does not look like a change to the device.
        self._finish(op.streams)
        if isinstance(op, Compute):
            self._leave_device(op)
        else:
            self._leave_links(op)
        # It may have been touched at the instant at which it ends.
        self._touched.pop(op, None)

    def _leave_device(self, op: Compute) -> None:
        (device,) = op.devices
        if op in device.computing:
            del device.computing[op]
            if not device.computing:
                self._touch(device.transferring)

    def _leave_links(self, rendezvous: Rendezvous) -> None:
        if rendezvous in self._transferring:
            del self._transferring[rendezvous]
            neighbours = self._links.remove(rendezvous)
            for neighbour in neighbours:
                neighbour.top = UNSOLVED
            self._touch(neighbours)
        for device in rendezvous.devices:
            device.transferring.pop(rendezvous, None)
            if rendezvous.beside <= 1.0:
                device.communicating[rendezvous.kind] -= 1
                if not device.communicating[rendezvous.kind]:
                    self._touch(device.computing)

    def _occupy(self, device: Device, kind: int) -> None:
        """Let one more communication of a kind slow a device's compute."""
        device.communicating[kind] += 1
        if device.communicating[kind] == 1:
            self._touch(device.computing)

    def _finish(self, streams: Sequence[Stream]) -> None:
        """Record that the heads of these streams end now, and let go on what waited for them."""
        now = self._env.now
        # Streams whose heads end advance first, then those that waited: one fixed order, so that runs repeat to the
        # bit.
        freed = list(streams)
        for stream in streams:
            op = stream.base + stream.head
            self._end[op] = now
            freed += self._waiters.pop(op, ())
            stream.pop()
        for stream in freed:
            self._advance(stream)

    def _touch(self, ops: Collection[Running]) -> None:
        """Look at the speeds of these ops, and of all that share links with them, at the end of the instant."""
        if ops:
            self._touched.update(dict.fromkeys(ops))
            # One look at the end of an instant, however many ops were touched.
            if not self._resolving:
                self._resolving = True
                _At(self._env, self._resolve, None, 0.0, LOW)

    def _resolve(self, _: _At) -> None:
        """Solve the speeds anew of what was touched at this instant and may now go faster or must go slower."""
        touched, self._touched = self._touched, {}
        self._resolving = False
        flows = []
        for op in touched:
            top = op.ceiling()
            if top != op.top:
                op.top = top
                if isinstance(op, Rendezvous):
                    flows.append(op)
                else:
                    self._set_speed(op, top)
        if flows:
            for flow, speed in fair_speeds(self._links.component(flows)).items():
                self._set_speed(flow, speed)
        if self._observe:
            self._observe(self._env.now, [(*self._stands_for(op), op.speed) for op in self._transferring])

    def _stands_for(self, rendezvous: Rendezvous) -> tuple[int, tuple[int, ...]]:
        """The op class of a rendezvous, and which of its groups or pairs it is done in at once."""
        representative, index = int(self._ops.representative[rendezvous.op]), int(self._ops.op_class[rendezvous.op])
        entries = len(self._costs.communication[index])
        groups = self._representatives.together(representative, self._program.op_classes[index], entries)
        return index, tuple(groups.tolist())

    def _set_speed(self, op: Running, speed: float) -> None:
        """Settle the work done and schedule the completion, if the speed changes."""
        if op.speed == speed:
            return
        now = self._env.now
        op.remaining = max(op.remaining - op.speed * (now - op.since), 0.0)
        op.speed, op.since = speed, now
        # The end is put on the grid, not the delay: the same end from two starts must be the same number.
        op.completion = _At(self._env, self._complete, op, units.quantise(now + op.remaining / speed) - now)

    def _trace(self) -> trace.Trace:
        every = (np.array(times).reshape(self._steps, -1) for times in (self._arrive, self._start, self._end))
        each = zip(*(np.split(times, self._ops.first[1:-1], axis=1) for times in every), strict=True)
        # Behind the devices stand hosts that wait for them, and work queues.
        ranks = self._representatives.ranks
        representatives = tuple(trace.RankTimes(of[0], *times) for of, times in zip(ranks, each, strict=False))
        return trace.Trace(
            self._program, 'simulated', representatives, np.array(self._representatives.of_rank, dtype=np.int32)
        )

    # deadlocks

    def _drawn(self, now: float) -> str:
        """What every stream waits for, a line each: its ranks, its name, its head, and that."""
        # A host that waits is stuck because its device is.
        stuck = [one for one in self._streams if one.step < self._steps and one.device.representative < self._own]
        rows = [self._row(stream) for stream in stuck]
        widths = [max(len(row[column]) for row in rows[:MOST]) for column in range(3)]
        lines = [f'deadlock at {units.format_time(now)}: nothing can go on; stuck heads of streams:']
        for *cells, waits in rows[:MOST]:
            lines.append('  '.join(['', *(c.ljust(w) for c, w in zip(cells, widths, strict=True)), waits]))
        if len(rows) > MOST:
            lines.append(f'  … and {len(rows) - MOST} more streams')
        return '\n'.join(lines)

    def _row(self, stream: Stream) -> tuple[str, str, str, str]:
        representative = stream.device.representative
        role = self._ops.roles[representative]
        name = role.streams[int(role.stream[stream.head - self._ops.first[representative]])]
        head = f'step {stream.step + 1}: {self._action(stream.head)}'
        return name_ranks(self._representatives.ranks[representative]), name, head, self._awaited(stream)

    def _action(self, op: int) -> str:
        representative, own = int(self._ops.representative[op]), self._own
        # The ops of hosts stand behind those of devices, in the same order.
        role = self._ops.roles[representative % own]
        action = self._program.action(role, op - int(self._ops.first[representative]))
        return action if representative < own else f'the host to issue {action}'

    def _awaited(self, stream: Stream) -> str:
        if stream in self._met:
            return f'waits for {self._missing(stream, self._met[stream])}'
        needs = self._unended(stream)
        return f'needs {", ".join(needs)}' if needs else f'waits in its work queue behind {self._ahead(stream)}'

    def _unended(self, stream: Stream) -> list[str]:
        """What the head of a stream needs itself and has not ended; not what it comes after by its work queue."""
        op, representative = stream.head, stream.device.representative
        role, first = self._ops.roles[representative], int(self._ops.first[representative])
        needs, hosts = [first + need for need in role.need.items(op - first)], self._ops.first.item(self._own)
        # Behind the devices stand hosts, which issue it.
        needs += [need for need in self._ops.need.items(op) if need >= hosts]
        # An end that has not happened is negative (PENDING).
        actions = [self._action(need) for need in needs if self._end[stream.base + need] < 0.0]
        # The first step has nothing before it that it could carry.
        if stream.step:
            before = stream.base - stream.every + first
            carried = [need for need in role.carry.items(op - first) if self._end[before + need] < 0.0]
            actions += [f'{self._action(first + need)} of step {stream.step}' for need in carried]
        return actions

    def _ahead(self, stream: Stream) -> str:
        """What is first in the work queue in which the head of a stream stands: the earliest that has not arrived."""
        streams = self._ops.stream[self._ops.representative == stream.device.representative]
        number = self._ops.stream[stream.head]
        shared = next(shared for shared in queues_of(streams, self._costs.work_queues) if number in shared)
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
