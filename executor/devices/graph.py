"""One rank's host that issues a step by one call: the step's ops are captured into a graph, which is then replayed.

The first step is issued op by op; what libraries set up, they set up then. The next ``AHEAD`` steps are captured, each
into a graph with inputs, events and losses of its own, and the graphs take turns: so the host may read what one has
left while the other runs. All share one pool of memory. A step's graph begins when the one before has ended: what a
program carries from step to step is met by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from executor.devices.issue import AHEAD, Issuer, Marks
from executor.draws import Kept, constants
from executor.ranks.request import Part
from executor.walk import Slot
from simpar.program.needs import Instance, instance

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
    losses: dict[Part, torch.Tensor]
    gradients: dict[str, torch.Tensor]


class GraphIssuer(Issuer):
    """Issues a rank's role as captured graphs; arguments as of ``Issuer``, and ``keep``, whether gradients are."""

    def __init__(self, *arguments: Any, keep: bool = True, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._keep = keep
        self._done: dict[int, Any] | None = None
        self._captured: dict[int, Captured] = {}
        self._tails: dict[int, Any] = {}
        self._constants: Kept = {}
        self._pool = self._module.graph_pool_handle()
        self._launches = self._module.Stream(self._device.name)
        self._needed = {need for slot in self.slots for need in slot.needs}
        self._live = set(self._live_instances())

    def issue(self, step: int) -> None:
        """Issue a step; the device need not have begun the one before."""
        if step < WARM:
            with constants(self._constants, again=False):
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
        self._module.synchronize(self._device.name)
        self.memory.over(step - 1)
        with self._module.stream(self._copies):
            inputs = self.memory.feed(step)
            number = torch.full((), self.start.first + step, dtype=torch.float64, device=self._device.name)
        self._launches.wait_stream(self._copies)
        graph, before, computation = self._graph(), self.memory.instances(), self.computation
        event = self._module.Event
        marks = Marks.of(len(self.slots), lambda: event(enable_timing=True, external=True))
        # Whether a replay is the last is not known when it is captured.
        last, computation.remembered = computation.remembered, None if self._keep else -1
        gradients, computation.gradients = computation.gradients, {}
        self._done = {slot: event() for slot in self._needed}
        try:
            # Other threads may ask devices for what they like meanwhile.
            with (
                constants(self._constants, again=True),
                self._module.graph(graph, self._pool, self._launches, capture_error_mode='thread_local'),
            ):
                self._fork_and_join(step, marks, number)
                for moved, place in self.memory.restored(before, self._live):
                    place.copy_(moved)
        finally:
            self._done = None
            computation.remembered = last
        self.memory.over(step)
        found, computation.gradients = computation.gradients, gradients
        return Captured(graph, marks, inputs, number, computation.losses.pop(step, {}), found)

    def _graph(self) -> Any:
        return getattr(self._module, self._device.kind.graphs)()

    def _fork_and_join(self, step: int, marks: Marks, number: torch.Tensor) -> None:
        """Issue the ops to their streams, all of which leave the launching one and come back to it."""
        for stream in self.streams:
            stream.wait_stream(self._launches)
        self._issue(step, marks, replace(self.computation.where, step=number))
        for stream in self.streams:
            self._launches.wait_stream(stream)

    def _wait_for_needs(self, slot: Slot, stream: Any, marks: Marks) -> None:
        """Inside of a graph events are its own; what the step before has left is met by its end."""
        if self._done is None:
            super()._wait_for_needs(slot, stream, marks)
            return
        for need in slot.needs:
            stream.wait_event(self._done[need])

    def _recorded(self, slot: Slot, stream: Any, marks: Marks) -> None:
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
