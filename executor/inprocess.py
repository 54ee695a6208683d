"""The in-process machine: all ranks of a program in one process, collectives as tensor arithmetic.

It keeps the semantics of every machine, time aside: streams are in order, an op starts when its needs have finished, a
collective when its last participant has arrived, and steps follow one another without a barrier.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from executor.draws import single_thread
from executor.kernels import LOSSES, Bound, Context, bind, context, kernel
from executor.ranks.memory import Memory
from executor.state import Result
from executor.tensors import Packing, all_gather, all_reduce, all_to_all, as_named, assemble, reduce_scatter
from executor.validate import dims_of, exchange_of
from simpar.errors import Deadlock, ProgramError
from simpar.program import OpClass, Partition, Program, Role
from simpar.program.op import COLLECTIVES
from simpar.trace import Trace

Messages = Sequence[list[torch.Tensor]]
Place = tuple[object, ...]


def seat(op: OpClass, stream: str, partition: Partition, rank: int) -> tuple[Place, int, int]:
    """Return where a communication's participants meet, this rank's seat there, and the number of seats.

    A communicator is a partition and a stream; a send meets its receive on the way from one position to the other.
    """
    group, position = partition.place(rank)
    place = (partition.name, stream, group)
    peer = (position + op.peer) % partition.size
    if op.kind == 'send':
        return (*place, position, peer), 0, 2
    if op.kind == 'recv':
        return (*place, peer, position), 1, 2
    return place, position, partition.size


def communicate(ops: Sequence[OpClass], messages: Messages) -> list[list[torch.Tensor]]:
    """Carry out a communication; return what every participant gets, by seat.

    Raises: ProgramError where the participants are in different collectives or bring tensors of different shapes.
    """
    op = ops[0]
    if op.kind == 'send':
        # A copy: ranks of this process must not share memory, as ranks of two processes do not.
        return [[], [tensor.clone() for tensor in messages[0]]]
    for other, message in zip(ops, messages, strict=True):
        # Real ranks would hang or get wrong numbers here without any error.
        if _form(other, message) != _form(op, messages[0]):
            raise ProgramError(
                f'ranks meet in different collectives: {op.name} {_form(op, messages[0])} and '
                f'{other.name} {_form(other, message)}'
            )
    if op.operator == 'all_reduce':
        return all_reduce(messages, op.reduce)
    if op.operator == 'all_to_all':
        return _by_seat([all_to_all(tensors, *exchange_of(op)) for tensors in zip(*messages, strict=True)])
    if op.operator == 'send_recv':
        # From the one before; a copy, as of a send.
        return [[tensor.clone() for tensor in messages[seat - 1]] for seat in range(len(messages))]
    several = list(zip(zip(*messages, strict=True), dims_of(op), strict=True))
    if op.operator == 'all_gather':
        return _by_seat([all_gather(shards, dim) for shards, dim in several])
    if op.operator == 'reduce_scatter':
        return _by_seat([reduce_scatter(fulls, dim, op.reduce) for fulls, dim in several])
    raise ProgramError(f'{op.name}: no collective is called {op.operator!r}; there are {", ".join(COLLECTIVES)}')


def _by_seat(results: Sequence[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Results by tensor and seat as results by seat and tensor."""
    return [list(tensors) for tensors in zip(*results, strict=True)]


def _form(op: OpClass, message: list[torch.Tensor]) -> tuple[object, ...]:
    """What all participants must agree on."""
    along = tuple(op.attributes.get(key) for key in ('dim', 'joins', 'cuts', 'sizes'))
    return (op.operator, op.reduce, along, *(tuple(tensor.shape) for tensor in message))


# The in-process machine: all ranks of a program in one process, collectives as tensor arithmetic.


class _Slot(NamedTuple):
    """One slot of a role, its arrays read out."""

    position: int
    op: OpClass
    part: tuple[int, int]
    needs: tuple[int, ...]
    carried: tuple[int, ...]
    action: str


@dataclass(slots=True, eq=False)
class _Walker:
    """One stream of one rank: walks its slots, step after step."""

    rank: int
    stream: str
    slots: list[_Slot]
    step: int = 0
    at: int = 0
    parked: bool = False
    head: _Slot = field(init=False)

    def __post_init__(self) -> None:
        self.head = self.slots[0]

    def go_on(self) -> None:
        self.parked = False
        self.at += 1
        if self.at == len(self.slots):
            self.step, self.at = self.step + 1, 0
        self.head = self.slots[self.at]


class InProcess:
    """Runs a program with real tensors.

    Arguments:
        seed: the seed of weights and inputs.
        dtype: takes the place of every floating dtype; None keeps the program's own.
        trace: a trace; the ops run in the order of its last step.
        shuffle: a seed for a random one of the orders that needs and streams allow, which must give the same bits.
        first: the number of the first step, where a training goes on.
    Neither: every stream in turn, as far as it goes.
    """

    def __init__(
        self,
        program: Program,
        seed: int = 0,
        dtype: torch.dtype | None = torch.float64,
        *,
        trace: Trace | None = None,
        shuffle: int | None = None,
        first: int = 0,
    ) -> None:
        ranks = range(program.world)
        slots = {role.name: _slots(program, role) for role in program.roles}
        self._program = program
        self._first = first
        self._memory = [Memory(program, rank, seed, dtype) for rank in ranks]
        self._contexts = [context(program, rank) for rank in ranks]
        self._finished = [[0] * len(program.role(rank)) for rank in ranks]
        self._walkers = [
            _Walker(rank, stream, of) for rank in ranks for stream, of in slots[program.role(rank).name].items() if of
        ]
        self._bound: dict[str, Bound] = {
            # Bound once for each op class: looking up shapes at every slot would take longer than small kernels.
            op.name: bind(program, op, kernel(op), dtype)
            for op in program.op_classes
            if op.kind == 'compute'
        }
        self._packing = {op.name: Packing.of(program, op) for op in program.op_classes if op.kind == 'collective'}
        self._seats: dict[tuple[str, str, int], tuple[Place, int, int]] = {}
        self._waiting: dict[Place, dict[int, _Walker]] = {}
        self._trace = trace
        self._random = None if shuffle is None else random.Random(shuffle)
        self._steps = 0
        self._losses: dict[int, dict[tuple[str, int, int], dict[int, torch.Tensor]]] = {}
        self._gradients: list[dict[str, torch.Tensor]] = [{} for _ in ranks]

    def run(self, steps: int = 1) -> Result:
        """Train ``steps`` more steps.

        Raises: Deadlock where no stream can go on; ProgramError where an op reads what is not there or ranks meet in
        different collectives; NumericsWrong where replicas of a tensor differ.
        """
        first, self._steps = self._steps, self._steps + steps
        # Backward ops are part of the program, so autograd would only hold memory.
        with torch.no_grad(), single_thread():
            if self._trace is None:
                self._take_turns()
            else:
                self._follow(self._trace, steps)
        parameters = [tensor.name for tensor in self._program.tensors if tensor.kind == 'parameter']
        gradients = dict.fromkeys(name for of in self._gradients for name in of)
        return Result(
            losses=tuple(self._loss(step) for step in range(first, self._steps)),
            parameters=self._named({name: self._held(name) for name in parameters}),
            gradients=self._named(
                {name: {rank: of[name] for rank, of in enumerate(self._gradients) if name in of} for name in gradients}
            ),
        )

    @property
    def held(self) -> list[dict[str, torch.Tensor]]:
        """Parameters and states of every rank, the very tensors."""
        return [memory.held for memory in self._memory]

    # order

    def _take_turns(self) -> None:
        going = self._walkers[:]
        while going := [walker for walker in going if walker.step < self._steps]:
            # One op at a time, so that the shuffle decides every choice.
            if self._random is not None:
                self._random.shuffle(going)
            # A whole round in which no stream moved: nothing will ever change.
            if sum(map(self._advance, going)) == 0:
                raise Deadlock(f'no stream can go on:\n{self._draw(going)}')

    def _follow(self, trace: Trace, steps: int) -> None:
        walkers = {(walker.rank, walker.stream): walker for walker in self._walkers}
        starts = [
            (span.start, span.end, span.slot, rank, span.stream)
            for rank in range(self._program.world)
            for span in trace.spans(rank)
        ]
        # By start, then end: an op of no duration comes before the one that follows it at the same moment.
        for *_, slot, rank, stream in sorted(starts) * steps:
            walker = walkers[rank, stream]
            # A trace that breaks its program's needs is wrong, even if the numbers came out right.
            if walker.head.position != slot or not self._ready(walker):
                raise ProgramError(f'the trace starts an op before it may:\n{self._draw([walker])}')
            self._start(walker)

    def _advance(self, walker: _Walker) -> int:
        """Advance one stream as far as it goes; return how many ops it has started."""
        moved = 0
        while walker.step < self._steps and self._ready(walker):
            moved += 1
            self._start(walker)
            if self._random is not None:
                break
        return moved

    def _ready(self, walker: _Walker) -> bool:
        if walker.parked:
            return False
        finished, head, step = self._finished[walker.rank], walker.head, walker.step
        for need in head.needs:
            if finished[need] <= step:
                return False
        return all(finished[need] >= step for need in head.carried)

    def _missing(self, walker: _Walker) -> list[int]:
        """The slots that the head of a stream still needs."""
        finished, head, step = self._finished[walker.rank], walker.head, walker.step
        missing = [need for need in head.needs if finished[need] <= step]
        return missing + [need for need in head.carried if finished[need] < step]

    # ops

    def _start(self, walker: _Walker) -> None:
        """Run the op at the head of a stream, or wait in it for the other participants."""
        op = walker.head.op
        if op.kind == 'compute':
            self._finish(walker, self._bound[op.name](self._context(walker), self._read(walker)))
            return
        place, own, seats = self._seat(walker)
        present = self._waiting.setdefault(place, {})
        present[own] = walker
        # The stream stays in its op until all are there, as a blocking call does.
        walker.parked = True
        if len(present) == seats:
            del self._waiting[place]
            walkers = [present[seat] for seat in range(seats)]
            read = [self._packed(walker) for walker in walkers]
            results = communicate([walker.head.op for walker in walkers], read)
            for participant, result in zip(walkers, results, strict=True):
                packing = self._packing.get(participant.head.op.name)
                self._finish(participant, packing.unpacked(result) if packing else result)

    def _seat(self, walker: _Walker) -> tuple[Place, int, int]:
        op = walker.head.op
        key = (op.name, walker.stream, walker.rank)
        if key not in self._seats:
            self._seats[key] = seat(op, walker.stream, self._program.partitions[op.partition], walker.rank)
        return self._seats[key]

    def _read(self, walker: _Walker) -> list[torch.Tensor]:
        return self._memory[walker.rank].read(walker.head.op, *walker.head.part, self._first + walker.step)

    def _packed(self, walker: _Walker) -> list[torch.Tensor]:
        packing = self._packing.get(walker.head.op.name)
        return packing.packed(self._read(walker)) if packing else self._read(walker)

    def _finish(self, walker: _Walker, results: list[torch.Tensor]) -> None:
        memory, head = self._memory[walker.rank], walker.head
        # Kept before freeing, since the op that writes a loss may also free it.
        # What is made again in the backward counted in the forward.
        if head.op.part == 'F' and head.op.operator in LOSSES:
            shards = self._losses.setdefault(walker.step, {})
            shards.setdefault((head.op.writes[0], *head.part), {})[walker.rank] = results[0]
        # The update reads its gradients, and may free them right after.
        if head.op.phase == 'U' and walker.step == self._steps - 1:
            self._remember_gradients(walker.rank, head.op)
        memory.keep(head.op, *head.part, results)
        memory.free(head.op, *head.part)
        self._finished[walker.rank][head.position] += 1
        walker.go_on()

    def _remember_gradients(self, rank: int, op: OpClass) -> None:
        for name in op.reads:
            if self._program.tensor[name].kind == 'gradient':
                self._gradients[rank][name] = self._memory[rank][name, -1, -1].clone()

    def _context(self, walker: _Walker) -> Context:
        step = self._first + walker.step
        if self._contexts[walker.rank].step != step:
            # Streams of a rank are rarely in different steps, so one context a rank is enough.
            self._contexts[walker.rank] = replace(self._contexts[walker.rank], step=step)
        return self._contexts[walker.rank].at(*walker.head.part)

    # answers

    def _loss(self, step: int) -> float:
        """The sum over micro-batches, copies and the shards that ranks hold."""
        return sum(
            float(self._full(name, dict(sorted(shards.items()))).sum())
            for (name, _, _), shards in self._losses.pop(step, {}).items()
        )

    def _held(self, name: str) -> dict[int, torch.Tensor]:
        return {
            rank: memory[name, -1, -1] for rank, memory in enumerate(self._memory) if self._program.holds(rank, name)
        }

    def _named(self, shares: dict[str, dict[int, torch.Tensor]]) -> dict[str, torch.Tensor]:
        named = as_named(self._program, shares)
        return {name: assemble(self._program, tensor, held) for name, (tensor, held) in named.items()}

    def _full(self, name: str, shards: dict[int, torch.Tensor]) -> torch.Tensor:
        return assemble(self._program, self._program.tensor[name], shards)

    def _draw(self, walkers: Iterable[_Walker]) -> str:
        return '\n'.join(
            f'  rank {walker.rank} {walker.stream}: {walker.head.action}, step {walker.step}, '
            f'waits for {self._waits_for(walker)}'
            for walker in sorted(walkers, key=lambda walker: (walker.rank, walker.stream))
        )

    def _waits_for(self, walker: _Walker) -> str:
        if walker.parked:
            place, _, seats = self._seat(walker)
            empty = [str(seat) for seat in range(seats) if seat not in self._waiting[place]]
            return f'position {", ".join(empty)} of its {walker.head.op.partition} group'
        action = {slot.position: slot.action for of in self._walkers if of.rank == walker.rank for slot in of.slots}
        return ', '.join(action[need] for need in self._missing(walker)) or 'its turn'


def _slots(program: Program, role: Role) -> dict[str, list[_Slot]]:
    """Slots by stream."""
    needs, carried = role.needs(), role.carried()
    streams: dict[str, list[_Slot]] = {stream: [] for stream in role.streams}
    for index, stream in enumerate(role.stream.tolist()):
        part = (int(role.micro_batch[index]), int(role.copy[index]))
        slot = _Slot(index, program.op(role, index), part, needs[index], carried[index], program.action(role, index))
        streams[role.streams[stream]].append(slot)
    return streams
