"""The in-process machine: all ranks of a program in one process, collectives as tensor arithmetic.

It keeps the semantics of every machine, time aside: streams are in order, an op starts when its needs have finished, a
collective when its last participant has arrived, and steps follow one another without a barrier.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from executor.kernels import LOSSES, Context, context, kernel
from executor.kernels.bound import Bound, bind
from executor.meeting import Place, communicate, seat
from executor.memory import Memory
from executor.packing import Packing, as_named
from executor.result import Result
from executor.single_thread import single_thread
from executor.tensors import assemble
from simpar.errors import Deadlock, ProgramError
from simpar.program import OpClass, Program, Role
from simpar.trace import Trace


class _Slot(NamedTuple):
    """One slot of a role, its arrays read out."""

    position: int
    op: OpClass
    part: tuple[int, int]
    needs: tuple[int, ...]
    carried: tuple[int, ...]
    action: str


@dataclass(slots=True, eq=False)
class _Lane:
    """One stream of one rank: walks its slots, step after step."""

    rank: int
    stream: str
    slots: list[_Slot]
    step: int = 0
    at: int = 0
    parked: bool = False

    @property
    def head(self) -> _Slot:
        return self.slots[self.at]

    def go_on(self) -> None:
        self.parked = False
        self.at += 1
        if self.at == len(self.slots):
            self.step, self.at = self.step + 1, 0


class InProcess:
    """Runs a program with real tensors.

    Arguments: ``seed`` of weights and inputs; ``dtype`` takes the place of every floating dtype (None: the program's
    own); ``trace``: run the ops in the order of its last step; ``shuffle``: a seed for a random one of the orders that
    needs and streams allow, which must give the same bits. Neither: every stream in turn, as far as it goes.
    """

    def __init__(
        self,
        program: Program,
        seed: int = 0,
        dtype: torch.dtype | None = torch.float64,
        *,
        trace: Trace | None = None,
        shuffle: int | None = None,
    ) -> None:
        ranks = range(program.world)
        slots = {role.name: _slots(program, role) for role in program.roles}
        self._program = program
        self._memory = [Memory(program, rank, seed, dtype) for rank in ranks]
        self._contexts = [context(program, rank) for rank in ranks]
        self._finished = [[0] * len(program.role(rank)) for rank in ranks]
        self._lanes = [
            _Lane(rank, stream, of) for rank in ranks for stream, of in slots[program.role(rank).name].items() if of
        ]
        self._bound: dict[str, Bound] = {
            op.name: bind(program, op, kernel(op), dtype) for op in program.op_classes if op.kind == 'compute'
        }
        self._packing = {op.name: Packing.of(program, op) for op in program.op_classes if op.kind == 'collective'}
        self._seats: dict[tuple[str, str, int], tuple[Place, int, int]] = {}
        self._waiting: dict[Place, dict[int, _Lane]] = {}
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

    # order

    def _take_turns(self) -> None:
        going = self._lanes[:]
        while going := [lane for lane in going if lane.step < self._steps]:
            if self._random is not None:
                self._random.shuffle(going)
            if sum(map(self._advance, going)) == 0:
                raise Deadlock(f'no stream can go on:\n{self._draw(going)}')

    def _follow(self, trace: Trace, steps: int) -> None:
        lanes = {(lane.rank, lane.stream): lane for lane in self._lanes}
        starts = [
            (span.start, span.end, span.slot, rank, span.stream)
            for rank in range(self._program.world)
            for span in trace.spans(rank)
        ]
        for *_, slot, rank, stream in sorted(starts) * steps:
            lane = lanes[rank, stream]
            if lane.head.position != slot or not self._ready(lane):
                raise ProgramError(f'the trace starts an op before it may:\n{self._draw([lane])}')
            self._start(lane)

    def _advance(self, lane: _Lane) -> int:
        """Go on with one stream; how many ops there were to start."""
        moved = 0
        while lane.step < self._steps and self._ready(lane):
            moved += 1
            self._start(lane)
            if self._random is not None:
                break
        return moved

    def _ready(self, lane: _Lane) -> bool:
        return not lane.parked and not self._missing(lane)

    def _missing(self, lane: _Lane) -> list[int]:
        """The slots that the head of a stream still needs."""
        finished, head, step = self._finished[lane.rank], lane.head, lane.step
        missing = [need for need in head.needs if finished[need] <= step]
        return missing + [need for need in head.carried if finished[need] < step]

    # ops

    def _start(self, lane: _Lane) -> None:
        """Run the op at the head of a stream, or wait in it for the other participants."""
        op = lane.head.op
        if op.kind == 'compute':
            self._finish(lane, self._bound[op.name](self._context(lane), self._read(lane)))
            return
        place, own, seats = self._seat(lane)
        present = self._waiting.setdefault(place, {})
        present[own] = lane
        lane.parked = True
        if len(present) == seats:
            del self._waiting[place]
            lanes = [present[seat] for seat in range(seats)]
            read = [self._packed(lane) for lane in lanes]
            results = communicate([lane.head.op for lane in lanes], read)
            for participant, result in zip(lanes, results, strict=True):
                packing = self._packing.get(participant.head.op.name)
                self._finish(participant, packing.unpacked(result) if packing else result)

    def _seat(self, lane: _Lane) -> tuple[Place, int, int]:
        op = lane.head.op
        key = (op.name, lane.stream, lane.rank)
        if key not in self._seats:
            self._seats[key] = seat(op, lane.stream, self._program.partitions[op.partition], lane.rank)
        return self._seats[key]

    def _read(self, lane: _Lane) -> list[torch.Tensor]:
        return self._memory[lane.rank].read(lane.head.op, *lane.head.part, lane.step)

    def _packed(self, lane: _Lane) -> list[torch.Tensor]:
        packing = self._packing.get(lane.head.op.name)
        return packing.packed(self._read(lane)) if packing else self._read(lane)

    def _finish(self, lane: _Lane, results: list[torch.Tensor]) -> None:
        memory, head = self._memory[lane.rank], lane.head
        if head.op.phase == 'F' and head.op.operator in LOSSES:
            pieces = self._losses.setdefault(lane.step, {})
            pieces.setdefault((head.op.writes[0], *head.part), {})[lane.rank] = results[0]
        if head.op.phase == 'U' and lane.step == self._steps - 1:
            self._remember_gradients(lane.rank, head.op)
        memory.keep(head.op, *head.part, results)
        memory.free(head.op, *head.part)
        self._finished[lane.rank][head.position] += 1
        lane.go_on()

    def _remember_gradients(self, rank: int, op: OpClass) -> None:
        for name in op.reads:
            if self._program.tensor[name].kind == 'gradient':
                self._gradients[rank][name] = self._memory[rank][name, -1, -1].clone()

    def _context(self, lane: _Lane) -> Context:
        if self._contexts[lane.rank].step != lane.step:
            self._contexts[lane.rank] = replace(self._contexts[lane.rank], step=lane.step)
        return self._contexts[lane.rank].at(*lane.head.part)

    # answers

    def _loss(self, step: int) -> float:
        """The sum over micro-batches, copies and the pieces that ranks hold."""
        return sum(
            float(self._whole(name, dict(sorted(pieces.items()))).sum())
            for (name, _, _), pieces in self._losses.pop(step, {}).items()
        )

    def _held(self, name: str) -> dict[int, torch.Tensor]:
        return {
            rank: memory[name, -1, -1] for rank, memory in enumerate(self._memory) if self._program.holds(rank, name)
        }

    def _named(self, shares: dict[str, dict[int, torch.Tensor]]) -> dict[str, torch.Tensor]:
        named = as_named(self._program, shares)
        return {name: assemble(self._program, tensor, held) for name, (tensor, held) in named.items()}

    def _whole(self, name: str, pieces: dict[int, torch.Tensor]) -> torch.Tensor:
        return assemble(self._program, self._program.tensor[name], pieces)

    def _draw(self, lanes: Iterable[_Lane]) -> str:
        return '\n'.join(
            f'  rank {lane.rank} {lane.stream}: {lane.head.action}, step {lane.step}, waits for {self._waits_for(lane)}'
            for lane in sorted(lanes, key=lambda lane: (lane.rank, lane.stream))
        )

    def _waits_for(self, lane: _Lane) -> str:
        if lane.parked:
            place, _, seats = self._seat(lane)
            empty = [str(seat) for seat in range(seats) if seat not in self._waiting[place]]
            return f'position {", ".join(empty)} of its {lane.head.op.partition} group'
        action = {slot.position: slot.action for of in self._lanes if of.rank == lane.rank for slot in of.slots}
        return ', '.join(action[need] for need in self._missing(lane)) or 'its turn'


def _slots(program: Program, role: Role) -> dict[str, list[_Slot]]:
    """Slots by stream."""
    needs, carried = role.needs(), role.carried()
    streams: dict[str, list[_Slot]] = {stream: [] for stream in role.streams}
    for index, stream in enumerate(role.stream.tolist()):
        part = (int(role.micro_batch[index]), int(role.copy[index]))
        slot = _Slot(index, program.op(role, index), part, needs[index], carried[index], program.action(role, index))
        streams[role.streams[stream]].append(slot)
    return streams
