"""One rank's host: a single thread that issues the program's ops in their order, each to its device stream.

A stream waits for other streams by events, and the host waits for nothing inside of a step. It only keeps from running
further ahead than ``AHEAD`` steps; then it reads the times and losses of the step that is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch

from executor.devices.memory import DeviceMemory
from executor.devices.open import Device
from executor.hazards import clocks
from executor.kernels import LOSSES, Bound, bind, context, kernel
from executor.ranks.request import Part
from executor.ranks.streams import failure_of
from executor.ranks.transport import Transport, transfer
from executor.ranks.watchdog import RUNNING, THROUGH, Beat, Failure, Status
from executor.tensors import Packing, torch_dtype
from simpar.program import OpClass, Program
from simpar.trace import Times

AHEAD: Final = 2
"""Steps that are issued before the host waits for the first of them."""

Watch = Callable[['Slot', int, Any], None]
"""Told of every op before it is issued: the slot, the step, the stream."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of a role, its arrays read out.

    Arguments:
        stream: its number among the role's.
        needs, carried: slots on other streams, of this step and of the one before, whose events it waits for.
    """

    position: int
    index: int
    op: OpClass
    stream: int
    part: tuple[int, int]
    needs: tuple[int, ...]
    carried: tuple[int, ...]


def slots_of(program: Program, rank: int) -> list[Slot]:
    """A rank's slots, in the order in which the host issues them."""
    role = program.role(rank)
    needs, carried, streams = role.needs(), role.carried(), role.stream.tolist()

    def elsewhere(slot: int, others: tuple[int, ...]) -> tuple[int, ...]:
        # A stream is in order, so its own ops need no event.
        return tuple(other for other in others if streams[other] != streams[slot])

    return [
        Slot(
            position=slot,
            index=int(role.op_class[slot]),
            op=program.op(role, slot),
            stream=streams[slot],
            part=(int(role.micro_batch[slot]), int(role.copy[slot])),
            needs=elsewhere(slot, needs[slot]),
            carried=elsewhere(slot, carried[slot]),
        )
        for slot in range(len(role))
    ]


@dataclass(frozen=True, slots=True)
class Marks:
    """The events of one step.

    Arguments:
        begin, end: by slot; ``begin`` is when its stream and needs are done, so the op arrives.
        issued: slots whose events are recorded; others would count as reached.
        losses: what loss ops gave, on the device.
    """

    begin: list[Any]
    end: list[Any]
    issued: set[int]
    losses: dict[Part, torch.Tensor]


class Issuer:
    """Issues a rank's role to the streams of its device.

    Arguments:
        transports: (partition, stream) → what carries its collectives.
        first: the number that the first step has in the whole training.
        held: parameters and states before it, on the host; None, as the seed draws them.
        watch: is told of every op.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        device: Device,
        transports: Mapping[tuple[str, str], Transport],
        *,
        steps: int,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        first: int = 0,
        held: Mapping[str, torch.Tensor] | None = None,
        watch: Watch | None = None,
    ) -> None:
        role = program.role(rank)
        self._program = program
        self._device = device
        self._module = device.module
        self._transports = transports
        self._dtype = dtype
        self._last = -1
        self._first = first
        self._watch = watch
        self.slots = slots_of(program, rank)
        self._names = role.streams
        self._module.set_device(device.name)
        self.streams = [self._module.Stream(device.name) for _ in role.streams]
        self._copies = self._module.Stream(device.name)
        self._ends = [slots[-1] for slots in role.by_stream().rows() if len(slots)]
        self.memory = DeviceMemory(program, rank, steps, seed, dtype, device, clocks(role), first, held)
        self._context = replace(context(program, rank), device=device.name)
        used = {slot.index: slot.op for slot in self.slots}
        self._bound: dict[int, Bound] = {
            index: bind(program, op, kernel(op), dtype) for index, op in used.items() if op.kind == 'compute'
        }
        self._packing = {index: Packing.of(program, op) for index, op in used.items() if op.kind == 'collective'}
        self._marks: dict[int, Marks] = {}
        self._before: list[Any] = []
        self._steps_over = 0
        self.at = -1
        self._origin: tuple[Any, float] | None = None
        self.arrive_KS: Times = np.zeros((steps, len(role)))
        self.end_KS: Times = np.zeros((steps, len(role)))
        self.losses: list[dict[Part, torch.Tensor]] = [{} for _ in range(steps)]
        self.gradients: dict[str, torch.Tensor] = {}

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
        self._last, self.gradients = last, {}
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
        event, count = self._module.Event, len(self.slots)
        begin, end = ([event(enable_timing=True) for _ in range(count)] for _ in range(2))
        marks = self._marks[step] = Marks(begin, end, set(), {})
        where = replace(self._context, step=self._first + step)
        with torch.no_grad():
            for slot in self.slots:
                stream, self.at = self.streams[slot.stream], slot.position
                self._wait_for_needs(slot, stream, end)
                self.memory.at(step, slot.position, slot.stream)
                with self._module.stream(stream):
                    begin[slot.position].record(stream)
                    if self._watch is not None:
                        self._watch(slot, step, stream)
                    self._run(slot, step, where.at(*slot.part), marks)
                    end[slot.position].record(stream)
                    marks.issued.add(slot.position)
        self._before = end

    def _wait_for_needs(self, slot: Slot, stream: Any, end: list[Any]) -> None:
        """Have a stream wait for the ops of other streams that an op needs."""
        for need in slot.needs:
            stream.wait_event(end[need])
        # The first step has none before it.
        for need in slot.carried if self._before else ():
            stream.wait_event(self._before[need])

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
        self.losses[step] = {part: loss.cpu() for part, loss in marks.losses.items()}
        self.memory.over(step)
        self._steps_over = step + 1

    def finish(self) -> None:
        """Wait for all that was issued."""
        for step in list(self._marks):
            self.harvest(step)
        self._module.synchronize(self._device.name)
        self.gradients = {name: tensor.cpu() for name, tensor in self.gradients.items()}

    def parameters(self) -> dict[str, torch.Tensor]:
        """The rank's shards of the parameters, on the CPU."""
        names = [tensor.name for tensor in self._program.tensors if tensor.kind == 'parameter']
        held = [name for name in names if self._program.holds(self.rank, name)]
        return {name: self.memory[name, -1, -1].cpu() for name in held}

    def held(self) -> dict[str, torch.Tensor]:
        """The rank's shards of parameters and states, on the CPU: what the next steps begin with."""
        return {name: tensor.cpu() for name, tensor in self.memory.held.items()}

    @property
    def rank(self) -> int:
        """The rank whose ops these are."""
        return self._context.rank

    def _feed(self, step: int) -> None:
        """Copy the step's inputs on a stream of their own; all others wait for that."""
        with self._module.stream(self._copies):
            self.memory.feed(step)
            done = self._module.Event()
            done.record(self._copies)
        for stream in self.streams:
            stream.wait_event(done)

    def _run(self, slot: Slot, step: int, where: Any, marks: Marks) -> None:
        """Issue an op to the current stream."""
        op, part = slot.op, slot.part
        reads = self.memory.read(op, *part, self._first + step)
        if op.kind == 'compute':
            if op.phase == 'U' and self._remembers(step):
                # Before the update, which may change or free its gradients.
                self._remember(op, reads)
            results = self._bound[slot.index](where, reads)
            if op.part == 'F' and op.operator in LOSSES:
                # A clone: the loss may be reduced in place over ranks, or freed.
                marks.losses[(op.writes[0], *part)] = results[0].clone()
        else:
            results = self._communicate(slot, reads)
        self.memory.keep(op, *part, results)
        self.memory.free(op, *part)

    def _communicate(self, slot: Slot, reads: list[torch.Tensor]) -> list[torch.Tensor]:
        packing = self._packing.get(slot.index, Packing())
        transport = self._transports[slot.op.partition, self._names[slot.stream]]
        received = None
        if slot.op.kind == 'recv':
            target = self._program.tensor[slot.op.writes[0]]
            shape, dtype = self._program.local_shape(target), torch_dtype(target.dtype, self._dtype)
            received = torch.empty(shape, dtype=dtype, device=self._device.name)
        return packing.unpacked(transfer(slot.op, transport, packing.packed(reads), received))

    def _remembers(self, step: int) -> bool:
        """Whether the gradients of a step are kept for the answer."""
        return step == self._last

    def _remember(self, op: OpClass, reads: list[torch.Tensor]) -> None:
        for name, tensor in zip(op.reads, reads, strict=True):
            if self._program.tensor[name].kind == 'gradient':
                self.gradients[name] = tensor.clone()


# A rank's run on a device: the host thread that issues all steps, watched as the threads of streams are.

LOOK: Final = 0.05
"""Seconds between two looks at what the device has finished."""


class DeviceRun:
    """One run of a rank's role; has what ``Streams`` has for those that watch it."""

    def __init__(self, program: Program, rank: int, steps: int, issuer: Issuer, status: Status) -> None:
        self._issuer = issuer
        self._rank = rank
        self._steps = steps
        self._status = status
        self._slots = [list(row) for row in program.role(rank).by_stream().rows()]
        self._thread = threading.Thread(target=self._run, name='host', daemon=True)
        self._step = 0
        self.failures: list[Failure] = []

    @property
    def arrive_KS(self) -> Times:
        """When ops arrived, shape [steps, slots]."""
        return self._issuer.arrive_KS

    @property
    def end_KS(self) -> Times:
        """When they ended."""
        return self._issuer.end_KS

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
