"""Real compute: kernels on torch tensors, and collectives of what they give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import torch

from executor.clock import Clock
from executor.collectives import Pace, Rings
from executor.kernels import LOSSES, context, kernel
from executor.kernels.bound import Bound, bind
from executor.link import Link
from executor.machine import Work
from executor.memory import Memory
from executor.packing import Packing
from executor.tensors import inputs, torch_dtype
from executor.transport import transfer
from simpar.program import OpClass, Program, Tensor

Part = tuple[str, int, int]
"""A tensor of one micro-batch and copy."""
FEED_LIMIT = 256 * 2**20
"""Bytes of inputs that are drawn before the first step, so that no op is held up by it."""


def parts(program: Program, tensor: Tensor) -> Iterator[tuple[int, int]]:
    """The micro-batches and copies of an input; one of each where the input is that of a whole step."""
    of_step = bool(tensor.like)
    return product(range(1 if of_step else program.micro_batches), range(1 if of_step else program.copies))


class FedMemory(Memory):
    """A rank's memory that has its inputs drawn before the run starts, as far as they take no more than FEED_LIMIT."""

    def __init__(
        self,
        program: Program,
        rank: int,
        steps: int,
        seed: int,
        dtype: torch.dtype | None,
        first: int = 0,
        held: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__(program, rank, seed, dtype, held)
        self._feed: dict[tuple[Part, int], torch.Tensor] = {}
        role = program.role(rank)
        read = {name for index in set(role.op_class.tolist()) for name in program.op_classes[index].reads}
        wanted = [tensor for tensor in program.tensors if tensor.kind == 'input' and tensor.name in read]
        room = FEED_LIMIT
        for step in range(first, first + steps):
            for tensor, (micro_batch, copy) in ((one, part) for one in wanted for part in parts(program, one)):
                shard = inputs(program, tensor, rank, step, micro_batch, copy, seed, dtype)
                room -= shard.nbytes
                # What does not fit is drawn when it is read, a little later than planned but without running out of
                # memory.
                if room < 0:
                    return
                self._feed[(tensor.name, micro_batch, copy), step] = shard

    def _find(self, op: OpClass, name: str, micro_batch: int, copy: int, step: int) -> torch.Tensor:
        # Drawn before the run, so that drawing does not count as time of the op.
        fed = self._feed.get(((name, micro_batch, copy), step))
        return super()._find(op, name, micro_batch, copy, step) if fed is None else fed


class RealMachine:
    """One rank's tensors and kernels.

    Arguments:
        steps: how many steps will run.
        first: the number of the first of them.
        held: parameters and states before it; None, as the seed draws them.
        dtype: takes the place of every floating dtype of the program.
        link: what the rank sends through where the network is paced.
        keep: whether the last step's gradients are wanted.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        steps: int,
        seed: int,
        dtype: torch.dtype | None,
        clock: Clock,
        link: Link | None,
        first: int = 0,
        held: Mapping[str, torch.Tensor] | None = None,
        *,
        keep: bool = True,
    ) -> None:
        self._program = program
        self._rank = rank
        self._first = first
        self._memory = FedMemory(program, rank, steps, seed, dtype, first, held)
        self._dtype = dtype
        self._clock = clock
        self._pace = None if link is None else Pace(link)
        # Copies of gradients would make the last step longer than others.
        self._remembered = steps - 1 if keep else None
        begin = context(program, rank)
        self._contexts = [replace(begin, step=first + step) for step in range(steps)]
        # Only this rank's ops: a program has the op classes of all stages.
        used = {int(index) for index in program.role(rank).op_class.tolist()}
        self._bound: dict[int, Bound] = {
            index: bind(program, op, kernel(op), dtype)
            for index, op in enumerate(program.op_classes)
            if op.kind == 'compute' and index in used
        }
        self._packing = {
            index: Packing.of(program, op)
            for index, op in enumerate(program.op_classes)
            if op.kind == 'collective' and index in used
        }
        self.losses: list[dict[Part, torch.Tensor]] = [{} for _ in range(steps)]
        self.gradients: dict[str, torch.Tensor] = {}

    def begin(self, moment: float) -> None:
        """Nothing waits for it."""

    def arrive(self, work: Work, ready: float) -> float:
        """Threads have no host that issues for them: an op arrives when its thread gets to it."""
        return self._clock.now()

    def compute(self, work: Work, arrived: float) -> float:
        """The kernel, and the keeping and freeing of tensors."""
        op = work.op
        reads = self._memory.read(op, work.micro_batch, work.copy, self._first + work.step)
        if op.phase == 'U' and work.step == self._remembered:
            # Before the kernel runs, since an update may change or free its gradients.
            self._remember(op, reads)
        where = self._contexts[work.step].at(work.micro_batch, work.copy)
        results = self._bound[work.index](where, reads)
        if op.part == 'F' and op.operator in LOSSES:
            # A clone: the loss may be reduced in place over ranks, or freed.
            self.losses[work.step][op.writes[0], work.micro_batch, work.copy] = results[0].clone()
        return self._keep(work, results)

    def communicate(self, work: Work, arrived: float) -> float:
        """The collective, send or receive, of the tensors that it reads."""
        if work.channel is None:
            return arrived
        reads = self._memory.read(work.op, work.micro_batch, work.copy, self._first + work.step)
        packing = self._packing.get(work.index, Packing())
        received = None
        if work.op.kind == 'recv':
            target = self._program.tensor[work.op.writes[0]]
            received = torch.empty(self._program.local_shape(target), dtype=torch_dtype(target.dtype, self._dtype))
        rings = Rings(work.channel, self._pace)
        return self._keep(work, packing.unpacked(transfer(work.op, rings, packing.packed(reads), received)))

    def parameters(self) -> dict[str, torch.Tensor]:
        """The rank's shards of the parameters."""
        names = [tensor.name for tensor in self._program.tensors if tensor.kind == 'parameter']
        return {name: self._memory[name, -1, -1] for name in names if self._program.holds(self._rank, name)}

    @property
    def held(self) -> dict[str, torch.Tensor]:
        """The rank's shards of parameters and states, the very tensors."""
        return self._memory.held

    def _keep(self, work: Work, results: list[torch.Tensor]) -> float:
        self._memory.keep(work.op, work.micro_batch, work.copy, results)
        self._memory.free(work.op, work.micro_batch, work.copy)
        return self._clock.now()

    def _remember(self, op: OpClass, reads: list[torch.Tensor]) -> None:
        for name, tensor in zip(op.reads, reads, strict=True):
            if self._program.tensor[name].kind == 'gradient':
                self.gradients[name] = tensor.clone()
