"""Optimizer parallelism: states, gradients and weights are cut over the data ranks (ZeRO, Rajbhandari et al. 2020).

Whatever is cut, an update works on pieces alone. The piece of a gradient has the gradient's name, its whole is
``NAME.whole``; cut weights have the parameter's name, what is gathered of them is ``NAME.gathered``; of a weight that
stays whole, ``NAME.piece`` is the part that this rank updates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from simpar.lower.pieces import local_elements
from simpar.lower.tape import Tape
from simpar.plan import Plan
from simpar.program import Cut, OpClass, Tensor
from simpar.program.op import Attribute
from simpar.program.tensor import BYTES

Gather = Literal['after-update', 'on-use', 'on-use-twice']
Part = Literal['state', 'gradients', 'weights']
LEVELS: Final[dict[str, tuple[tuple[Part, ...], Gather]]] = {
    'level1': (('state', 'weights'), 'on-use'),
    'level2': (('state', 'gradients', 'weights'), 'on-use'),
    'level3': (('state', 'gradients', 'weights'), 'on-use-twice'),
}
"""MindSpore's levels: from the first on, weights are cut."""
STAGES: Final[dict[int, tuple[tuple[Part, ...], Gather]]] = {
    1: (('state',), 'after-update'),
    2: (('state', 'gradients'), 'after-update'),
    3: (('state', 'gradients', 'weights'), 'on-use-twice'),
}
"""ZeRO's stages."""
THRESHOLD: Final = 64 * 1024
"""Bytes below which MindSpore leaves a parameter whole, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a plan cuts, with its presets worked out.

    Arguments: ``threshold`` in bytes; ``sharded``: gradients are reduce-scattered every micro-batch.
    """

    parts: frozenset[Part] = frozenset()
    gather: Gather = 'after-update'
    threshold: float = 0.0
    unsharded: tuple[str, ...] = ()
    sharded: bool = False


class Conflict(NamedTuple):
    """A key of a plan that does not fit the others."""

    key: str
    what: str
    instead: str


def choice_of(plan: Plan) -> Choice:
    """What the keys of a plan come to."""
    parts, gather = _preset(plan) or (plan.shard, plan.gather)
    threshold = THRESHOLD if plan.hsdp != 'off' else 0.0
    return Choice(
        parts=frozenset(parts),
        gather=gather or ('on-use' if 'weights' in parts else 'after-update'),
        threshold=threshold if plan.shard_threshold is None else plan.shard_threshold,
        unsharded=plan.unsharded,
        sharded=plan.accumulate == 'sharded' if plan.accumulate else 'gradients' in parts,
    )


def conflicts(plan: Plan) -> Iterator[Conflict]:
    """What does not fit together between the keys of a plan."""
    preset = _preset(plan)
    if plan.hsdp != 'off' and plan.zero and LEVELS[plan.hsdp] != STAGES[plan.zero]:
        yield Conflict('zero', f'zero {plan.zero} cuts otherwise than hsdp {plan.hsdp}', 'write one of both')
    if preset is not None:
        name = f'hsdp {plan.hsdp}' if plan.hsdp != 'off' else f'zero {plan.zero}'
        if plan.shard and set(plan.shard) != set(preset[0]):
            yield Conflict('shard', f'{name} cuts {", ".join(preset[0])}', 'leave it out')
        if plan.gather and plan.gather != preset[1]:
            yield Conflict('gather', f'{name} gathers {preset[1]}', 'leave it out')
        return
    if plan.shard and 'state' not in plan.shard:
        yield Conflict('shard', f'{" and ".join(plan.shard)} cut, but no state', 'add state')
    if plan.shard and plan.gather and (plan.gather == 'after-update') == ('weights' in plan.shard):
        there = 'are cut' if 'weights' in plan.shard else 'stay whole'
        other = 'on-use' if 'weights' in plan.shard else 'after-update'
        yield Conflict('gather', f'weights {there}, which cannot be gathered {plan.gather}', f'write {other}')


def _preset(plan: Plan) -> tuple[tuple[Part, ...], Gather] | None:
    return LEVELS.get(plan.hsdp) or STAGES.get(plan.zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One parameter that is cut.

    Arguments: ``weight`` and ``gradient``, the pieces that the update works on; ``whole``, the gradient that W adds to;
    ``gathered``, the weight that operators read; ``dim``, cut last, over ``partition``, the shard groups; ``replica``,
    over whose ranks pieces are repeated.
    """

    parameter: str
    weight: Tensor
    gradient: Tensor
    whole: Tensor
    gathered: str
    dim: int
    partition: str
    replica: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """All that is cut.

    Arguments: ``of``, by parameter.
    """

    choice: Choice
    of: Mapping[str, Shard] = field(default_factory=dict)

    @property
    def gathers_on_use(self) -> bool:
        """Whether operators read gathered weights."""
        return 'weights' in self.choice.parts

    def by_partition(self, parameters: Iterable[str]) -> dict[str, list[str]]:
        """Those of the parameters that are cut, by their shard groups; only these travel together."""
        found: dict[str, list[str]] = {}
        for name in parameters:
            if name in self.of:
                found.setdefault(self.of[name].partition, []).append(name)
        return found

    @property
    def pieces(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Weight and gradient that the update of each parameter works on."""
        return {name: (shard.weight, shard.gradient) for name, shard in self.of.items()}

    def held(self, accumulated: Iterable[str]) -> set[str]:
        """The gradients that a rank has when its sums are done, of those that its ops add to."""
        pieces = {shard.whole.name: shard.gradient.name for shard in self.of.values()}
        return {pieces.get(name, name) for name in accumulated}


def shard(tape: Tape, plan: Plan) -> Shards:
    """Cut what a plan wants cut: replaces tensors of the tape, and what its ops read and add to.

    Parameters that are too small, named by the plan or not divisible stay whole; the last with a note.
    """
    choice = choice_of(plan)
    if not choice.parts:
        return Shards(choice=choice)
    parameters = [t for t in tape.tensors.values() if t.kind == 'parameter' and _wanted(tape, t, choice)]
    groups = {tensor.name: tape.sharding(tensor.name) for tensor in parameters}
    wanted = [tensor for tensor in parameters if groups[tensor.name][0]]
    sizes = {tensor.name: tape.partitions[groups[tensor.name][0]].size for tensor in wanted}
    dims = {tensor.name: _dim(_local(tape, tensor), sizes[tensor.name]) for tensor in wanted}
    tape.notes += _whole([tensor for tensor in wanted if dims[tensor.name] is None], sizes, tape)
    weights = 'weights' in choice.parts
    of = {
        tensor.name: _cut(tape, tensor, dim, groups[tensor.name], weights=weights)
        for tensor in wanted
        if (dim := dims[tensor.name]) is not None
    }
    shards = Shards(choice=choice, of=of)
    reads = {name: shard.gathered for name, shard in of.items() if shard.gathered != name}
    adds = {shard.gradient.name: shard.whole.name for shard in of.values()}
    tape.ops[:] = [_renamed(op, reads, adds) for op in tape.ops]
    return shards


def _wanted(tape: Tape, tensor: Tensor, choice: Choice) -> bool:
    size = local_elements(tape, tensor) * BYTES[tensor.dtype]
    return size >= choice.threshold and not any(fnmatchcase(tensor.name, pattern) for pattern in choice.unsharded)


def _local(tape: Tape, tensor: Tensor) -> tuple[int, ...]:
    """The shape that a tensor rank has."""
    local = list(tensor.shape)
    for cut in tensor.cuts:
        local[cut.dim] //= tape.partitions[cut.partition].size
    return tuple(local)


def _dim(local: tuple[int, ...], size: int) -> int | None:
    """The dim to cut: the first; where a weight has more than two, whose first are its outputs, any that divides."""
    dims = range(len(local)) if len(local) > 2 else range(1)
    return next((dim for dim in dims if local[dim] % size == 0), None)


def _whole(tensors: Sequence[Tensor], sizes: Mapping[str, int], tape: Tape) -> Iterator[str]:
    """A note for what cannot be cut; one for all layers that are alike. Arguments: ``sizes`` of shard groups."""
    alike: dict[tuple[str, tuple[int, ...], int], list[str]] = {}
    for tensor in tensors:
        key = (re.sub(r'\d+', '*', tensor.name), _local(tape, tensor), sizes[tensor.name])
        alike.setdefault(key, []).append(tensor.name)
    for (pattern, local, size), names in alike.items():
        who = f'{names[0]} stays' if len(names) == 1 else f'{pattern} ({len(names)} of them) stay'
        has = ' × '.join(map(str, local)) if len(local) > 2 else f'{local[0]} rows'
        yield f'{who} whole on every data rank: {has} are not divisible by a shard group of {size}'


def _cut(tape: Tape, tensor: Tensor, dim: int, groups: tuple[str, str], *, weights: bool) -> Shard:
    """Register a parameter's pieces and wholes. Arguments: ``groups``, as the tape's ``sharding`` gives them."""
    partition, replica = groups
    cut = (Cut(dim, partition),)
    gradient = tape.tensors[f'd:{tensor.name}']
    whole = replace(gradient, name=f'{gradient.name}.whole')
    piece = replace(gradient, cuts=gradient.cuts + cut)
    if weights:
        weight = replace(tensor, cuts=tensor.cuts + cut)
        gathered = replace(tensor, name=f'{tensor.name}.gathered', kind='gathered', initial='', like=tensor.name)
    else:
        weight = replace(
            tensor, name=f'{tensor.name}.piece', kind='view', cuts=tensor.cuts + cut, initial='', like=tensor.name
        )
        gathered = tensor
    for made in (whole, piece, weight, gathered):
        tape.tensors[made.name] = made
    return Shard(
        parameter=tensor.name,
        weight=weight,
        gradient=piece,
        whole=whole,
        gathered=gathered.name,
        dim=dim,
        partition=partition,
        replica=replica,
    )


def _renamed(op: OpClass, reads: Mapping[str, str], adds: Mapping[str, str]) -> OpClass:
    if op.phase == 'U' or (reads.keys().isdisjoint(op.reads) and adds.keys().isdisjoint(op.accumulates)):
        return op
    return replace(
        op,
        reads=tuple(reads.get(name, name) for name in op.reads),
        accumulates=tuple(adds.get(name, name) for name in op.accumulates),
    )


def message_size(tape: Tape, plan: Plan, shards: Shards, parameter: str) -> float:
    """Bytes that fusion by size counts: a whole gradient or weight; with MindSpore's levels what it counts, the piece.

    Whole as far as the tensor ranks have it.
    """
    size = size_of(tape, [tape.tensors[f'd:{parameter}']])
    if parameter not in shards.of or plan.hsdp != 'off':
        return size
    return size_of(tape, [shards.of[parameter].whole])


def cut_dims(shards: Sequence[Shard]) -> dict[str, Attribute]:
    """The dims that a message cuts its tensors along: one number, or where they differ one for each in a text."""
    found = [shard.dim for shard in shards]
    return {'dim': found[0] if len(set(found)) == 1 else ' '.join(map(str, found))}


def size_of(tape: Tape, tensors: Sequence[Tensor]) -> float:
    """Bytes of what one rank holds of tensors."""
    return float(sum(local_elements(tape, tensor) * BYTES[tensor.dtype] for tensor in tensors))
