"""Streams: a thread for each, walking its own slots through all steps back to back, and waiting for needs in between.

gloo runs two asynchronous works of one group at once, so its handles are no stream. Here every stream, compute too, is
a thread that blocks in what it does; an op waits for its needs on the counters of the streams that they stand in.
``Machine`` is the seam between real and emulated compute.
"""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from typing import Final, Protocol

import numpy as np
import torch

from executor import devices, host, walk
from executor.ranks import collectives, watchdog
from simpar import errors, trace
from simpar.engine.queues import queues_of
from simpar.program import COPY, Program, Role


@dataclass(frozen=True, slots=True)
class Work:
    """One op of one step on one rank.

    Arguments: ``channel``, to the op's group, None for compute and copies to the host or back.
    """

    slot: walk.Slot
    step: int
    channel: collectives.Channel | None = None


class Machine(Protocol):
    """Runs ops for the streams; every method is called from several threads at once."""

    def begin(self, moment: float) -> None:
        """The program begins."""

    def arrive(self, work: Work, ready: float) -> float:
        """When an op arrives whose needs and stream were done at ``ready``; returns no earlier than that."""

    def run(self, work: Work, arrived: float) -> float:
        """Run a compute op, a collective, a send or a receive; returns its end."""


# Work queues of a rank that runs its streams as threads: an op leaves one when it arrives, those before it first.

NOT_SET: Final = 'work queues are not as predicted'
"""How a note begins that says so."""


class Queue:
    """One queue that several streams share, in issue order.

    Arguments: ``slots``, of a step. ``finished``: how many have left it over all steps; ``moment``, when the last did.
    """

    def __init__(self, slots: list[int]) -> None:
        self._place = {slot: at for at, slot in enumerate(slots)}
        self.finished = 0
        self.moment = 0.0
        self.changed = threading.Condition()

    def ahead(self, step: int, slot: int) -> int:
        """How many must have left it before a slot of a step is first."""
        return step * len(self._place) + self._place[slot]

    def leave(self, moment: float) -> None:
        """Let the next one be first."""
        with self.changed:
            self.finished, self.moment = self.finished + 1, moment
            self.changed.notify_all()


def queues_by_slot(role: Role, queues: int) -> dict[int, Queue]:
    """The queue of each slot of a role whose stream shares one; ``queues``, how many, 0: as many as streams."""
    by_slot: dict[int, Queue] = {}
    for shared in queues_of(role.stream, queues) if queues else ():
        slots = np.flatnonzero(np.isin(role.stream, shared)).tolist()
        by_slot |= dict.fromkeys(slots, Queue(slots))
    return by_slot


def set_queues(kind: devices.Kind, queues: int, streams: int) -> tuple[str, ...]:
    """Have the driver of a kind of device use so many work queues, 0: nobody asks; a note that says what is in force.

    Raises ``RunFailed`` where its variable says another number: the driver reads it once in a process.
    """
    if not queues:
        return _of_environment(kind, streams)
    if not kind.queues:
        return (f'{NOT_SET}: {queues} were predicted, and nothing sets their number on {kind.name}',)
    setting = os.environ.setdefault(kind.queues, str(queues))
    if setting != str(queues):
        what = f'{kind.queues} is {setting} in this process, and the plan has {queues} work queues'
        raise errors.RunFailed(f'{what}; write cluster.work_queues: {setting}, or unset the variable')
    return (f'{kind.queues}={queues}: streams share so many work queues of a device',)


def _of_environment(kind: devices.Kind, streams: int) -> tuple[str, ...]:
    """A note where the user's environment says how many there are, and they are too few for all streams."""
    setting = os.environ.get(kind.queues, '') if kind.queues else ''
    if not setting.isdecimal() or int(setting) >= streams:
        return ()
    return (f'{NOT_SET}: {kind.queues} is {setting} for {streams} streams; write cluster.work_queues: {setting}',)


# Streams: a thread for each, walking its own slots through all steps back to back, and waiting for needs in
# between.

Channels = Mapping[tuple[str, str], collectives.Channel]
"""(partition, stream) → the rank's channel there."""


class Cancelled(Exception):
    """Another stream of the rank has failed."""


class _Stream:
    """One stream's slots, and how many ops of it have finished."""

    def __init__(self, index: int, name: str, slots: list[walk.Slot]) -> None:
        self.index = index
        self.name = name
        self.slots = slots
        self.finished = 0
        self.thread = 0
        self.changed = threading.Condition()


@dataclass(eq=False)
class Streams:
    """One run of a rank's role.

    Arguments:
        machine: what runs the ops.
        status: learns what every stream does.
        favour: whether communication goes first where both want one core.
        queues: how many work queues its device has, which streams share; 0: one for each.
        clocks: whether ``cpu``, shape [4, steps, slots], has CPU seconds of thread and process before and behind ops.
    """

    program: Program
    rank: int
    steps: int
    machine: Machine
    channels: Channels
    status: watchdog.Status
    favour: bool = False
    queues: InitVar[int] = 0
    clocks: bool = False

    def __post_init__(self, queues: int) -> None:
        role = self.program.role(self.rank)
        self._order = walk.Order(self.program, role)
        self._streams = [
            _Stream(index, name, slots)
            for index, (name, slots) in enumerate(zip(role.streams, self._order.streams, strict=True))
        ]
        self._queues = queues_by_slot(role, queues)
        self.arrive_KS: trace.Times = np.zeros((self.steps, len(role)))
        self.end_KS: trace.Times = np.zeros((self.steps, len(role)))
        self.cpu: trace.Times = np.zeros((4, self.steps, len(role)) if self.clocks else 0)
        self.failures: list[watchdog.Failure] = []
        self._threads: list[threading.Thread] = []

    def begin(self, moment: float) -> None:
        """Tell the machine when the program begins."""
        self.machine.begin(moment)

    def start(self, begin: float) -> None:
        """Start all streams of a program that begins at ``begin``, by the clock of the machine."""
        for stream in self._streams:
            # Daemons: a thread that is stuck in gloo must not keep the process alive.
            thread = threading.Thread(target=self._run, args=(stream, begin), name=stream.name, daemon=True)
            self._threads.append(thread)
        # All are made before any starts, so that a failure in making one leaves none running.
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; return whether all streams are through or one has failed."""
        until = time.perf_counter() + seconds
        for thread in self._threads:
            while thread.is_alive() and not self.failures:
                thread.join(min(0.05, max(0.0, until - time.perf_counter())))
                if time.perf_counter() >= until:
                    # The last look: threads may have ended while another was waited for.
                    return bool(self.failures) or not any(one.is_alive() for one in self._threads)
        return True

    def _run(self, stream: _Stream, begin: float) -> None:
        step, at = 0, -1
        stream.thread = threading.get_native_id()
        torch.set_num_threads(torch.get_num_threads())  # OpenMP counts per thread, and starts every thread at all cores
        try:
            # Computation that came before all else would starve the threads of gloo, which share its core.
            if self.favour and any(slot.op.kind == 'compute' for slot in stream.slots):
                host.yield_to_communication()
            last = begin
            for step in range(self.steps):
                for slot in stream.slots:
                    at = slot.position
                    last = self._one(stream, step, slot, last)
            self._say(stream, watchdog.THROUGH, step, at)
        # Another stream has reported the failure; a second report would hide the cause.
        except Cancelled:
            pass
        except Exception as error:
            self._fail(failure_of(self.rank, step, at, error))

    def _one(self, stream: _Stream, step: int, slot: walk.Slot, last: float) -> float:
        """Wait for an op's needs, run it, and say that it has finished."""
        at = slot.position
        self._say(stream, watchdog.WAITING, step, at)
        # An op waits for the op before it on its stream, and for its needs.
        ready = max(last, self._wait_for_needs(step, slot))
        queue = self._queues.get(at)
        if queue:
            # The one before it in its work queue has left.
            self._await(queue, queue.ahead(step, at))
            ready = max(ready, queue.moment)
        meets = slot.op.kind != 'compute' and slot.op.operator != COPY
        work = Work(slot, step, self.channels[slot.op.partition, stream.name] if meets else None)
        arrived = self.machine.arrive(work, ready)
        if queue:
            queue.leave(arrived)
        self._say(stream, watchdog.RUNNING, step, at)
        before = _cpu_times() if self.clocks else ()
        end = self.machine.run(work, arrived)
        if self.clocks:
            self.cpu[:, step, at] = (*before, *_cpu_times())
        self.arrive_KS[step, at], self.end_KS[step, at] = arrived, end
        with stream.changed:
            stream.finished += 1
            stream.changed.notify_all()
        return end

    def _say(self, stream: _Stream, state: int, step: int, slot: int) -> None:
        """Tell the watchdog what a stream does."""
        beat = watchdog.Beat(stream.finished, state, step, slot, time.perf_counter_ns(), stream.thread)
        self.status.set(self.rank, stream.index, beat)

    def _wait_for_needs(self, step: int, slot: walk.Slot) -> float:
        """Wait for a slot's needs; return when the last of them ended."""
        return max((self._wait_for(*need) for need in slot.awaits(step)), default=0.0)

    def _wait_for(self, step: int, need: int) -> float:
        index, count = self._order.count(step, need)
        self._await(self._streams[index], count)
        return float(self.end_KS[step, need])

    def _await(self, one: _Stream | Queue, count: int) -> None:
        """Wait until so many ops of a stream are over, or have left a queue."""
        # Looked at without the lock first: most needs have long been met.
        if one.finished < count:
            with one.changed:
                one.changed.wait_for(lambda: one.finished >= count or self.failures)
        if one.finished < count:
            raise Cancelled

    def _fail(self, failure: watchdog.Failure) -> None:
        self.failures.append(failure)
        waited: list[_Stream | Queue] = [*self._streams, *self._queues.values()]
        for one in waited:
            with one.changed:
                one.changed.notify_all()


def _cpu_times() -> tuple[float, float]:
    return time.thread_time(), time.process_time()


def failure_of(rank: int, step: int, slot: int, error: Exception) -> watchdog.Failure:
    """What a rank reports of an error in an op."""
    return watchdog.Failure(rank, step, slot, _in_short(error), _lost(error))


def _in_short(error: Exception) -> str:
    """The first sentence of an error, without the place in gloo's source."""
    # gloo puts its source file in front and advice behind; only the middle helps a user.
    text = str(error).splitlines()[0].partition('. ')[0] if str(error) else ''
    _, bracket, rest = text.partition('] ')
    text = rest if bracket and text.startswith('[') else text
    return text if isinstance(error, RuntimeError) else f'{type(error).__name__}: {text}'


def _lost(error: Exception) -> bool:
    """Whether gloo says that a peer has gone or does not come."""
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        sign in text for sign in ('losed by peer', 'reset by peer', 'Timed out', 'timeout', 'imeout', 'Broken pipe')
    )
