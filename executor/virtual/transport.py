"""All ranks of a program on virtual accelerators of this process, and the collectives among them.

As with NCCL, a collective holds its stream until all its ranks have come to it, and the collectives of one device run
one after the other, in the order in which its host issued them: so ranks that issue two communicators in different
orders wait for each other for ever, and are found.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from executor.devices.issue import ISSUERS
from executor.devices.open import open_device
from executor.draws import single_thread
from executor.ranks.collectives import Messages
from executor.ranks.real import Start
from executor.ranks.request import Outcome, Request
from executor.ranks.transports import Transport
from executor.state import Execution, assemble_run
from executor.tensors import all_reduce
from executor.validate import communicators
from executor.virtual.engine import Queue, Task, Touch, state
from executor.virtual.tensor import VirtualTensor, touches
from executor.walk import Slot
from simpar.errors import ProgramError
from simpar.program import Program, instance

Cells = list[torch.Tensor]
Work = Callable[[list[Cells]], list[Cells]]
"""What ranks get of what they bring, by position."""


@dataclass(slots=True, eq=False)
class Seat:
    """One rank's part in a meeting: its task, and what it brings and gets."""

    form: tuple[object, ...]
    brings: Cells
    gets: Cells
    queue: Queue
    task: Task | None = None

    @property
    def there(self) -> bool:
        """Whether its stream has come to it, and its device has no collective before it."""
        lane = state.lanes[self.queue.device]
        at_head = bool(self.queue.tasks) and self.queue.tasks[0] is self.task
        return at_head and bool(lane) and lane[0] is self


@dataclass(slots=True, eq=False)
class Message:
    """A send or its receive: the task that has it, and its memory; ``done``: the other end has it."""

    cells: torch.Tensor
    queue: Queue
    task: Task | None = None
    done: bool = False

    @property
    def there(self) -> bool:
        """Whether its stream has come to it."""
        return bool(self.queue.tasks) and self.queue.tasks[0] is self.task


@dataclass(slots=True, eq=False)
class Communicator:
    """What the ranks of one group share for one stream."""

    name: str
    size: int
    meetings: dict[int, dict[int, Seat]] = field(default_factory=dict)
    issued: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    sent: dict[tuple[int, int], deque[Message]] = field(default_factory=lambda: defaultdict(deque))
    wanted: dict[tuple[int, int], deque[Message]] = field(default_factory=lambda: defaultdict(deque))


@dataclass(frozen=True, slots=True)
class VirtualTransport:
    """One rank's end of a communicator.

    Arguments: ``device``, its virtual accelerator.
    """

    communicator: Communicator
    position: int
    device: torch.device

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self.communicator.size

    def all_reduce(self, flat: torch.Tensor, reduce: str) -> None:
        """Reduce a flat tensor in place."""
        self._meet('all_reduce', reduce, [flat], [flat], lambda brought: all_reduce(brought, reduce))

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """The flat tensors of all ranks, by position."""
        gathered = own.new_empty((self.size, own.numel()))
        self._meet('all_gather', '', [own], [gathered], _gathered)
        return gathered

    def reduce_scatter(self, chunks: list[torch.Tensor], reduce: str) -> torch.Tensor:
        """The reduced chunk of this rank's position."""
        own = torch.empty_like(chunks[self.position])
        self._meet('reduce_scatter', reduce, chunks, [own], lambda brought: _scattered(brought, reduce))
        return own

    def all_to_all(self, chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The chunks that all ranks have for this one, by position."""
        received = [torch.empty_like(chunks[self.position]) for _ in chunks]
        self._meet('all_to_all', '', list(chunks), received, _exchanged)
        return received

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Send and receive at once, as one batch."""
        shared, mine, what = self.communicator, self.position, f'a message on {self.communicator.name}'
        touched = touches([tensor for tensor, _ in sends], [tensor for tensor, _ in receives])
        out, into = ([(_cells(tensor), peer) for tensor, peer in messages] for messages in (sends, receives))

        def put(queue: Queue) -> None:
            queue.touch_all(touched, what)
            ends = [(shared.sent[mine, peer], shared.wanted[mine, peer], cells) for cells, peer in out]
            ends += [(shared.wanted[peer, mine], shared.sent[peer, mine], cells) for cells, peer in into]
            messages = [_posted(*end, queue) for end in ends]

            def ready() -> bool:
                for index, (message, peer_of) in enumerate(messages):
                    other = None if message.done else peer_of()
                    # Each pair of a batch goes on its way when both its ends are there.
                    if other is not None and other.there:
                        source, target = (message, other) if index < len(out) else (other, message)
                        _copy(source, target, shared.name)
                return all(message.done for message, _ in messages)

            task = queue.put(what, lambda: None, ready)
            for message, _ in messages:
                message.task = task

        state.current_queue(self.device).whenever(put)

    def _meet(self, kind: str, reduce: str, brings: Cells, gets: Cells, work: Work) -> None:
        """A collective of all ranks."""
        shared, touched, what = self.communicator, touches(brings, gets), f'{kind} on {self.communicator.name}'
        form = (kind, reduce, sum(tensor.numel() for tensor in brings))
        own, results = ([_cells(tensor) for tensor in tensors] for tensors in (brings, gets))

        def put(queue: Queue) -> None:
            queue.touch_all(touched, what)
            number = shared.issued[self.position]
            shared.issued[self.position] += 1
            seat = Seat(form, own, results, queue)
            seats = shared.meetings.setdefault(number, {})
            seats[self.position] = seat
            state.lanes[queue.device].append(seat)

            def ready() -> bool:
                return number not in shared.meetings or (
                    len(seats) == shared.size and all(seat.there for seat in seats.values())
                )

            def run() -> None:
                if shared.meetings.pop(number, None) is not None:
                    _carry([seats[position] for position in range(shared.size)], work, shared.name)

            seat.task = queue.put(what, run, ready)

        state.current_queue(self.device).whenever(put)


def _carry(seats: list[Seat], work: Work, name: str) -> None:
    """Carry out a collective. Arguments: ``seats``, by position."""
    for seat in seats:
        if seat.form != seats[0].form:
            raise ProgramError(f'ranks meet in different collectives on {name}: {seats[0].form} and {seat.form}')
    for seat, brought in zip(seats, work([seat.brings for seat in seats]), strict=True):
        for target, result in zip(seat.gets, brought, strict=True):
            target.copy_(result)
        state.lanes[seat.queue.device].popleft()


def _posted(
    mine: deque[Message], theirs: deque[Message], cells: torch.Tensor, queue: Queue
) -> tuple[Message, Callable[[], Message | None]]:
    """A message at the end of its way, and what finds its other end."""
    message = Message(cells, queue)
    mine.append(message)

    def other() -> Message | None:
        # Those that are through leave from the front, so equal places belong together.
        while mine and theirs and mine[0].done and theirs[0].done:
            mine.popleft()
            theirs.popleft()
        place = mine.index(message)
        return theirs[place] if place < len(theirs) else None

    return message, other


def _copy(source: Message, target: Message, name: str) -> None:
    if source.cells.numel() != target.cells.numel():
        sizes = f'{source.cells.numel()} elements meets a receive of {target.cells.numel()}'
        raise ProgramError(f'a message of {sizes} on {name}')
    target.cells.copy_(source.cells)
    source.done = target.done = True


def _gathered(brought: list[Cells]) -> list[Cells]:
    return [[torch.stack([own for (own,) in brought])] for _ in brought]


def _exchanged(brought: list[Cells]) -> list[Cells]:
    return [list(chunks) for chunks in zip(*brought, strict=True)]


def _scattered(brought: list[Cells], reduce: str) -> list[Cells]:
    return [all_reduce([[chunks[place]] for chunks in brought], reduce)[0] for place in range(len(brought))]


def _cells(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, VirtualTensor)
    return tensor.cells


# All ranks of a program on virtual accelerators of this process, each issued by a host of its own.


class VirtualWorld:
    """A program on virtual accelerators.

    Arguments:
        order: a seed for the order in which streams run; None: they take turns.
        held: of each rank, what the stretch before has left; None, as the seed draws them.
    """

    def __init__(
        self,
        program: Program,
        request: Request,
        order: int | None = None,
        held: Sequence[Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        open_device('virtual')
        self.engine = state.reset(order)
        self._program = program
        self._steps = request.steps
        transports = _transports(program)
        with single_thread():
            self.ranks = [
                ISSUERS[request.issue](
                    Start.of(program, rank, request, held[rank] if held else None),
                    open_device('virtual', rank),
                    transports[rank],
                    watch=self._touch(rank),
                )
                for rank in range(program.world)
            ]
        for number, rank in enumerate(self.ranks):
            for stream, name in zip(rank.streams, program.role(number).streams, strict=True):
                stream.queue.name = f'{name} of rank {number}'

    def run(self, *, keep: bool = True) -> Execution:
        """Train all steps.

        Arguments: ``keep``, whether parameters and gradients come back.

        Raises ``Race`` where memory or a tensor was used without the events that this needs, ``Deadlock`` where no
        stream could go on, ``ProgramError`` where ranks met in different collectives.
        """
        return self.train(0, self._steps, keep=keep)

    def train(self, first: int, count: int, *, keep: bool = True) -> Execution:
        """Train some steps from number ``first`` on; see ``run``."""
        steps = range(first, first + count)
        with single_thread():
            for rank in self.ranks:
                rank.begin(self.engine.now, steps[-1])
            zero = self.engine.now()
            for step in steps:
                self._issue(step)
            for rank in self.ranks:
                rank.finish()
            self.engine.races.check()
            outcomes = [
                Outcome(
                    arrive_KS=rank.arrive_KS[first : steps.stop] - zero,
                    end_KS=rank.end_KS[first : steps.stop] - zero,
                    losses=[rank.computation.losses[step] for step in steps],
                    parameters=rank.computation.parameters() if keep else {},
                    gradients=rank.computation.gradients if keep else {},
                )
                for rank in self.ranks
            ]
        return assemble_run(self._program, outcomes, 'real')

    def _issue(self, step: int) -> None:
        """Every host issues the step, none of them waiting for anything in it."""
        for rank in self.ranks:
            rank.keep_near(step)
            state.issuing = True
            rank.issue(step)
            state.issuing = False

    def _touch(self, rank: int) -> Any:
        """What the program's tensors are used for, held against the events as memory is."""
        program = self._program

        def watch(slot: Slot, step: int, stream: Any) -> None:
            op, touches = slot.op, []
            for name in dict.fromkeys((*op.reads, *op.writes, *op.accumulates, *op.frees)):
                tensor = program.tensor[name]
                writes = name in op.writes or name in op.accumulates or name in op.frees
                place = (rank, *instance(tensor, *slot.part))
                touches.append(Touch(place, 0, 1, writes))
            what = f'the tensors of {op.name}'
            stream.queue.whenever(lambda queue: queue.touch_all(touches, what))

        return watch


def _transports(program: Program) -> list[dict[tuple[str, str], Transport]]:
    """For each rank its end of every communicator."""
    found: list[dict[tuple[str, str], Transport]] = [{} for _ in range(program.world)]
    for partition, stream in communicators(program):
        for members in partition.groups_GP.tolist():
            shared = Communicator(f'{partition.name} on {stream}, ranks {members}', len(members))
            for position, rank in enumerate(members):
                found[rank][partition.name, stream] = VirtualTransport(shared, position, torch.device('virtual', rank))
    return found
