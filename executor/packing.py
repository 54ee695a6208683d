"""Packed tensors: several tensors of a rank, flattened into one that ranks share out evenly, and taken apart again.

A collective of packed tensors works on their full buffers: a reduce-scatter packs what it reads, an all-gather takes
apart what it has gathered, and both send the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

import torch

from simpar.errors import NumericsWrong
from simpar.program import OpClass, Program, Tensor

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
        packs, unpacks = op.operator in ('reduce_scatter', 'piece'), op.operator == 'all_gather'
        names = op.writes + op.accumulates if packs else op.reads if unpacks else ()
        found = tuple(buffer(program, program.tensor[name]) for name in names)
        # Most ops pack nothing, and then skip all of it at run time.
        if all(one is ALONE for one in found):
            return cls()
        return cls(reads=found if packs else (), makes=found if unpacks else ())

    def packed(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Pack what the op reads into what the op works on."""
        if not self.reads:
            return list(tensors)
        rest = iter(tensors)
        return [_pack(one, list(islice(rest, one.members))) for one in self.reads]

    def unpacked(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Unpack what the op makes into what the op writes."""
        if not self.makes:
            return list(results)
        return [part for one, result in zip(self.makes, results, strict=True) for part in _unpack(one, result)]


def _pack(one: Buffer, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if one.length is None:
        return tensors[0]
    return pack(tensors, one.length)


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
    partition = program.partitions[tensor.splits[-1].partition]
    found: dict[str, dict[int, torch.Tensor]] = {name: {} for name in tensor.members}
    for group in partition.groups_GP.tolist():
        # Groups of which no rank holds the tensor (another stage) are left out.
        if all(rank in shares for rank in group):
            full = torch.cat([shares[rank] for rank in group])
            # A factor that is not finite turns zeros into NaN, which is no mistake of layout; other numbers are one.
            padding = full[sum(map(prod, one.shapes)) :].nan_to_num(0.0)
            if padding.any():
                raise NumericsWrong(f'{tensor.name}: ranks {group} have something in its padding: {padding.tolist()}')
            for name, member in zip(tensor.members, _unpack(one, full), strict=True):
                found[name] |= dict.fromkeys(group, member)
    return found


def as_named(
    program: Program, shares: Mapping[str, Mapping[int, torch.Tensor]]
) -> dict[str, tuple[Tensor, dict[int, torch.Tensor]]]:
    """Parameters and gradients by the names that the model gives them, each with its tensor and what ranks have of it.

    Arguments: ``shares``, by the names of the program, and rank.
    """
    found: dict[str, tuple[Tensor, dict[int, torch.Tensor]]] = {}
    for name, held in shares.items():
        tensor = program.tensor[name]
        if not tensor.members:
            found[name] = (tensor, dict(held))
            continue
        for member, shards in members_of(program, tensor, held).items():
            like = program.tensor[member].like or member
            found[f'd:{like}' if tensor.kind == 'gradient' else like] = (program.tensor[member], shards)
    return found
