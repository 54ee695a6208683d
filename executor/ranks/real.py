"""Real compute: kernels on torch tensors, and collectives of what they give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from executor.host import Clock
from executor.kernels import LOSSES, Bound, bind, context, kernel
from executor.ranks.collectives import Pace, Rings
from executor.ranks.link import Link
from executor.ranks.memory import FedMemory
from executor.ranks.request import Part
from executor.ranks.streams import Work
from executor.ranks.transport import transfer
from executor.tensors import Packing, torch_dtype
from simpar.program import OpClass, Program


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
