"""One rank's host that issues a step by one call: the step's ops are captured into a graph, which is then replayed.

The first step is issued op by op; what libraries set up, they set up then. The next ``AHEAD`` steps are captured, each
into a graph with inputs, events and losses of its own, and the graphs take turns: so the host may read what one has
left while the other runs. All share one pool of memory. A step's graph begins when the one before has ended: what a
program carries from step to step is met by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from executor.devices.issue import AHEAD, Issuer, Marks
from executor.draws import Kept, constants
from simpar.program.touches import Instance, instance

WARM: Final = 1
"""Steps that are issued op by op."""


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A step in a graph.

    Arguments:
        inputs: where it reads its inputs, in the order of ``DeviceMemory.shards``.
        number: the step's number in the whole training, on the device.
        gradients: clones of those that are kept.
    """

    graph: Any
    marks: Marks
    inputs: list[torch.Tensor]
    number: torch.Tensor
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)


class GraphIssuer(Issuer):
    """Issues a rank's role as captured graphs; arguments as of ``Issuer``, and ``keep``, whether gradients are."""

    def __init__(self, *arguments: Any, keep: bool = True, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._keep = keep
        self._capturing = False
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
            losses = {part: loss.clone() for part, loss in one.marks.losses.items()}
            if step == self._last:
                self.gradients = {name: gradient.clone() for name, gradient in one.gradients.items()}
            tail = self._tails[step] = self._module.Event(enable_timing=True)
            tail.record(self._launches)
        self._marks[step] = replace(one.marks, losses=losses)

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

    def _remembers(self, step: int) -> bool:
        # Whether a replay is the last is not known when it is captured.
        return self._keep if self._capturing else super()._remembers(step)

    def _capture(self, step: int) -> Captured:
        """The step's ops as a graph, which has not run yet."""
        # Once for each graph: from here on no memory of the steps before is in use but what lives on.
        self._module.synchronize(self._device.name)
        self.memory.over(step - 1)
        with self._module.stream(self._copies):
            inputs = self.memory.feed(step)
            number = torch.full((), self._first + step, dtype=torch.float64, device=self._device.name)
        self._launches.wait_stream(self._copies)
        graph, before, self.gradients = self._graph(), self.memory.instances(), {}
        self._capturing = True
        try:
            # Other threads may ask devices for what they like meanwhile.
            with (
                constants(self._constants, again=True),
                self._module.graph(graph, self._pool, self._launches, capture_error_mode='thread_local'),
            ):
                marks = self._fork_and_join(step, number)
                for moved, place in self.memory.restored(before, self._live):
                    place.copy_(moved)
        finally:
            self._capturing = False
        self.memory.over(step)
        return Captured(graph, marks, inputs, number, self.gradients)

    def _graph(self) -> Any:
        return getattr(self._module, self._device.kind.graphs)()

    def _fork_and_join(self, step: int, number: torch.Tensor) -> Marks:
        """Issue the ops to their streams, all of which leave the launching one and come back to it."""
        event = self._module.Event
        begin, end = ([event(enable_timing=True, external=True) for _ in self.slots] for _ in range(2))
        marks, done = Marks(begin, end, set(), {}), {slot: event() for slot in self._needed}
        where = replace(self._context, step=number)
        for stream in self.streams:
            stream.wait_stream(self._launches)
        with torch.no_grad():
            for slot in self.slots:
                stream, self.at = self.streams[slot.stream], slot.position
                for need in slot.needs:
                    stream.wait_event(done[need])
                self.memory.at(step, slot.position, slot.stream)
                with self._module.stream(stream):
                    begin[slot.position].record(stream)
                    if self._watch is not None:
                        self._watch(slot, step, stream)
                    self._run(slot, step, where.at(*slot.part), marks)
                    if slot.position in done:
                        done[slot.position].record(stream)
                    end[slot.position].record(stream)
                    marks.issued.add(slot.position)
        for stream in self.streams:
            self._launches.wait_stream(stream)
        return marks

    def _feed_again(self, step: int, one: Captured) -> None:
        """Copy a step's inputs to where its graph reads them; the host knows that its last replay is over."""
        with self._module.stream(self._copies):
            for (_, shard), place in zip(self.memory.shards(step), one.inputs, strict=True):
                place.copy_(shard, non_blocking=True)
            one.number.fill_(self._first + step)
        self._launches.wait_stream(self._copies)

    def _live_instances(self) -> Iterator[Instance]:
        """What a step finds and needs: all that it does not write before it uses it."""
        seen = set[Instance]()
        for slot in self.slots:
            op = slot.op
            for names, uses in ((op.reads, True), (op.accumulates, True), (op.writes, False), (op.frees, True)):
                for name in names:
                    key = instance(self._program.tensor[name], *slot.part)
                    if uses and key not in seen:
                        yield key
                    seen.add(key)


ISSUERS: Final[dict[str, type[Issuer]]] = {'eager': Issuer, 'graph': GraphIssuer}
"""How steps are issued."""
