"""Real compute: kernels on torch tensors, and collectives of what they give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import torch

from executor import collectives
from executor.clock import Clock
from executor.collectives import Channel, Pace
from executor.dims import dims_of, exchange_of
from executor.kernels import LOSSES, context, kernel
from executor.kernels.bound import Bound, bind
from executor.link import Link
from executor.machine import Work
from executor.memory import Memory
from executor.packing import Packing
from executor.tensors import inputs, joined, slices_of, torch_dtype
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
        steps: range,
        seed: int,
        dtype: torch.dtype | None,
        held: Mapping[str, torch.Tensor] | None,
    ) -> None:
        super().__init__(program, rank, seed, dtype, held)
        self._feed: dict[tuple[Part, int], torch.Tensor] = {}
        role = program.role(rank)
        read = {name for index in set(role.op_class.tolist()) for name in program.op_classes[index].reads}
        wanted = [tensor for tensor in program.tensors if tensor.kind == 'input' and tensor.name in read]
        room = FEED_LIMIT
        for step in steps:
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
    ) -> None:
        self._program = program
        self._rank = rank
        self._first = first
        self._memory = FedMemory(program, rank, range(first, first + steps), seed, dtype, held)
        self._dtype = dtype
        self._clock = clock
        self._pace = None if link is None else Pace(link)
        self._last = steps - 1
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
        if op.phase == 'U' and work.step == self._last:
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
        return self._keep(work, packing.unpacked(self._transfer(work, work.channel, packing.packed(reads))))

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

    def _transfer(self, work: Work, channel: Channel, reads: list[torch.Tensor]) -> list[torch.Tensor]:
        op = work.op
        if op.operator == 'all_reduce':
            # The ring reduces in place, so a single tensor is copied first; several are copied by joining them.
            flat = _together(reads) if len(reads) > 1 else _flat(reads[0]).clone()
            collectives.all_reduce(channel, flat, op.reduce, self._pace)
            return _apart(flat, reads)
        if op.operator == 'all_gather':
            gathered = collectives.all_gather(channel, _together(reads), self._pace)
            # Gathered flat, one message a rank; each tensor's shards are then joined along its own dim.
            of_ranks = zip(*(_apart(flat, reads) for flat in gathered), strict=True)
            return [torch.cat(shards, dim) for shards, dim in zip(of_ranks, dims_of(op), strict=True)]
        if op.operator == 'reduce_scatter':
            split = [tensor.chunk(channel.size, dim) for tensor, dim in zip(reads, dims_of(op), strict=True)]
            # All tensors' shards for one position in one chunk: one ring for the whole op instead of one a tensor.
            chunks = [torch.cat([shard.flatten() for shard in shards]) for shards in zip(*split, strict=True)]
            own = collectives.reduce_scatter(channel, chunks, op.reduce, self._pace)
            return _apart(own, [shards[0] for shards in split])
        if op.operator == 'all_to_all':
            return self._exchange(op, channel, reads)
        if op.operator == 'send_recv':
            received = torch.empty_like(reads[0], memory_format=torch.contiguous_format)
            collectives.send_recv(channel, _flat(reads[0]), received.view(-1), self._pace)
            return [received]
        return self._pass(work, channel, reads)

    def _exchange(self, op: OpClass, channel: Channel, reads: list[torch.Tensor]) -> list[torch.Tensor]:
        """An all-to-all."""
        joins, splits, sizes = exchange_of(op)
        slices = [slices_of(tensor, splits, sizes) for tensor in reads]
        like = [shards[0] for shards in slices]
        chunks = [_together(list(shards)) for shards in zip(*slices, strict=True)]
        received = collectives.all_to_all(channel, chunks, self._pace)
        of_ranks = zip(*(_apart(flat, like) for flat in received), strict=True)
        return [joined(shards, joins, sizes) for shards in of_ranks]

    def _pass(self, work: Work, channel: Channel, reads: list[torch.Tensor]) -> list[torch.Tensor]:
        """A send or a receive, of one tensor."""
        peer = (channel.position + work.op.peer) % channel.size
        if work.op.kind == 'send':
            channel.exchange([(_flat(reads[0]), peer)], [], self._pace)
            return []
        target = self._program.tensor[work.op.writes[0]]
        received = torch.empty(self._program.local_shape(target), dtype=torch_dtype(target.dtype, self._dtype))
        channel.exchange([], [(received.view(-1), peer)], self._pace)
        return [received]


def _together(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One flat tensor; no copy of a single one."""
    return torch.cat([_flat(tensor) for tensor in tensors]) if len(tensors) > 1 else _flat(tensors[0])


def _apart(flat: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """The parts of a flat tensor, in the shapes of others."""
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1)
