"""All ranks of a program on virtual accelerators of this process, and the collectives among them.

As with NCCL, a collective holds its stream until all its ranks have come to it, and the collectives of one device run
one after the other, in the order in which its host issued them: so ranks that issue two communicators in different
orders wait for each other for ever, and are found.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from executor import draws, validate, walk
from executor.devices import issue
from executor.devices.open import open_device
from executor.ranks import collectives, real
from executor.state import Execution, Outcome, Request, assemble_run
from executor.tensors import all_reduce
from executor.virtual.engine import Queue, Task, Touch, state
from executor.virtual.tensor import VirtualTensor, touches
from simpar.errors import ProgramError
from simpar.program import Program, instance

Cells = list[torch.Tensor]
Work = Callable[[list[Cells]], list[Cells]]
"""What ranks get of what they bring, by position."""


@dataclass(slots=True, eq=False)
class Seat:
    """One rank's part in a meeting: its task, what it brings and gets, and the ``form`` that all must have alike."""

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
    """A message: memory, stream and task of its source, 0, and of its target, 1, once each has come so far."""

    cells: dict[int, torch.Tensor] = field(default_factory=dict)
    queues: dict[int, Queue] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)
    done: bool = False

    def pass_on(self, name: str) -> None:
        """Copy it as soon as the streams of both its ends have come to it."""
        heads = (queue.tasks[0] is self.tasks.get(end) for end, queue in self.queues.items() if queue.tasks)
        if self.done or sum(heads) < 2:
            return
        sent, wanted = (f'{self.cells[end].numel()} elements of {self.cells[end].dtype}' for end in (0, 1))
        if sent != wanted:
            raise ProgramError(f'a message of {sent} meets a receive of {wanted} on {name}')
        self.cells[1].copy_(self.cells[0])
        self.done = True


@dataclass(slots=True, eq=False)
class Communicator:
    """What the ranks of one group share for one stream.

    Arguments: ``there``, the positions whose ranks are issued at all; others do as these do.
    """

    name: str
    size: int
    there: frozenset[int]
    meetings: dict[int, dict[int, Seat]] = field(default_factory=dict)
    issued: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    posted: dict[tuple[int, int, int], int] = field(default_factory=lambda: defaultdict(int))
    halves: dict[tuple[int, int, int], Message] = field(default_factory=dict)

    def post(self, source: int, target: int, end: int) -> Message:
        """The next message on this way as one of its ends has it."""
        number = self.posted[source, target, end]
        self.posted[source, target, end] += 1
        message = self.halves.pop((source, target, number), None)
        if message is None:
            message = self.halves[source, target, number] = Message()
        return message


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
        self.meet('all_reduce', reduce, [flat], [flat], lambda brought: all_reduce(brought, reduce))

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """The flat tensors of all ranks, by position."""
        all_of = own.new_empty((self.size, own.numel()))
        self.meet(
            'all_gather', '', [own], [all_of], lambda brought: [[torch.stack([of for (of,) in brought])]] * self.size
        )
        return all_of

    def reduce_scatter(self, chunks: list[torch.Tensor], reduce: str) -> torch.Tensor:
        """The reduced chunk of this rank's position."""
        own = torch.empty_like(chunks[self.position])

        def sums(brought: list[Cells]) -> list[Cells]:
            return [all_reduce([[of[at]] for of in brought], reduce)[0] for at in range(self.size)]

        self.meet('reduce_scatter', reduce, chunks, [own], sums)
        return own

    def all_to_all(self, chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The chunks that all ranks have for this one, by position."""
        received = [torch.empty_like(chunks[self.position]) for _ in chunks]
        self.meet('all_to_all', '', list(chunks), received, lambda brought: list(map(list, zip(*brought, strict=True))))
        return received

    def exchange(self, sends: collectives.Messages, receives: collectives.Messages) -> None:
        """Send and receive at once, as one batch."""
        shared, mine, what = self.communicator, self.position, f'a message on {self.communicator.name}'
        sends, receives = ([one for one in messages if one[1] in shared.there] for messages in (sends, receives))
        touched = touches([tensor for tensor, _ in sends], [tensor for tensor, _ in receives])
        out, into = ([(_cells(tensor), peer) for tensor, peer in messages] for messages in (sends, receives))

        def put(queue: Queue) -> None:
            queue.touch_all(touched, what)
            ends = [(0, shared.post(mine, peer, 0), cells) for cells, peer in out]
            ends += [(1, shared.post(peer, mine, 1), cells) for cells, peer in into]
            for end, message, cells in ends:
                message.cells[end], message.queues[end] = cells, queue

            def ready() -> bool:
                for _, message, _ in ends:
                    # Each pair of a batch goes on its way when both its ends are there.
                    message.pass_on(shared.name)
                return all(message.done for _, message, _ in ends)

            task = queue.put(what, lambda: None, ready)
            for end, message, _ in ends:
                message.tasks[end] = task

        state.current_queue(self.device).whenever(put)

    def meet(self, kind: str, reduce: str, brings: Cells, gets: Cells, work: Work) -> None:
        """A collective of all ranks."""
        form = (kind, reduce, sum(tensor.numel() for tensor in brings), brings[0].dtype)
        own, results = ([_cells(tensor) for tensor in tensors] for tensors in (brings, gets))
        self.take_seat(form, touches(brings, gets), own, results, work)

    def take_seat(
        self,
        form: tuple[object, ...],
        touched: Sequence[Touch],
        brings: Cells | None = None,
        gets: Cells | None = None,
        work: Work | None = None,
    ) -> None:
        """The same by its ``form``, kind first. Arguments: ``work``, None where tensors have no numbers."""
        shared, what = self.communicator, f'{form[0]} on {self.communicator.name}'

        def put(queue: Queue) -> None:
            queue.touch_all(touched, what)
            number = shared.issued[self.position]
            shared.issued[self.position] += 1
            seat = Seat(form, brings or [], gets or [], queue)
            seats = shared.meetings.setdefault(number, {})
            seats[self.position] = seat
            state.lanes[queue.device].append(seat)

            def ready() -> bool:
                return number not in shared.meetings or (
                    len(seats) == len(shared.there) and all(seat.there for seat in seats.values())
                )

            def run() -> None:
                if shared.meetings.pop(number, None) is not None:
                    _carry(shared, seats, work)

            seat.task = queue.put(what, run, ready)

        state.current_queue(self.device).whenever(put)


def _carry(shared: Communicator, seats: Mapping[int, Seat], work: Work | None) -> None:
    """Carry out a collective. Arguments: ``seats``, by position."""
    first = seats[min(seats)]
    for seat in seats.values():
        if seat.form != first.form:
            raise ProgramError(f'ranks meet in different collectives on {shared.name}: {first.form} and {seat.form}')
    results = work([seats[position].brings for position in range(shared.size)]) if work else [[]] * shared.size
    for position, seat in seats.items():
        for target, result in zip(seat.gets, results[position], strict=True):
            target.copy_(result)
        state.lanes[seat.queue.device].popleft()


def _cells(tensor: torch.Tensor) -> torch.Tensor:
    """Its numbers; of a dry run's tensor, which has none, its form."""
    if isinstance(tensor, VirtualTensor):
        return tensor.cells
    return torch.empty(tensor.shape, dtype=tensor.dtype, device='meta')


# All ranks of a program on virtual accelerators of this process, each issued by a host of its own.


class VirtualWorld:
    """A program on virtual accelerators.

    Arguments:
        order: a seed for the order in which streams run; None: each as far as it can.
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
        transports = ends_of(program, range(program.world))
        with draws.single_thread():
            self.ranks = [
                issue.ISSUERS[request.issue](
                    real.Start.of(program, rank, request, held[rank] if held else None),
                    open_device('virtual', rank),
                    transports[rank],
                    watch=watch_of(program, rank),
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
        with draws.single_thread():
            for rank in self.ranks:
                rank.begin(self.engine.now, self._steps - 1)
            zero = self.engine.now()
            for step in range(self._steps):
                # Every host issues the step, none of them waiting for anything in it.
                for rank in self.ranks:
                    rank.keep_near(step)
                    state.issuing = True
                    rank.issue(step)
                    state.issuing = False
            for rank in self.ranks:
                rank.finish()
            self.engine.races.check()
            outcomes = [
                Outcome(
                    arrive_KS=rank.arrive_KS - zero,
                    end_KS=rank.end_KS - zero,
                    losses=[rank.computation.losses[step] for step in range(self._steps)],
                    parameters=rank.computation.parameters() if keep else {},
                    gradients=rank.computation.gradients if keep else {},
                )
                for rank in self.ranks
            ]
        return assemble_run(self._program, outcomes, 'real')


def watch_of(program: Program, rank: int) -> issue.Watch:
    """What holds the program's tensors that a rank's ops use against the events, as memory is."""

    def watch(slot: walk.Slot, step: int, stream: Any) -> None:
        op, touches = slot.op, []
        for name in dict.fromkeys((*op.reads, *op.writes, *op.accumulates, *op.frees)):
            tensor = program.tensor[name]
            writes = name in op.writes or name in op.accumulates or name in op.frees
            place = (rank, *instance(tensor, *slot.part))
            touches.append(Touch(place, 0, 1, writes))
        what = f'the tensors of {op.name}'
        stream.queue.whenever(lambda queue: queue.touch_all(touches, what))

    return watch


def ends_of(program: Program, ranks: Sequence[int]) -> list[dict[tuple[str, str], VirtualTransport]]:
    """For each of some ranks its end of every communicator; their devices are numbered as they come."""
    ends: list[dict[tuple[str, str], VirtualTransport]] = [{} for _ in ranks]
    device = {rank: number for number, rank in enumerate(ranks)}
    for partition, stream in validate.communicators(program):
        for members in partition.groups_GP.tolist():
            there = frozenset(position for position, rank in enumerate(members) if rank in device)
            shared = Communicator(f'{partition.name} on {stream}, ranks {members}', len(members), there)
            for position in there:
                number = device[members[position]]
                end = VirtualTransport(shared, position, torch.device('virtual', number))
                ends[number][partition.name, stream] = end
    return ends
