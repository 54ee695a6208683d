"""Sharding of parameters: which are sharded, in which form, and the tensors that this puts on the tape.

``dim`` shards a parameter into equal slices of one dim; what does not divide stays full. The other two forms divide
everything, for they pad: ``padded`` each parameter's rows, ``flat`` the parameters of a message in one buffer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from simpar.lower.fusion import fuse
from simpar.lower.optimizer_parallel import Choice, Shard, Shards, choice_of, size_of
from simpar.lower.packed import flat_shard, output_dims, padded_shard
from simpar.lower.shard_groups import sharding
from simpar.lower.tape import Tape
from simpar.lower.update_shards import local_elements, local_shape
from simpar.plan import Plan
from simpar.program import OpClass, Split, Tensor
from simpar.program.tensor import BYTES, TensorKind


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parameter that the plan wants sharded.

    Arguments:
        groups: as ``sharding`` gives them.
        size: ranks of a shard group.
        dim: the dim that ``size`` divides; None: it divides none.
    """

    tensor: Tensor
    groups: tuple[str, str]
    size: int
    dim: int | None


def shard(
    tape: Tape,
    plan: Plan,
    ids: Callable[[], Mapping[str, int]],
    wanted: Mapping[str, Wanted],
    *,
    apart: Collection[str] = (),
) -> Shards:
    """Shard what a plan wants sharded: replaces tensors of the tape, and what its ops read and add to.

    Parameters that are too small or named by the plan stay full; with ``dim`` also those that do not divide, with a
    note. Arguments: ``ids`` of layers, asked for only where fusion decides; ``wanted``, as ``wanted_of`` gives it;
    ``apart``, parameters with an update of their own: none shares a flat message with others, as no group of parameters
    does in DeepSpeed.
    """
    choice = choice_of(plan)
    if not choice.parts:
        return Shards(choice=choice)
    # Told before anything is made: with ``padded`` and ``flat`` one uneven member decides for its message.
    uneven = {name for name, one in wanted.items() if one.dim is None}
    made: dict[str, Shard] = {}
    if choice.form != 'dim' and (choice.everywhere or uneven):
        outputs = output_dims(tape)
        for bucket, names in _messages(tape, plan, ids(), wanted, apart):
            # A preset takes its system's form where a message needs it: where all divides, both send the same bytes.
            if choice.everywhere or not uneven.isdisjoint(names):
                made |= _packed(tape, choice, bucket, [wanted[name] for name in names], outputs)
    tape.notes += _full([wanted[name] for name in wanted if name in uneven - made.keys()], tape)
    for name, one in wanted.items():
        if name not in made and name not in uneven:
            made[name] = _by_dim(tape, one, weights='weights' in choice.parts)
    shards = Shards(choice=choice, of={name: made[name] for name in wanted if name in made})
    _rename(tape, shards)
    return shards


def wanted_of(tape: Tape, plan: Plan) -> dict[str, Wanted]:
    """The parameters that a plan wants sharded, by name."""
    choice = choice_of(plan)
    return {one.tensor.name: one for one in _all_wanted(tape, choice)} if choice.parts else {}


def _all_wanted(tape: Tape, choice: Choice) -> Iterator[Wanted]:
    for tensor in list(tape.tensors.values()):
        # What has no gradient is a constant.
        trained = tensor.kind == 'parameter' and f'd:{tensor.name}' in tape.tensors
        if trained and _is_wanted(tape, tensor, choice):
            groups = sharding(tape, tensor.name)
            if groups[0]:
                size = tape.partitions[groups[0]].size
                yield Wanted(tensor, groups, size, _dim(local_shape(tape, tensor), size))


def _is_wanted(tape: Tape, tensor: Tensor, choice: Choice) -> bool:
    if choice.threshold and local_elements(tape, tensor) * BYTES[tensor.dtype] < choice.threshold:
        return False
    return not choice.unsharded or not any(fnmatchcase(tensor.name, pattern) for pattern in choice.unsharded)


def _dim(local: tuple[int, ...], size: int) -> int | None:
    """The dim to shard: the first; where a weight has more than two, whose first are its outputs, any that divides."""
    # The first dim, as MindSpore and FSDP shard; queries, keys and values by heads have several that are outputs.
    dims = range(len(local)) if len(local) > 2 else range(1)
    return next((dim for dim in dims if local[dim] % size == 0), None)


def _full(wanted: Sequence[Wanted], tape: Tape) -> Iterator[str]:
    """A note for what cannot be sharded; one for all layers that are alike."""
    alike: dict[tuple[str, tuple[int, ...], int], list[str]] = {}
    for one in wanted:
        key = (re.sub(r'\d+', '*', one.tensor.name), local_shape(tape, one.tensor), one.size)
        alike.setdefault(key, []).append(one.tensor.name)
    for (pattern, local, size), names in alike.items():
        who = f'{names[0]} stays' if len(names) == 1 else f'{pattern} ({len(names)} of them) stay'
        has = ' × '.join(map(str, local)) if len(local) > 2 else f'{local[0]} rows'
        yield f'{who} unsharded on every data rank: {has} are not divisible by a shard group of {size}'


def _messages(
    tape: Tape, plan: Plan, ids: Mapping[str, int], wanted: Mapping[str, Wanted], apart: Collection[str]
) -> Iterator[tuple[str, list[str]]]:
    """Parameters that are reduced and gathered as one message, as far as the plan fuses them, by its name.

    They belong to one stage and are sharded over the same groups. What two stages use is a message of its own, for
    both hold it.
    """
    stages: dict[str, set[int]] = {}
    for op in tape.ops:
        for name in op.accumulates:
            stages.setdefault(tape.tensors[name].like, set()).add(op.stage)
    found: dict[tuple[int, str, str, bool], list[str]] = {}
    for name, one in wanted.items():
        alone = name if len(stages[name]) > 1 else ''
        # One message has one group of ranks, is ready in one stage, and is updated by one rule.
        found.setdefault((min(stages[name]), one.groups[0], alone, name in apart), []).append(name)
    # Fusion by size counts gradients, which may be wider than weights.
    size = {name: size_of(tape, [tape.tensors[f'd:{name}']]) for name in wanted}
    several = tape.mesh.stages > 1
    for (stage, _, alone, of_own), names in found.items():
        # Not the names of other messages: those are counted without regard to what is used in two stages.
        scope = f'stage{stage}.packed.' if several else 'packed.'
        for bucket, members in fuse(names, size, plan, ids, scope).items():
            yield alone or (f'{bucket}.apart' if of_own else bucket), members


def _packed(
    tape: Tape, choice: Choice, bucket: str, wanted: Sequence[Wanted], outputs: Mapping[str, int]
) -> dict[str, Shard]:
    weights = 'weights' in choice.parts
    tensors, groups = [one.tensor for one in wanted], wanted[0].groups
    if choice.form == 'padded':
        return {
            tensor.name: padded_shard(tape, tensor, groups, outputs.get(tensor.name, 1), weights=weights)
            for tensor in tensors
        }
    flat = flat_shard(tape, bucket, tensors, groups, weights=weights)
    return dict.fromkeys(flat.parameters, flat)


def _by_dim(tape: Tape, wanted: Wanted, *, weights: bool) -> Shard:
    """Register a parameter's equal shards and what is full of it."""
    tensor, name, (partition, replica) = wanted.tensor, wanted.tensor.name, wanted.groups
    assert wanted.dim is not None
    split = (Split(wanted.dim, partition),)
    gradient = tape.tensors[f'd:{name}']
    full = _other(gradient, f'{gradient.name}.whole', 'gradient', initial=gradient.initial, like=gradient.like)
    sharded = _other(gradient, gradient.name, 'gradient', split, initial=gradient.initial, like=gradient.like)
    if weights:
        weight = _other(tensor, name, 'parameter', split, initial=tensor.initial, like=tensor.like)
        gathered = _other(tensor, f'{name}.gathered', 'gathered', like=name)
    else:
        weight = _other(tensor, f'{name}.piece', 'view', split, like=name)
        gathered = tensor
    for made in (full, sharded, weight, gathered):
        tape.tensors[made.name] = made
    return Shard(
        parameters=(name,),
        weight=weight,
        gradient=sharded,
        fulls=(full,),
        gathered=(gathered.name,),
        dim=wanted.dim,
        partition=partition,
        replica=replica,
    )


def _other(
    one: Tensor, name: str, kind: TensorKind, split: tuple[Split, ...] = (), *, initial: str = '', like: str = ''
) -> Tensor:
    """A tensor as another one lies, split once more."""
    # ``replace`` takes twice as long, and every parameter has four of these.
    return Tensor(
        name, kind, one.shape, one.dtype, one.splits + split, one.partial, one.batch_dim, initial, like, one.members,
        one.fill,
    )  # fmt: skip


def _rename(tape: Tape, shards: Shards) -> None:
    """Have ops read what is gathered, and add to full gradients."""
    reads: dict[str, str] = {}
    adds: dict[str, str] = {}
    for one in shards.all:
        for name, full, gathered in zip(one.parameters, one.fulls, one.gathered, strict=True):
            adds[f'd:{name}'] = full.name
            if gathered != name:
                reads[name] = gathered
    # In place: others hold the list.
    tape.ops[:] = [_renamed(op, reads, adds) for op in tape.ops]


def _renamed(op: OpClass, reads: Mapping[str, str], adds: Mapping[str, str]) -> OpClass:
    if op.phase == 'U' or (reads.keys().isdisjoint(op.reads) and adds.keys().isdisjoint(op.accumulates)):
        return op
    return OpClass(
        op.name, op.kind, op.operator, op.phase, op.dims, op.flops, op.bytes, op.dtype, op.partition, op.peer,
        op.reduce, tuple([reads.get(name, name) for name in op.reads]), op.writes,
        tuple([adds.get(name, name) for name in op.accumulates]), op.frees, op.attributes, op.stage,
    )  # fmt: skip
