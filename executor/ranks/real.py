"""Real compute of one rank: what it holds, its kernels, and transports of its collectives."""

from __future__ import annotations

import datetime
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from executor import checkpoint, host, validate, walk
from executor.devices.open import Device
from executor.draws import Batch, batch_of
from executor.kernels import LOSSES, Bound, Context, bind, context, kernel
from executor.ranks.collectives import Channel, Link, Messages, Pace, Rings
from executor.ranks.streams import Work
from executor.state import Pair, Part, Request, Stretch
from executor.tensors import TORCH, Packing, bounds, initial, joined, persistent, shape_of_step, slices_of, torch_dtype
from simpar.errors import ProgramError, RunFailed
from simpar.program import Instance, OpClass, Program, Tensor, instance
from simpar.units import format_size

# What an op of communication does with its tensors, over any transport: ``Transport`` is the seam to what carries it.
#
# gloo's rings (``collectives``), the collectives of NCCL and HCCL, and those of virtual accelerators all have the
# same few calls, on flat tensors of one group.

REDUCE: Final = {'sum': dist.ReduceOp.SUM, 'max': dist.ReduceOp.MAX}


class Transport(Protocol):
    """Collectives of one communicator, a (partition, stream)."""

    @property
    def size(self) -> int:
        """Ranks in the group."""

    @property
    def position(self) -> int:
        """This rank's place among them."""

    def all_reduce(self, flat: torch.Tensor, reduce: str) -> None:
        """Reduce a flat tensor in place."""

    def all_gather(self, own: torch.Tensor) -> Sequence[torch.Tensor]:
        """The flat tensors of all ranks, by position."""

    def reduce_scatter(self, chunks: list[torch.Tensor], reduce: str) -> torch.Tensor:
        """The reduced chunk of this rank's position."""

    def all_to_all(self, chunks: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The chunks that all ranks have for this one, by position."""

    def exchange(self, sends: Messages, receives: Messages) -> object:
        """Send and receive at once."""


def transfer(
    op: OpClass, transport: Transport, reads: list[torch.Tensor], received: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Carry out a communication; returns what this rank gets.

    Arguments: ``received``, memory for what comes, of a receive.
    """
    if op.operator == 'all_reduce':
        # The reduction is in place, so a single tensor is copied first; several are copied by joining them.
        flat = _together(reads) if len(reads) > 1 else _flat(reads[0]).clone()
        transport.all_reduce(flat, op.reduce)
        return _apart(flat, reads)
    if op.operator == 'all_gather':
        gathered = transport.all_gather(_together(reads))
        # Gathered flat, one message a rank; each tensor's shards are then joined along its own dim.
        of_ranks = zip(*(_parts(flat, reads) for flat in gathered), strict=True)
        return [torch.cat(shards, dim) for shards, dim in zip(of_ranks, validate.dims_of(op), strict=True)]
    if op.operator == 'reduce_scatter':
        split = [tensor.chunk(transport.size, dim) for tensor, dim in zip(reads, validate.dims_of(op), strict=True)]
        # All tensors' shards for one position in one chunk: one collective for the whole op instead of one a tensor.
        chunks = [torch.cat([shard.flatten() for shard in shards]) for shards in zip(*split, strict=True)]
        own = transport.reduce_scatter(chunks, op.reduce)
        return _apart(own, [shards[0] for shards in split])
    if op.operator == 'all_to_all':
        joins, splits, sizes = validate.exchange_of(op)
        slices = [slices_of(tensor, splits, sizes) for tensor in reads]
        like = [shards[0] for shards in slices]
        arrived = transport.all_to_all([_together(list(shards)) for shards in zip(*slices, strict=True)])
        of_ranks = zip(*(_parts(flat, like) for flat in arrived), strict=True)
        return [joined(shards, joins, sizes) for shards in of_ranks]
    return _pass(op, transport, reads, received)


def _pass(
    op: OpClass, transport: Transport, reads: list[torch.Tensor], received: list[torch.Tensor]
) -> list[torch.Tensor]:
    """A send or a receive of what one stage hands to another, or both among neighbours, of one tensor."""
    size, position = transport.size, transport.position
    if op.kind == 'send':
        transport.exchange([(_message(reads), (position + op.peer) % size)], [])
        return []
    if op.operator == 'send_recv':
        made = torch.empty_like(reads[0], memory_format=torch.contiguous_format)
        ahead, behind = (position + 1) % size, (position - 1) % size
        transport.exchange([(_flat(reads[0]), ahead)], [(made.view(-1), behind)])
        return [made]
    come = _message(received)
    transport.exchange([], [(come, (position + op.peer) % size)])
    if len(received) == 1:
        return received
    parts = come.split([tensor.nbytes for tensor in received])
    # A clone begins where its type may begin.
    return [part.clone().view(one.dtype).view(one.shape) for part, one in zip(parts, received, strict=True)]


def _message(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The flat memory of a tensor; of several, of whatever types, their bytes in one."""
    if len(tensors) == 1:
        return _flat(tensors[0])
    return torch.cat([_flat(tensor).view(torch.uint8) for tensor in tensors])


def _together(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One flat tensor; no copy of a single one."""
    return torch.cat([_flat(tensor) for tensor in tensors]) if len(tensors) > 1 else _flat(tensors[0])


def _apart(flat: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Several parts of a flat tensor with memory of their own, so that each is free when it is used."""
    parts = _parts(flat, like)
    return [part.clone() for part in parts] if len(parts) > 1 else parts


def _parts(flat: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """The parts of a flat tensor, in the shapes of others."""
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1)


@dataclass(frozen=True, slots=True)
class Native:
    """One rank's end of a communicator of the device's own library.

    Arguments: ``members``, ranks by position.
    """

    group: Any
    members: tuple[int, ...]
    position: int

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.members)

    def all_reduce(self, flat: torch.Tensor, reduce: str) -> None:
        """Reduce a flat tensor in place."""
        dist.all_reduce(flat, REDUCE[reduce], self.group)

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """The flat tensors of all ranks, by position."""
        gathered = own.new_empty(self.size * own.numel())
        dist.all_gather_into_tensor(gathered, own, self.group)
        return gathered.view(self.size, -1)

    def reduce_scatter(self, chunks: list[torch.Tensor], reduce: str) -> torch.Tensor:
        """The reduced chunk of this rank's position."""
        own = torch.empty_like(chunks[self.position])
        dist.reduce_scatter_tensor(own, torch.cat(chunks), REDUCE[reduce], self.group)
        return own

    def all_to_all(self, chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The chunks that all ranks have for this one, by position."""
        # Every rank's chunk for this one is as long as this rank's own.
        length = chunks[self.position].numel()
        received = chunks[0].new_empty(length * self.size)
        sizes = [chunk.numel() for chunk in chunks]
        dist.all_to_all_single(received, torch.cat(list(chunks)), [length] * self.size, sizes, self.group)
        return list(received.split(length))

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Send and receive at once, as one batch."""
        # Both ends know the sizes, so both leave empty messages out.
        batch = [
            dist.P2POp(way, tensor, self.members[peer], self.group)
            for way, messages in ((dist.irecv, receives), (dist.isend, sends))
            for tensor, peer in messages
            if tensor.numel()
        ]
        for work in dist.batch_isend_irecv(batch) if batch else ():
            # On a device this has the current stream wait, not the host.
            work.wait()


# Copies on the device in place of messages: one rank's part of a program runs alone, with traffic of the right
# sizes.


@dataclass(frozen=True, slots=True)
class Copies:
    """One rank's end of a communicator whose other ranks are not there."""

    size: int
    position: int

    def all_reduce(self, flat: torch.Tensor, reduce: str) -> None:
        """There and back."""
        flat.copy_(flat.clone())

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """Its own tensor from everybody."""
        return own.unsqueeze(0).repeat(self.size, 1)

    def reduce_scatter(self, chunks: list[torch.Tensor], reduce: str) -> torch.Tensor:
        """All chunks are read, and its own is kept."""
        return torch.stack(chunks)[self.position].clone()

    def all_to_all(self, chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Chunks as long as its own."""
        return [chunks[self.position].clone() for _ in chunks]

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """What is sent is copied; what comes is small and finite."""
        for tensor, _ in sends:
            tensor.clone()
        for tensor, _ in receives:
            tensor.fill_(0.01 if tensor.is_floating_point() else 0)


# What one rank of several processes needs to run on a device: its transports, and the host that issues.

Transports = dict[tuple[str, str], Transport]
Groups = dict[tuple[object, ...], object]
"""Communicators that a rank has made; one is made in about a second, and never ended before the process."""


def device_transports(
    program: Program,
    rank: int,
    device: Device,
    channels: Mapping[tuple[str, str], Channel],
    request: Request,
    timeout: datetime.timedelta,
    groups: Groups,
) -> Transports:
    """The transport of every communicator of a rank; all ranks must call this alike.

    Arguments: ``groups``, the rank's own, to which those of this program are added.
    """
    if not _is_native(program, device, request):
        if request.issue == 'graph' and channels:
            raise RunFailed(
                '--issue graph: messages by gloo wait for the host, which a graph cannot; write --issue eager'
            )
        return {key: Rings(channel) for key, channel in channels.items()}
    transports: Transports = {}
    backend, bound = device.kind.backend, device.name if device.kind.numbered else None
    for partition, stream, members in validate.groups(program):
        key = (backend, members, partition, stream)
        if key not in groups:
            # Bound to its device, it connects at once: not in the middle of a step, where ranks would wait for one
            # another in different orders.
            groups[key] = dist.new_group(list(members), backend=backend, timeout=timeout, device_id=bound)
        if rank in members:
            transports[partition, stream] = Native(groups[key], members, members.index(rank))
    return transports


def _is_native(program: Program, device: Device, request: Request) -> bool:
    """Whether the device's own library carries messages."""
    backend, count = device.kind.backend, device.module.device_count()
    there = backend in dist.Backend.backend_list and bool(getattr(dist, f'is_{backend}_available', lambda: True)())
    ranks = int(os.environ.get('LOCAL_WORLD_SIZE', program.world))
    # These libraries refuse two ranks on one device.
    alone = not device.kind.numbered or ranks <= count
    if request.transport == 'native' and not there:
        raise RunFailed(f'--transport native: torch here has no {backend}; write --transport gloo')
    if request.transport == 'native' and not alone:
        raise RunFailed(f'--transport native: {ranks} ranks on {count} devices; write --transport gloo')
    if (
        request.transport == 'native'
        and not device.kind.numbered
        and any(op.kind == 'send' for op in program.op_classes)
    ):
        raise RunFailed('--transport native on CPUs runs no pipeline: each send would hold up its rank; leave it out')
    return request.transport != 'gloo' and there and alone


# Real compute: what one rank holds, kernels on its tensors, and collectives of what they give.

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
        room: bytes of its device; 0: as many as it needs.
    """

    program: Program
    rank: int
    seed: int = 0
    dtype: torch.dtype | None = None
    steps: int = 1
    first: int = 0
    held: Mapping[str, torch.Tensor] | None = None
    batches: Mapping[int, Batch] = field(default_factory=dict)
    room: int = 0

    @classmethod
    def of(cls, program: Program, rank: int, request: Request, held: Mapping[str, torch.Tensor] | None = None) -> Start:
        """What a request says.

        Arguments: ``held``, what the stretch before has left; a checkpoint takes its place.
        """
        stretch, dtype = request.stretch or Stretch(), TORCH[request.dtype] if request.dtype else None
        if stretch.source:
            folder, held = Path(stretch.source), Memory(cls(program, rank, request.seed, dtype)).held
            checkpoint.read_rank(folder, checkpoint.contents_of(folder), program, rank, held)
        elif not stretch.first:
            held = None
        batches = dict(enumerate(stretch.batches, stretch.first))
        return cls(program, rank, request.seed, dtype, request.steps, stretch.first, held, batches, request.room)

    def shard(self, tensor: Tensor, step: int, micro_batch: int, copy: int) -> torch.Tensor:
        """The rank's shard of an input: of one copy, or of all where the input is a whole step's."""
        program, first, own = self.program, tensor.shape[0], bounds(self.program, tensor, self.rank)
        form = shape_of_step(program, tensor), torch_dtype(tensor.dtype, self.dtype)
        full = batch_of(tensor.like or tensor.name, tensor.initial, *form, self.seed, step, self.batches)
        shard = full.narrow(0, 0 if tensor.like else first * micro_batch, first)[own]
        if tensor.batch_dim is not None and not tensor.like:
            length = shard.shape[tensor.batch_dim] // program.copies
            shard = shard.narrow(tensor.batch_dim, copy * length, length)
        return shard.clone(memory_format=torch.contiguous_format)


class Memory:
    """The tensors of one rank, by name and, where they belong to one, by micro-batch and copy.

    Inputs are drawn when they are first read in a step, but for those that are drawn before the run starts.
    Arguments: ``feed``, bytes that these may take.
    """

    def __init__(self, start: Start, feed: int = 0) -> None:
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
        self._feed: dict[tuple[Part, int], torch.Tensor] = {}
        steps = range(start.first, start.first + start.steps) if feed else ()
        for step, (one, micro_batch, copy) in product(steps, list(self._inputs_of_step())):
            shard = start.shard(one, step, micro_batch, copy)
            feed -= shard.nbytes
            # What does not fit is drawn when it is read, a little later than planned but without running out of memory.
            if feed < 0:
                break
            self._feed[(one.name, micro_batch, copy), step] = shard

    def __getitem__(self, key: Instance) -> torch.Tensor:
        return self._tensors[key]

    def _inputs_of_step(self) -> Iterator[tuple[Tensor, int, int]]:
        """The inputs that the rank's ops read, with micro-batch and copy; one of each where the input is a step's."""
        program, classes = self._program, set(self._program.role(self._rank).op_class.tolist())
        read = {name for index in classes for name in program.op_classes[index].reads}
        for tensor in program.tensors:
            if tensor.kind == 'input' and tensor.name in read:
                counts = (1, 1) if tensor.like else (program.micro_batches, program.copies)
                for micro_batch, copy in product(*map(range, counts)):
                    yield tensor, micro_batch, copy

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
                self._put(key, result)
        self.check_room(op)

    def _put(self, key: Instance, result: torch.Tensor) -> None:
        self._tensors[key] = result

    def check_room(self, op: OpClass) -> None:
        """Raises ``RunFailed`` where an op has left more on the device than there may be."""
        if self._start.room and self.on_device() > self._start.room:
            held, room = format_size(self.on_device()), format_size(self._start.room)
            raise RunFailed(f'{op.name} on rank {self._rank} is out of memory: {held} of {room}')

    def room_for(self, op: OpClass) -> list[torch.Tensor]:
        """Memory for what comes to an op, where each of it belongs."""
        made = map(self._program.tensor.__getitem__, op.writes)
        return [self._empty(one, torch_dtype(one.dtype, self._start.dtype)) for one in made]

    def _empty(self, tensor: Tensor, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(self._program.local_shape(tensor), dtype=dtype)

    def on_device(self) -> int:
        """Bytes of all tensors that are not on the host; views of a weight have none."""
        # A list: other streams' threads put tensors there meanwhile.
        held = [(self._program.tensor[name], tensor) for (name, *_), tensor in list(self._tensors.items())]
        return sum(tensor.nbytes for of, tensor in held if not of.host and of.kind != 'view')

    def free(self, op: OpClass, micro_batch: int, copy: int) -> None:
        """End what an op frees.

        Raises: ProgramError where it is not there.
        """
        for name in op.frees:
            key = instance(self._program.tensor[name], micro_batch, copy)
            tensor = self._tensors.pop(key, None)
            if tensor is None:
                raise self._absent(op, 'frees', key)
            self._let_go(tensor)

    def _let_go(self, tensor: torch.Tensor) -> None:
        """It has ended, or another has its place."""

    def _find(self, op: OpClass, name: str, micro_batch: int, copy: int, step: int) -> torch.Tensor:
        tensor = self._program.tensor[name]
        key = instance(tensor, micro_batch, copy)
        fed = self._input(tensor, key, step, micro_batch, copy) if tensor.kind == 'input' else None
        try:
            return self._tensors[key] if fed is None else fed
        except KeyError:
            raise self._absent(op, 'reads', key) from None

    def _input(self, tensor: Tensor, key: Instance, step: int, micro_batch: int, copy: int) -> torch.Tensor | None:
        # Drawn before the run, so that drawing does not count as time of the op.
        fed = self._feed.get(((tensor.name, micro_batch, copy), step))
        if fed is None and self._drawn.get(key) != step:
            self._tensors[key] = self._start.shard(tensor, step, micro_batch, copy)
            # Last, so that another stream's thread finds this step's tensor or draws the same itself.
            self._drawn[key] = step
        return fed

    def _absent(self, op: OpClass, does: str, key: Instance) -> ProgramError:
        name, micro_batch, copy = key
        of = '' if micro_batch < 0 else f' of micro-batch {micro_batch}, copy {copy}'
        return ProgramError(f'{op.name} on rank {self._rank} {does} {name}{of}, which was freed or never written')


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

    def reads(self, slot: walk.Slot, step: int) -> list[torch.Tensor]:
        """What an op works on; tensors that a collective packs, packed."""
        tensors = self.memory.read(slot.op, *slot.part, self._start.first + step)
        return self._packing[slot.index].packed(tensors) if slot.index in self._packing else tensors

    def compute(self, slot: walk.Slot, step: int, where: Context | None = None) -> None:
        """Run a kernel, and keep what it gives."""
        op, reads = slot.op, self.reads(slot, step)
        if op.phase == 'U' and self.remembered in (None, step):
            # Before the kernel runs, since an update may change or free its gradients.
            self._remember(slot, reads)
        results = self.run_kernel(slot.index, where or self.at(slot, step), reads)
        # What is made again in the backward counted in the forward.
        if op.part == 'F' and op.operator in LOSSES:
            # A clone: the loss may be reduced in place over ranks, or freed.
            self.losses[step][(op.writes[0], *slot.part)] = results[0].clone()
        self.keep(slot, results)

    def run_kernel(self, index: int, where: Context, reads: list[torch.Tensor]) -> list[torch.Tensor]:
        """What the kernel of an op class gives."""
        return self._bound[index](where, reads)

    def communicate(self, slot: walk.Slot, step: int, transport: Transport) -> None:
        """Carry out a collective, send or receive, and keep what comes."""
        received: list[torch.Tensor] = []
        if slot.op.kind == 'recv':
            received = self.memory.room_for(slot.op)
        self.keep(slot, transfer(slot.op, transport, self.reads(slot, step), received))

    def copy(self, slot: walk.Slot, step: int) -> None:
        """Copy to the host or back, on the current stream; the host does not wait for it."""
        made = self.memory.room_for(slot.op)
        for into, tensor in zip(made, self.reads(slot, step), strict=True):
            into.copy_(tensor, non_blocking=True)
        self.keep(slot, made)

    def keep(self, slot: walk.Slot, results: list[torch.Tensor]) -> None:
        """Store what an op gives, and end what it frees."""
        packing = self._packing.get(slot.index)
        self.memory.keep(slot.op, *slot.part, packing.unpacked(results) if packing else results)
        self.memory.free(slot.op, *slot.part)

    def at(self, slot: walk.Slot, step: int) -> Context:
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

    def _remember(self, slot: walk.Slot, reads: list[torch.Tensor]) -> None:
        for name, tensor in zip(slot.op.reads, reads, strict=True):
            if self._start.program.tensor[name].kind == 'gradient':
                self.gradients[name] = tensor.clone()


class RealMachine(Computation):
    """One rank's tensors and kernels, as threads of streams run them.

    Arguments:
        link: what the rank sends through where the network is paced.
        keep: whether the last step's gradients are wanted.
        to_host: latency and rate of the link to the host, see ``Request.to_host``.
    """

    def __init__(
        self, start: Start, clock: host.Clock, link: Link | None, *, keep: bool = True, to_host: Pair | None = None
    ) -> None:
        super().__init__(start, Memory(start, FEED_LIMIT))
        self._clock = clock
        self._pace = None if link is None else Pace(link)
        self._to_host = to_host
        # Copies of gradients would make the last step longer than others.
        self.remembered = start.steps - 1 if keep else -1
        # One for each step: streams may be in different ones.
        self._contexts = [replace(self.where, step=start.first + step) for step in range(start.steps)]

    def begin(self, moment: float) -> None:
        """Nothing waits for it."""

    def arrive(self, work: Work, ready: float) -> float:
        """Threads have no host that issues for them: an op arrives when its thread gets to it."""
        return self._clock.now()

    def _copy(self, work: Work, arrived: float) -> None:
        """Copy to the host or back, and keep what comes when the link would be through."""
        reads = self.reads(work.slot, work.step)
        copies = [tensor.clone() for tensor in reads]
        if self._to_host:
            latency, rate = self._to_host
            self._clock.sleep_until(arrived + latency + sum(tensor.nbytes for tensor in reads) / rate)
        self.keep(work.slot, copies)

    def run(self, work: Work, arrived: float) -> float:
        """The kernel or the collective, and the keeping and freeing of tensors; returns its end."""
        if work.slot.op.kind == 'compute':
            self.compute(work.slot, work.step, self._contexts[work.step].at(*work.slot.part))
        elif work.channel is not None:
            self.communicate(work.slot, work.step, Rings(work.channel, self._pace))
        else:
            self._copy(work, arrived)
        return self._clock.now()
