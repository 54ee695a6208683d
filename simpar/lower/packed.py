"""Packed shards: equal ranges of parameters that are flattened and padded, as FSDP2, FSDP1 and Megatron-LM have them.

The length of a *padded* parameter is a whole number of rows for every rank, as torch.chunk deals them out: rank i has
rows i·c to (i + 1)·c, c = ⌈rows / ranks⌉, the last ones fewer or none, and zeros in their place. The length of a *flat*
message is the sum of its parameters' elements, up to the next multiple of the ranks. Zeros stay zeros: no gradient is
added to them, and no optimizer moves a weight of 0 whose gradient and states are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from simpar.lower.optimizer_parallel import Shard
from simpar.lower.tape import Tape
from simpar.lower.update_shards import local_elements, local_shape
from simpar.program import Split, Tensor

MEMBERS = 'members'
"""How a packed weight is first filled: as its members."""


def padded_shard(tape: Tape, tensor: Tensor, groups: tuple[str, str], outputs: int, *, weights: bool) -> Shard:
    """One parameter, sharded by rows.

    Arguments:
        groups: shard groups and replicas.
        outputs: how many leading dims are its rows: a weight that has several dims of outputs, as queries, keys and
            values by heads, has rows of all of them.
        weights: the weight itself is sharded, not its update alone.
    """
    size = tape.partitions[groups[0]].size
    local = local_shape(tape, tensor)
    rows, row = prod(local[:outputs]), prod(local[outputs:])
    # Rounded up to whole rows for every rank, padding and all, as FSDP2 allocates.
    length = -(-rows // size) * size * row
    name = tensor.name if weights else f'{tensor.name}.piece'
    return _register(tape, [tensor], groups, length, (name, f'd:{tensor.name}'), weights=weights)


def flat_shard(tape: Tape, bucket: str, tensors: Sequence[Tensor], groups: tuple[str, str], *, weights: bool) -> Shard:
    """The parameters of a message in one buffer.

    Arguments: ``bucket``, the message's name; ``groups`` and ``weights`` as of ``padded_shard``. Does not model: what
    Megatron-LM and DeepSpeed align besides, for the sake of kernels and links (docs/optimizer_parallel.md).
    """
    size = tape.partitions[groups[0]].size
    # One padding behind all of them: parameters may lie across the borders of ranks.
    length = -(-sum(local_elements(tape, tensor) for tensor in tensors) // size) * size
    flat = f'{bucket}.flat.{groups[0]}'
    names = (flat if weights else f'{flat}.piece', f'd:{flat}')
    shard = _register(tape, tensors, groups, length, names, weights=weights)
    # The buffer holds the gradients' sums; the tensors that it replaces are left out of the program.
    tape.replaced.update(f'd:{tensor.name}' for tensor in tensors)
    if weights:
        tape.replaced.update(tensor.name for tensor in tensors)
    return replace(shard, bucket=bucket, flat=flat)


def output_dims(tape: Tape) -> dict[str, int]:
    """How many leading dims of parameters of products are outputs: torch has them as one dim, its rows."""
    telling = (op for op in (*tape.ops, *tape.casts) if 'outputs' in op.attributes)
    return {name: int(op.attributes['outputs']) for op in telling for name in op.reads}


def _register(
    tape: Tape, tensors: Sequence[Tensor], groups: tuple[str, str], length: int, names: tuple[str, str], *,
    weights: bool,
) -> Shard:  # fmt: skip
    """Put the packed weight and gradient, and what is full, on the tape.

    Arguments: ``length``, elements of all shards of a group, padding and all; ``names`` of weight and gradient.
    """
    gradients = [tape.tensors[f'd:{tensor.name}'] for tensor in tensors]
    fulls = tuple(replace(gradient, name=f'{gradient.name}.whole') for gradient in gradients)
    gathered = tuple(
        replace(tensor, name=f'{tensor.name}.gathered', kind='gathered', like=tensor.name) if weights else tensor
        for tensor in tensors
    )
    # A flat buffer belongs to no single parameter.
    like = tensors[0].name if len(tensors) == 1 else ''
    splits = (Split(0, groups[0]),)
    weight = Tensor(
        name=names[0],
        kind='parameter' if weights else 'view',
        shape=(length,),
        dtype=tensors[0].dtype,
        splits=splits,
        initial=MEMBERS if weights else '',
        like='' if weights else like,
        members=tuple(tensor.name for tensor in gathered),
    )
    gradient = Tensor(
        name=names[1],
        kind='gradient',
        shape=(length,),
        dtype=gradients[0].dtype,
        splits=splits,
        like=like,
        members=tuple(tensor.name for tensor in fulls),
    )
    for made in (*fulls, gradient, weight, *gathered):
        tape.tensors[made.name] = made
    return Shard(
        parameters=tuple(tensor.name for tensor in tensors),
        weight=weight,
        gradient=gradient,
        fulls=fulls,
        gathered=tuple(tensor.name for tensor in gathered),
        dim=0,
        partition=groups[0],
        replica=groups[1],
    )
