"""Muon's update of a matrix: its momentum, gathers of what ranks hold of that, and the update of a rank's own shard.

Newton–Schulz needs the full matrix. Every rank gathers it and orthogonalises all of it, the same work on each: what
distributed Muon is in its simplest form. Does not model: matrices dealt out to ranks, each orthogonalised on one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Final

from simpar.lower.clip import OVERFLOW, SQUARES
from simpar.lower.packed import output_dims
from simpar.lower.tape import Tape
from simpar.lower.update_shards import UpdateShard, local_elements
from simpar.model.operators import priced
from simpar.program import OpClass, Tensor
from simpar.program.op import Attribute
from simpar.program.tensor import BYTES
from simpar.workload import Muon, Workload

ITERATIONS: Final = 5
"""Of Newton and Schulz, as Jordan et al. 2024 do."""


def matrices(tape: Tape) -> dict[str, int]:
    """Parameters that Muon sees as matrices, and how many of their leading dims are rows.

    The weights of products and convolutions: what nothing but these add gradients to, and has dims of inputs.
    """
    adders: dict[str, set[str]] = {}
    for op in tape.ops:
        for name in op.accumulates:
            adders.setdefault(tape.tensors[name].like, set()).add(op.operator)
    # What is gathered of a weight is read in its place.
    outputs = {(tape.tensors[name].like or name): count for name, count in output_dims(tape).items()}
    # A tied weight is an embedding too, and a bias has the dims of the outputs alone.
    return {
        name: outputs.get(name, 1)
        for name, operators in adders.items()
        if operators <= priced('matrix') and len(tape.tensors[name].shape) > outputs.get(name, 1)
    }


def muon_ops(
    tape: Tape, shard: UpdateShard, rows: int, states: tuple[str, ...], workload: Workload, optimizer: Muon
) -> tuple[OpClass, ...]:
    """The ops that update one matrix; the first frees its gradient. What they hand on is registered.

    Arguments: ``rows``, how many leading dims of the weight are its rows; ``states``, the momentum and, with
    ``master_weights``, the master.
    """
    # 16 bits of fp16 have no range for gradients that are no longer scaled.
    dtype = 'fp32' if shard.gradient.dtype == 'fp16' else shard.gradient.dtype
    change = Tensor(f'u:{shard.parameter}', 'gathered', shard.weight.shape, dtype, splits=shard.weight.splits)
    tape.tensors[change.name] = change
    gathers = tuple(_gathers(tape, change, shard))
    full = gathers[-1].writes[0] if gathers else change.name
    return (_momentum(tape, shard, change, states[0], workload, optimizer), *gathers,
            _update(tape, shard, full, rows, states[1:], workload, optimizer))  # fmt: skip


def _momentum(
    tape: Tape, shard: UpdateShard, change: Tensor, state: str, workload: Workload, optimizer: Muon
) -> OpClass:
    options: dict[str, Attribute] = {'momentum': optimizer.momentum, 'nesterov': optimizer.nesterov}
    numbers = []
    if workload.clip_norm:
        options['clip_norm'] = workload.clip_norm
        numbers.append(SQUARES)
    if workload.loss_scale != 1:
        options['loss_scale'] = workload.loss_scale
        numbers.append(OVERFLOW)
    elements = local_elements(tape, change)
    # The gradient is read, the state read and written, the change written.
    moved = BYTES[shard.gradient.dtype] + 2 * BYTES['fp32'] + BYTES[change.dtype]
    return OpClass(
        name=f'{shard.parameter}.momentum.U',
        kind='compute',
        operator='muon_momentum',
        phase='U',
        flops=float(elements * (2 + 2 * optimizer.nesterov + bool(numbers))),
        bytes=float(elements * moved),
        dtype=tape.dtype,
        reads=(shard.gradient.name, state, *numbers),
        writes=(state, change.name),
        frees=(shard.gradient.name,),
        attributes=options,
        stage=shard.stage,
    )


def _gathers(tape: Tape, change: Tensor, shard: UpdateShard) -> Iterator[OpClass]:
    """An all-gather for each split; the last split first, as it lies within the others."""
    held = change
    while held.splits:
        *splits, last = held.splits
        made = replace(held, name=f'{change.name}.{last.partition}', splits=tuple(splits))
        tape.tensors[made.name] = made
        yield OpClass(
            name=f'{shard.parameter}.change.{last.partition}.all_gather.U',
            kind='collective',
            operator='all_gather',
            phase='U',
            bytes=float(local_elements(tape, made) * BYTES[made.dtype]),
            dtype=made.dtype,
            partition=last.partition,
            reads=(held.name,),
            writes=(made.name,),
            frees=(held.name,),
            attributes={'dim': last.dim},
            stage=shard.stage,
        )
        held = made


def _update(
    tape: Tape, shard: UpdateShard, full: str, rows: int, masters: tuple[str, ...], workload: Workload, optimizer: Muon
) -> OpClass:
    """Newton–Schulz of the full matrix; the shard that this rank has of it changes the weight."""
    weight = shard.weight
    attributes: dict[str, Attribute] = {
        'learning_rate': optimizer.learning_rate,
        'weight_decay': optimizer.weight_decay,
        'rows': rows,
        'iterations': ITERATIONS,
        'splits': ' '.join(str(split.dim) for split in weight.splits),
        'partitions': ' '.join(split.partition for split in weight.splits),
    }
    numbers = (OVERFLOW,) if workload.loss_scale != 1 else ()
    if masters:
        attributes['master_weights'] = True
    if numbers:
        attributes['loss_scale'] = workload.loss_scale
    sides = prod(weight.shape[:rows]), prod(weight.shape[rows:])
    short, long = min(sides), max(sides)
    width = BYTES[tape.tensors[full].dtype]
    # Without masters the weight is read and written, with them the weight written and the master both.
    written = BYTES[weight.dtype] * (1 if masters else 2) + 2 * BYTES['fp32'] * len(masters)
    return OpClass(
        name=f'{shard.parameter}.update.U',
        kind='compute',
        operator='muon',
        phase='U',
        dims={'short': short, 'long': long, 'iterations': ITERATIONS},
        # A = X·Xᵀ, A·A and the product of their sum with X; what is done element by element is not counted.
        flops=float(ITERATIONS * (4 * short**2 * long + 2 * short**3)),
        bytes=float(ITERATIONS * width * (4 * short * long + 5 * short**2) + local_elements(tape, weight) * written),
        dtype=tape.tensors[full].dtype,
        reads=(full, weight.name, *masters, *numbers),
        writes=(weight.name, *masters),
        frees=(full,),
        attributes=attributes,
        stage=shard.stage,
    )
