"""What executes on virtual accelerators: streams of tasks that run later than they were issued, in any legal order.

A stream runs its tasks in order. A task may wait: for an event to be recorded, or for peers of a collective. Of the
streams whose head may run, a seed picks the next one; without a seed each runs as far as it can. Nothing runs before
the host waits for something, so events fire as late as is legal.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch

from simpar.errors import Deadlock, ProgramError

Clock = dict[int, int]
"""Stream → how many of its tasks are known to have finished."""
SHOWN: Final = 5


class Race(ProgramError):
    """Two accesses to one piece of memory, of which neither waits for the other."""


@dataclass(slots=True)
class Access:
    """Arguments: ``first`` and ``past``, the bytes touched; ``tick``, the number of the task on its stream ``name``."""

    stream: int
    tick: int
    first: int
    past: int
    writes: bool
    what: str
    name: str

    def __str__(self) -> str:
        return f'{self.what} on {self.name}'

    def clashes(self, other: Access, clock: Clock) -> bool:
        """Whether an earlier access and this one, which knows so much, are in no order and may not swap."""
        return (
            (self.writes or other.writes)
            and other.first < self.past
            and self.first < other.past
            and clock.get(other.stream, 0) < other.tick
        )

    def hides(self, other: Access) -> bool:
        """Whether whoever is ordered after this one is after the earlier one, too."""
        return self.writes and self.first <= other.first and other.past <= self.past


def join(into: Clock, other: Clock) -> None:
    """Let one know what another knows."""
    for stream, tick in other.items():
        if into.get(stream, 0) < tick:
            into[stream] = tick


@dataclass(slots=True)
class Races:
    """All accesses that later ones may clash with, by place: a block of memory, or a tensor of a program."""

    found: list[str] = field(default_factory=list)
    _past: dict[Hashable, list[Access]] = field(default_factory=dict)

    def touch(self, place: Hashable, access: Access, clock: Clock) -> None:
        """Hold an access against those before, and keep it for those to come."""
        accesses = []
        for other in self._past.get(place, ()):
            if other.stream != access.stream and access.clashes(other, clock):
                self.found.append(f'{access} does not wait for {other}')
            # A read after a read of the same bytes by the same stream says all that the first said.
            same = other.stream == access.stream and (access.writes or not other.writes)
            covered = access.first <= other.first and other.past <= access.past
            if not access.hides(other) and not (same and covered):
                accesses.append(other)
        accesses.append(access)
        self._past[place] = accesses

    def forget(self, place: Hashable) -> None:
        """A place is gone; another may get its name."""
        self._past.pop(place, None)

    def check(self) -> None:
        """Raises ``Race`` where there was any."""
        if self.found:
            lines = list(dict.fromkeys(self.found))
            more = f'\n  and {len(lines) - SHOWN} more' if len(lines) > SHOWN else ''
            raise Race('accesses in no order:\n  ' + '\n  '.join(lines[:SHOWN]) + more)


# What executes on virtual accelerators: streams of tasks that run later than they were issued, in any legal order.

CHANGE: Final = 0.02
"""How often the favoured stream changes, of all tasks, where a seed decides."""
QUEUE: Final = 20000
"""Tasks that may wait on a stream before the host that issues them must wait itself, as drivers have it."""


@dataclass(slots=True, eq=False)
class Task:
    """One entry of a stream.

    Arguments:
        ready: whether it may run now; None: always.
        tick: its number on its stream, from 1.
    """

    what: str
    run: Callable[[], object]
    ready: Callable[[], bool] | None
    tick: int


class Touch(NamedTuple):
    """Bytes of a place that a task reads or writes."""

    place: Hashable
    first: int
    past: int
    writes: bool


class Queue:
    """A stream of one device: tasks that have not run, and what the stream was made to wait for.

    ``capture`` is the graph into which it is being captured, None: what is issued runs.
    """

    def __init__(self, engine: Engine, device: int, number: int, name: str) -> None:
        self.engine = engine
        self.device = device
        self.number = number
        self.name = name
        self.tasks: deque[Task] = deque()
        self.issued = 0
        self.done = 0
        self.known: Clock = {}
        self.priority = 0.0
        self.capture: Capture | None = None
        self._learned = 0

    def issue(self, what: str, run: Callable[[], object], touches: Sequence[Touch] = ()) -> None:
        """Append a task that touches some bytes, or have a graph append it whenever it is replayed."""

        def put(queue: Queue) -> None:
            queue.touch_all(touches, what)
            queue.put(what, run)

        self.whenever(put)

    def whenever(self, put: Callable[[Queue], None]) -> None:
        """Have a function append to this stream now; where it is captured, to that of the graph in every replay."""
        if self.capture is None:
            put(self)
        else:
            self.capture.add(self, put)

    def touch_all(self, touches: Sequence[Touch], what: str) -> None:
        """Say all that the task that comes next reads and writes."""
        self._learn()
        for place, first, past, writes in touches:
            access = Access(self.number, self.issued + 1, first, past, writes, what, self.name)
            self.engine.races.touch(place, access, self.known)

    def put(self, what: str, run: Callable[[], object], ready: Callable[[], bool] | None = None) -> Task:
        """Append a task."""
        if len(self.tasks) > self.engine.room:
            # A driver whose queue is full keeps the host waiting; half of it must go, or every call would wait.
            self.engine.drain(lambda: len(self.tasks) <= self.engine.room // 2)
        self._learn()
        self.issued += 1
        task = Task(what, run, ready, self.issued)
        self.tasks.append(task)
        self.engine.busy.setdefault(self.number, self)
        self.known[self.number] = self.issued
        return task

    def _learn(self) -> None:
        """What the host has waited for is over for whatever it issues from now on."""
        if self._learned != self.engine.host_waits:
            self._learned = self.engine.host_waits
            join(self.known, self.engine.host)

    def may_run(self) -> bool:
        """Whether its head need not wait."""
        ready = self.tasks[0].ready
        return ready is None or ready()

    def __str__(self) -> str:
        head = self.tasks[0].what if self.tasks else 'nothing'
        return f'device {self.device}, {self.name}: {head} ({len(self.tasks)} tasks wait)'


class Engine:
    """All streams of all virtual accelerators of this process.

    Arguments: ``seed`` picks the order; None: each stream runs as far as it can. ``room``, tasks that may wait on one.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.races = Races()
        self.room = QUEUE
        self.host: Clock = {}
        self.queues: list[Queue] = []
        self.host_waits = 0
        self._random = None if seed is None else random.Random(seed)
        self._order: list[Queue] = []
        self.busy: dict[int, Queue] = {}

    def queue(self, device: int, name: str) -> Queue:
        """A new stream."""
        queue = Queue(self, device, len(self.queues), name)
        self.queues.append(queue)
        self._order = []
        if self._random is not None:
            queue.priority = self._random.random()
        return queue

    def now(self) -> float:
        """Seconds of the device's clock."""
        return time.perf_counter()

    def drain(self, until: Callable[[], bool]) -> None:
        """Run tasks until something is so; raises ``Deadlock`` where nothing can run any more."""
        queue: Queue | None = None
        while not until():
            # To look for another stream takes longer than most tasks.
            if self._random is not None or queue is None or not queue.tasks or not queue.may_run():
                queue = self._next()
            if queue is None:
                stuck = '\n'.join(f'  {queue}' for queue in self.busy.values())
                raise Deadlock(f'no stream of the virtual accelerators can go on:\n{stuck or "  all are empty"}')
            task = queue.tasks.popleft()
            if not queue.tasks:
                del self.busy[queue.number]
            task.run()
            queue.done = task.tick

    def wait_for(self, clock: Clock, until: Callable[[], bool]) -> None:
        """The host waits, and knows then what the event that it waited for knew."""
        if any(queue.capture for queue in self.queues):
            raise ProgramError('the host waits for a device while it captures a graph')
        self.host_waits += 1
        self.drain(until)
        join(self.host, clock)

    def _next(self) -> Queue | None:
        """A stream whose head may run: the one in favour, or where a seed decides the next in priority."""
        if self._random is None:
            # Whoever ran goes to the back.
            for number, queue in self.busy.items():
                if queue.may_run():
                    self.busy[number] = self.busy.pop(number)
                    return queue
            return None
        # Priorities that now and then change find what needs few, but particular, delays (Burckhardt et al. 2010).
        if not self._order or self._random.random() < CHANGE:
            self._random.choice(self.queues).priority = self._random.random()
            self._order = sorted(self.queues, key=lambda queue: -queue.priority)
        return next((queue for queue in self._order if queue.tasks and queue.may_run()), None)


# Memory of a virtual accelerator: blocks that go back to the stream that they were allocated on, as CUDA's do.

GRAIN: Final = 512
"""Sizes are rounded up to a multiple of this, in bytes."""
GARBAGE: Final = 0xFF
"""What new memory holds: NaN in every floating dtype."""


class Block:
    """Some bytes of a device, and the stream to which they return; of the host, to none."""

    __slots__ = ('memory', 'queue', 'size')

    def __init__(self, size: int, queue: Queue | None, device: str) -> None:
        self.size = size
        self.queue = queue
        self.memory = torch.full((size,), GARBAGE, dtype=torch.uint8, device=device)


class Lease:
    """A block in use, by all tensors that share it; its end gives the block back.

    Arguments: ``asked``, the bytes that are used of it.
    """

    __slots__ = ('asked', 'block', 'pool')

    def __init__(self, pool: Pool, block: Block, orig_size: int) -> None:
        self.pool = pool
        self.block = block
        self.asked = orig_size

    @property
    def _cdata(self) -> int:
        # As a torch storage tells who it is.
        return id(self.block)

    def nbytes(self) -> int:
        """The bytes that are used, as a torch storage tells them."""
        return self.asked

    def __del__(self) -> None:
        self.pool.give_back(self.block, self.asked)


class HostLease(Lease):
    """Memory of the host that devices copy to and from. No stream owns it; what was issued keeps it until it ran."""

    __slots__ = ('_races',)

    def __init__(self, size: int, races: Races, device: str = 'cpu') -> None:
        self.block, self.asked, self._races = Block(size, None, device), size, races

    def __del__(self) -> None:
        self._races.forget(id(self.block))


class Pool:
    """The memory of one device.

    Arguments: ``device``, where the cells are: ``cpu``, or ``meta``, where there are none.
    """

    def __init__(self, device: str = 'cpu') -> None:
        self.device = device
        self.asked = 0
        self.allocated = 0
        self.peak = 0
        self.reserved = 0
        self._free: dict[tuple[int, int], list[Block]] = defaultdict(list)

    def lease(self, size: int, queue: Queue) -> Lease:
        """Memory for a tensor that a task on this stream makes; it holds garbage."""
        orig_size, size = size, max(1, -(-size // GRAIN)) * GRAIN
        free = self._free[queue.number, size]
        if free:
            block = free.pop()
        else:
            block = Block(size, queue, self.device)
            self.reserved += size
        # Whoever still reads it must be waited for, so this counts as a write, and spoils what was there.
        touches = (Touch(id(block), 0, size, True),)
        queue.issue('an allocation', lambda: block.memory.fill_(GARBAGE), touches)
        self.asked += orig_size
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        return Lease(self, block, orig_size)

    def give_back(self, block: Block, orig_size: int) -> None:
        """The host has dropped the last tensor."""
        self.asked -= orig_size
        self.allocated -= block.size
        assert block.queue is not None
        self._free[block.queue.number, block.size].append(block)


# Captured graphs.

Put = Callable[[Queue], None]


class Capture:
    """What is being captured.

    Arguments: ``origin``, the stream on which it begins; ``pool``, whose memory it takes.
    """

    def __init__(self, origin: Queue, pool: Pool) -> None:
        self.origin = origin
        self.pool = pool
        self.nodes: list[tuple[Queue, Put]] = []
        self.streams: dict[int, Queue] = {}
        self._issued: dict[int, int] = {}
        self._known: dict[int, dict[int, int]] = {}
        self.join(origin, {})

    def join(self, queue: Queue, seen: dict[int, int]) -> None:
        """A stream waits for an event that knows so much of the others, and is captured from now on."""
        queue.capture = self
        self.streams[queue.number] = queue
        clock = self._known.setdefault(queue.number, {})
        for number, count in seen.items():
            clock[number] = max(clock.get(number, 0), count)

    def add(self, queue: Queue, put: Put) -> None:
        """The next that a stream does."""
        self.nodes.append((queue, put))
        self._issued[queue.number] = self._issued.get(queue.number, 0) + 1

    def seen_by(self, queue: Queue) -> dict[int, int]:
        """How much of every stream is over where a stream now is."""
        return {**self._known[queue.number], queue.number: self._issued.get(queue.number, 0)}

    def end(self) -> None:
        """Raises ``ProgramError`` where a stream was not joined to the first."""
        clock = self.seen_by(self.origin)
        for number, queue in self.streams.items():
            if clock.get(number, 0) < self._issued.get(number, 0):
                raise ProgramError(f'a graph ends with work on {queue.name} that {self.origin.name} does not wait for')


# The virtual accelerators of this process: their engine, memory and streams, and which stream is current.

DEVICES: Final = 64
HOST: Final = DEVICES
"""The number of what stands for the memory of the host that devices copy to and from."""


class State:
    """What a device module holds for its process.

    Arguments: ``lanes``, by device its collectives that are not over, in the order in which they were issued.
    """

    def __init__(self) -> None:
        # What operations give follows from their arguments alone, so that it stays.
        self.made: dict[Any, Any] = {}
        self.libraries: list[torch.library.Library] = []
        self.reset()

    def reset(self, seed: int | None = None) -> Engine:
        """Begin anew, with devices that are empty; a seed picks the order in which streams run."""
        self.engine, self.device, self.issuing = Engine(seed), 0, False
        self.pools: dict[int, Pool] = {}
        self.of_graphs: dict[int, list[Pool]] = {}
        self.defaults: dict[int, Queue] = {}
        self.current: dict[int, Queue] = {}
        self.lanes: defaultdict[int, deque[Any]] = defaultdict(deque)
        return self.engine

    def with_index(self, where: torch.device) -> torch.device:
        """A device by its number, that of the current device where it has none."""
        return where if where.index is not None else torch.device(where.type, self.device)

    def pool(self, where: torch.device) -> Pool:
        """The memory of a device."""
        return self.pools.setdefault(self.with_index(where).index, Pool())

    def pools_of(self, index: int) -> list[Pool]:
        """All memory of a device: that of its graphs, too."""
        return [self.pool(torch.device('virtual', index)), *self.of_graphs.get(index, ())]

    def pool_of(self, where: torch.device, queue: Queue) -> Pool:
        """The memory from which a stream allocates: that of its graph while it is captured."""
        return self.pool(where) if queue.capture is None else queue.capture.pool

    def default_queue(self, index: int) -> Queue:
        """The stream of a device that is current when no other is."""
        if index not in self.defaults:
            self.defaults[index] = self.engine.queue(index, 'default')
        return self.defaults[index]

    def current_queue(self, where: torch.device) -> Queue:
        """The current stream of a device."""
        index = self.with_index(where).index
        return self.current.get(index) or self.default_queue(index)


state: Final = State()
"""Torch knows one device module in a process, so there is one."""
