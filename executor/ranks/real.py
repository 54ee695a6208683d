"""Real compute: what one rank holds, kernels on its tensors, and collectives of what they give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Final

import torch

from executor.checkpoint import contents_of, read_rank
from executor.draws import Batch, batch_of
from executor.host import Clock
from executor.kernels import LOSSES, Bound, Context, bind, context, kernel
from executor.ranks.collectives import Pace, Rings
from executor.ranks.link import Link
from executor.ranks.request import Part, Request, Stretch
from executor.ranks.streams import Work
from executor.ranks.transports import Transport, transfer
from executor.tensors import TORCH, Packing, bounds, initial, persistent, torch_dtype
from executor.walk import Slot
from simpar.errors import ProgramError
from simpar.program import Instance, OpClass, Program, Tensor, instance

FEED_LIMIT: Final = 256 * 2**20
"""Bytes of inputs that are drawn before the first step, so that no op is held up by it."""


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """What a rank of a run begins with.

    Arguments:
        seed: of weights and inputs.
        dtype: takes the place of every floating dtype of the program; None keeps the program's own.
        steps: how many will run.
        first: the number that the first of them has in the whole training.
        held: parameters and states before it; None, as the seed draws them.
        batches: the user's own, by step, in place of drawn ones.
    """

    program: Program
    rank: int
    seed: int = 0
    dtype: torch.dtype | None = None
    steps: int = 1
    first: int = 0
    held: Mapping[str, torch.Tensor] | None = None
    batches: Mapping[int, Batch] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, rank: int, request: Request, held: Mapping[str, torch.Tensor] | None = None) -> Start:
        """What a request says.

        Arguments: ``held``, what the stretch before has left; a checkpoint takes its place.
        """
        stretch, dtype = request.stretch or Stretch(), TORCH[request.dtype] if request.dtype else None
        if stretch.source:
            folder, held = Path(stretch.source), Memory(cls(program, rank, request.seed, dtype)).held
            read_rank(folder, contents_of(folder), program, rank, held)
        elif not stretch.first:
            held = None
        batches = dict(enumerate(stretch.batches, stretch.first))
        return cls(program, rank, request.seed, dtype, request.steps, stretch.first, held, batches)

    def shard(self, tensor: Tensor, step: int, micro_batch: int, copy: int) -> torch.Tensor:
        """The rank's shard of an input: of one copy, or of all where the input is a whole step's."""
        program, (first, *rest), own = self.program, tensor.shape, bounds(self.program, tensor, self.rank)
        count = 1 if tensor.like else program.micro_batches
        name, shape = tensor.like or tensor.name, (first * count, *rest)
        dtype = torch_dtype(tensor.dtype, self.dtype)
        full = batch_of(name, tensor.initial, shape, dtype, self.seed, step, self.batches)
        shard = full.narrow(0, 0 if tensor.like else first * micro_batch, first)[own]
        if tensor.batch_dim is not None and not tensor.like:
            length = shard.shape[tensor.batch_dim] // program.copies
            shard = shard.narrow(tensor.batch_dim, copy * length, length)
        return shard.clone(memory_format=torch.contiguous_format)


class Memory:
    """The tensors of one rank, by name and, where they belong to one, by micro-batch and copy.

    Inputs are drawn when they are first read in a step.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._program = program = start.program
        self._rank = rank = start.rank
        self._tensors: dict[Instance, torch.Tensor] = {
            instance(tensor, 0, 0): initial(program, tensor, rank, start.seed, start.dtype)
            if start.held is None
            else start.held[tensor.name]
            for tensor in persistent(program, rank)
        }
        self._drawn: dict[Instance, int] = {}

    def __getitem__(self, key: Instance) -> torch.Tensor:
        return self._tensors[key]

    @property
    def held(self) -> dict[str, torch.Tensor]:
        """Parameters and states, the very tensors."""
        return {tensor.name: self._tensors[tensor.name, -1, -1] for tensor in persistent(self._program, self._rank)}

    def read(self, op: OpClass, micro_batch: int, copy: int, step: int) -> list[torch.Tensor]:
        """What an op reads, in order.

        Raises: ProgramError where something was freed or never written.
        """
        return [self._find(op, name, micro_batch, copy, step) for name in op.reads]

    def keep(self, op: OpClass, micro_batch: int, copy: int, results: Sequence[torch.Tensor]) -> None:
        """Store what an op gives: first what it writes, then what it adds to tensors or creates where there is none."""
        for index, (name, result) in enumerate(zip(op.writes + op.accumulates, results, strict=True)):
            key = instance(self._program.tensor[name], micro_batch, copy)
            # The first of several contributions creates the sum, so no op need set it to zero.
            if index >= len(op.writes) and key in self._tensors:
                self._tensors[key].add_(result)
            else:
                self._tensors[key] = result

    def free(self, op: OpClass, micro_batch: int, copy: int) -> None:
        """End what an op frees.

        Raises: ProgramError where it is not there.
        """
        for name in op.frees:
            key = instance(self._program.tensor[name], micro_batch, copy)
            if self._tensors.pop(key, None) is None:
                raise self._absent(op, 'frees', key)

    def _find(self, op: OpClass, name: str, micro_batch: int, copy: int, step: int) -> torch.Tensor:
        tensor = self._program.tensor[name]
        key = instance(tensor, micro_batch, copy)
        if tensor.kind == 'input' and self._drawn.get(key) != step:
            self._tensors[key] = self._start.shard(tensor, step, micro_batch, copy)
            # Last, so that another stream's thread finds this step's tensor or draws the same itself.
            self._drawn[key] = step
        try:
            return self._tensors[key]
        except KeyError:
            raise self._absent(op, 'reads', key) from None

    def _absent(self, op: OpClass, does: str, key: Instance) -> ProgramError:
        name, micro_batch, copy = key
        of = '' if micro_batch < 0 else f' of micro-batch {micro_batch}, copy {copy}'
        return ProgramError(f'{op.name} on rank {self._rank} {does} {name}{of}, which was freed or never written')


class FedMemory(Memory):
    """A rank's memory that has its inputs drawn before the run starts, as far as they take no more than FEED_LIMIT."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._feed: dict[tuple[Part, int], torch.Tensor] = {}
        room = FEED_LIMIT
        for step in range(start.first, start.first + start.steps):
            for tensor, micro_batch, copy in self._inputs_of_step():
                shard = start.shard(tensor, step, micro_batch, copy)
                room -= shard.nbytes
                # What does not fit is drawn when it is read, a little later than planned but without running out of
                # memory.
                if room < 0:
                    return
                self._feed[(tensor.name, micro_batch, copy), step] = shard

    def _inputs_of_step(self) -> Iterator[tuple[Tensor, int, int]]:
        """The inputs that the rank's ops read, with micro-batch and copy; one of each where the input is a step's."""
        program, classes = self._program, set(self._program.role(self._rank).op_class.tolist())
        read = {name for index in classes for name in program.op_classes[index].reads}
        for tensor in program.tensors:
            if tensor.kind == 'input' and tensor.name in read:
                counts = (1, 1) if tensor.like else (program.micro_batches, program.copies)
                for micro_batch, copy in product(*map(range, counts)):
                    yield tensor, micro_batch, copy

    def _find(self, op: OpClass, name: str, micro_batch: int, copy: int, step: int) -> torch.Tensor:
        # Drawn before the run, so that drawing does not count as time of the op.
        fed = self._feed.get(((name, micro_batch, copy), step))
        return super()._find(op, name, micro_batch, copy, step) if fed is None else fed


# Real compute: kernels on torch tensors, and collectives of what they give.


class Computation:
    """What the ops of a rank do to its tensors, whoever walks them: threads, the host of a device, one process for all.

    Arguments: ``remembered``, the step whose gradients are kept for the answer; None: those of every step.
    """

    def __init__(self, start: Start, memory: Memory, where: Context | None = None) -> None:
        program = start.program
        self._start = start
        self.memory = memory
        self.where = where or context(program, start.rank)
        # Only this rank's ops: a program has the op classes of all stages.
        used = {index: program.op_classes[index] for index in set(program.role(start.rank).op_class.tolist())}
        # Bound once for each op class: looking up shapes at every slot would take longer than small kernels.
        self._bound: dict[int, Bound] = {
            index: bind(program, op, kernel(op), start.dtype) for index, op in used.items() if op.kind == 'compute'
        }
        self._packing = {index: Packing.of(program, op) for index, op in used.items() if op.kind == 'collective'}
        self.remembered: int | None = -1
        self.losses: defaultdict[int, dict[Part, torch.Tensor]] = defaultdict(dict)
        self.gradients: dict[str, torch.Tensor] = {}

    def reads(self, slot: Slot, step: int) -> list[torch.Tensor]:
        """What an op works on; tensors that a collective packs, packed."""
        found = self.memory.read(slot.op, *slot.part, self._start.first + step)
        return self._packing[slot.index].packed(found) if slot.index in self._packing else found

    def compute(self, slot: Slot, step: int, where: Context | None = None) -> None:
        """Run a kernel, and keep what it gives."""
        op, reads = slot.op, self.reads(slot, step)
        if op.phase == 'U' and self.remembered in (None, step):
            # Before the kernel runs, since an update may change or free its gradients.
            self._remember(slot, reads)
        results = self._bound[slot.index](where or self.at(slot, step), reads)
        # What is made again in the backward counted in the forward.
        if op.part == 'F' and op.operator in LOSSES:
            # A clone: the loss may be reduced in place over ranks, or freed.
            self.losses[step][(op.writes[0], *slot.part)] = results[0].clone()
        self.keep(slot, results)

    def communicate(self, slot: Slot, step: int, transport: Transport) -> None:
        """Carry out a collective, send or receive, and keep what comes."""
        received = None
        if slot.op.kind == 'recv':
            target = self._start.program.tensor[slot.op.writes[0]]
            shape, dtype = self._start.program.local_shape(target), torch_dtype(target.dtype, self._start.dtype)
            received = torch.empty(shape, dtype=dtype, device=self.where.device)
        self.keep(slot, transfer(slot.op, transport, self.reads(slot, step), received))

    def keep(self, slot: Slot, results: list[torch.Tensor]) -> None:
        """Store what an op gives, and end what it frees."""
        packing = self._packing.get(slot.index)
        self.memory.keep(slot.op, *slot.part, packing.unpacked(results) if packing else results)
        self.memory.free(slot.op, *slot.part)

    def at(self, slot: Slot, step: int) -> Context:
        """Where and when an op runs."""
        step += self._start.first
        if self.where.step != step:
            self.where = replace(self.where, step=step)
        return self.where.at(*slot.part)

    def parameters(self) -> dict[str, torch.Tensor]:
        """The rank's shards of the parameters, on the host."""
        program, rank = self._start.program, self._start.rank
        names = [
            tensor.name for tensor in program.tensors if tensor.kind == 'parameter' and program.holds(rank, tensor.name)
        ]
        return {name: self.memory[name, -1, -1].cpu() for name in names}

    def _remember(self, slot: Slot, reads: list[torch.Tensor]) -> None:
        for name, tensor in zip(slot.op.reads, reads, strict=True):
            if self._start.program.tensor[name].kind == 'gradient':
                self.gradients[name] = tensor.clone()


class RealMachine(Computation):
    """One rank's tensors and kernels, as threads of streams run them.

    Arguments:
        link: what the rank sends through where the network is paced.
        keep: whether the last step's gradients are wanted.
    """

    def __init__(self, start: Start, clock: Clock, link: Link | None, *, keep: bool = True) -> None:
        super().__init__(start, FedMemory(start))
        self._clock = clock
        self._pace = None if link is None else Pace(link)
        # Copies of gradients would make the last step longer than others.
        self.remembered = start.steps - 1 if keep else -1
        # One for each step: streams may be in different ones.
        self._contexts = [replace(self.where, step=start.first + step) for step in range(start.steps)]

    def begin(self, moment: float) -> None:
        """Nothing waits for it."""

    def arrive(self, work: Work, ready: float) -> float:
        """Threads have no host that issues for them: an op arrives when its thread gets to it."""
        return self._clock.now()

    def run(self, work: Work, arrived: float) -> float:
        """The kernel or the collective, and the keeping and freeing of tensors; returns its end."""
        if work.slot.op.kind == 'compute':
            self.compute(work.slot, work.step, self._contexts[work.step].at(*work.slot.part))
        elif work.channel is not None:
            self.communicate(work.slot, work.step, Rings(work.channel, self._pace))
        return self._clock.now()
