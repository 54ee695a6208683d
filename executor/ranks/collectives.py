"""Collectives of messages between two ranks, and the paced link that they go through."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

from executor.host import Clock
from simpar.engine.fold import fair_speeds
from simpar.units import quantise

# A paced link: what one rank sends through, shared by the threads of its streams as the simulator shares a link.
#
# Speeds are max-min fair, weighted by demand. Times lie on the engine's grid of 2⁻⁴⁰ s, counted from a whole second
# near by: a double holds them to the bit at any uptime. So a transfer ends at the moment that the engine computes,
# and late wake-ups of threads do not add up. Receiving is free.

SPAN: Final = 1024.0
"""Seconds from the origin after which it moves; below 4096 s, doubles hold the grid."""


class Progress(NamedTuple):
    """How far a transfer is: ``left`` seconds at full speed at ``since``, at ``speed`` ever since, up to ``end``."""

    left: float
    since: float
    speed: float
    end: float


class Transfer:
    """A message on a link.

    Arguments:
        seconds: what it takes alone, at full speed.
        demand: share of the link that it takes at full speed.
        beside_compute: its highest speed while the device computes.
    """

    __slots__ = ('before', 'beside_compute', 'ended', 'links', 'now', 'top')

    def __init__(self, seconds: float, demand: float, beside_compute: float) -> None:
        self.links, self.top = ((0, demand),), 1.0
        self.beside_compute = beside_compute
        # What held up to this instant, and what holds from it on: several changes at one instant count as one.
        self.before = self.now = Progress(seconds, 0.0, 0.0, math.inf)
        self.ended: float | None = None

    def settle(self, at: float, speed: float) -> None:
        """Go on at a speed from ``at`` on; work is settled only where the speed changes, as in the engine."""
        left, since, before, _ = self.before
        if speed == before:
            self.now = self.before
            return
        left = max(left - before * (at - since), 0.0)
        self.now = Progress(left, at, speed, quantise(at + left / speed))

    def move(self, seconds: float) -> None:
        """Count from an origin that lies so many seconds later."""
        self.before, self.now = (
            one._replace(since=one.since - seconds, end=one.end - seconds) for one in (self.before, self.now)
        )


class Sharing:
    """The transfers that share one link, from event to event; it knows neither threads nor a clock.

    Moments that it takes and gives are in seconds of the caller's clock.
    """

    def __init__(self) -> None:
        self._active: list[Transfer] = []
        self._computing = 0
        # Whole seconds: then the grid lies alike for every origin.
        self._origin = 0
        self._at = -math.inf

    def enter(self, due: float, seconds: float, demand: float, beside_compute: float) -> Transfer:
        """Let a message transfer from ``due`` on, or from what has happened last, where that is later."""
        self._pass(due)
        transfer = Transfer(quantise(seconds), demand, beside_compute)
        if transfer.now.left == 0.0:
            # Shorter than the grid: like the engine's, it uses no link.
            transfer.ended = self._origin + self._at
        else:
            self._active.append(transfer)
            self._solve()
        return transfer

    def computing(self, on: bool, at: float) -> None:
        """Say that an op of the rank's device computes from ``at`` on, or no longer."""
        self._pass(at)
        self._computing += 1 if on else -1
        self._solve()

    def end_of(self, transfer: Transfer) -> float:
        """When a transfer has ended, or will if nothing changes."""
        return self._origin + transfer.now.end if transfer.ended is None else transfer.ended

    def finish(self, transfer: Transfer) -> None:
        """Pass on to the end of a transfer; each round ends one at least, so rounds are no more than transfers."""
        while transfer.ended is None:
            self._end_next()

    def _pass(self, moment: float) -> None:
        """Pass on to a moment, and end what is through by then."""
        self._move(moment)
        until = max(self._at, quantise(moment - self._origin))
        # What would end at this very instant waits until all changes of the instant are in.
        while self._active and (end := self._next_end()) <= until and not end == self._at == until:
            self._end_next()
        if until > self._at:
            self._go_to(until)

    def _move(self, moment: float) -> None:
        """Count from a later second, where doubles would soon be too coarse for the grid."""
        # While something transfers, its own time counts: the moment may lie far behind its end.
        latest = self._origin + self._at if self._active else moment
        if self._at == -math.inf or latest - self._origin >= SPAN:
            later = math.floor(latest)
            for transfer in self._active:
                transfer.move(later - self._origin)
            self._at -= later - self._origin
            self._origin = later

    def _next_end(self) -> float:
        return min(transfer.now.end for transfer in self._active)

    def _end_next(self) -> None:
        """Go to the next end, and end all transfers that are through then."""
        self._go_to(self._next_end())
        for transfer in self._active:
            if transfer.now.end <= self._at:
                transfer.ended = self._origin + self._at
        self._active = [transfer for transfer in self._active if transfer.ended is None]
        self._solve()

    def _go_to(self, at: float) -> None:
        """Go on to an instant: what held from the last one on is what held before this one."""
        self._at = at
        for transfer in self._active:
            transfer.before = transfer.now

    def _solve(self) -> None:
        """Set all speeds anew, from this instant on."""
        for transfer in self._active:
            transfer.top = transfer.beside_compute if self._computing else 1.0
        for transfer, speed in fair_speeds(self._active).items():
            transfer.settle(self._at, speed)


class Link:
    """What one rank sends through: threads of several streams share it.

    Arguments:
        rate: bytes/s.
        latency: seconds a message.
    """

    def __init__(self, clock: Clock, rate: float, latency: float) -> None:
        self._clock = clock
        self._rate = rate
        self._latency = latency
        self._sharing = Sharing()
        self._changed = clock.condition()

    def carry(self, size: int, due: float, demand: float = 1.0, beside_compute: float = 1.0) -> float:
        """Return when a message has gone through the link and its latency has passed: that moment, by the link's clock.

        Arguments:
            size: bytes of the message.
            due: the moment at which the message was there to be sent.
            demand: share of the link that it can use at most.
            beside_compute: its highest speed while the device computes.
        """
        with self._changed:
            transfer = self._sharing.enter(due, size / (self._rate * demand), demand, beside_compute)
            self._changed.notify_all()
            # Another transfer, or the device, may change the speeds while this one sleeps. Every round waits or is the
            # last: nothing here depends on how finely a double tells moments apart.
            while transfer.ended is None:
                end = self._sharing.end_of(transfer)
                if self._clock.now() < end:
                    self._clock.wait(self._changed, end)
                else:
                    # It may have woken up late; the transfer still ends when it was due.
                    self._sharing.finish(transfer)
                    self._changed.notify_all()
            arrival = transfer.ended + self._latency
        # Outside of the lock: latency keeps no link busy, and others may send meanwhile.
        self._clock.sleep_until(arrival)
        return arrival

    def computing(self, on: bool, at: float) -> None:
        """Say that the rank's device computes from ``at`` on, or no longer."""
        with self._changed:
            self._sharing.computing(on, at)
            self._changed.notify_all()


# Collectives built from point-to-point messages: rings, pairs, and a plain exchange where messages are small.
#
# gloo's own reduce-scatter costs a full all-reduce and its all-gather is bimodal. In a pair of ranks, bulk data in
# one direction delays what goes in the other on the same connection, so each direction has a process group of its
# own, and receives are posted before sends. Sums are taken in an order that depends on positions alone.

SMALL = 16384
"""Bytes up to which everybody sends everything to everybody: one message time instead of 2 (w − 1)."""

LATE = 1e-3
"""Seconds for which a message whose link is through may still be on its way before real time counts, not the link's."""

Messages = Sequence[tuple[torch.Tensor, int]]
"""Pairs (flat tensor, position of the peer)."""
Add = Callable[[torch.Tensor, torch.Tensor], object]
"""Adds its second argument into its first, or takes the maximum, or does nothing where only sizes matter."""

REDUCE: dict[str, Add] = {
    'sum': lambda into, other: into.add_(other),
    'max': lambda into, other: torch.maximum(into, other, out=into),
    '': lambda into, other: None,
}


@dataclass(frozen=True, slots=True)
class Pace:
    """How the executor paces a collective's sends; see ``Link.carry``.

    Arguments: ``virtual``: a message that answers another was there to be sent when the link's clock says that the
    other came, not when a thread woke up for it; only where nothing is computed in between.
    """

    link: Link
    demand: float = 1.0
    beside_compute: float = 1.0
    virtual: bool = False


class Channel:
    """Messages among the ranks of one group, for one stream.

    Arguments:
        members: ranks by position.
        upward, downward: the process groups of messages to higher and to lower positions.
    """

    def __init__(
        self, members: Sequence[int], rank: int, upward: dist.ProcessGroup, downward: dist.ProcessGroup, clock: Clock
    ) -> None:
        self.members = tuple(members)
        self.position = self.members.index(rank)
        self._upward = upward
        self._downward = downward
        self._clock = clock
        self._met: Callable[[], object] | None = None
        self.done: float | None = None
        """When the last exchange was done by the links' clocks; None: when it returned."""
        self.paced = self.late = 0
        """Exchanges by the links' clocks, and how many of them the machine was too slow for."""

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.members)

    def _receive(self, into: torch.Tensor, source: int) -> dist.Work:
        group = self._upward if source < self.position else self._downward
        return dist.irecv(into, self.members[source], group=group)

    def _send(self, out: torch.Tensor, target: int) -> dist.Work:
        group = self._upward if target > self.position else self._downward
        return dist.isend(out, self.members[target], group=group)

    def exchange(
        self, sends: Messages, receives: Messages, pace: Pace | None = None, due: float | None = None
    ) -> float | None:
        """Send and receive at once, and return when all is done.

        Arguments: pairs (flat tensor, position of the peer); ``due``, since when the sends could have gone, None: now.
        A paced message starts at once, but counts as received when a stamp comes behind it, which leaves when the link
        and the latency have let the message through. Returns when all was done by the links' clocks, None: now.
        """
        # Both ends know the sizes, so both leave empty messages out.
        sends = [(out, peer) for out, peer in sends if out.numel()]
        receives = [(into, peer) for into, peer in receives if into.numel()]
        stamps = [torch.zeros(1, dtype=torch.float64) for _ in receives] if pace is not None else []
        moments: list[float] = []
        # Receives before sends: a message that finds no receive is buffered, which costs a copy and distorts the pace.
        works = [self._receive(into, peer) for into, peer in receives]
        stamped = [self._receive(stamp, peer) for stamp, (_, peer) in zip(stamps, receives, strict=False)]
        works += [self._send(out, peer) for out, peer in sends]
        # The data are sent at once and unpaced. The stamp behind them is what is held back until the link would be
        # through.
        if pace is not None and sends:
            size = sum(out.nbytes for out, _ in sends)
            due = self._clock.now() if due is None else due
            moments.append(pace.link.carry(size, due, pace.demand, pace.beside_compute))
            through = torch.tensor(moments, dtype=torch.float64)
            stamped += [self._send(through, peer) for _, peer in sends]
        # Data are on their way, so waiting for the agreement on the start costs nothing here.
        self.settle()
        looked = self._clock.now()
        for work in works:
            work.wait()
        arrived = self._clock.now()
        for work in stamped:
            work.wait()
        moments += map(float, stamps)
        # Data for which this rank waited, and that came long after their stamp: then the machine, not the modelled
        # link, was the limit, and the real time counts. A peer whose own link was busy longer stamps its data later.
        timed = pace is not None and pace.virtual and bool(moments) and arrived - max(looked, *moments) <= LATE
        self.done = max(moments) if timed else None
        if pace is not None and pace.virtual and moments:
            self.paced += 1
            self.late += not timed
        return self.done

    def meet(self, moment: float, peers: Sequence[int], callback: Callable[[float], object]) -> None:
        """Agree with ``peers`` on the latest of their moments and this one, and call ``callback`` with it.

        The call comes while the next exchange is on its way, so that nothing waits for it, or in ``settle``.
        """
        # Moments travel as fp64: microseconds of a day's uptime do not fit into fp32.
        mine, theirs = torch.tensor([moment], dtype=torch.float64), torch.empty(len(peers), dtype=torch.float64)
        works = [self._receive(theirs[at : at + 1], peer) for at, peer in enumerate(peers)]
        works += [self._send(mine, peer) for peer in peers]

        def met() -> None:
            for work in works:
                work.wait()
            callback(max(moment, float(theirs.max())))

        self._met = met

    def settle(self) -> None:
        """Wait for the meeting that has begun, if any."""
        if self._met is not None:
            met, self._met = self._met, None
            met()

    def latest(self, moment: float) -> float:
        """Return the latest of the moments that the ranks of the group give (a dissemination barrier)."""
        mine, theirs, distance = torch.tensor([moment], dtype=torch.float64), torch.empty(1, dtype=torch.float64), 1
        # Each round doubles how many ranks one has heard of, so log2(w) rounds do for any w.
        while distance < self.size:
            ahead, behind = (self.position + distance) % self.size, (self.position - distance) % self.size
            self.exchange([(mine, ahead)], [(theirs, behind)])
            mine = torch.maximum(mine, theirs)
            distance *= 2
        return float(mine)

    def later(self, moment: float, peer: int) -> float:
        """Return the later of this rank's moment and that of the rank at position ``peer``."""
        mine, theirs = torch.tensor([moment], dtype=torch.float64), torch.empty(1, dtype=torch.float64)
        self.exchange([(mine, peer)], [(theirs, peer)])
        return max(moment, float(theirs))


@dataclass(frozen=True, slots=True)
class Rings:
    """The collectives of a channel, as a transport; tensors of devices go through the host, which waits meanwhile.

    Arguments: ``due``, since when the first sends could have gone; None: now.
    """

    channel: Channel
    pace: Pace | None = None
    due: float | None = None

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self.channel.size

    @property
    def position(self) -> int:
        """This rank's place among them."""
        return self.channel.position

    def all_reduce(self, flat: torch.Tensor, reduce: str) -> None:
        """Reduce a flat tensor in place."""
        if self.size == 1:
            return
        here = flat.cpu()
        # Below this size a message's fixed time outweighs its bytes, so one round with more bytes is quicker.
        if here.nbytes <= SMALL:
            self._exchange_reduce(here, REDUCE[reduce])
        else:
            # Unlike ``chunk``, this always gives ``size`` parts, some of them one element shorter.
            chunks = list(here.tensor_split(self.size))
            due = self._reduce(chunks, self.position, REDUCE[reduce])
            # The reduction leaves chunk position + 1 complete here, so the gather begins with that one.
            self._gather(chunks, self.position + 1, due)
        if here is not flat:
            flat.copy_(here)

    def reduce_scatter(self, chunks: list[torch.Tensor], reduce: str) -> torch.Tensor:
        """The reduced chunk of this rank's position.

        Arguments: ``chunks``, flat, one for each position, changed on the way.
        """
        here = [chunk.cpu() for chunk in chunks]
        # One earlier than in an all-reduce, so that the complete chunk is the one at this rank's own position.
        self._reduce(here, self.position - 1, REDUCE[reduce])
        return here[self.position].to(chunks[0].device)

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """The flat tensors of all ranks, shape [size, elements], by position."""
        gathered = torch.empty((self.size, own.numel()), dtype=own.dtype)
        gathered[self.position] = own
        self._gather(list(gathered), self.position, self.due)
        return gathered.to(own.device)

    def all_to_all(self, chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The chunks that all ranks have for this one, by position: w − 1 rounds, each to and from another peer.

        Arguments: ``chunks``, flat, one for each position, as long as the other ranks' for it.
        """
        here, due = [chunk.cpu() for chunk in chunks], self.due
        received = [torch.empty_like(here[self.position]) for _ in chunks]
        received[self.position].copy_(here[self.position])
        for distance in range(1, self.size):
            ahead, behind = (self.position + distance) % self.size, (self.position - distance) % self.size
            due = self.channel.exchange([(here[ahead], ahead)], [(received[behind], behind)], self.pace, due)
        return [chunk.to(chunks[0].device) for chunk in received]

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Send and receive at once."""
        # Memory of the host for what comes into a tensor: itself, where it is there.
        here = [(into if into.is_cpu else torch.empty(into.shape, dtype=into.dtype), peer) for into, peer in receives]
        self.channel.exchange([(out.cpu(), peer) for out, peer in sends], here, self.pace, self.due)
        for (into, _), (received, _) in zip(receives, here, strict=True):
            if received is not into:
                into.copy_(received)

    def _exchange_reduce(self, flat: torch.Tensor, reduce: Add) -> None:
        """Send everything to everybody; each rank reduces by position, so that all get the same bits."""
        everything = [torch.empty_like(flat) for _ in range(self.size)]
        everything[self.position].copy_(flat)
        peers = [peer for peer in range(self.size) if peer != self.position]
        receives = [(everything[peer], peer) for peer in peers]
        self.channel.exchange([(flat, peer) for peer in peers], receives, self.pace, self.due)
        # Everybody starts with position 0's numbers and adds in order: floating-point sums depend on the order.
        flat.copy_(everything[0])
        for other in everything[1:]:
            reduce(flat, other)

    def _reduce(self, chunks: list[torch.Tensor], first: int, reduce: Add) -> float | None:
        """w − 1 rounds: send chunk ``first``, ``first`` − 1, ... on, and reduce the one before it, which the rank
        behind sends; chunk ``first`` + 1 is then complete here. Returns since when it can be sent on."""
        due = self.due
        # One buffer for all rounds; chunks may differ by an element.
        scratch = torch.empty_like(max(chunks, key=torch.Tensor.numel))
        for step in range(self.size - 1):
            into = chunks[(first - step - 1) % self.size]
            received = scratch[: into.numel()]
            due = self._pass_on(chunks[(first - step) % self.size], received, due)
            reduce(into, received)
        return due

    def _gather(self, chunks: list[torch.Tensor], first: int, due: float | None) -> None:
        """Take w − 1 rounds: send chunk ``first``, which is complete here, then each chunk that comes."""
        for step in range(self.size - 1):
            due = self._pass_on(chunks[(first - step) % self.size], chunks[(first - step - 1) % self.size], due)

    def _pass_on(self, out: torch.Tensor, into: torch.Tensor, due: float | None) -> float | None:
        """One round: to the rank ahead, from the one behind."""
        ahead, behind = (self.position + 1) % self.size, (self.position - 1) % self.size
        return self.channel.exchange([(out, ahead)], [(into, behind)], self.pace, due)
