"""A program's tensors on one rank: drawn in full from (seed, name, step, micro-batch), alike in any plan, then sharded.

Draws are made in fp64 and then cast; a collective is a function from the tensors of a group's ranks to their tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import torch

from executor import data
from executor.given import given
from executor.packing import pack
from executor.sequence import in_sequence
from simpar.errors import NumericsWrong, ProgramError
from simpar.program import Program, Tensor

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


def draw(initial: str, shape: Sequence[int], dtype: torch.dtype, seed: int, *key: object) -> torch.Tensor:
    """A full tensor.

    Arguments:
        initial: ``normal:DEVIATION``, ``zeros``, ``ones``, ``given:NAME`` (of a module), ``tokens:COUNT`` or
            ``classes:COUNT`` (integers below COUNT).
        key: what is drawn, e.g. name, step, micro-batch.
    Raises ``ProgramError`` for another ``initial``.
    """
    how, _, number = initial.partition(':')
    if how == 'given':
        return given(number, tuple(shape), dtype)
    # A generator for each draw: its result must not depend on what was drawn before.
    generator = torch.Generator().manual_seed(stable_seed(seed, *key))
    if how == 'normal' and number:
        # In fp64 and then cast, so that all dtypes start from the same numbers.
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) * float(number)).to(dtype)
    if how in ('tokens', 'classes') and number:
        return torch.randint(int(number), tuple(shape), generator=generator).to(dtype)
    if initial in ('zeros', 'ones'):
        return torch.full(tuple(shape), float(initial == 'ones'), dtype=dtype)
    raise ProgramError(
        f'{key[0]}: nothing is drawn as {initial!r}; '
        'write normal:DEVIATION, zeros, ones, tokens:COUNT, classes:COUNT or mnist'
    )


def stable_seed(seed: int, *key: object) -> int:
    """A seed of 63 bits that depends on nothing but its arguments."""
    # Not ``hash``, which differs from process to process.
    digest = hashlib.sha256('\0'.join(str(part) for part in (seed, *key)).encode()).digest()
    # 63 bits: torch takes signed seeds.
    return int.from_bytes(digest[:8], 'big') >> 1


own_batches: Final[dict[int, Mapping[str, torch.Tensor]]] = {}
"""Batches that the user has given, by step and name, in place of drawn ones; see ``executor.batches``."""


def batch_of(name: str, initial: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int, step: int) -> torch.Tensor:
    """One input of a step in full: the user's own, or drawn."""
    if step not in own_batches:
        return _drawn(name, initial, shape, dtype, seed, step)
    full = own_batches[step][name].to(dtype)
    _, _, ranks = initial.partition('@')
    return full[:, in_sequence(torch.arange(shape[1]), shape[1], int(ranks))] if ranks else full


@lru_cache(maxsize=16)
def _drawn(name: str, initial: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int, step: int) -> torch.Tensor:
    """Draw one input of a step in full (all micro-batches, data ranks, copies), so that every plan sees the same."""
    if initial == data.INITIAL:
        return data.batch(shape, dtype, stable_seed(seed, 'mnist'), step)
    # Balanced context ranks hold a sequence in another order: drawn in its own, then brought into theirs.
    initial, _, ranks = initial.partition('@')
    full = draw(initial, shape, dtype, seed, name, step)
    return full[:, in_sequence(torch.arange(shape[1]), shape[1], int(ranks))] if ranks else full


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


def inputs(
    program: Program,
    tensor: Tensor,
    rank: int,
    step: int,
    micro_batch: int,
    copy: int,
    seed: int,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Draw a rank's shard of an input: of one copy, or of all where the input is a whole step's."""
    kind = torch_dtype(tensor.dtype, dtype)
    if tensor.like:
        full = batch_of(tensor.like, tensor.initial, tensor.shape, kind, seed, step)
        return full[bounds(program, tensor, rank)].clone(memory_format=torch.contiguous_format)
    first, *rest = tensor.shape
    shape = (first * program.micro_batches, *rest)
    full = batch_of(tensor.name, tensor.initial, shape, kind, seed, step).narrow(0, first * micro_batch, first)
    shard = full[bounds(program, tensor, rank)]
    if tensor.batch_dim is not None:
        length = shard.shape[tensor.batch_dim] // program.copies
        shard = shard.narrow(tensor.batch_dim, copy * length, length)
    return shard.clone(memory_format=torch.contiguous_format)


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
    """Position i gets the i-th slice of every tensor, joined by position; see ``executor.dims.exchange_of``."""
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
