"""A program's tensors on ranks: shards of what is drawn in full, packed buffers, boxes by name, and full tensors again.

A collective in one process is a function from the tensors of a group's ranks to their tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import Final

import torch

from executor.draws import draw
from simpar.errors import NumericsWrong, ProgramError
from simpar.program import OpClass, Program, Tensor
from simpar.torch_module.graph import module_name

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer of an op.

    Arguments:
        shapes: the shapes of a rank's members.
        length: elements with padding; None for a tensor that is not packed.
    """

    shapes: tuple[Shape, ...] = ()
    length: int | None = None

    @property
    def members(self) -> int:
        """How many tensors there are in it."""
        return len(self.shapes) if self.length is not None else 1


ALONE = Buffer()


def buffer(program: Program, tensor: Tensor) -> Buffer:
    """The buffer that a tensor is a rank's share of."""
    if not tensor.members:
        return ALONE
    return Buffer(tuple(program.local_shape(program.tensor[name]) for name in tensor.members), tensor.shape[0])


@dataclass(frozen=True, slots=True)
class Packing:
    """The buffers that an op packs from its reads, and those that it unpacks into its writes.

    Arguments: one buffer for each tensor that it makes, or for each that it reads.
    """

    reads: tuple[Buffer, ...] = ()
    makes: tuple[Buffer, ...] = ()

    @classmethod
    def of(cls, program: Program, op: OpClass) -> Packing:
        """Find the packing of an op of a program."""
        packs, unpacks = op.operator in ('reduce_scatter', 'piece', 'keep'), op.operator == 'all_gather'
        names = op.writes + op.accumulates if packs else op.reads if unpacks else ()
        buffers = tuple(buffer(program, program.tensor[name]) for name in names)
        # Most ops pack nothing, and then skip all of it at run time.
        if all(one is ALONE for one in buffers):
            return cls()
        return cls(reads=buffers if packs else (), makes=buffers if unpacks else ())

    def packed(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Pack what the op reads into what the op works on."""
        if not self.reads:
            return list(tensors)
        rest = iter(tensors)
        groups = [(one, list(islice(rest, one.members))) for one in self.reads]
        return [own[0] if one.length is None else pack(own, one.length) for one, own in groups]

    def unpacked(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Unpack what the op makes into what the op writes."""
        if not self.makes:
            return list(results)
        return [part for one, result in zip(self.makes, results, strict=True) for part in _unpack(one, result)]


def pack(tensors: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """Tensors flattened, one behind the other, then zeros up to a length."""
    # Zeros behind the members: padding takes part in sums, and must add nothing.
    packed = tensors[0].new_zeros(length)
    torch.cat([tensor.flatten() for tensor in tensors], out=packed[: sum(tensor.numel() for tensor in tensors)])
    return packed


def _unpack(one: Buffer, packed: torch.Tensor) -> Iterator[torch.Tensor]:
    if one.length is None:
        yield packed
        return
    first = 0
    for shape in one.shapes:
        # A clone, so that the buffer can be freed while a member lives on.
        yield packed[first : first + prod(shape)].reshape(shape).clone()
        first += prod(shape)


def members_of(
    program: Program, tensor: Tensor, shares: Mapping[int, torch.Tensor]
) -> dict[str, dict[int, torch.Tensor]]:
    """The members of a packed tensor on every rank, of the shares that ranks have.

    Raises ``NumericsWrong`` where there is anything but zeros in the padding.
    """
    one = buffer(program, tensor)
    members: dict[str, dict[int, torch.Tensor]] = {name: {} for name in tensor.members}
    for group in program.partitions[tensor.splits[-1].partition].groups_GP.tolist():
        # Groups of which no rank holds the tensor (another stage) are left out.
        if all(rank in shares for rank in group):
            full = torch.cat([shares[rank] for rank in group])
            # A factor that is not finite turns zeros into NaN, which is no mistake of layout; other numbers are one.
            padding = full[sum(map(prod, one.shapes)) :].nan_to_num(0.0)
            if padding.any():
                raise NumericsWrong(f'{tensor.name}: ranks {group} have something in its padding: {padding.tolist()}')
            for name, member in zip(tensor.members, _unpack(one, full), strict=True):
                members[name] |= dict.fromkeys(group, member)
    return members


def as_named(
    program: Program, shares: Mapping[str, Mapping[int, torch.Tensor]]
) -> dict[str, tuple[Tensor, dict[int, torch.Tensor]]]:
    """Parameters and gradients by the names that the model gives them, each with its tensor and what ranks have of it.

    Arguments: ``shares``, by the names of the program, and rank.
    """
    by_name: dict[str, tuple[Tensor, dict[int, torch.Tensor]]] = {}
    for name, held in shares.items():
        tensor = program.tensor[name]
        if not tensor.members:
            by_name[name] = (tensor, dict(held))
            continue
        for member, shards in members_of(program, tensor, held).items():
            like = program.tensor[member].like or member
            by_name[f'd:{like}' if tensor.kind == 'gradient' else like] = (program.tensor[member], shards)
    return by_name


# A program's tensors on one rank: drawn in full from (seed, name, step, micro-batch), alike in any plan, then
# sharded.

TORCH: Final = {
    'fp64': torch.float64,
    'fp32': torch.float32,
    'tf32': torch.float32,
    'fp16': torch.float16,
    'bf16': torch.bfloat16,
    # No device here computes in 8 bits: what is cast is held in more, so that nothing is lost.
    'fp8': torch.float32,
    'int64': torch.int64,
    'int32': torch.int32,
    'bool': torch.bool,
}


def torch_dtype(dtype: str, override: torch.dtype | None = None) -> torch.dtype:
    """The torch dtype of a program's dtype; ``override`` takes the place of every floating one."""
    named = TORCH[dtype]
    return override if override is not None and named.is_floating_point else named


def bounds(program: Program, tensor: Tensor, rank: int) -> tuple[slice, ...]:
    """Return where a rank's shard lies in the full tensor (of all copies)."""
    first, length = [0] * len(tensor.shape), list(tensor.shape)
    for split in tensor.splits:
        partition = program.partitions[split.partition]
        if length[split.dim] % partition.size:
            raise ProgramError(
                f'{tensor.name}: dim {split.dim} of {tensor.shape} is not divisible over {partition.size} ranks of '
                f'{split.partition}'
            )
        length[split.dim] //= partition.size
        # A dim may be split twice (data and tensor); the second split works inside of the first.
        first[split.dim] += partition.place(rank)[1] * length[split.dim]
    return tuple(slice(begin, begin + size) for begin, size in zip(first, length, strict=True))


def shape_of_step(program: Program, tensor: Tensor) -> Shape:
    """The shape of an input of a whole step: all micro-batches, copies and ranks."""
    first, *rest = tensor.shape
    return (first * (1 if tensor.like else program.micro_batches), *rest)


def initial(program: Program, tensor: Tensor, rank: int, seed: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A rank's shard of a parameter or state before the first step, in memory of its own.

    A state is drawn as the parameter that it belongs to, so that a master weight is that weight; a packed tensor as its
    members are.
    """
    if tensor.initial == 'members':
        members = (program.tensor[name] for name in tensor.members)
        packed = pack([initial(program, replace(one, dtype=tensor.dtype), rank, seed, dtype) for one in members],
                      tensor.shape[0])  # fmt: skip
        # A clone: the buffer of all members must not stay alive for one shard.
        return packed[bounds(program, tensor, rank)].clone()
    # Drawn in full and then sharded, so that every plan starts from the same weights.
    full = draw(tensor.initial, tensor.shape, torch_dtype(tensor.dtype, dtype), seed, tensor.like or tensor.name)
    return full[bounds(program, tensor, rank)].clone(memory_format=torch.contiguous_format)


def assemble(
    program: Program, tensor: Tensor, shards: Sequence[torch.Tensor] | Mapping[int, torch.Tensor]
) -> torch.Tensor:
    """Join the shards of all ranks that hold a tensor; where copies split it, the tensor is one copy's.

    Raises ``NumericsWrong`` where ranks that hold the same shard differ by more than rounding.
    """
    if tensor.batch_dim is not None:
        shape = list(tensor.shape)
        shape[tensor.batch_dim] //= program.copies
        tensor = replace(tensor, shape=tuple(shape))
    held = dict(shards if isinstance(shards, Mapping) else enumerate(shards))
    full = next(iter(held.values())).new_empty(tensor.shape)
    holder: dict[tuple[int, ...], int] = {}
    for rank, shard in held.items():
        where = bounds(program, tensor, rank)
        # Shards that begin at one place are replicas.
        first = holder.setdefault(tuple(part.start for part in where), rank)
        if first == rank:
            full[where] = shard
        # Replicas are compared instead of believed: a missing sum over ranks shows here.
        elif not _same(held[first], shard):
            raise NumericsWrong(f'{tensor.name}: ranks {first} and {rank} should hold the same, but do not')
    return full


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.is_floating_point():
        return bool(torch.equal(a, b))
    # Replicas may have summed in different orders, e.g. rings of different ranks.
    rounding = 1e3 * torch.finfo(a.dtype).eps
    if not (a.isfinite().all() and b.isfinite().all()):
        # Norms of tensors that are not finite say nothing, so elements are compared, NaN equal to NaN.
        largest = float(a.nan_to_num(0.0, 0.0, 0.0).abs().max())
        return bool(torch.isclose(a, b, rtol=0.0, atol=rounding * largest, equal_nan=True).all())
    return bool((a - b).norm() <= rounding * a.norm())


def all_reduce(messages: Sequence[Sequence[torch.Tensor]], reduce: str) -> list[list[torch.Tensor]]:
    """``messages[position]`` are the tensors of one rank; every rank gets the sums or maxima, in memory of its own."""
    totals = [_reduce(tensors, reduce) for tensors in zip(*messages, strict=True)]
    return [[total.clone() for total in totals] for _ in messages]


def all_gather(shards: Sequence[torch.Tensor], dim: int) -> list[torch.Tensor]:
    """Every rank gets all shards, joined along ``dim``."""
    return [torch.cat(list(shards), dim) for _ in shards]


def reduce_scatter(tensors: Sequence[torch.Tensor], dim: int, reduce: str = 'sum') -> list[torch.Tensor]:
    """Position i gets the i-th of equal slices of the sum along ``dim``."""
    total = _reduce(tensors, reduce)
    if total.shape[dim] % len(tensors):
        raise ProgramError(f'dim {dim} of {tuple(total.shape)} cannot be scattered over {len(tensors)} ranks')
    return [shard.clone(memory_format=torch.contiguous_format) for shard in total.chunk(len(tensors), dim)]


def all_to_all(
    tensors: Sequence[torch.Tensor], joins: Sequence[int], splits: Sequence[int], sizes: Sequence[int]
) -> list[torch.Tensor]:
    """Position i gets the i-th slice of every tensor, joined by position; see ``validate.exchange_of``."""
    slices = [slices_of(tensor, splits, sizes) for tensor in tensors]
    return [joined(shards, joins, sizes) for shards in zip(*slices, strict=True)]


def slices_of(tensor: torch.Tensor, splits: Sequence[int], sizes: Sequence[int]) -> list[torch.Tensor]:
    """Split a tensor into equal slices by position, along a dim for each of ``sizes``; the first counts most."""
    shards = [tensor]
    for dim, size in zip(splits, sizes, strict=True):
        shards = [part for shard in shards for part in shard.chunk(size, dim)]
    return shards


def joined(shards: Sequence[torch.Tensor], joins: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """The shards of all positions in one tensor of its own, along one dim for each of ``sizes``."""
    # The last axis counts least, so its slices lie next to one another and are joined first.
    for dim, size in zip(reversed(joins), reversed(sizes), strict=True):
        shards = [torch.cat(list(shards[first : first + size]), dim) for first in range(0, len(shards), size)]
    return shards[0]


def _reduce(tensors: Sequence[torch.Tensor], reduce: str) -> torch.Tensor:
    """Reduce by position, so that the result does not depend on who came first."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = torch.maximum(total, tensor) if reduce == 'max' else total.add_(tensor)
    return total


# What a rank holds of parameters and optimizer states, as boxes of full tensors by name: the same in every plan.

Offsets = tuple[int, ...]
COUNT = 'updates'
"""The state of a layer, not of a weight: how often it was updated, where a loss scale may leave an update out."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a full tensor that a rank holds.

    Arguments:
        name: of the model's weight, with the kind of state before it, e.g. ``m:layer0.fc1.weight``.
        shape: of the full tensor.
        offsets, sizes: the box.
        values: the box itself, in the rank's own memory.
    """

    name: str
    shape: Offsets
    offsets: Offsets
    sizes: Offsets
    values: torch.Tensor


def persistent(program: Program, rank: int) -> Iterator[Tensor]:
    """The tensors of a rank that live from step to step: parameters and states."""
    for tensor in program.tensors:
        if tensor.kind in ('parameter', 'state') and program.holds(rank, tensor.name):
            yield tensor


def names(program: Program) -> set[str]:
    """The names of all pieces of a program: those of weights and of their states, the same in every plan."""
    lasting = (tensor for tensor in program.tensors if tensor.kind in ('parameter', 'state'))
    return {name for tensor in lasting for name, _ in _weights(program, tensor)}


def _weights(program: Program, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The weights, or their states, that a tensor has: by the module's own name, where the model is one."""
    if tensor.name.startswith(f'{COUNT}:'):
        return ((module_name(f'{COUNT}:{weight}'), tensor) for weight in _counted(program, tensor.name))
    if not tensor.members:
        return iter(((module_name(tensor.name), tensor),))
    kind = f'{tensor.name.partition(":")[0]}:' if tensor.kind == 'state' else ''
    members = map(program.tensor.__getitem__, tensor.members)
    return ((module_name(f'{kind}{one.like or one.name}'), one) for one in members)


def pieces(program: Program, rank: int, tensor: Tensor, values: torch.Tensor) -> Iterator[Piece]:
    """The boxes that a rank holds of a tensor; a tensor of several weights in one buffer gives those of each weight."""
    shapes = buffer(program, tensor).shapes
    # A rank holds one stretch of the flat buffer, which begins and ends anywhere in a weight.
    stretch, first = bounds(program, tensor, rank)[0] if shapes else slice(0, 0), 0
    for index, (name, member) in enumerate(_weights(program, tensor)):
        corner = [part.start for part in bounds(program, member, rank)]
        if not shapes:
            yield Piece(name, member.shape, tuple(corner), tuple(values.shape), values)
            continue
        shape = shapes[index]
        begin, end = max(stretch.start, first), min(stretch.stop, first + prod(shape))
        at = begin - stretch.start
        for offsets, sizes in boxes(shape, begin - first, end - first):
            box = values.view(-1)[at : at + prod(sizes)].view(sizes)
            place = tuple(low + more for low, more in zip(corner, offsets, strict=True))
            yield Piece(name, member.shape, place, sizes, box)
            at += prod(sizes)
        first += prod(shape)


def boxes(shape: Offsets, begin: int, end: int) -> Iterator[tuple[Offsets, Offsets]]:
    """Cut a stretch of a flattened tensor into boxes of it, in their order: (offsets, sizes) each."""
    if begin >= end:
        return
    if len(shape) == 1:
        yield (begin,), (end - begin,)
        return
    row = prod(shape[1:])
    first, last = -(-begin // row), end // row
    # Both ends in one row: no whole row between them.
    if first > last:
        for offsets, sizes in boxes(shape[1:], begin % row, end - begin // row * row):
            yield (last, *offsets), (1, *sizes)
        return
    for offsets, sizes in boxes(shape[1:], begin % row, row) if begin % row else ():
        yield (first - 1, *offsets), (1, *sizes)
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    for offsets, sizes in boxes(shape[1:], 0, end % row):
        yield (last, *offsets), (1, *sizes)


def _counted(program: Program, name: str) -> list[str]:
    """The weights of the layer whose updates are counted."""
    weight_names: dict[str, None] = {}
    for op in program.op_classes:
        if op.phase == 'U' and name in op.writes:
            weights = (program.tensor[one] for one in op.writes if program.tensor[one].kind in ('parameter', 'view'))
            for weight in weights:
                members = [program.tensor[one].like or one for one in weight.members]
                weight_names |= dict.fromkeys(members or [weight.like or weight.name])
    return list(weight_names)
