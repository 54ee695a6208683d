"""Issue: the host of a device issues ops on its streams, one by one or as captured graphs, and minds their memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray

from executor import draws, state, validate, walk
from executor.devices.open import Device
from executor.kernels import Context, context
from executor.ranks import real, streams
from executor.ranks.watchdog import RUNNING, THROUGH, Beat, Failure, Status
from simpar.errors import Infeasible
from simpar.program import COPY, Instance, Tensor, instance
from simpar.trace import Times

# A rank's tensors on a device, and when the host may drop them.
#
# Allocators of devices give memory back to the stream that it was allocated on, as soon as the host drops the tensor.
# So a tensor that the program has freed on one stream is kept until the stream that will reuse its memory was made to
# wait for that: this is known from the program's needs alone, and the host waits for nothing.

Pair = tuple[torch.Tensor, torch.Tensor]
INPUT: Final = -1
"""The owner of inputs: the stream that copies them, whose memory is kept until the step is over."""


@dataclass(slots=True)
class Dropped:
    """Tensors that the program has freed, by the stream that owns their memory, until that stream may reuse it.

    Arguments: ``known``, shape [2 × slots, streams], as of ``validate.clocks``; ``slots`` of a step.
    """

    known: NDArray[np.int64]
    slots: int
    _waiting: dict[int, list[tuple[int, int, torch.Tensor]]] = field(default_factory=dict)

    def add(self, owner: int, stream: int, position: int, tensor: torch.Tensor) -> None:
        """Freed by the op at a position, of all steps, on a stream."""
        self._waiting.setdefault(owner, []).append((stream, position, tensor))

    def reusable(self, owner: int, step: int, slot: int) -> Iterator[torch.Tensor]:
        """Give up what an op on the owning stream may reuse: whatever freed it is over when the op starts."""
        waiting = self._waiting.get(owner)
        if not waiting:
            return
        # In the second of two steps: positions of the first are those of the step before.
        row, shift = self.known[self.slots + slot], (step - 1) * self.slots
        rest = []
        for entry in waiting:
            stream, position, tensor = entry
            last = int(row[stream])
            if stream == owner or (last >= 0 and last + shift >= position):
                yield tensor
            else:
                rest.append(entry)
        self._waiting[owner] = rest

    def tensors(self) -> Iterator[torch.Tensor]:
        """All that wait."""
        return (tensor for waiting in self._waiting.values() for _, _, tensor in waiting)

    def over(self, position: int) -> Iterator[torch.Tensor]:
        """Give up what ops before a position have freed, once the host knows that all of them are over."""
        for owner, waiting in self._waiting.items():
            yield from (tensor for _, at, tensor in waiting if at < position)
            self._waiting[owner] = [entry for entry in waiting if entry[1] >= position]


class DeviceMemory(real.Memory):
    """The tensors of one rank.

    Arguments: ``known``, what each slot knows to be over, see ``Dropped``.
    """

    @staticmethod
    def storage_of(tensor: torch.Tensor) -> int:
        """What tells whether two tensors share memory."""
        return int(tensor.untyped_storage()._cdata)

    def __init__(self, start: real.Start, device: Device, clocks: NDArray[np.int64]) -> None:
        super().__init__(start, real.FEED_LIMIT)
        self._first = start.first
        self._device = device
        self._dropped = Dropped(clocks, len(start.program.role(start.rank)))
        # By storage: the stream that owns it, and how many tensors here share it.
        self._owners: dict[int, list[int]] = {}
        self._inputs: dict[int, list[torch.Tensor]] = {}
        self._place = (0, 0)
        for key, tensor in self._tensors.items():
            on_host = self._program.tensor[key[0]].host
            self._tensors[key] = self._hold(self._on_host(tensor) if on_host else tensor.to(device.name), 0)

    def feed(self, step: int) -> list[torch.Tensor]:
        """Copy a step's inputs to the device, on the current stream; where they are.

        Arguments: ``step``, counted from the first of the run, as everywhere on a device.
        """
        copied = self._inputs[step] = []
        for key, shard in self.shards(step):
            moved = shard.to(self._device.name, non_blocking=True)
            copied.append(moved)
            old = self._tensors.get(key)
            self._tensors[key] = self._hold(moved, INPUT)
            self._drawn[key] = self._first + step
            if old is not None:
                self._release(old)
        return copied

    def shards(self, step: int) -> Iterator[tuple[Instance, torch.Tensor]]:
        """A step's inputs on the host, in memory from which a copy is asynchronous."""
        number = self._first + step
        for tensor, micro_batch, copy in self._inputs_of_step():
            shard = self._feed.pop(((tensor.name, micro_batch, copy), number), None)
            if shard is None:
                shard = self._start.shard(tensor, number, micro_batch, copy)
            yield instance(tensor, micro_batch, copy), shard.pin_memory() if self._device.kind.pins else shard

    def restored(self, before: Mapping[Instance, torch.Tensor], live: Container[Instance]) -> Iterator[Pair]:
        """Have tensors in the places of before again: of each that has moved and is live, where it is and was.

        Tensors that are not live at the beginning of a step are forgotten.
        """
        for key, tensor in list(self._tensors.items()):
            old = before.get(key)
            if old is tensor:
                continue
            del self._tensors[key]
            if old is not None and key in live:
                yield tensor, old
                self._tensors[key] = self._hold(old, 0)
            self._release(tensor)
        for key in before.keys() - self._tensors.keys():
            self._tensors[key] = self._hold(before[key], 0)

    def instances(self) -> dict[Instance, torch.Tensor]:
        """All tensors that there are."""
        return dict(self._tensors)

    def at(self, step: int, slot: int, stream: int) -> None:
        """The next op to be issued; what it may reuse is dropped."""
        self._place = (step * self._dropped.slots + slot, stream)
        for tensor in self._dropped.reusable(stream, step, slot):
            self._release(tensor)

    def over(self, step: int) -> None:
        """The host knows that a step is over."""
        self._inputs.pop(step, None)
        for tensor in self._dropped.over((step + 1) * self._dropped.slots):
            self._release(tensor)

    def _put(self, key: Instance, result: torch.Tensor) -> None:
        old = self._tensors.get(key)
        self._tensors[key] = self._hold(result, self._place[1])
        # What an op replaces was freed by it.
        if old is not None:
            self._let_go(old)

    def on_device(self) -> int:
        """As of ``Memory``, with what waits until its memory may be reused."""
        live = super().on_device()
        # What was issued to the processors has run.
        if not self._device.kind.numbered:
            return live
        there = set(map(self.storage_of, self._tensors.values()))
        waiting: dict[int, int] = {
            self.storage_of(tensor): tensor.untyped_storage().nbytes()
            for tensor in self._dropped.tensors()
            if tensor.device == self._device.name
        }
        return live + sum(size for storage, size in waiting.items() if storage not in there)

    def _input(self, *_: Any, **__: Any) -> None:
        """All inputs were copied when the step began."""

    def _empty(self, tensor: Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self._device.empty(self._program.local_shape(tensor), dtype, host=tensor.host)

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        made = self._device.empty(tensor.shape, tensor.dtype, host=True)
        made.copy_(tensor)
        return made

    def _hold(self, tensor: torch.Tensor, stream: int) -> torch.Tensor:
        entry = self._owners.setdefault(self.storage_of(tensor), [stream, 0])
        entry[1] += 1
        return tensor

    def _let_go(self, tensor: torch.Tensor) -> None:
        """Drop a tensor as soon as its memory may be reused."""
        owner = self._owners[self.storage_of(tensor)][0]
        position, stream = self._place
        # What is on the stream that owns the memory is over when the next op there starts.
        if owner in (stream, INPUT):
            self._release(tensor)
        else:
            self._dropped.add(owner, stream, position, tensor)

    def _release(self, tensor: torch.Tensor) -> None:
        key = self.storage_of(tensor)
        self._owners[key][1] -= 1
        if not self._owners[key][1]:
            del self._owners[key]


# One rank's host: a single thread that issues the program's ops in their order, each to its device stream.
#
# A stream waits for other streams by events, and the host waits for nothing inside of a step. It only keeps from
# running further ahead than ``AHEAD`` steps; then it reads the times and losses of the step that is over.

AHEAD: Final = 2
"""Steps that are issued before the host waits for the first of them."""

Watch = Callable[[walk.Slot, int, Any], None]
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


@dataclass(eq=False)
class Issuer:
    """Issues a rank's role to the streams of its device.

    Arguments:
        transports: (partition, stream) → what carries its collectives.
        watch: is told of every op.
    """

    start: real.Start
    device: Device
    transports: Mapping[tuple[str, str], real.Transport]
    watch: Watch | None = None
    memory_of: ClassVar[type[DeviceMemory]] = DeviceMemory
    computation_of: ClassVar[type[real.Computation]] = real.Computation

    def __post_init__(self) -> None:
        start, device, role = self.start, self.device, self.start.program.role(self.start.rank)
        self._module = device.module
        self.order = walk.Order(start.program, role)
        self.slots = self.order.slots
        self._module.set_device(device.name)
        self.streams = [self._module.Stream(device.name) for _ in role.streams]
        self._copies = self._module.Stream(device.name)
        self._ends = [slots[-1].position for slots in self.order.streams if slots]
        self.memory = self.memory_of(start, device, validate.clocks(role))
        where = replace(context(start.program, start.rank), device=device.name)
        self.computation = self.computation_of(start, self.memory, where)
        self._channels = [(slot.op.partition, role.streams[slot.stream]) for slot in self.slots]
        self._marks: dict[int, Marks] = {}
        self._before: list[Any] = []
        self._steps_over = 0
        self.at = -1
        self._origin: tuple[Any, float] | None = None
        self.arrive_KS: Times = np.zeros((start.steps, len(role)))
        self.end_KS: Times = np.zeros((start.steps, len(role)))

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
        self._module.synchronize(self.device.name)
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
        event = self._module.Event
        marks = self._marks[step] = Marks.of(len(self.slots), lambda: event(enable_timing=True))
        self._issue(step, marks, replace(self.computation.where, step=self.start.first + step))
        self._before = marks.end

    def _issue(self, step: int, marks: Marks, where: Context) -> None:
        """Issue every op to its stream, behind what it needs."""
        with torch.no_grad():
            for slot in self.slots:
                stream, self.at = self.streams[slot.stream], slot.position
                self._wait_for_needs(slot, step, stream, marks)
                self.memory.at(step, slot.position, slot.stream)
                with self._module.stream(stream):
                    marks.begin[slot.position].record(stream)
                    if self.watch is not None:
                        self.watch(slot, step, stream)
                    if slot.op.kind == 'compute':
                        self.computation.compute(slot, step, where.at(*slot.part))
                    elif slot.op.operator == COPY:
                        self.computation.copy(slot, step)
                    else:
                        transport = self.transports[self._channels[slot.position]]
                        self.computation.communicate(slot, step, transport)
                    self._recorded(slot, stream, marks)

    def _wait_for_needs(self, slot: walk.Slot, step: int, stream: Any, marks: Marks) -> None:
        """Have a stream wait for the ops of other streams that an op needs."""
        for at, need in slot.awaits(step):
            stream.wait_event(marks.end[need] if at == step else self._before[need])

    def _recorded(self, slot: walk.Slot, stream: Any, marks: Marks) -> None:
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
        self._module.synchronize(self.device.name)
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
        self._slots = [[slot.position for slot in row] for row in issuer.order.streams]
        self._thread = threading.Thread(target=self._run, name='host', daemon=True)
        self._step = 0
        self.failures: list[Failure] = []
        # Filled step by step by the issuer.
        self.arrive_KS, self.end_KS, self.cpu = issuer.arrive_KS, issuer.end_KS, np.zeros(0)

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
            # The thread issues to this device.
            self._issuer.device.module.set_device(self._issuer.device.name)
            for step in range(self._steps):
                self._issuer.keep_near(step)
                self._step = step
                self._issuer.issue(step)
            self._issuer.finish()
        except Exception as error:
            self.failures.append(streams.failure_of(self._rank, self._step, self._issuer.at, error))

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


# One rank's host that issues a step by one call: the step's ops are captured into a graph, which is then replayed.

WARM: Final = 1
"""Steps that are issued op by op."""


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A step in a graph.

    Arguments:
        inputs: where it reads its inputs, in the order of ``DeviceMemory.shards``.
        number: the step's number in the whole training, on the device.
        losses, gradients: clones of those that are kept.
    """

    graph: Any
    marks: Marks
    inputs: list[torch.Tensor]
    number: torch.Tensor
    losses: dict[state.Part, torch.Tensor]
    gradients: dict[str, torch.Tensor]


@dataclass(eq=False)
class GraphIssuer(Issuer):
    """Issues a rank's role as captured graphs; arguments as of ``Issuer``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(slot.op.operator == COPY for slot in self.slots):
            raise Infeasible(
                'plan.offload: copies to the host are in no captured graph; write --issue eager, or leave the key out'
            )
        self._done: dict[int, Any] | None = None
        self._captured: dict[int, Captured] = {}
        self._tails: dict[int, Any] = {}
        self._constants: draws.Kept = {}
        self._pool = self._module.graph_pool_handle()
        self._launches = self._module.Stream(self.device.name)
        self._needed = {need for slot in self.slots for need in slot.needs}
        self._live = set(self._live_instances())

    def issue(self, step: int) -> None:
        """Issue a step; the device need not have begun the one before."""
        if step < WARM:
            with draws.constants(self._constants, again=False):
                super().issue(step)
            return
        one = self._captured.get(step % AHEAD)
        if one is None:
            one = self._captured[step % AHEAD] = self._capture(step)
        else:
            self._feed_again(step, one)
        with self._module.stream(self._launches):
            one.graph.replay()
            # The next graph reuses this one's memory, so what outlasts the step is copied from it.
            computation = self.computation
            computation.losses[step] = {part: loss.clone() for part, loss in one.losses.items()}
            if step == computation.remembered:
                computation.gradients = {name: gradient.clone() for name, gradient in one.gradients.items()}
            tail = self._tails[step] = self._module.Event(enable_timing=True)
            tail.record(self._launches)
        self._marks[step] = one.marks

    def harvest(self, step: int) -> None:
        """Wait until a step is over, and read its times and losses."""
        tail = self._tails.pop(step, None)
        if tail is None:
            super().harvest(step)
            return
        tail.synchronize()
        self._read(step, self._marks.pop(step))
        assert self._origin is not None
        event, moment = self._origin
        # Events of a graph move with its next replay, so they can be no origin.
        self._origin = tail, moment + 1e-3 * event.elapsed_time(tail)

    def progress(self, stream: int, slots: list[int]) -> tuple[int, int]:
        """The step in which a stream is; ops of a graph are not looked into."""
        for step in list(self._marks):
            tail = self._tails.get(step)
            if tail is None:
                return super().progress(stream, slots)
            if not tail.query():
                return step, 0
        return self._steps_over, 0

    def _capture(self, step: int) -> Captured:
        """The step's ops as a graph, which has not run yet."""
        # Once for each graph: from here on no memory of the steps before is in use but what lives on.
        self._module.synchronize(self.device.name)
        self.memory.over(step - 1)
        with self._module.stream(self._copies):
            inputs = self.memory.feed(step)
            number = torch.full((), self.start.first + step, dtype=torch.float64, device=self.device.name)
        self._launches.wait_stream(self._copies)
        graph, before, computation = self._graph(), self.memory.instances(), self.computation
        event = self._module.Event
        marks = Marks.of(len(self.slots), lambda: event(enable_timing=True, external=True))
        # Whether a replay is the last is not known when it is captured.
        last, computation.remembered = computation.remembered, None
        gradients, computation.gradients = computation.gradients, {}
        self._done = {slot: event() for slot in self._needed}
        try:
            # Other threads may ask devices for what they like meanwhile.
            with (
                draws.constants(self._constants, again=True),
                self._module.graph(graph, self._pool, self._launches, capture_error_mode='thread_local'),
            ):
                self._fork_and_join(step, marks, number)
                for moved, place in self.memory.restored(before, self._live):
                    place.copy_(moved)
        finally:
            self._done = None
            computation.remembered = last
        self.memory.over(step)
        step_gradients, computation.gradients = computation.gradients, gradients
        return Captured(graph, marks, inputs, number, computation.losses.pop(step, {}), step_gradients)

    def _graph(self) -> Any:
        return getattr(self._module, self.device.kind.graphs)()

    def _fork_and_join(self, step: int, marks: Marks, number: torch.Tensor) -> None:
        """Issue the ops to their streams, all of which leave the launching one and come back to it."""
        for stream in self.streams:
            stream.wait_stream(self._launches)
        self._issue(step, marks, replace(self.computation.where, step=number))
        for stream in self.streams:
            self._launches.wait_stream(stream)

    def _wait_for_needs(self, slot: walk.Slot, step: int, stream: Any, marks: Marks) -> None:
        """Inside of a graph events are its own; what the step before has left is met by its end."""
        if self._done is None:
            super()._wait_for_needs(slot, step, stream, marks)
            return
        for need in slot.needs:
            stream.wait_event(self._done[need])

    def _recorded(self, slot: walk.Slot, stream: Any, marks: Marks) -> None:
        if self._done is not None and slot.position in self._done:
            self._done[slot.position].record(stream)
        super()._recorded(slot, stream, marks)

    def _feed_again(self, step: int, one: Captured) -> None:
        """Copy a step's inputs to where its graph reads them; the host knows that its last replay is over."""
        with self._module.stream(self._copies):
            for (_, shard), place in zip(self.memory.shards(step), one.inputs, strict=True):
                place.copy_(shard, non_blocking=True)
            one.number.fill_(self.start.first + step)
        self._launches.wait_stream(self._copies)

    def _live_instances(self) -> Iterator[Instance]:
        """What a step finds and needs: all that it does not write before it uses it."""
        seen = set[Instance]()
        for slot in self.slots:
            op = slot.op
            for names, uses in ((op.reads, True), (op.accumulates, True), (op.writes, False), (op.frees, True)):
                for name in names:
                    key = instance(self.start.program.tensor[name], *slot.part)
                    if uses and key not in seen:
                        yield key
                    seen.add(key)


ISSUERS: Final[dict[str, type[Issuer]]] = {'eager': Issuer, 'graph': GraphIssuer}
"""How steps are issued."""
