"""Muon's update of a matrix: its momentum, gathers of what ranks hold of that, and the update of a rank's own shard.

Newton–Schulz needs the full matrix. Every rank gathers it and orthogonalises all of it, the same work on each: what
distributed Muon is in its simplest form. A weight of experts is a matrix for each of them: a rank gathers those of its
own experts. Packed shards are gathered as one message; each matrix of it is orthogonalised, and the rank's share of all
changes is packed again. Does not model: matrices dealt out to ranks, each orthogonalised on one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Final, NamedTuple, TypedDict

from simpar.lower.clip import OVERFLOW, SQUARES
from simpar.lower.packed import output_dims
from simpar.lower.tape import Tape
from simpar.lower.update_shards import UpdateShard, local_elements, local_shape
from simpar.model.operators import priced
from simpar.program import OpClass, Split, Tensor
from simpar.program.op import Attribute
from simpar.program.tensor import BYTES
from simpar.workload import Muon, Workload

ITERATIONS: Final = 5
"""Of Newton and Schulz, as Jordan et al. 2024 do."""
GROUPED: Final = 'grouped_matmul'
"""The op class of a weight that is a matrix for each expert."""


class Sides(NamedTuple):
    """Which dims of a weight are what to Muon.

    Arguments: ``many``, how many leading dims count matrices; ``rows``, how many dims behind these are rows.
    """

    many: int
    rows: int

    def within(self, tensor: Tensor) -> tuple[Split, ...]:
        """The splits that go through a matrix."""
        return tuple(split for split in tensor.splits if split.dim >= self.many)


def matrices(tape: Tape) -> dict[str, Sides]:
    """Parameters that Muon sees as matrices.

    The weights of products and convolutions: what nothing but these add gradients to, and has dims of inputs.
    """
    adders: dict[str, set[str]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for op in tape.ops:
        for name in op.accumulates:
            gradient = tape.tensors[name]
            adders.setdefault(gradient.like, set()).add(op.operator)
            shapes[gradient.like] = gradient.shape
    # What is gathered of a weight is read in its place.
    outputs = {(tape.tensors[name].like or name): count for name, count in output_dims(tape).items()}
    found = {
        # Grouped products have a matrix for each expert; inputs are their last dim.
        name: Sides(1, len(shapes[name]) - 2) if operators == {GROUPED} else Sides(0, outputs.get(name, 1))
        for name, operators in adders.items()
        if operators <= priced('matrix')
    }
    # A tied weight is an embedding too, and a bias has the dims of the outputs alone.
    return {name: sides for name, sides in found.items() if len(shapes[name]) > sum(sides)}


def matrices_of(tape: Tape, shard: UpdateShard, known: Mapping[str, Sides]) -> dict[str, Sides]:
    """The matrices of a shard by what a rank reads of them in full: one, or those that it packs; empty: none."""
    if not shard.weight.members:
        return {shard.parameter: known[shard.parameter]} if shard.parameter in known else {}
    named = {name: tape.tensors[name].like or name for name in shard.weight.members}
    return {name: known[like] for name, like in named.items() if like in known}


def muon_ops(
    tape: Tape,
    shard: UpdateShard,
    sides: Mapping[str, Sides],
    states: tuple[str, ...],
    workload: Workload,
    optimizer: Muon,
) -> tuple[OpClass, ...]:
    """The ops that update one matrix, or those of a packed shard; the first frees its gradient.

    What they hand on is registered. Arguments: ``sides`` as ``matrices_of`` gives them; ``states``, the momentum and,
    with ``master_weights``, the master.
    """
    # 16 bits of fp16 have no range for gradients that are no longer scaled.
    dtype = 'fp32' if shard.gradient.dtype == 'fp16' else shard.gradient.dtype
    change = Tensor(
        f'u:{shard.parameter}.share' if shard.weight.members else f'u:{shard.parameter}',
        'gathered',
        shard.weight.shape,
        dtype,
        splits=shard.weight.splits,
        members=tuple(f'u:{name}' for name in shard.weight.members),
    )
    tape.tensors[change.name] = change
    momentum = _momentum(tape, shard, change, states[0], workload, optimizer)
    if change.members:
        packed = _packed(tape, shard, change, sides)
        return (momentum, *packed, _step(tape, shard, packed[-1].writes[0], states[1:], workload, optimizer))
    (of,) = sides.values()
    gathers = tuple(_gathers(tape, change, shard.parameter, of, shard.stage))
    full = gathers[-1].writes[0] if gathers else change.name
    return momentum, *gathers, _update(tape, shard, full, of, states[1:], workload, optimizer)


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


def _gathers(tape: Tape, change: Tensor, parameter: str, sides: Sides, stage: int) -> Iterator[OpClass]:
    """An all-gather for each split of matrices; the last split first, as it lies within the others."""
    held = change
    for last in reversed(sides.within(change)):
        splits = tuple(split for split in held.splits if split != last)
        made = replace(held, name=f'{change.name}.{last.partition}', splits=splits)
        tape.tensors[made.name] = made
        yield OpClass(
            name=f'{parameter}.change.{last.partition}.all_gather.U',
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
            stage=stage,
        )
        held = made


def _packed(tape: Tape, shard: UpdateShard, change: Tensor, sides: Mapping[str, Sides]) -> tuple[OpClass, ...]:
    """Gather the momenta of a packed shard, orthogonalise each, and pack this rank's share of all changes."""
    (split,) = shard.weight.splits
    changes, ops = list[Tensor](), list[OpClass]()
    for name, member in zip(shard.weight.members, change.members, strict=True):
        whole = Tensor(member, 'gathered', tape.tensors[name].shape, change.dtype, splits=tape.tensors[name].splits)
        made = replace(whole, name=f'c:{name}')
        tape.tensors |= {whole.name: whole, made.name: made}
        changes.append(made)
        gathers = tuple(_gathers(tape, whole, name, sides[name], shard.stage))
        full = gathers[-1].writes[0] if gathers else whole.name
        ops += [*gathers, _change(tape, made, full, sides[name], shard.stage)]
    share = replace(change, name=f'c:{shard.parameter}.share', members=tuple(made.name for made in changes))
    tape.tensors[share.name] = share
    told: dict[str, Attribute] = {'dim': 0}
    gather = OpClass(
        name=f'{shard.parameter}.change.{split.partition}.all_gather.U',
        kind='collective',
        operator='all_gather',
        phase='U',
        bytes=float(change.shape[0] * BYTES[change.dtype]),
        dtype=change.dtype,
        partition=split.partition,
        reads=(change.name,),
        writes=change.members,
        frees=(change.name,),
        attributes=told,
        stage=shard.stage,
    )
    pack = OpClass(
        name=f'{shard.parameter}.change.piece.U',
        kind='compute',
        operator='piece',
        phase='U',
        dtype=change.dtype,
        reads=share.members,
        writes=(share.name,),
        frees=share.members,
        attributes={**told, 'partition': split.partition},
        stage=shard.stage,
    )
    return gather, *ops, pack


def _change(tape: Tape, made: Tensor, full: str, sides: Sides, stage: int) -> OpClass:
    """Newton–Schulz of the full matrix, of which a rank keeps what it has of the weight."""
    return OpClass(
        name=f'{made.name}.U',
        kind='compute',
        operator='muon_change',
        phase='U',
        reads=(full,),
        writes=(made.name,),
        frees=(full,),
        stage=stage,
        attributes=_told(sides, made),
        **_work(tape, full, sides, 0.0),
    )


def _step(
    tape: Tape, shard: UpdateShard, change: str, masters: tuple[str, ...], workload: Workload, optimizer: Muon
) -> OpClass:
    """A packed shard changes as was worked out."""
    weight = shard.weight
    numbers = (OVERFLOW,) if workload.loss_scale != 1 else ()
    elements = local_elements(tape, weight)
    return OpClass(
        name=f'{shard.parameter}.update.U',
        kind='compute',
        operator='muon_step',
        phase='U',
        flops=float(elements * 3),
        bytes=float(elements * (_written(weight, masters) + BYTES[tape.tensors[change].dtype])),
        dtype=tape.dtype,
        reads=(change, weight.name, *masters, *numbers),
        writes=(weight.name, *masters),
        frees=(change,),
        attributes=_rates(optimizer, masters, workload),
        stage=shard.stage,
    )


def _update(
    tape: Tape, shard: UpdateShard, full: str, sides: Sides, masters: tuple[str, ...], workload: Workload,
    optimizer: Muon,
) -> OpClass:  # fmt: skip
    """Newton–Schulz of the full matrix; the shard that this rank has of it changes the weight."""
    weight = shard.weight
    numbers = (OVERFLOW,) if workload.loss_scale != 1 else ()
    return OpClass(
        name=f'{shard.parameter}.update.U',
        kind='compute',
        operator='muon',
        phase='U',
        reads=(full, weight.name, *masters, *numbers),
        writes=(weight.name, *masters),
        frees=(full,),
        attributes={**_rates(optimizer, masters, workload), **_told(sides, weight)},
        stage=shard.stage,
        **_work(tape, full, sides, float(local_elements(tape, weight) * _written(weight, masters))),
    )


class _Work(TypedDict):
    """What Newton–Schulz takes."""

    dims: dict[str, int]
    flops: float
    bytes: float
    dtype: str


def _work(tape: Tape, full: str, sides: Sides, written: float) -> _Work:
    """Of all matrices that a rank has.

    Arguments: ``written``, bytes beside the iterations. A = X·Xᵀ, A·A and the product of their sum with X are counted;
    what is done element by element is not.
    """
    tensor = tape.tensors[full]
    shape = local_shape(tape, tensor)
    ends = sides.many, sum(sides)
    count, *both = prod(shape[: ends[0]]), prod(shape[ends[0] : ends[1]]), prod(shape[ends[1] :])
    short, long = min(both), max(both)
    times = ITERATIONS * count
    return {
        'dims': {'short': short, 'long': long, 'iterations': times},
        'flops': float(times * (4 * short**2 * long + 2 * short**3)),
        'bytes': float(times * BYTES[tensor.dtype] * (4 * short * long + 5 * short**2) + written),
        'dtype': tensor.dtype,
    }


def _told(sides: Sides, weight: Tensor) -> dict[str, Attribute]:
    """What kernels must know of a matrix, and which part of it a rank has."""
    splits = sides.within(weight)
    return {
        'rows': sides.rows,
        **({'many': sides.many} if sides.many else {}),
        'iterations': ITERATIONS,
        'splits': ' '.join(str(split.dim) for split in splits),
        'partitions': ' '.join(split.partition for split in splits),
    }


def _rates(optimizer: Muon, masters: tuple[str, ...], workload: Workload) -> dict[str, Attribute]:
    """What kernels must know of the rule."""
    return {
        'learning_rate': optimizer.learning_rate,
        'weight_decay': optimizer.weight_decay,
        **({'master_weights': True} if masters else {}),
        **({'loss_scale': workload.loss_scale} if workload.loss_scale != 1 else {}),
    }


def _written(weight: Tensor, masters: tuple[str, ...]) -> int:
    """Bytes an element: without masters the weight is read and written, with them written and the master both."""
    return BYTES[weight.dtype] * (1 if masters else 2) + 2 * BYTES['fp32'] * len(masters)
