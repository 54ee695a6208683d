"""What kernels share: where and when an op runs, the places of its tokens, masks of dropout, and at least fp32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import torch

from executor.draws import dropout_mask, in_sequence
from simpar.program import OpClass, Program

Tensor: TypeAlias = torch.Tensor
Tensors: TypeAlias = list[Tensor]


def wide(tensor: Tensor) -> Tensor:
    """The tensor in at least fp32."""
    return tensor.float() if tensor.element_size() < torch.float32.itemsize else tensor


# What a kernel knows besides its op class and tensors.

CPU: Final = torch.device('cpu')


@dataclass(frozen=True, slots=True)
class Context:
    """Where and when an op runs.

    Arguments:
        position: partition → the rank's position in its group.
        size: partition → ranks in a group.
        step: the optimizer step, from 0; in a graph that is replayed, a number on the device.
        micro_batch, copy: the op's own, 0 where it has none.
        device: where its tensors are.
    """

    rank: int
    position: dict[str, int]
    size: dict[str, int]
    step: int | Tensor = 0
    micro_batch: int = 0
    copy: int = 0
    device: torch.device = CPU

    def at(self, micro_batch: int, copy: int) -> Context:
        """The same for an op of another micro-batch and copy."""
        # A new object for every op would cost as much as a small kernel.
        if (micro_batch, copy) == (self.micro_batch, self.copy):
            return self
        return Context(self.rank, self.position, self.size, self.step, micro_batch, copy, self.device)


Kernel = Callable[..., Tensors]
"""What an op class makes, where it runs, of the tensors that it reads: ``kernel(op, where, *tensors)``."""
Entry = TypeVar('Entry')


def plain(function: Callable[..., Tensor]) -> Kernel:
    """A kernel that is a function of its tensors alone, and gives one."""
    return lambda op, where, *tensors: [function(*tensors)]


def of_phases(operator: str, phases: str, kernel: Entry) -> dict[tuple[str, str], Entry]:
    """Rows of a table: one kernel for several phases."""
    return {(operator, phase): kernel for phase in phases}


def rows(operator: str, **kernels: Entry) -> dict[tuple[str, str], Entry]:
    """Rows of a table: the kernels of an operator, by phase."""
    return {(operator, phase): kernel for phase, kernel in kernels.items()}


def context(program: Program, rank: int, step: int = 0) -> Context:
    """The context of a rank in one step."""
    partitions = program.partitions.values()
    return Context(
        rank=rank,
        position={partition.name: partition.place(rank)[1] for partition in partitions},
        size={partition.name: partition.size for partition in partitions},
        step=step,
    )


def position(op: OpClass, where: Context) -> int:
    """The rank's position in the partition that ``attributes['partition']`` names; 0 where nothing is sharded."""
    partition = str(op.attributes.get('partition', ''))
    return where.position[partition] if partition else 0


# Places of tokens: those of a rank's part of a sequence, and their positions, which begin anew with each document.


def places(op: OpClass, where: Context, tokens: int) -> Tensor:
    """The position of each of a rank's tokens, [tokens]: in its document, where ``attributes['documents']`` has some.

    Arguments: ``tokens`` of a sample on this rank.
    """
    own = held(op, where, tokens)
    return own - begin_of(op, own)


def held(op: OpClass, where: Context, tokens: int) -> Tensor:
    """Which tokens of its sequence a rank has, [tokens], whichever way ranks share it."""
    partition = str(op.attributes.get('partition', ''))
    first = int(op.attributes.get('first', 0))
    return first + in_slice(op, position(op, where), tokens, where.size[partition] if partition else 1)


def in_slice(op: OpClass, number: int, tokens: int, slices: int) -> Tensor:
    """Which tokens slice ``number`` of equal ``slices`` has."""
    index = torch.arange(tokens) + number * tokens
    return in_sequence(index, slices * tokens, int(op.attributes.get('balanced', 0)))


def in_order(op: OpClass, tokens: int) -> Tensor:
    """The tokens of a whole sequence, in the order in which context ranks hold them."""
    return in_slice(op, 0, tokens, 1)


def begin_of(op: OpClass, tokens: Tensor) -> Tensor:
    """Where the document of each of some tokens begins; all 0 where there is one."""
    text = str(op.attributes.get('documents', ''))
    if not text:
        return torch.zeros_like(tokens)
    lengths = torch.tensor([int(length) for length in text.split()])
    ends = lengths.cumsum(0)
    return (ends - lengths)[torch.searchsorted(ends, tokens, right=True)]


# Dropout: the mask of a rank's shard, and what it leaves.


def mask_of(
    op: OpClass,
    where: Context,
    keys: Tensor,
    shape: Sequence[int],
    pairs: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The mask of this rank's shard.

    Arguments: ``shape`` of the shard, batch first; ``pairs``, of probabilities the places of queries and keys, which
    are others than all places in order.
    """
    full, probability = list(shape[1:]), float(op.attributes['dropout'])
    places = _places(op, where, full) if pairs is None else dict(enumerate(pairs, 1))
    site, shard = str(op.attributes['site']), (0, 0, 0)
    # The mask is drawn by places in the full tensor, so that any plan drops the same elements.
    if 'cut' in op.attributes:
        # ``cut`` counts the batch, the mask's shape does not.
        dim = int(op.attributes['cut']) - 1
        length = full[dim]
        full[dim] *= where.size[str(op.attributes['partition'])]
        shard = (dim, position(op, where) * length, length)
    return dropout_mask(keys, site, full, probability, shard, places)


def _places(op: OpClass, where: Context, full: Sequence[int]) -> dict[int, Tensor]:
    """By dim the places of a sequence that a rank does not hold from the first on, in order."""
    first = int(op.attributes.get('first', 0))
    if first and len(full) == 2:
        # A chunk of it, whose tokens or features tensor ranks may share.
        own = position(op, where) * full[0] if int(op.attributes.get('cut', 0)) == 1 else 0
        return {0: first + own + torch.arange(full[0])}
    if 'balanced' not in op.attributes:
        return {}
    if len(full) == 2:
        return {0: held(op, where, full[0])}
    # Probabilities of whole sequences, for each head.
    every = in_order(op, full[-1])
    return {1: every, 2: every}


def left(op: OpClass, x: Tensor, mask: Tensor) -> Tensor:
    """x × mask / (1 − probability)."""
    return x * mask / (1 - float(op.attributes['dropout']))


def dropout_forward(op: OpClass, where: Context, x: Tensor, keys: Tensor) -> Tensors:
    """x, keys → y, mask."""
    mask = mask_of(op, where, keys, x.shape)
    return [left(op, x, mask), mask]


def dropout_dx(op: OpClass, where: Context, dy: Tensor, mask: Tensor) -> Tensors:
    """dy, mask → dx."""
    return [left(op, dy, mask)]


DROPOUT: Final[dict[tuple[str, str], Kernel]] = {
    **rows('dropout', F=dropout_forward, I=dropout_dx),
    ('residual', 'I'): dropout_dx,
}
