"""Captured graphs of virtual accelerators: what is issued to some streams is kept, and issued again by one call.

The rules are those of CUDA graphs. A stream joins a capture by waiting for an event in it, and must be joined to the
stream on which it began. While it lasts, the host asks nothing of the device, and memory comes from the graph's own
pool. Events inside are no use outside, but for those that are external. A replay runs streams of its own, in any
legal order; it begins when the current stream comes to it, which then waits for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from executor.virtual import state
from executor.virtual.engine import Queue
from executor.virtual.memory import Pool
from simpar.errors import ProgramError

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
        known = self._known.setdefault(queue.number, {})
        for number, count in seen.items():
            known[number] = max(known.get(number, 0), count)

    def add(self, queue: Queue, put: Put) -> None:
        """The next that a stream does."""
        self.nodes.append((queue, put))
        self._issued[queue.number] = self._issued.get(queue.number, 0) + 1

    def seen_by(self, queue: Queue) -> dict[int, int]:
        """How much of every stream is over where a stream now is."""
        return {**self._known[queue.number], queue.number: self._issued.get(queue.number, 0)}

    def end(self) -> None:
        """Raises ``ProgramError`` where a stream was not joined to the first."""
        for queue in self.streams.values():
            queue.capture = None
        known = self.seen_by(self.origin)
        for number, queue in self.streams.items():
            if known.get(number, 0) < self._issued.get(number, 0):
                raise ProgramError(f'a graph ends with work on {queue.name} that {self.origin.name} does not wait for')


class Graph:
    """What was captured, to be replayed on the current stream."""

    def __init__(self) -> None:
        self.capture: Capture | None = None
        self._lanes: dict[int, Queue] = {}

    def replay(self) -> None:
        """Issue all of it again."""
        from executor.virtual import Stream, current_stream

        if self.capture is None:
            raise ProgramError('a graph is replayed before it was captured')
        here = current_stream()
        if not self._lanes:
            for queue in self.capture.streams.values():
                self._lanes[queue.number] = here.queue.engine.queue(queue.device, f'{queue.name}, in a graph')
        lanes = [Stream(lane.device, queue=lane) for lane in self._lanes.values()]
        for lane in lanes:
            lane.wait_stream(here)
        for queue, put in self.capture.nodes:
            put(self._lanes[queue.number])
        for lane in lanes:
            here.wait_stream(lane)


def graph_pool_handle() -> Pool:
    """Memory that graphs may share which are replayed one after the other."""
    pool = Pool()
    state.of_graphs.setdefault(state.device, []).append(pool)
    return pool


@contextmanager
def graph(into: Graph, pool: Pool | None = None, stream: Any = None, **_: Any) -> Iterator[None]:
    """Within it, what is issued to a stream, and to those that wait for it, goes into a graph and does not run.

    Other arguments are those of devices that have more than one thread.
    """
    from executor import virtual

    stream = stream or virtual.current_stream()
    virtual.synchronize(stream.device)
    capture = Capture(stream.queue, pool or graph_pool_handle())
    try:
        with virtual.stream(stream):
            yield
    finally:
        for queue in capture.streams.values():
            queue.capture = None
    capture.end()
    into.capture = capture


def record_in_capture(queue: Queue, event: Any) -> None:
    """An event is recorded on a stream: whether that is inside of a graph, and what it then knows."""
    inside = queue.capture is not None and not event.external
    event.capture = queue.capture if inside else None
    if event.capture is not None:
        event.seen = event.capture.seen_by(queue)
        event.seen[queue.number] += 1


def wait_in_capture(queue: Queue, event: Any) -> None:
    """A stream waits for an event: whether it may.

    Raises ``ProgramError`` where only one of both is inside of a graph that is being captured.
    """
    capture = event.capture
    if capture is not None and capture.origin.capture is capture:
        capture.join(queue, event.seen)
    elif queue.capture is not None:
        raise ProgramError(f'{queue.name} waits, inside of a graph, for an event that is not in it')
    else:
        outside(event)


def outside(event: Any) -> None:
    """Raises ``ProgramError`` where an event is inside of a graph, and is asked for outside."""
    if event.capture is not None:
        raise ProgramError('an event inside of a graph is asked for outside; make it with external=True')
