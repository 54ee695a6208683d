"""What executes on virtual accelerators: streams of tasks that run later than they were issued, in any legal order.

A stream runs its tasks in order. A task may wait: for an event to be recorded, or for peers of a collective. Of the
streams whose head may run, a seed picks the next one; without a seed they take turns. Nothing runs before the host
waits for something, so events fire as late as is legal.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from executor.virtual.races import Access, Clock, Races, join
from simpar.errors import Deadlock, ProgramError

if TYPE_CHECKING:
    from executor.virtual.graphs import Capture

CHANGE: Final = 0.02
"""How often the favoured stream changes, of all tasks, where a seed decides."""
QUEUE: Final = 20000
"""Tasks that may wait on a stream before the host that issues them must wait itself, as drivers have it."""


class Task:
    """One entry of a stream.

    Arguments:
        ready: whether it may run now; None: always.
        tick: its number on its stream, from 1.
    """

    __slots__ = ('ready', 'run', 'tick', 'what')

    def __init__(self, what: str, run: Callable[[], object], ready: Callable[[], bool] | None, tick: int) -> None:
        self.what = what
        self.run = run
        self.ready = ready
        self.tick = tick


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
        for place, first, past, writes in touches:
            self.touch(place, first, past, writes=writes, what=what)

    def put(self, what: str, run: Callable[[], object], ready: Callable[[], bool] | None = None) -> Task:
        """Append a task."""
        if len(self.tasks) > QUEUE:
            # A driver whose queue is full keeps the host waiting; half of it must go, or every call would wait.
            self.engine.drain(lambda: len(self.tasks) <= QUEUE // 2)
        self._learn()
        self.issued += 1
        task = Task(what, run, ready, self.issued)
        self.tasks.append(task)
        self.engine.busy(self)
        self.known[self.number] = self.issued
        return task

    def touch(self, place: Hashable, first: int, past: int, *, writes: bool, what: str) -> None:
        """Say what the task that comes next reads or writes."""
        self._learn()
        access = Access(self.number, self.issued + 1, first, past, writes, what, self.name)
        self.engine.races.touch(place, access, self.known)

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

    Arguments: ``seed`` picks the order; None: streams take turns.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.races = Races()
        self.host: Clock = {}
        self.queues: list[Queue] = []
        self.host_waits = 0
        self._random = None if seed is None else random.Random(seed)
        self._order: list[Queue] = []
        self._busy: dict[int, Queue] = {}

    def queue(self, device: int, name: str) -> Queue:
        """A new stream."""
        queue = Queue(self, device, len(self.queues), name)
        self.queues.append(queue)
        self._order = []
        if self._random is not None:
            queue.priority = self._random.random()
        return queue

    def busy(self, queue: Queue) -> None:
        """A stream has something to do."""
        self._busy.setdefault(queue.number, queue)

    def now(self) -> float:
        """Seconds of the device's clock."""
        return time.perf_counter()

    def drain(self, until: Callable[[], bool]) -> None:
        """Run tasks until something is so; raises ``Deadlock`` where nothing can run any more."""
        while not until():
            queue = self._next()
            if queue is None:
                stuck = '\n'.join(f'  {queue}' for queue in self._busy.values())
                raise Deadlock(f'no stream of the virtual accelerators can go on:\n{stuck or "  all are empty"}')
            task = queue.tasks.popleft()
            if not queue.tasks:
                del self._busy[queue.number]
            task.run()
            queue.done = task.tick

    def wait_for(self, known: Clock, until: Callable[[], bool]) -> None:
        """The host waits, and knows then what the event that it waited for knew."""
        if any(queue.capture for queue in self.queues):
            raise ProgramError('the host waits for a device while it captures a graph')
        self.host_waits += 1
        self.drain(until)
        join(self.host, known)

    def finish(self) -> None:
        """Run everything, and know it."""
        for queue in self.queues:
            self.wait_for(queue.known, lambda queue=queue: not queue.tasks)  # type: ignore[misc]

    def _next(self) -> Queue | None:
        """A stream whose head may run: the one in favour, or where a seed decides the next in priority."""
        if self._random is None:
            # In turn: whoever ran goes to the back.
            for number, queue in self._busy.items():
                if queue.may_run():
                    self._busy[number] = self._busy.pop(number)
                    return queue
            return None
        # Priorities that now and then change find what needs few, but particular, delays (Burckhardt et al. 2010).
        if not self._order or self._random.random() < CHANGE:
            self._random.choice(self.queues).priority = self._random.random()
            self._order = sorted(self.queues, key=lambda queue: -queue.priority)
        return next((queue for queue in self._order if queue.tasks and queue.may_run()), None)
