"""What a kernel knows besides its op class and tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from simpar.program import OpClass, Program

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
    step: int | torch.Tensor = 0
    micro_batch: int = 0
    copy: int = 0
    device: torch.device = CPU

    def at(self, micro_batch: int, copy: int) -> Context:
        """The same for an op of another micro-batch and copy."""
        # A new object for every op would cost as much as a small kernel.
        if (micro_batch, copy) == (self.micro_batch, self.copy):
            return self
        return Context(self.rank, self.position, self.size, self.step, micro_batch, copy, self.device)


Kernel = Callable[[OpClass, Context, list[torch.Tensor]], list[torch.Tensor]]


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
