"""A virtual accelerator: a torch device module for machines without one, its tensors on the CPU.

It has what ``torch.cuda`` and ``torch.npu`` have for the executor: streams, events, memory that is reused, captured
graphs. What is issued runs later, in an order that a seed picks (``reset``). ``check`` raises where a stream did not
wait for another that it should have waited for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from executor.virtual.engine import DEVICES, Capture, Clock, Pool, Queue, join, state
from executor.virtual.tensor import KIND, pinned, register
from simpar.errors import ProgramError

_names = itertools.count()


class Stream:
    """A stream; what is issued to it runs in order."""

    def __init__(self, device: Any = None, priority: int = 0, *, name: str = '', queue: Queue | None = None) -> None:
        index = _index(device)
        self.device = torch.device(KIND, index)
        self.queue = queue or state.engine.queue(index, name or f'stream {next(_names)}')

    def wait_event(self, event: Event) -> None:
        """Let what is issued from now on wait for an event; one that was never recorded is not waited for."""
        if event.capture is None and event.queue is None:
            return
        event.may_wait(self.queue)
        self.queue.whenever(event.let_wait)

    def wait_stream(self, stream: Stream) -> None:
        """Wait for what another stream has to do now."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Mark this point."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for all of it."""
        queue, tick = self.queue, self.queue.issued
        queue.engine.wait_for(dict(queue.known), lambda: queue.done >= tick)


class Event:
    """A point of a stream; ``record`` again moves it.

    Arguments: ``external``, whether a replay of the graph that has it moves it; else it is inside of the graph.
    """

    def __init__(self, enable_timing: bool = False, *, external: bool = False) -> None:
        self.enable_timing = enable_timing
        self.queue: Queue | None = None
        self.tick = 0
        self.known: Clock = {}
        self.moment: list[float] = []
        self.external = external
        self.capture: Capture | None = None
        self.seen: dict[int, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        """Mark the point that a stream has reached."""
        queue = (stream or current_stream()).queue
        # Whether that is inside of a graph, and what it then knows.
        self.capture = None if self.external else queue.capture
        if self.capture is not None:
            self.seen = self.capture.seen_by(queue)
            self.seen[queue.number] += 1
        queue.whenever(self._put)

    def _put(self, queue: Queue) -> None:
        self.queue = queue
        # A list of its own: what an earlier record has yet to write must not land in this one.
        moment = self.moment = list[float]()
        task = queue.put('an event', lambda: moment.append(queue.engine.now()))
        self.tick, self.known = task.tick, dict(queue.known)

    def let_wait(self, queue: Queue) -> None:
        """Have what a stream does from now on wait for it."""
        if self.queue is None:
            return
        tick, source = self.tick, self.queue
        join(queue.known, self.known)
        queue.put(f'waiting for task {tick} of {source.name}', _nothing, lambda: source.done >= tick)

    def may_wait(self, queue: Queue) -> None:
        """Raises ``ProgramError`` where only one, it or a stream that waits, is inside of a graph that is captured."""
        capture = self.capture
        if capture is not None and capture.origin.capture is capture:
            capture.join(queue, self.seen)
        elif queue.capture is not None:
            raise ProgramError(f'{queue.name} waits, inside of a graph, for an event that is not in it')
        else:
            self._outside()

    def _outside(self) -> None:
        if self.capture is not None:
            raise ProgramError('an event inside of a graph is asked for outside; make it with external=True')

    def query(self) -> bool:
        """Whether the point is reached."""
        self._outside()
        return self.queue is None or self.queue.done >= self.tick

    def synchronize(self) -> None:
        """The host waits for it."""
        self._outside()
        if self.queue is not None:
            self.queue.engine.wait_for(self.known, self.query)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds to a later event; both must have timing and be reached."""
        if not (self.enable_timing and end.enable_timing and self.moment and end.moment):
            raise RuntimeError('both events must be recorded with timing, and be reached')
        return 1e3 * (end.moment[0] - self.moment[0])


def is_available() -> bool:
    """It always is."""
    return True


def device_count() -> int:
    """As many as a test could want."""
    return DEVICES


def current_device() -> int:
    """The device that is meant where none is named."""
    return state.device


def set_device(device: Any) -> None:
    """Choose it."""
    state.device = _index(device)


def current_stream(device: Any = None) -> Stream:
    """The stream to which operations on a device go."""
    index = _index(device)
    return Stream(index, queue=state.current_queue(torch.device(KIND, index)))


def default_stream(device: Any = None) -> Stream:
    """The stream that is current at first."""
    return Stream(_index(device), queue=state.default_queue(_index(device)))


@contextmanager
def stream(stream: Stream) -> Iterator[None]:
    """Within it, operations go to this stream, of its device."""
    index, device = stream.queue.device, state.device
    before = state.current.get(index)
    state.current[index], state.device = stream.queue, index
    try:
        yield
    finally:
        state.device = device
        if before is None:
            del state.current[index]
        else:
            state.current[index] = before


def synchronize(device: Any = None) -> None:
    """The host waits for all streams of a device."""
    index = _index(device)
    for queue in state.engine.queues:
        if queue.device == index:
            Stream(index, queue=queue).synchronize()


def memory_allocated(device: Any = None) -> int:
    """Bytes in tensors."""
    return sum(pool.allocated for pool in state.pools_of(_index(device)))


def max_memory_allocated(device: Any = None) -> int:
    """The most that there have been."""
    return sum(pool.peak for pool in state.pools_of(_index(device)))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Count the most anew."""
    for pool in state.pools_of(_index(device)):
        pool.peak = pool.allocated


def memory_reserved(device: Any = None) -> int:
    """Bytes in tensors, and kept for later ones."""
    return sum(pool.reserved for pool in state.pools_of(_index(device)))


def empty_on_host(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """What ``torch.empty(..., pin_memory=True)`` is elsewhere."""
    return pinned(size, dtype)


def manual_seed_all(seed: int) -> None:
    """Nothing is drawn here: draws are made on the host."""


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Of nothing."""
    return torch.empty(0, dtype=torch.uint8)


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Of nothing."""


def _index(device: Any) -> int:
    if device is None:
        return state.device
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return state.device if index is None else index


def _nothing() -> None:
    pass


def _is_in_bad_fork() -> bool:
    return False


def install() -> None:
    """Tell torch of it: ``torch.device('virtual')``, ``torch.get_device_module('virtual')``, ``torch.accelerator``."""
    import sys

    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    if hasattr(torch, KIND):
        return
    _setup_privateuseone_for_python_backend(KIND, sys.modules[__name__])
    register()


# Captured graphs of virtual accelerators: what is issued to some streams is kept, and issued again by one call.


class Graph:
    """What was captured, to be replayed on the current stream."""

    def __init__(self) -> None:
        self.capture: Capture | None = None
        self._lanes: dict[int, Queue] = {}

    def replay(self) -> None:
        """Issue all of it again."""
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


_on_stream = stream


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
    stream = stream or current_stream()
    synchronize(stream.device)
    capture = Capture(stream.queue, pool or graph_pool_handle())
    try:
        with _on_stream(stream):
            yield
    finally:
        for queue in capture.streams.values():
            queue.capture = None
    capture.end()
    into.capture = capture
