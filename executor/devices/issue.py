"""One rank's host: a single thread that issues the program's ops in their order, each to its device stream.

A stream waits for other streams by events, and the host waits for nothing inside of a step. It only keeps from running
further ahead than ``AHEAD`` steps; then it reads the times and losses of the step that is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch

from executor.devices.memory import DeviceMemory
from executor.devices.open import Device
from executor.hazards import clocks
from executor.kernels import Context, context
from executor.ranks.memory import Start
from executor.ranks.real import Computation
from executor.ranks.streams import failure_of
from executor.ranks.transport import Transport
from executor.ranks.watchdog import RUNNING, THROUGH, Beat, Failure, Status
from executor.walk import Slot, slots_of
from simpar.trace import Times

AHEAD: Final = 2
"""Steps that are issued before the host waits for the first of them."""

Watch = Callable[['Slot', int, Any], None]
"""Told of every op before it is issued: the slot, the step, the stream."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The events of one step.

    Arguments:
        begin, end: by slot; ``begin`` is when its stream and needs are done, so the op arrives.
        issued: slots whose events are recorded; others would count as reached.
    """

    begin: list[Any]
    end: list[Any]
    issued: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, count: int, event: Callable[[], Any]) -> Marks:
        """Events of so many slots, none of which is recorded."""
        return cls([event() for _ in range(count)], [event() for _ in range(count)])


class Issuer:
    """Issues a rank's role to the streams of its device.

    Arguments:
        transports: (partition, stream) → what carries its collectives.
        watch: is told of every op.
    """

    def __init__(
        self,
        start: Start,
        device: Device,
        transports: Mapping[tuple[str, str], Transport],
        *,
        watch: Watch | None = None,
    ) -> None:
        role = start.program.role(start.rank)
        self.start = start
        self._device = device
        self._module = device.module
        self._transports = transports
        self._watch = watch
        self.slots = slots_of(start.program, role)
        self._module.set_device(device.name)
        self.streams = [self._module.Stream(device.name) for _ in role.streams]
        self._copies = self._module.Stream(device.name)
        self._ends = [slots[-1] for slots in role.by_stream().rows() if len(slots)]
        self.memory = DeviceMemory(start, device, clocks(role))
        where = replace(context(start.program, start.rank), device=device.name)
        self.computation = Computation(start, self.memory, where)
        self._channels = [(slot.op.partition, role.streams[slot.stream]) for slot in slots_of(start.program, role)]
        self._marks: dict[int, Marks] = {}
        self._before: list[Any] = []
        self._steps_over = 0
        self.at = -1
        self._origin: tuple[Any, float] | None = None
        self.arrive_KS: Times = np.zeros((start.steps, len(role)))
        self.end_KS: Times = np.zeros((start.steps, len(role)))

    def take_thread(self) -> None:
        """Have the calling thread issue to this device."""
        self._module.set_device(self._device.name)

    def progress(self, stream: int, slots: list[int]) -> tuple[int, int]:
        """The step in which a stream is, and how many of its slots there are over; asks, and does not wait."""
        for step, marks in list(self._marks.items()):
            for place, slot in enumerate(slots):
                if slot in marks.issued and marks.end[slot].query():
                    continue
                return step, place
        return self._steps_over, 0

    def begin(self, moment: Callable[[], float], last: int) -> None:
        """Everything is on the device; ``moment`` gives the time at which an event is then put.

        Arguments: ``last``, the step whose gradients are kept for the answer.
        """
        self.computation.remembered, self.computation.gradients = last, {}
        self._module.synchronize(self._device.name)
        event = self._module.Event(enable_timing=True)
        event.record(self.streams[0])
        event.synchronize()
        self._origin = event, moment()

    def keep_near(self, step: int) -> None:
        """Before a step is issued, wait for the one that is ``AHEAD`` steps before it."""
        if step - AHEAD in self._marks:
            self.harvest(step - AHEAD)

    def issue(self, step: int) -> None:
        """Issue a step; the device need not have begun the one before."""
        self._feed(step)
        marks = self._marks[step] = Marks.of(len(self.slots), self._timed_event)
        self._issue(step, marks, replace(self.computation.where, step=self.start.first + step))
        self._before = marks.end

    def _timed_event(self) -> Any:
        return self._module.Event(enable_timing=True)

    def _issue(self, step: int, marks: Marks, where: Context) -> None:
        """Issue every op to its stream, behind what it needs."""
        with torch.no_grad():
            for slot in self.slots:
                stream, self.at = self.streams[slot.stream], slot.position
                self._wait_for_needs(slot, stream, marks)
                self.memory.at(step, slot.position, slot.stream)
                with self._module.stream(stream):
                    marks.begin[slot.position].record(stream)
                    if self._watch is not None:
                        self._watch(slot, step, stream)
                    if slot.op.kind == 'compute':
                        self.computation.compute(slot, step, where.at(*slot.part))
                    else:
                        transport = self._transports[self._channels[slot.position]]
                        self.computation.communicate(slot, step, transport)
                    self._recorded(slot, stream, marks)

    def _wait_for_needs(self, slot: Slot, stream: Any, marks: Marks) -> None:
        """Have a stream wait for the ops of other streams that an op needs."""
        for need in slot.needs:
            stream.wait_event(marks.end[need])
        # The first step has none before it.
        for need in slot.carried if self._before else ():
            stream.wait_event(self._before[need])

    def _recorded(self, slot: Slot, stream: Any, marks: Marks) -> None:
        """An op is issued."""
        marks.end[slot.position].record(stream)
        marks.issued.add(slot.position)

    def harvest(self, step: int) -> None:
        """Wait until a step is over, and read its times and losses."""
        marks = self._marks.pop(step)
        for slot in self._ends:
            marks.end[slot].synchronize()
        self._read(step, marks)
        # Milliseconds in single precision lose microseconds after a minute: so the origin goes with the steps.
        first = self._ends[0]
        self._origin = marks.end[first], self.end_KS[step, first]

    def _read(self, step: int, marks: Marks) -> None:
        """Read the times and losses of a step that is over."""
        assert self._origin is not None
        event, moment = self._origin
        for slot in range(len(self.slots)):
            self.arrive_KS[step, slot] = moment + 1e-3 * event.elapsed_time(marks.begin[slot])
            self.end_KS[step, slot] = moment + 1e-3 * event.elapsed_time(marks.end[slot])
        losses = self.computation.losses
        losses[step] = {part: loss.cpu() for part, loss in losses[step].items()}
        self.memory.over(step)
        self._steps_over = step + 1

    def finish(self) -> None:
        """Wait for all that was issued."""
        for step in list(self._marks):
            self.harvest(step)
        self._module.synchronize(self._device.name)
        gradients = self.computation.gradients
        self.computation.gradients = {name: tensor.cpu() for name, tensor in gradients.items()}

    def held(self) -> dict[str, torch.Tensor]:
        """The rank's shards of parameters and states, on the CPU: what the next steps begin with."""
        return {name: tensor.cpu() for name, tensor in self.memory.held.items()}

    def _feed(self, step: int) -> None:
        """Copy the step's inputs on a stream of their own; all others wait for that."""
        with self._module.stream(self._copies):
            self.memory.feed(step)
            done = self._module.Event()
            done.record(self._copies)
        for stream in self.streams:
            stream.wait_event(done)


# A rank's run on a device: the host thread that issues all steps, watched as the threads of streams are.

LOOK: Final = 0.05
"""Seconds between two looks at what the device has finished."""


class DeviceRun:
    """One run of a rank's role; has what ``Streams`` has for those that watch it."""

    def __init__(self, issuer: Issuer, status: Status, now: Callable[[], float]) -> None:
        start = issuer.start
        self._now = now
        self._issuer = issuer
        self._rank = start.rank
        self._steps = start.steps
        self._status = status
        self._slots = [list(row) for row in start.program.role(start.rank).by_stream().rows()]
        self._thread = threading.Thread(target=self._run, name='host', daemon=True)
        self._step = 0
        self.failures: list[Failure] = []
        # Filled step by step by the issuer.
        self.arrive_KS, self.end_KS = issuer.arrive_KS, issuer.end_KS

    def begin(self, moment: float) -> None:
        """Have all that the first step needs on the device."""
        self._issuer.begin(self._now, self._steps - 1)

    def start(self, begin: float) -> None:
        """Start to issue."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; return whether all is through or something has failed."""
        until = time.perf_counter() + seconds
        while self._thread.is_alive() and not self.failures:
            self._thread.join(min(LOOK, max(0.0, until - time.perf_counter())))
            self._report(RUNNING)
            if time.perf_counter() >= until:
                break
        over = not self._thread.is_alive()
        if over and not self.failures:
            self._report(THROUGH)
        return over or bool(self.failures)

    def _run(self) -> None:
        try:
            self._issuer.take_thread()
            for step in range(self._steps):
                self._issuer.keep_near(step)
                self._step = step
                self._issuer.issue(step)
            self._issuer.finish()
        except Exception as error:
            self.failures.append(failure_of(self._rank, self._step, self._issuer.at, error))

    def _report(self, state: int) -> None:
        """Tell the watchdog how far the device is: for each stream its first op that is not over."""
        for stream, slots in enumerate(self._slots):
            step, place = self._issuer.progress(stream, slots)
            finished = step * len(slots) + place
            slot = slots[min(place, len(slots) - 1)] if len(slots) else -1
            now = time.perf_counter_ns()
            before = self._status.get(self._rank, stream)
            since = before.since if before.finished == finished and before.since else now
            self._status.set(self._rank, stream, Beat(finished, state, min(step, self._steps - 1), slot, since))
