"""Real compute: kernels on torch tensors, and collectives of what they give."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import torch

from executor.host import Clock
from executor.kernels import LOSSES, Bound, Context, bind, context, kernel
from executor.ranks.collectives import Pace, Rings
from executor.ranks.link import Link
from executor.ranks.memory import FedMemory, Memory, Start
from executor.ranks.request import Part
from executor.ranks.streams import Work
from executor.ranks.transport import Transport, transfer
from executor.tensors import Packing, torch_dtype
from executor.walk import Slot


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
