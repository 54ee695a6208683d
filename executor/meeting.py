"""Communication in process: where ranks meet, and what each of them receives."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.dims import dims_of, exchange_of
from executor.tensors import all_gather, all_reduce, all_to_all, reduce_scatter
from simpar.errors import ProgramError
from simpar.program import OpClass, Partition
from simpar.program.op import COLLECTIVES

Messages = Sequence[list[torch.Tensor]]
Place = tuple[object, ...]


def seat(op: OpClass, stream: str, partition: Partition, rank: int) -> tuple[Place, int, int]:
    """Return where a communication's participants meet, this rank's seat there, and the number of seats.

    A communicator is a partition and a stream; a send meets its receive on the way from one position to the other.
    """
    group, position = partition.place(rank)
    place = (partition.name, stream, group)
    peer = (position + op.peer) % partition.size
    if op.kind == 'send':
        return (*place, position, peer), 0, 2
    if op.kind == 'recv':
        return (*place, peer, position), 1, 2
    return place, position, partition.size


def communicate(ops: Sequence[OpClass], messages: Messages) -> list[list[torch.Tensor]]:
    """Carry out a communication; return what every participant gets, by seat.

    Raises: ProgramError where the participants are in different collectives or bring tensors of different shapes.
    """
    op = ops[0]
    if op.kind == 'send':
        # A copy: ranks of this process must not share memory, as ranks of two processes do not.
        return [[], [tensor.clone() for tensor in messages[0]]]
    for other, message in zip(ops, messages, strict=True):
        # Real ranks would hang or get wrong numbers here without any error.
        if _form(other, message) != _form(op, messages[0]):
            raise ProgramError(
                f'ranks meet in different collectives: {op.name} {_form(op, messages[0])} and '
                f'{other.name} {_form(other, message)}'
            )
    if op.operator == 'all_reduce':
        return all_reduce(messages, op.reduce)
    if op.operator == 'all_to_all':
        return _by_seat([all_to_all(tensors, *exchange_of(op)) for tensors in zip(*messages, strict=True)])
    if op.operator == 'send_recv':
        # From the one before; a copy, as of a send.
        return [[tensor.clone() for tensor in messages[seat - 1]] for seat in range(len(messages))]
    several = list(zip(zip(*messages, strict=True), dims_of(op), strict=True))
    if op.operator == 'all_gather':
        return _by_seat([all_gather(shards, dim) for shards, dim in several])
    if op.operator == 'reduce_scatter':
        return _by_seat([reduce_scatter(fulls, dim, op.reduce) for fulls, dim in several])
    raise ProgramError(f'{op.name}: no collective is called {op.operator!r}; there are {", ".join(COLLECTIVES)}')


def _by_seat(results: Sequence[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Results by tensor and seat as results by seat and tensor."""
    return [list(tensors) for tensors in zip(*results, strict=True)]


def _form(op: OpClass, message: list[torch.Tensor]) -> tuple[object, ...]:
    """What all participants must agree on."""
    along = tuple(op.attributes.get(key) for key in ('dim', 'joins', 'cuts', 'sizes'))
    return (op.operator, op.reduce, along, *(tuple(tensor.shape) for tensor in message))
