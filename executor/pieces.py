"""What a rank holds of parameters and optimizer states, as boxes of full tensors by name: the same in every plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch

from executor.packing import buffer
from executor.tensors import bounds
from simpar.program import Program, Tensor
from simpar.torch_module.names import module_name

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


def kept(program: Program, rank: int) -> Iterator[Tensor]:
    """The tensors of a rank that live from step to step: parameters and states."""
    for tensor in program.tensors:
        if tensor.kind in ('parameter', 'state') and program.holds(rank, tensor.name):
            yield tensor


def names(program: Program) -> set[str]:
    """The names of all pieces of a program: those of weights and of their states, the same in every plan."""
    found: set[str] = set()
    for tensor in program.tensors:
        if tensor.kind in ('parameter', 'state'):
            found.update(_names(program, tensor))
    return found


def _names(program: Program, tensor: Tensor) -> Iterator[str]:
    if tensor.name.startswith(f'{COUNT}:'):
        return (module_name(f'{COUNT}:{weight}') for weight in _counted(program, tensor.name))
    if not tensor.members:
        return iter((module_name(tensor.name),))
    kind = f'{tensor.name.partition(":")[0]}:' if tensor.kind == 'state' else ''
    return (module_name(f'{kind}{program.tensor[name].like or name}') for name in tensor.members)


def pieces(program: Program, rank: int, tensor: Tensor, values: torch.Tensor) -> Iterator[Piece]:
    """The boxes that a rank holds of a tensor; a tensor of several weights in one buffer gives those of each weight."""
    if tensor.name.startswith(f'{COUNT}:'):
        for weight in _counted(program, tensor.name):
            yield Piece(module_name(f'{COUNT}:{weight}'), (1,), (0,), (1,), values)
        return
    if not tensor.members:
        where = bounds(program, tensor, rank)
        yield _box(tensor.name, tensor.shape, tuple(part.start for part in where), values)
        return
    kind = f'{tensor.name.partition(":")[0]}:' if tensor.kind == 'state' else ''
    # A rank holds one stretch of the flat buffer, which begins and ends anywhere in a weight.
    (stretch,) = bounds(program, tensor, rank)
    first = 0
    for name, shape in zip(tensor.members, buffer(program, tensor).shapes, strict=True):
        begin, end = max(stretch.start, first), min(stretch.stop, first + prod(shape))
        if begin < end:
            member = program.tensor[name]
            corner = [part.start for part in bounds(program, member, rank)]
            own = values.view(-1)[begin - stretch.start : end - stretch.start]
            at = 0
            for offsets, sizes in boxes(shape, begin - first, end - first):
                box = own[at : at + prod(sizes)].view(sizes)
                place = tuple(low + more for low, more in zip(corner, offsets, strict=True))
                yield _box(f'{kind}{member.like or name}', member.shape, place, box)
                at += prod(sizes)
        first += prod(shape)


def _box(name: str, shape: Offsets, offsets: Offsets, values: torch.Tensor) -> Piece:
    # By the module's own name, where the model is one.
    return Piece(module_name(name), tuple(shape), offsets, tuple(values.shape), values)


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
    found: dict[str, None] = {}
    for op in program.op_classes:
        if op.phase == 'U' and name in op.writes:
            weights = (program.tensor[one] for one in op.writes if program.tensor[one].kind in ('parameter', 'view'))
            for weight in weights:
                members = [program.tensor[one].like or one for one in weight.members]
                found |= dict.fromkeys(members or [weight.like or weight.name])
    return list(found)
