"""What optimizer parallelism does on a rank alone: shards of full weights, and the freeing of gathered ones."""

from __future__ import annotations

import torch

from executor.dims import dims_of
from executor.kernels.context import Context, position
from simpar.program import OpClass


def shard(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """weights... → this position's shards of them in ``partition``, which the update changes.

    In memory of their own, so that a weight changes nowhere but where its op says so.
    """
    own, size = position(op, where), where.size[str(op.attributes['partition'])]
    return [
        # A view would be updated along with the weight, and would keep the full weight in memory.
        tensor.chunk(size, dim)[own].clone(memory_format=torch.contiguous_format)
        for tensor, dim in zip(tensors, dims_of(op), strict=True)
    ]


def reshard(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Nothing: the op frees."""
    return []


KERNELS = {('piece', 'U'): shard, ('reshard', 'F'): reshard, ('reshard', 'I'): reshard}
